from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.devices import interconnect
from agent.model.devices.device_object import (
    Condition,
    Device,
    DeviceTopology,
    VfGroup,
    VirtualFunction,
    decode,
    encode,
)
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.devices.pci import (
    AcceleratorPort,
    Fpga,
    FpgaDriver,
    Function,
    RdmaDevice,
    RdmaFunction,
    RdmaLink,
    RdmaPort,
)
from agent.model.pod.annotations import AnnotationError
from agent.node import device_listing as listing
from agent.node.device_listing import (
    GONE_MINORS,
    DeviceList,
    DiscoveredDevices,
    Published,
    decode_gone,
    device_list,
    encode_gone,
    gone_minors,
    known_minors,
    nvidia_cards,
    places,
    published,
    with_numbers,
)
from tests.model.discovered import by_address, function, gpu_function, nic

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def next_list(
    found: DiscoveredDevices, before: DeviceList, now: str = LATER, **others: object
) -> DeviceList:
    """The list after a later discovery, with the earlier list from the published object."""
    body = encode("node", before.devices, annotations=listing.encode_gone(before.gone))
    earlier, problems = published(body)
    assert problems == ()
    return device_list(found, earlier, now, **others)  # type: ignore[arg-type]


def ids(found: DeviceList) -> list[tuple[str, str, int, bool]]:
    return [(each.type, each.uuid, each.minor, each.healthy) for each in found.devices]


def gpu(minor: int, uuid: str = "") -> Device:
    condition = Condition("Healthy", "True", "DeviceHealthy", "", "2020-01-01T00:00:00Z")
    return Device("gpu", uuid or f"GPU-{minor}", minor, {}, conditions=(condition,))


def test_invalid_minors_of_removed_devices_are_reported() -> None:
    devices = (gpu(0),)
    body = encode("node", devices, annotations={listing.GONE_MINORS: "["})
    earlier, (problem,) = published(body)
    assert earlier == Published(devices)
    assert problem.startswith(f"annotation {listing.GONE_MINORS}: ")


def test_links_of_gpus_are_read_back_and_invalid_ones_are_reported() -> None:
    devices = (gpu(0), gpu(3))
    pairs = (GpuPair("GPU-0", "GPU-3", Ancestor.NODE, None, 2, 50_000),)
    encoded = interconnect.encode_links(devices, pairs)
    assert published(encode("node", devices, annotations=encoded)) == (
        Published(devices, pairs=pairs),
        (),
    )
    removed = listing.encode_gone({"rdma": {"0000:1a:00.0": 4}})
    invalid = encode("node", devices, annotations={**removed, interconnect.GPU_LINKS: "["})
    earlier, (problem,) = published(invalid)
    assert earlier == Published(devices, {"rdma": {"0000:1a:00.0": 4}})
    assert problem.startswith(f"annotation {interconnect.GPU_LINKS}: ")


def test_devices_of_types_from_other_writers_are_not_kept() -> None:
    others = Published((Device("npu", "NPU-0", 0, {}),))
    assert device_list(DiscoveredDevices(), others, NOW) == DeviceList((), {})


def test_the_minor_of_a_gpu_is_that_of_the_driver() -> None:
    before = device_list(DiscoveredDevices(gpus=(gpu(2),)), Published(), NOW)
    assert next_list(DiscoveredDevices(), before) == DeviceList((), {})
    assert ids(next_list(DiscoveredDevices(gpus=(gpu(0, "GPU-2"),)), before)) == [
        ("gpu", "GPU-2", 0, True)
    ]


def test_a_condition_has_the_time_of_its_last_transition() -> None:
    days = [f"2026-01-0{day}T00:00:00Z" for day in range(1, 6)]
    states = ["ACTIVE", "ACTIVE", "DOWN", "DOWN", "ACTIVE"]
    found = DeviceList((), {})
    transitions = []
    for day, state in zip(days, states, strict=True):
        found = next_list(DiscoveredDevices(rdma=(nic("1a:00.0", state),)), found, day)
        (condition,) = found.devices[0].conditions
        transitions.append((condition.status, condition.reason, condition.last_transition_time))
    assert transitions == [
        ("True", "DeviceHealthy", days[0]),
        ("True", "DeviceHealthy", days[0]),
        ("False", "LinkDown", days[2]),
        ("False", "LinkDown", days[2]),
        ("True", "DeviceHealthy", days[4]),
    ]


