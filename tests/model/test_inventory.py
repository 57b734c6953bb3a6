from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cards import Card
from agent.model.deviceobject import decode, encode
from agent.model.devices import Condition, Device, DeviceTopology, VfGroup, VirtualFunction
from agent.model.fpga import AcceleratorPort, Fpga, FpgaDriver
from agent.model.inventory import Found, Inventory, Published, inventory
from agent.model.pci import Function
from agent.model.rdma import Link, Port, RdmaDevice, RdmaFunction

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
SWITCH = ("0000:17:00.0", "0000:18:00.0", "0000:19:04.0")


def function(bus: str, **others: object) -> Function:
    facts = {"root": "pci0000:17", "bridges": SWITCH, "node": 1, "socket": 0} | others
    return Function(f"0000:{bus}", **facts)  # type: ignore[arg-type]


def gpu_function(bus: str, driver: str = "nvidia", **others: object) -> Function:
    return function(bus, vendor=0x10DE, class_code=0x030200, driver=driver, **others)


def card(number: int, bus: str, **others: object) -> Card:
    facts = {"memory_bytes": 80 << 30} | others
    return Card(f"GPU-{number}", number, f"00000000:{bus.upper()}", **facts)  # type: ignore[arg-type]


def nic(bus: str, *states: str, name: str = "mlx5_0", **others: object) -> RdmaDevice:
    ports = tuple(Port(n, state, link_layer="InfiniBand") for n, state in enumerate(states, 1))
    return RdmaDevice(RdmaFunction(function(bus, **others), (Link(name, ports=ports),)))


def by_address(*functions: Function) -> dict[str, Function]:
    return {each.address: each for each in functions}


def again(found: Found, before: Inventory, now: str = LATER, **others: object) -> Inventory:
    """What a later look makes of it, by way of the published object."""
    published = Published(decode(encode("node", before.devices)), before.gone)
    return inventory(found, published, now, **others)  # type: ignore[arg-type]


def ids(found: Inventory) -> list[tuple[str, str, int, bool]]:
    return [(each.type, each.uuid, each.minor, each.healthy) for each in found.devices]


def test_a_card_with_its_place() -> None:
    found = Found(
        by_address(gpu_function("3b:00.0")),
        (card(2, "3b:00.0", module=4, labels={"a": "b"}),),
    )
    assert inventory(found, Published(), NOW) == Inventory(
        (
            Device(
                "gpu",
                "GPU-2",
                2,
                {
                    "koordinator.sh/gpu-core": 100,
                    "koordinator.sh/gpu-memory": 80 << 30,
                    "koordinator.sh/gpu-memory-ratio": 100,
                },
                module=4,
                topology=DeviceTopology(0, 1, "0000:18:00.0", "0000:3b:00.0"),
                conditions=(
                    Condition("Healthy", "True", "DeviceHealthy", "device is healthy", NOW),
                ),
                labels={"a": "b"},
            ),
        ),
        {},
    )


def test_a_card_and_an_adapter_below_one_switch_say_so() -> None:
    found = Found(
        by_address(gpu_function("3b:00.0")), (card(0, "3b:00.0"),), (nic("3c:00.0", "ACTIVE"),)
    )
    gpu, rdma = inventory(found, Published(), NOW).devices
    assert gpu.topology
    assert rdma.topology
    assert gpu.topology.pcie == rdma.topology.pcie == "0000:18:00.0"


def test_a_card_that_sysfs_does_not_show_has_no_neighbours() -> None:
    (device,) = inventory(Found(cards=(card(0, "3b:00.0"),)), Published(), NOW).devices
    assert device.topology == DeviceTopology(-1, -1, "0000:3b:00.0", "0000:3b:00.0")


def test_a_divided_card_lists_zeros() -> None:
    """What is not listed counts as without limit for schedulers."""
    found = inventory(Found(cards=(card(0, "3b:00.0", divided=True),)), Published(), NOW)
    (device,) = found.devices
    assert set(device.resources.values()) == {0}
    assert len(device.resources) == 3
    assert device.labels == {"topolet.io/mig": "true"}


