from __future__ import annotations

from collections.abc import Collection, Set

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.device_holders.coexistence import conflicts
from agent.allocate.device_holders.grants import Carriers, of_carriers, of_device_object
from agent.allocate.device_holders.holdings import (
    ResolvedHoldings,
    functions_taken,
    of_allocation,
    resolve_holdings,
    taken,
    without_taken,
)
from agent.allocate.device_holders.names import keys, meaning
from agent.allocate.devices.allocation import allocate
from agent.allocate.devices.inventory import inventory, node_devices
from agent.allocate.devices.need import DeviceRefusal
from agent.model.devices import holding
from agent.model.devices.device_allocation import DEVICE_ALLOCATE_HINT, sum_amounts
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource, ReportedDevices
from agent.model.pod.device_request import DeviceRequest, device_request
from tests.allocate.device_holders.node import DEVICES, GPU, KEYS


def given_by_kubelet(uid: str, *names: str, resource: str = "nvidia.com/gpu") -> ReportedDevices:
    return ReportedDevices(uid, "main", resource, names, HoldingSource.CHECKPOINT)


def look(
    *found: ReportedDevices,
    allocated: dict[str, dict[str, Set[str]]] | None = None,
    present: Collection[str] | None = None,
) -> ResolvedHoldings:
    return resolve_holdings(found, KEYS, allocated or {}, present)


def whats(found: ResolvedHoldings) -> list[tuple[str, str, Form, str]]:
    return [(each.uid, each.device, each.form, each.part) for each in found.holdings]


def test_devices_from_the_kubelet() -> None:
    found = look(
        given_by_kubelet("b", "GPU-b1"),
        given_by_kubelet("a", "0000:18:00.1", resource="intel.com/sriov"),
    )
    assert whats(found) == [
        ("a", "0000:18:00.0", Form.FUNCTION, "0000:18:00.1"),
        ("b", "GPU-b1", Form.WHOLE, ""),
    ]


def test_pods_that_ended_hold_nothing() -> None:
    entries = (given_by_kubelet("a", "GPU-a1"), given_by_kubelet("b", "GPU-b1"))
    assert [each.uid for each in look(*entries, present={"b"}).holdings] == ["b"]
    assert [each.uid for each in look(*entries, present=None).holdings] == ["a", "b"]


def test_a_schedulers_allocation_overrides_the_kubelets() -> None:
    entries = (
        given_by_kubelet("a", "GPU-a1"),
        given_by_kubelet("a", "0000:18:00.1", resource="intel.com/sriov"),
        given_by_kubelet("b", "GPU-b1"),
    )
    found = look(*entries, allocated={"a": {"gpu": {"GPU-b1"}}})
    assert [(each.uid, each.type) for each in found.holdings] == [("a", "rdma"), ("b", "gpu")]


def test_devices_shown_in_a_container_count_with_the_allocation() -> None:
    """The annotation was changed later, or it could not be honoured and the plugin's choice was
    kept: the container uses the devices it shows."""
    entries = (
        given_by_kubelet("a", "GPU-b1", "GPU-a1", "MIG-x"),
        *of_carriers(
            "a", "main", Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "GPU-a1,MIG-x"),))
        ),
        *of_carriers("a", "side", Carriers(cdi_devices=("x.example/vf=0000:18:00.1",))),
        *of_carriers("a", "side", Carriers(nodes=("/dev/nvidia2",))),
    )
    found = look(*entries, allocated={"a": {"gpu": {"MIG-y"}, "rdma": {"0000:18:00.2"}}})
    assert whats(found) == [
        ("a", "GPU-a1", Form.WHOLE, ""),
        ("a", "GPU-b2", Form.INSTANCE, "MIG-x"),
        ("a", "0000:18:00.0", Form.FUNCTION, "0000:18:00.1"),
    ]
    same = {"a": {"gpu": {"GPU-a1", "MIG-x"}, "rdma": {"0000:18:00.0"}}}
    assert look(*entries, allocated=same).holdings == ()