@pytest.mark.parametrize(
    ("states", "healthy", "message"),
    [
        (("ACTIVE",), True, "device is healthy"),
        (("ACTIVE", "DOWN"), True, "device is healthy"),
        (("DOWN",), False, "no port is active: mlx5_0/1"),
        (("INIT", "DOWN"), False, "no port is active: mlx5_0/1, mlx5_0/2"),
        ((), False, "no port is active: mlx5_0"),
    ],
)
def test_health_of_an_adapter(states: tuple[str, ...], healthy: bool, message: str) -> None:
    (device,) = device_list(
        DiscoveredDevices(rdma=(nic("1a:00.0", *states),)), Published(), NOW
    ).devices
    assert device.healthy is healthy
    assert device.conditions[0].message == message
    assert device.resources == {"koordinator.sh/rdma": 100}


def test_virtual_functions_are_grouped_by_their_driver() -> None:
    physical = function("1a:00.0", virtual=((0, "0000:1a:00.1"), (1, "0000:1a:00.2")))
    virtual = (
        RdmaFunction(function("1a:00.1", driver="mlx5_core"), number=0),
        RdmaFunction(function("1a:01.2", driver="vfio-pci"), number=9),
        RdmaFunction(function("1a:00.2", driver="mlx5_core"), number=1),
    )
    port = RdmaPort(1, "ACTIVE", link_layer="InfiniBand")
    rdma = RdmaDevice(RdmaFunction(physical, (RdmaLink("ibp26s0", ports=(port,)),)), virtual)
    (device,) = device_list(DiscoveredDevices(rdma=(rdma,)), Published(), NOW).devices
    assert device.labels == {"topolet.io/links": "ibp26s0", "topolet.io/link-layer": "InfiniBand"}
    assert device.vf_groups == (
        VfGroup(
            {"topolet.io/driver": "mlx5_core"},
            (VirtualFunction(0, "0000:1a:00.1"), VirtualFunction(1, "0000:1a:00.2")),
        ),
        VfGroup({"topolet.io/driver": "vfio-pci"}, (VirtualFunction(9, "0000:1a:01.2"),)),
    )


def test_minors_of_adapters_survive_restarts_and_removals() -> None:
    two = device_list(
        DiscoveredDevices(rdma=(nic("3e:00.0", "ACTIVE"), nic("1a:00.0", "ACTIVE"))),
        Published(),
        NOW,
    )
    assert ids(two) == [("rdma", "0000:1a:00.0", 0, True), ("rdma", "0000:3e:00.0", 1, True)]
    one = next_list(DiscoveredDevices(rdma=(nic("3e:00.0", "ACTIVE"),)), two)
    assert ids(one) == [("rdma", "0000:3e:00.0", 1, True)]
    new = next_list(
        DiscoveredDevices(rdma=(nic("02:00.0", "ACTIVE"), nic("3e:00.0", "ACTIVE"))), one
    )
    assert [each[1:3] for each in ids(new)] == [("0000:3e:00.0", 1), ("0000:02:00.0", 2)]
    assert new.gone == {"rdma": {"0000:1a:00.0": 0}}


@pytest.mark.parametrize("in_use", [True, False])
def test_an_adapter_without_files_is_in_the_namespace_of_a_pod_or_unhealthy(in_use: bool) -> None:
    """Even if the object lists no resources of it, because it is in use."""
    before = device_list(DiscoveredDevices(rdma=(nic("1a:00.0", "ACTIVE"),)), Published(), NOW)
    (device,) = before.devices
    before = replace(before, devices=(replace(device, resources={"koordinator.sh/rdma": 0}),))
    virtual = {"virtual": ((0, "0000:1a:00.1"), (1, "0000:1a:00.2"))}
    found = DiscoveredDevices(
        by_address(function("1a:00.0", **virtual), function("1a:00.1", driver="mlx5_core"))
    )
    after = next_list(found, before, held={("rdma", "0000:1a:00.0")} if in_use else ())
    assert ids(after) == [("rdma", "0000:1a:00.0", 0, in_use)]
    assert after.devices[0].resources == device.resources
    assert after.devices[0].labels == device.labels
    assert after.devices[0].vf_groups == (
        VfGroup({"topolet.io/driver": "mlx5_core"}, (VirtualFunction(0, "0000:1a:00.1"),)),
    )
    if not in_use:
        assert after.devices[0].conditions[0].reason == "NotVisible"
    assert ids(next_list(DiscoveredDevices(), after)) == [], "without a function it is not listed"


def test_an_fpga_and_the_port_of_its_virtual_function() -> None:
    card = function("3b:00.0", virtual=((0, "0000:3b:00.1"),))
    port = function("3b:00.1", physical="0000:3b:00.0", driver="dfl-pci")
    fpgas = (
        Fpga(port, FpgaDriver.DFL, (AcceleratorPort("dfl-port.0", "ab" * 16),)),
        Fpga(card, FpgaDriver.DFL, interface_id="cd" * 16),
    )
    (device,) = device_list(DiscoveredDevices(fpgas=fpgas), Published(), NOW).devices
    assert (device.type, device.uuid, device.minor) == ("fpga", "0000:3b:00.0", 0)
    assert device.healthy
    assert device.resources == {"koordinator.sh/fpga": 100}
    assert device.labels == {
        "topolet.io/function-id": "ab" * 16,
        "topolet.io/interface-id": "cd" * 16,
    }
    assert device.vf_groups[0].vfs == (VirtualFunction(0, "0000:3b:00.1"),)
    (alone,) = device_list(DiscoveredDevices(fpgas=fpgas[1:]), Published(), NOW).devices
    assert alone.conditions[0].reason == "NoAcceleratorPort"