def test_an_ill_card_says_since_when() -> None:
    functions = by_address(gpu_function("3b:00.0"))
    well = inventory(Found(functions, (card(0, "3b:00.0"),)), Published(), NOW)
    fallen = Found(functions, (card(0, "3b:00.0", ill=("XID79", "fell off the bus")),))
    ill = again(fallen, well)
    assert ids(ill) == [("gpu", "GPU-0", 0, False)]
    condition = Condition("Healthy", "False", "XID79", "fell off the bus", LATER)
    assert ill.devices[0].conditions == (condition,)
    still = again(fallen, ill, "2026-01-03T00:00:00Z")
    assert still == ill


def test_a_card_that_only_pci_shows_stays_ill() -> None:
    functions = by_address(gpu_function("3b:00.0"), gpu_function("5c:00.0"))
    both = inventory(Found(functions, (card(0, "3b:00.0"), card(1, "5c:00.0"))), Published(), NOW)
    one = again(Found(functions, (card(1, "5c:00.0"),)), both)
    assert ids(one) == [("gpu", "GPU-0", 0, False), ("gpu", "GPU-1", 1, True)]
    assert one.devices[0].conditions[0].reason == "NotSeenByDriver"
    none = again(Found(functions), one)
    assert ids(none) == [("gpu", "GPU-0", 0, False), ("gpu", "GPU-1", 1, False)]
    back = again(Found(functions, (card(0, "3b:00.0"), card(1, "5c:00.0"))), none)
    assert ids(back) == [("gpu", "GPU-0", 0, True), ("gpu", "GPU-1", 1, True)]


@pytest.mark.parametrize(
    ("bus", "problems"),
    [
        (gpu_function("3b:00.0"), ("GPU at 0000:3b:00.0: its driver does not tell of it",)),
        (gpu_function("3b:00.0", ""), ("GPU at 0000:3b:00.0: its driver does not tell of it",)),
        (gpu_function("3b:00.0", "vfio-pci"), ()),
        (gpu_function("3b:00.4", physical="0000:3b:00.0"), ()),
        (function("3b:00.1", vendor=0x10DE, class_code=0x040300), ()),
        (function("3b:00.0", vendor=0x1002, class_code=0x030000), ()),
        (function("3b:00.0"), ()),
    ],
)
def test_which_functions_the_driver_should_tell_of(
    bus: Function, problems: tuple[str, ...]
) -> None:
    assert inventory(Found(by_address(bus)), Published(), NOW) == Inventory((), {}, problems)


def test_a_card_that_a_driver_for_virtual_machines_took_is_gone() -> None:
    well = inventory(
        Found(by_address(gpu_function("3b:00.0")), (card(0, "3b:00.0"),)), Published(), NOW
    )
    gone = again(Found(by_address(gpu_function("3b:00.0", "vfio-pci"))), well)
    assert gone == Inventory((), {"gpu": {"GPU-0": 0}})


def test_cards_that_say_no_number_or_one_number_twice() -> None:
    cards = (
        Card("GPU-a", None, "00000000:01:00.0", 1),
        Card("GPU-b", 1, "00000000:02:00.0", 1),
        Card("GPU-c", 1, "00000000:03:00.0", 1),
        Card("GPU-c", 7, "00000000:04:00.0", 1),
    )
    found = inventory(Found(cards=cards), Published(), NOW)
    assert found.problems == ("GPU GPU-c: two cards have this UUID",)
    assert {each.uuid for each in found.devices} == {"GPU-a", "GPU-b", "GPU-c"}
    assert len({each.minor for each in found.devices}) == 3


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
    (device,) = inventory(Found(rdma=(nic("1a:00.0", *states),)), Published(), NOW).devices
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
    port = Port(1, "ACTIVE", link_layer="InfiniBand")
    rdma = RdmaDevice(RdmaFunction(physical, (Link("ibp26s0", ports=(port,)),)), virtual)
    (device,) = inventory(Found(rdma=(rdma,)), Published(), NOW).devices
    assert device.labels == {"topolet.io/links": "ibp26s0", "topolet.io/link-layer": "InfiniBand"}
    assert device.vf_groups == (
        VfGroup(
            {"topolet.io/driver": "mlx5_core"},
            (VirtualFunction(0, "0000:1a:00.1"), VirtualFunction(1, "0000:1a:00.2")),
        ),
        VfGroup({"topolet.io/driver": "vfio-pci"}, (VirtualFunction(9, "0000:1a:01.2"),)),
    )