def test_a_huge_variable_costs_neither_time_nor_log_lines() -> None:
    """Any user may write such a variable."""
    value = ",".join(["GPU-a1", *map(str, range(10, 20_000)), "GPU-" + "9" * 9_000])
    (grant,) = of_carriers("a", "main", Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", value),)))
    assert len(grant.names) <= 1024
    found = look(grant)
    (line,) = found.unproven
    assert line.startswith("pod a, main: environment: it names devices that neither the kubelet")
    assert line.endswith("(1024 in all)")
    assert len(line) < 300
    assert (found.holdings, found.problems) == ((), ())
    long = look(given_by_kubelet("a", "GPU-" + "9" * 9_000))
    assert len(long.problems[0]) < 200


def test_device_numbers_do_not_count_with_an_allocation() -> None:
    """Numbers change when a card falls off the bus, and hooks write them if a request has them."""
    named = Carriers(
        cdi_devices=("nvidia.com/gpu=gpu0", "nvidia.com/gpu=1:2", "nvidia.com/gpu=1"),
    )
    entries = of_carriers("a", "main", named)
    assert len(look(*entries).holdings) == 3
    assert look(*entries, allocated={"a": {"gpu": {"GPU-a1"}}}).holdings == ()
    assert len(look(*entries, allocated={"a": {"rdma": {"0000:18:00.0"}}}).holdings) == 3


def test_a_plugins_answer_does_not_count_as_shown_by_the_container() -> None:
    answered = Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "GPU-a1"),))
    entries = of_carriers("a", "main", answered, HoldingSource.ANSWER)
    assert whats(look(*entries)) == [("a", "GPU-a1", Form.WHOLE, "")]
    assert look(*entries, allocated={"a": {"gpu": {"GPU-b1"}}}).holdings == ()


def test_the_kubelets_replica_ids_override_the_containers_card() -> None:
    shown = Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "GPU-a1"),), nodes=("/dev/nvidia0",))
    found = look(
        *of_carriers("a", "main", shown),
        *of_carriers("b", "main", shown),
        given_by_kubelet("a", "GPU-a1::0"),
        given_by_kubelet("b", "GPU-a1::1"),
    )
    assert whats(found) == [
        ("a", "GPU-a1", Form.REPLICA, "0"),
        ("b", "GPU-a1", Form.REPLICA, "1"),
    ]
    assert conflicts(found.holdings, {}) == ()


def test_one_container_may_hold_several_parts_of_a_device() -> None:
    """All parts of one source count; a weaker source adds none."""
    shown = Carriers(nodes=("/dev/infiniband/uverbs1", "/dev/nvidia0"))
    found = look(
        *of_carriers("a", "main", shown),
        given_by_kubelet("a", "0000:18:00.1", "0000:18:00.2", resource="intel.com/sriov"),
        given_by_kubelet("a", "GPU-a1::0", "GPU-a1::1", "GPU-a1::0"),
    )
    assert whats(found) == [
        ("a", "GPU-a1", Form.REPLICA, "0"),
        ("a", "GPU-a1", Form.REPLICA, "1"),
        ("a", "0000:18:00.0", Form.FUNCTION, "0000:18:00.1"),
        ("a", "0000:18:00.0", Form.FUNCTION, "0000:18:00.2"),
    ]


def test_the_device_node_of_an_instance_is_the_cards() -> None:
    shown = Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "MIG-x"),), nodes=("/dev/nvidia2",))
    assert whats(look(*of_carriers("a", "main", shown))) == [
        ("a", "GPU-b2", Form.INSTANCE, "MIG-x")
    ]


def test_a_container_without_plugin_devices_holds_the_devices_it_shows() -> None:
    found = look(
        *of_carriers("a", "main", Carriers(cdi_devices=("nvidia.com/gpu=0",))),
        *of_carriers("b", "main", Carriers(nodes=("/dev/nvidia0", "/dev/nvidiactl"))),
        *of_carriers("c", "main", Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "all"),))),
        *of_carriers("d", "main", Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "GPU-z"),))),
    )
    assert whats(found) == [("a", "GPU-b1", Form.WHOLE, ""), ("b", "GPU-a1", Form.WHOLE, "")]
    assert found.problems == ()
    assert found.unproven == (
        "pod d, main: environment: it names devices that neither the kubelet nor the runtime gave"
        " it, which do not count: 'GPU-z' (1 in all)",
    )
    assert (
        "pod c, main: environment: 'all' sees every GPU, and none is reserved for it" in found.notes
    )


def test_a_container_that_only_names_gpus_holds_none() -> None:
    """Its author writes the environment, mounts and annotations, whether it has these cards or
    not."""
    root = "/var/run/nvidia-container-devices"
    for carriers in (
        Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "GPU-a1,GPU-b1"),)),
        Carriers(mounts=(f"{root}/GPU-a1", f"{root}/GPU-b1")),
        Carriers(annotations=(("nvidia.cdi.k8s.io/p", "nvidia.com/gpu=0,nvidia.com/gpu=1"),)),
    ):
        found = look(*of_carriers("a", "main", carriers), given_by_kubelet("b", "GPU-b2"))
        assert whats(found) == [("b", "GPU-b2", Form.WHOLE, "")]
        (line,) = found.unproven
        assert "do not count: 'GPU-" in line
        assert line.endswith("(2 in all)")
        assert found.problems == ()