buses = st.lists(st.integers(1, 40), unique=True, max_size=6)


@given(buses, buses, st.randoms(use_true_random=False))
def test_the_order_of_discovery_does_not_matter(
    cards: list[int], adapters: list[int], random: object
) -> None:
    functions = [gpu_function(f"{bus:02x}:00.0") for bus in cards]
    gpus = [gpu(number) for number in range(len(cards))]
    nics = [nic(f"{bus:02x}:00.1", "ACTIVE") for bus in adapters]

    def found() -> DiscoveredDevices:
        return DiscoveredDevices(by_address(*functions), tuple(gpus), tuple(nics))

    expected = device_list(found(), Published(), NOW)
    for each in (functions, gpus, nics):
        random.shuffle(each)  # type: ignore[attr-defined]
    assert device_list(found(), Published(), NOW) == expected
    assert decode(encode("node", expected.devices)) == expected.devices
    assert next_list(found(), expected) == expected


@pytest.mark.parametrize(
    ("ids", "before", "now"),
    [
        ("abc", {}, {"a": 0, "b": 1, "c": 2}),
        ("cab", {}, {"c": 0, "a": 1, "b": 2}),
        ("abc", {"c": 0, "a": 1}, {"a": 1, "b": 2, "c": 0}),
        ("b", {"a": 0}, {"b": 1}),
        ("ab", {"a": 5, "b": 5}, {"a": 5, "b": 0}),
        ("ab", {"a": -1, "b": 1 << 40}, {"a": 0, "b": 1}),
        ("aa", {}, {"a": 0}),
        ("", {"a": 0}, {}),
    ],
)
def test_minors(ids: str, before: dict[str, int], now: dict[str, int]) -> None:
    assert with_numbers(ids, before) == now


names = st.text("abcdefgh", max_size=6).map(lambda text: tuple(dict.fromkeys(text)))


@given(st.lists(names, max_size=8))
def test_a_device_keeps_its_minor_when_devices_are_added_and_removed(
    discoveries: list[tuple[str, ...]],
) -> None:
    """Like the agent, each step knows only what was published last."""
    devices: list[Device] = []
    annotations: dict[str, str] = {}
    minors: dict[str, int] = {}
    for ids in discoveries:
        before = known_minors(devices, decode_gone(annotations))
        numbers = with_numbers(ids, before.get("rdma", {}))
        devices = [Device("rdma", each, number, {}) for each, number in numbers.items()]
        annotations = encode_gone(gone_minors(before, devices))
        for each, number in numbers.items():
            assert minors.setdefault(each, number) == number
    assert len(set(minors.values())) == len(minors)
    assert set(minors.values()) == set(range(len(minors))), "numbers stay small"


def test_no_removed_devices_are_encoded_as_no_annotation() -> None:
    assert encode_gone(gone_minors({"rdma": {"a": 0}}, [Device("rdma", "a", 0, {})])) == {}


@pytest.mark.parametrize("text", ["[]", '{"rdma":{"a":"b"}}', "{"])
def test_an_invalid_annotation(text: str) -> None:
    with pytest.raises(AnnotationError, match=GONE_MINORS):
        decode_gone({GONE_MINORS: text})


@pytest.mark.parametrize(
    ("bus", "listed"),
    [
        (gpu_function("3b:00.0"), True),
        (gpu_function("3b:00.0", ""), True),
        (gpu_function("3b:00.0", "vfio-pci"), False),
        (gpu_function("3b:00.4", physical="0000:3b:00.0"), False),
        (function("3b:00.1", vendor=0x10DE, class_code=0x040300), False),
        (function("3b:00.0", vendor=0x1002, class_code=0x030000), False),
        (function("3b:00.0"), False),
    ],
)
def test_functions_that_the_nvidia_driver_should_list(bus: Function, listed: bool) -> None:
    assert nvidia_cards(by_address(bus)) == ((bus.address,) if listed else ())


def test_topology_of_a_function() -> None:
    adapter, card = function("1a:00.0"), gpu_function("3b:00.0")
    found = places(by_address(adapter, card))
    assert found[card.address] == DeviceTopology(0, 1, "0000:18:00.0", "0000:3b:00.0")
    assert found[adapter.address].pcie == found[card.address].pcie, "both are below one switch"