def test_numbers_of_adapters_outlive_restarts_and_neighbours() -> None:
    two = inventory(
        Found(rdma=(nic("3e:00.0", "ACTIVE"), nic("1a:00.0", "ACTIVE"))), Published(), NOW
    )
    assert ids(two) == [("rdma", "0000:1a:00.0", 0, True), ("rdma", "0000:3e:00.0", 1, True)]
    one = again(Found(rdma=(nic("3e:00.0", "ACTIVE"),)), two)
    assert ids(one) == [("rdma", "0000:3e:00.0", 1, True)]
    new = again(Found(rdma=(nic("02:00.0", "ACTIVE"), nic("3e:00.0", "ACTIVE"))), one)
    assert [each[1:3] for each in ids(new)] == [("0000:3e:00.0", 1), ("0000:02:00.0", 2)]
    assert new.gone == {"rdma": {"0000:1a:00.0": 0}}


@pytest.mark.parametrize("held", [True, False])
def test_an_adapter_whose_files_are_gone_is_in_a_pods_namespace_or_ill(held: bool) -> None:
    before = inventory(Found(rdma=(nic("1a:00.0", "ACTIVE"),)), Published(), NOW)
    found = Found(by_address(function("1a:00.0")))
    after = again(found, before, held={("rdma", "0000:1a:00.0")} if held else ())
    assert ids(after) == [("rdma", "0000:1a:00.0", 0, held)]
    if not held:
        assert after.devices[0].conditions[0].reason == "NotVisible"
    assert ids(again(Found(), after)) == [], "without a function it is gone"


def test_an_fpga_and_the_port_that_its_virtual_function_has() -> None:
    card = function("3b:00.0", virtual=((0, "0000:3b:00.1"),))
    port = function("3b:00.1", physical="0000:3b:00.0", driver="dfl-pci")
    fpgas = (
        Fpga(port, FpgaDriver.DFL, (AcceleratorPort("dfl-port.0", "ab" * 16),)),
        Fpga(card, FpgaDriver.DFL, interface_id="cd" * 16),
    )
    (device,) = inventory(Found(fpgas=fpgas), Published(), NOW).devices
    assert (device.uuid, device.minor, device.healthy) == ("0000:3b:00.0", 0, True)
    assert device.resources == {"koordinator.sh/fpga": 100}
    assert device.labels == {
        "topolet.io/function-id": "ab" * 16,
        "topolet.io/interface-id": "cd" * 16,
    }
    assert device.vf_groups[0].vfs == (VirtualFunction(0, "0000:3b:00.1"),)
    (alone,) = inventory(Found(fpgas=fpgas[1:]), Published(), NOW).devices
    assert alone.conditions[0].reason == "NoAcceleratorPort"


buses = st.lists(st.integers(1, 40), unique=True, max_size=6)


@given(buses, buses, st.randoms(use_true_random=False))
def test_the_order_of_finding_changes_nothing(
    cards: list[int], adapters: list[int], random: object
) -> None:
    functions = [gpu_function(f"{bus:02x}:00.0") for bus in cards]
    gpus = [card(number, f"{bus:02x}:00.0") for number, bus in enumerate(cards)]
    nics = [nic(f"{bus:02x}:00.1", "ACTIVE") for bus in adapters]
    straight = inventory(Found(by_address(*functions), tuple(gpus), tuple(nics)), Published(), NOW)
    for each in (functions, gpus, nics):
        random.shuffle(each)  # type: ignore[attr-defined]
    shuffled = inventory(Found(by_address(*functions), tuple(gpus), tuple(nics)), Published(), NOW)
    assert shuffled == straight
    assert decode(encode("node", straight.devices)) == straight.devices
    assert again(Found(by_address(*functions), tuple(gpus), tuple(nics)), straight) == straight