def test_what_a_container_names_tells_which_part_it_has_of_what_it_was_given() -> None:
    shown = Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "GPU-a1,MIG-x,MIG-y"),))
    shows = of_carriers("a", "main", shown)
    node = Carriers(nodes=("/dev/nvidia2",))
    assert whats(look(*shows, *of_carriers("a", "main", node))) == [
        ("a", "GPU-b2", Form.INSTANCE, "MIG-x"),
        ("a", "GPU-b2", Form.INSTANCE, "MIG-y"),
    ]
    instance = look(*shows, given_by_kubelet("a", "MIG-x"))
    assert whats(instance) == [("a", "GPU-b2", Form.INSTANCE, "MIG-x")]
    assert instance.unproven[0].endswith("'GPU-a1', 'MIG-y' (2 in all)")
    for other in (
        ReportedDevices("a", "side", "nvidia.com/gpu", ("GPU-a1",), HoldingSource.CHECKPOINT),
        given_by_kubelet("b", "GPU-a1"),
    ):
        assert look(*shows, other).unproven[0].endswith("(3 in all)")


def test_claims_and_cpus() -> None:
    claim = ReportedDevices(
        "a", "main", "gpu.nvidia.com", ("gpu-1", "gpu-2-mig-9-0-1"), HoldingSource.CLAIM
    )
    cpus = Carriers(environment=(("DRA_CPUSET_5f7e", "2-3"),))
    found = look(claim, *of_carriers("b", "main", cpus))
    assert whats(found) == [
        ("a", "GPU-b1", Form.WHOLE, ""),
        ("a", "GPU-b2", Form.INSTANCE, "gpu-2-mig-9-0-1"),
    ]
    assert found.unproven == ()


def test_minor_and_uuid_of_one_card_conflict() -> None:
    """The scheduler allocated the card to one pod, and the kubelet assigned it to another."""
    whole = of_allocation("a", {("gpu", 0): dict(GPU)}, {}, DEVICES)
    found = look(given_by_kubelet("b", "GPU-a1"), allocated={"a": {"gpu": {"GPU-a1"}}})
    (conflict,) = conflicts((*whole, *found.holdings), {})
    assert (conflict.kept.uid, conflict.refused.uid) == ("a", "b")


def test_holdings_from_an_annotation() -> None:
    found = of_allocation(
        "a",
        {
            ("gpu", 0): dict(GPU),
            ("gpu", 1): {"koordinator.sh/gpu-core": 60, "koordinator.sh/gpu-memory-ratio": 100},
            ("rdma", 0): {"koordinator.sh/rdma": 1},
            ("gpu", 77): dict(GPU),
        },
        {("rdma", 0): frozenset({"0000:18:00.2"}), ("fpga", 0): frozenset({"0000:3b:00.1"})},
        DEVICES,
    )
    assert [(each.device, each.form, each.part) for each in found] == [
        ("0000:3b:00.0", Form.FUNCTION, "0000:3b:00.1"),
        ("GPU-a1", Form.WHOLE, ""),
        ("GPU-b1", Form.SHARE, ""),
        ("0000:18:00.0", Form.SHARE, ""),
        ("0000:18:00.0", Form.FUNCTION, "0000:18:00.2"),
    ]
    assert {each.source for each in found} == {HoldingSource.ALLOCATION}


def held(form: Form, kind: str, device: str, part: str = "") -> DeviceHolding:
    return DeviceHolding("a", "main", "r", kind, device, form, part)


def test_amounts_that_schedulers_count_as_used() -> None:
    holdings = (
        held(Form.WHOLE, "gpu", "GPU-a1"),
        held(Form.REPLICA, "gpu", "GPU-b1", "0"),
        held(Form.REPLICA, "gpu", "GPU-b1", "1"),
        held(Form.OPEN, "rdma", "0000:18:00.0"),
        held(Form.FUNCTION, "rdma", "0000:18:00.0", "0000:18:00.1"),
        held(Form.WHOLE, "gpu", "GPU-gone"),
    )
    assert taken(holdings, DEVICES) == {("gpu", 0): GPU, ("gpu", 1): GPU}
    assert functions_taken(holdings, DEVICES) == {("rdma", 0): {"0000:18:00.1"}}
    offered = {(each.type, each.minor): each for each in without_taken(DEVICES, holdings)}
    assert {key: sum(each.resources.values()) for key, each in offered.items()} == {
        ("gpu", 0): 0,
        ("gpu", 1): 0,
        ("gpu", 2): 200,
        ("rdma", 0): 100,
        ("fpga", 0): 100,
    }
    assert offered["gpu", 0].resources.keys() == GPU.keys(), "listed: none is without limit"
    assert [each.bus for each in offered["rdma", 0].vf_groups[0].vfs] == ["0000:18:00.2"]


def test_the_annotation_on_the_device() -> None:
    found = look(
        given_by_kubelet("a", "GPU-b1", "GPU-a1"),
        given_by_kubelet("b", "MIG-x", resource="nvidia.com/mig-1g.10gb"),
        given_by_kubelet("c", "0000:18:00.1", resource="intel.com/sriov"),
        *of_carriers("d", "main", Carriers(nodes=("/dev/infiniband/uverbs0",))),
    )
    assert holding.encode(found.holdings) == {
        "node.koordinator.sh/devices-checkpoints": "["
        '{"podUID":"a","containerName":"main","resourceName":"nvidia.com/gpu",'
        '"deviceIDs":["GPU-a1","GPU-b1"]},'
        '{"podUID":"b","containerName":"main","resourceName":"nvidia.com/mig-1g.10gb",'
        '"deviceIDs":["GPU-b2::MIG-x"]},'
        '{"podUID":"c","containerName":"main","resourceName":"intel.com/sriov",'
        '"deviceIDs":["0000:18:00.1"]}]'
    }


given_names = st.lists(
    st.sampled_from(
        [
            *("GPU-a1", "GPU-b1::0", "GPU-b1::1", "MIG-x", "MIG-y::0", "0", "all", "GPU-gone"),
            *("0000:18:00.0", "0000:18:00.1", "0000:18:00.2", "dfl-port.0", "/dev/nvidia1"),
            *("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"),
        ]
    ),
    max_size=4,
)
resources = st.sampled_from(["nvidia.com/gpu", "gpu.nvidia.com", "intel.com/sriov", ""])
some_grants = st.lists(
    st.builds(
        ReportedDevices,
        st.sampled_from("ab"),
        st.sampled_from(["main", "side"]),
        resources,
        given_names.map(tuple),
        st.sampled_from(
            [
                HoldingSource.CHECKPOINT,
                HoldingSource.CLAIM,
                HoldingSource.CONTAINER,
                HoldingSource.NODE,
            ]
        ),
    ),
    max_size=5,
)


@given(some_grants)
def test_a_reader_of_the_device_object_allocates_nothing_twice(
    found: list[ReportedDevices],
) -> None:
    """A scheduler has only the object, and must count as used what the node counts as held."""
    here = look(*found).holdings
    alone = keys(DEVICES)
    read = [meaning(each, alone) for each in of_device_object(holding.encode(here))]
    assert all(each.unknown == () for each in read)
    there = [holding for each in read for holding in each.holdings]
    assert taken(there, DEVICES) == taken(here, DEVICES)
    assert functions_taken(there, DEVICES) == functions_taken(here, DEVICES)


def request(amounts: dict[str, int], hint: str = "{}") -> DeviceRequest:
    asked = device_request(amounts, {DEVICE_ALLOCATE_HINT: hint})
    assert asked is not None
    return asked


ASKED = (
    request({"nvidia.com/gpu": 1}),
    request({"koordinator.sh/gpu": 10}),
    request({"koordinator.sh/fpga": 100}),
    request({"koordinator.sh/rdma": 1}, '{"rdma":{"vfSelector":{}}}'),
)


@given(some_grants, st.booleans())
def test_nothing_is_allocated_twice(found: list[ReportedDevices], annotated: bool) -> None:
    """A scheduler that reads the annotation, or only the devices, allocates until nothing is left.
    It allocates nothing that pods hold."""
    here = look(*found).holdings
    held = {each.device for each in here if each.form not in (Form.OPEN, Form.FUNCTION, Form.CPUS)}
    functions = {each.part for each in here if each.form is Form.FUNCTION}
    if annotated:
        devices = inventory(DEVICES)
        used, taken_functions = taken(here, DEVICES), functions_taken(here, DEVICES)
    else:
        devices, used, taken_functions = inventory(without_taken(DEVICES, here)), {}, {}
    for asked in ASKED:
        gone, gone_functions = dict(used), dict(taken_functions)
        for turn in range(40):
            given_now = allocate(node_devices(devices, gone, gone_functions), asked)
            if isinstance(given_now, DeviceRefusal):
                assert turn or here, "there are devices"
                break
            for kind, chosen in given_now.devices.items():
                for each in chosen:
                    assert each.uuid not in held
                    key = kind, each.minor
                    gone = sum_amounts((gone, {key: each.resources}))
                    buses = frozenset(function.bus for function in each.functions)
                    assert not buses & functions
                    gone_functions[key] = gone_functions.get(key, frozenset()) | buses
        else:
            raise AssertionError("it never ends")


@given(some_grants, st.randoms(use_true_random=False))
def test_the_order_of_grants_changes_nothing(found: list[ReportedDevices], random: object) -> None:
    straight = look(*found)
    random.shuffle(found)  # type: ignore[attr-defined]
    assert holding.encode(look(*found).holdings) == holding.encode(straight.holdings)
