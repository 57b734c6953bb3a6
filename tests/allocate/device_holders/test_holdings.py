from __future__ import annotations

import json
from collections.abc import Collection, Set
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.device_holders.holdings import (
    ResolvedHoldings,
    allocated_by_schedulers,
    claimed_cpus,
    conflicts,
    functions_taken,
    held_by_two_pods,
    of_allocation,
    resolve_holdings,
    taken,
    without_taken,
)
from agent.allocate.device_holders.names import keys, meaning
from agent.allocate.device_holders.reported_devices import Carriers, of_carriers, of_device_object
from agent.allocate.devices.allocation import allocate
from agent.allocate.devices.inventory import inventory, node_devices
from agent.allocate.refusal import Refusal
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices import holding
from agent.model.devices.device_allocation import DEVICE_ALLOCATE_HINT, amounts, sum_amounts
from agent.model.devices.device_request import DeviceRequest, device_request
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource, ReportedDevices
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.pods import Pod
from tests.allocate.device_holders.node import DEVICES, GPU, KEYS
from tests.builders import pod


def from_kubelet(uid: str, *names: str, resource: str = "nvidia.com/gpu") -> ReportedDevices:
    return ReportedDevices(uid, "main", resource, names, HoldingSource.CHECKPOINT)


def visible(value: str, **more: Any) -> Carriers:
    """A container with this value of NVIDIA_VISIBLE_DEVICES."""
    return Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", value),), **more)


def resolve(
    *found: ReportedDevices,
    allocated: dict[str, dict[str, Set[str]]] | None = None,
    present: Collection[str] | None = None,
) -> ResolvedHoldings:
    return resolve_holdings(found, KEYS, allocated or {}, present)


def summary(found: ResolvedHoldings) -> list[tuple[str, str, Form, str]]:
    return [(each.uid, each.device, each.form, each.part) for each in found.holdings]


def test_terminated_pods_hold_nothing() -> None:
    entries = (from_kubelet("a", "GPU-a1"), from_kubelet("b", "GPU-b1"))
    assert [each.uid for each in resolve(*entries, present={"b"}).holdings] == ["b"]
    assert [each.uid for each in resolve(*entries, present=None).holdings] == ["a", "b"]


def test_the_allocation_of_a_scheduler_overrides_that_of_the_kubelet() -> None:
    entries = (
        from_kubelet("a", "GPU-a1"),
        from_kubelet("a", "0000:18:00.1", resource="intel.com/sriov"),
        from_kubelet("b", "GPU-b1"),
    )
    found = resolve(*entries, allocated={"a": {"gpu": {"GPU-b1"}}})
    assert [(each.uid, each.type) for each in found.holdings] == [("a", "rdma"), ("b", "gpu")]


def test_devices_in_a_container_count_in_addition_to_the_allocation() -> None:
    """The annotation was changed later, or it could not be applied and the plugin's choice was
    kept: the container uses the devices in its specification."""
    entries = (
        from_kubelet("a", "GPU-b1", "GPU-a1", "MIG-x"),
        *of_carriers("a", "main", visible("GPU-a1,MIG-x")),
        *of_carriers("a", "side", Carriers(cdi_devices=("x.example/vf=0000:18:00.1",))),
        *of_carriers("a", "side", Carriers(nodes=("/dev/nvidia2",))),
    )
    found = resolve(*entries, allocated={"a": {"gpu": {"MIG-y"}, "rdma": {"0000:18:00.2"}}})
    assert summary(found) == [
        ("a", "GPU-a1", Form.WHOLE, ""),
        ("a", "GPU-b2", Form.INSTANCE, "MIG-x"),
        ("a", "0000:18:00.0", Form.FUNCTION, "0000:18:00.1"),
    ]
    same = {"a": {"gpu": {"GPU-a1", "MIG-x"}, "rdma": {"0000:18:00.0"}}}
    assert resolve(*entries, allocated=same).holdings == ()


def test_a_huge_variable_costs_neither_time_nor_log_lines() -> None:
    """Any user may set such a variable."""
    value = ",".join(["GPU-a1", *map(str, range(10, 20_000)), "GPU-" + "9" * 9_000])
    (reported,) = of_carriers("a", "main", visible(value))
    assert len(reported.names) <= 1024
    found = resolve(reported)
    (line,) = found.unproven
    assert line.startswith("pod a, main: environment: it names devices that neither the kubelet")
    assert line.endswith("(1024 in all)")
    assert len(line) < 300
    assert (found.holdings, found.problems) == ((), ())
    long = resolve(from_kubelet("a", "GPU-" + "9" * 9_000))
    assert len(long.problems[0]) < 200


def test_device_indices_are_ignored_if_there_is_an_allocation() -> None:
    """Indices change when a card is lost, and hooks write them if a request contains them."""
    numbered = Carriers(
        cdi_devices=("nvidia.com/gpu=gpu0", "nvidia.com/gpu=1:2", "nvidia.com/gpu=1"),
    )
    entries = of_carriers("a", "main", numbered)
    assert len(resolve(*entries).holdings) == 3
    assert resolve(*entries, allocated={"a": {"gpu": {"GPU-a1"}}}).holdings == ()
    assert len(resolve(*entries, allocated={"a": {"rdma": {"0000:18:00.0"}}}).holdings) == 3


def test_devices_of_an_allocate_response_do_not_override_the_allocation() -> None:
    carriers = visible("GPU-a1")
    entries = of_carriers("a", "main", carriers, HoldingSource.ANSWER)
    assert summary(resolve(*entries)) == [("a", "GPU-a1", Form.WHOLE, "")]
    assert resolve(*entries, allocated={"a": {"gpu": {"GPU-b1"}}}).holdings == ()


def test_replica_ids_of_the_kubelet_override_the_card_of_the_container() -> None:
    carriers = visible("GPU-a1", nodes=("/dev/nvidia0",))
    found = resolve(
        *of_carriers("a", "main", carriers),
        *of_carriers("b", "main", carriers),
        from_kubelet("a", "GPU-a1::0"),
        from_kubelet("b", "GPU-a1::1"),
    )
    assert summary(found) == [
        ("a", "GPU-a1", Form.REPLICA, "0"),
        ("b", "GPU-a1", Form.REPLICA, "1"),
    ]
    assert conflicts(found.holdings, {}) == ()


def test_one_container_may_hold_several_parts_of_a_device() -> None:
    """All parts of one source count; a weaker source adds none."""
    carriers = Carriers(nodes=("/dev/infiniband/uverbs1", "/dev/nvidia0"))
    found = resolve(
        *of_carriers("a", "main", carriers),
        from_kubelet("a", "0000:18:00.1", "0000:18:00.2", resource="intel.com/sriov"),
        from_kubelet("a", "GPU-a1::0", "GPU-a1::1", "GPU-a1::0"),
    )
    assert summary(found) == [
        ("a", "GPU-a1", Form.REPLICA, "0"),
        ("a", "GPU-a1", Form.REPLICA, "1"),
        ("a", "0000:18:00.0", Form.FUNCTION, "0000:18:00.1"),
        ("a", "0000:18:00.0", Form.FUNCTION, "0000:18:00.2"),
    ]


def test_the_device_node_of_a_card_counts_as_its_mig_instance() -> None:
    carriers = visible("MIG-x", nodes=("/dev/nvidia2",))
    assert summary(resolve(*of_carriers("a", "main", carriers))) == [
        ("a", "GPU-b2", Form.INSTANCE, "MIG-x")
    ]


def test_a_container_without_plugin_devices_holds_its_cdi_devices_and_device_nodes() -> None:
    found = resolve(
        *of_carriers("a", "main", Carriers(cdi_devices=("nvidia.com/gpu=0",))),
        *of_carriers("b", "main", Carriers(nodes=("/dev/nvidia0", "/dev/nvidiactl"))),
        *of_carriers("c", "main", visible("all")),
        *of_carriers("d", "main", visible("GPU-z")),
    )
    assert summary(found) == [("a", "GPU-b1", Form.WHOLE, ""), ("b", "GPU-a1", Form.WHOLE, "")]
    assert found.problems == ()
    assert found.unproven == (
        "pod d, main: environment: it names devices that neither the kubelet nor the runtime gave"
        " it, which do not count: 'GPU-z' (1 in all)",
    )
    assert (
        "pod c, main: environment: 'all' sees every GPU, and none is reserved for it" in found.notes
    )


def test_a_container_that_only_names_gpus_holds_none() -> None:
    """The pod author may set any environment, mounts and annotations, with or without these
    cards."""
    root = "/var/run/nvidia-container-devices"
    for carriers in (
        visible("GPU-a1,GPU-b1"),
        Carriers(mounts=(f"{root}/GPU-a1", f"{root}/GPU-b1")),
        Carriers(annotations=(("nvidia.cdi.k8s.io/p", "nvidia.com/gpu=0,nvidia.com/gpu=1"),)),
    ):
        found = resolve(*of_carriers("a", "main", carriers), from_kubelet("b", "GPU-b2"))
        assert summary(found) == [("b", "GPU-b2", Form.WHOLE, "")]
        (line,) = found.unproven
        assert "do not count: 'GPU-" in line
        assert line.endswith("(2 in all)")
        assert found.problems == ()


def test_names_in_a_container_identify_the_instances_of_its_card() -> None:
    carriers = visible("GPU-a1,MIG-x,MIG-y")
    environment = of_carriers("a", "main", carriers)
    node = Carriers(nodes=("/dev/nvidia2",))
    assert summary(resolve(*environment, *of_carriers("a", "main", node))) == [
        ("a", "GPU-b2", Form.INSTANCE, "MIG-x"),
        ("a", "GPU-b2", Form.INSTANCE, "MIG-y"),
    ]
    instance = resolve(*environment, from_kubelet("a", "MIG-x"))
    assert summary(instance) == [("a", "GPU-b2", Form.INSTANCE, "MIG-x")]
    assert instance.unproven[0].endswith("'GPU-a1', 'MIG-y' (2 in all)")
    for other in (
        ReportedDevices("a", "side", "nvidia.com/gpu", ("GPU-a1",), HoldingSource.CHECKPOINT),
        from_kubelet("b", "GPU-a1"),
    ):
        assert resolve(*environment, other).unproven[0].endswith("(3 in all)")


def test_claims_and_cpus() -> None:
    claim = ReportedDevices(
        "a", "main", "gpu.nvidia.com", ("gpu-1", "gpu-2-mig-9-0-1"), HoldingSource.CLAIM
    )
    cpus = Carriers(environment=(("DRA_CPUSET_5f7e", "2-3"),))
    found = resolve(claim, *of_carriers("b", "main", cpus))
    assert summary(found) == [
        ("a", "GPU-b1", Form.WHOLE, ""),
        ("a", "GPU-b2", Form.INSTANCE, "gpu-2-mig-9-0-1"),
    ]
    assert found.unproven == ()


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
        held(Form.WHOLE, "gpu", "GPU-missing"),
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
    assert offered["gpu", 0].resources.keys() == GPU.keys(), "unlisted resources would be unlimited"
    assert [each.bus for each in offered["rdma", 0].vf_groups[0].vfs] == ["0000:18:00.2"]


def test_the_annotation_on_the_device() -> None:
    found = resolve(
        from_kubelet("a", "GPU-b1", "GPU-a1"),
        from_kubelet("b", "MIG-x", resource="nvidia.com/mig-1g.10gb"),
        from_kubelet("c", "0000:18:00.1", resource="intel.com/sriov"),
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


device_names = st.lists(
    st.sampled_from(
        [
            *("GPU-a1", "GPU-b1::0", "GPU-b1::1", "MIG-x", "MIG-y::0", "0", "all", "GPU-missing"),
            *("0000:18:00.0", "0000:18:00.1", "0000:18:00.2", "dfl-port.0", "/dev/nvidia1"),
            *("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"),
        ]
    ),
    max_size=4,
)
resources = st.sampled_from(["nvidia.com/gpu", "gpu.nvidia.com", "intel.com/sriov", ""])
some_reported_devices = st.lists(
    st.builds(
        ReportedDevices,
        st.sampled_from("ab"),
        st.sampled_from(["main", "side"]),
        resources,
        device_names.map(tuple),
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


@given(some_reported_devices)
def test_a_reader_of_the_device_object_counts_the_same_devices_as_the_node(
    found: list[ReportedDevices],
) -> None:
    """A scheduler reads only the object, and must count the same devices as the node."""
    holdings_ = resolve(*found).holdings
    alone = keys(DEVICES)
    read = [meaning(each, alone) for each in of_device_object(holding.encode(holdings_))]
    assert all(each.unknown == () for each in read)
    decoded = [holding for each in read for holding in each.holdings]
    assert taken(decoded, DEVICES) == taken(holdings_, DEVICES)
    assert functions_taken(decoded, DEVICES) == functions_taken(holdings_, DEVICES)


def request(amounts: dict[str, int], hint: str = "{}") -> DeviceRequest:
    request_ = device_request(amounts, {DEVICE_ALLOCATE_HINT: hint})
    assert request_ is not None
    return request_


REQUESTS = (
    request({"nvidia.com/gpu": 1}),
    request({"koordinator.sh/gpu": 10}),
    request({"koordinator.sh/fpga": 100}),
    request({"koordinator.sh/rdma": 1}, '{"rdma":{"vfSelector":{}}}'),
)


@given(some_reported_devices, st.booleans())
def test_a_scheduler_allocates_no_device_that_pods_hold(
    found: list[ReportedDevices], annotated: bool
) -> None:
    """A scheduler that reads the annotation, or only the devices, allocates until nothing is left.
    It allocates no device that pods hold."""
    holdings_ = resolve(*found).holdings
    held = {
        each.device for each in holdings_ if each.form not in (Form.OPEN, Form.FUNCTION, Form.CPUS)
    }
    functions = {each.part for each in holdings_ if each.form is Form.FUNCTION}
    if annotated:
        devices = inventory(DEVICES)
        used, taken_functions = taken(holdings_, DEVICES), functions_taken(holdings_, DEVICES)
    else:
        devices, used, taken_functions = inventory(without_taken(DEVICES, holdings_)), {}, {}
    for request_ in REQUESTS:
        used_now, used_functions = dict(used), dict(taken_functions)
        for step in range(40):
            allocation = allocate(node_devices(devices, used_now, used_functions), request_)
            if isinstance(allocation, Refusal):
                assert step or holdings_, "devices are available"
                break
            for kind, chosen in allocation.devices.items():
                for each in chosen:
                    assert each.uuid not in held
                    key = kind, each.minor
                    used_now = sum_amounts((used_now, {key: each.resources}))
                    buses = frozenset(function.bus for function in each.functions)
                    assert not buses & functions
                    used_functions[key] = used_functions.get(key, frozenset()) | buses
        else:
            raise AssertionError("the allocation never fails")


@given(some_reported_devices, st.randoms(use_true_random=False))
def test_the_order_of_reports_changes_nothing(found: list[ReportedDevices], random: object) -> None:
    expected = resolve(*found)
    random.shuffle(found)  # type: ignore[attr-defined]
    assert holding.encode(resolve(*found).holdings) == holding.encode(expected.holdings)


def with_allocation(uid: str, text: str) -> Pod:
    return msgspec.structs.replace(pod(uid), annotations={DEVICE_ALLOCATED: text})


def test_allocations_from_annotations() -> None:
    text = json.dumps({"gpu": [{"minor": 0}], "rdma": [], "fpga": None})
    pods = [
        with_allocation("a", text),
        with_allocation("invalid", "{"),
        with_allocation("none", '{"gpu":[]}'),
        pod("b"),
    ]
    found, problems = allocated_by_schedulers(pods)
    assert {uid: list(of_pod) for uid, of_pod in found.items()} == {"a": ["gpu"]}
    (problem,) = problems
    assert problem.startswith(
        "pod ns/invalid: annotation scheduling.koordinator.sh/device-allocated: "
    )


def test_overlaps_of_two_pods() -> None:
    found, _ = allocated_by_schedulers(
        [with_allocation("a", json.dumps({"gpu": [{"minor": 0, "resources": GPU}]}))]
    )
    held = {uid: amounts(of_pod) for uid, of_pod in found.items()}
    pods = {uid: pod(uid) for uid in "ab"}
    container_holding = DeviceHolding(
        "b", "main", "", "gpu", "GPU-a1", Form.WHOLE, source=HoldingSource.CONTAINER
    )
    cpus = DeviceHolding("b", "main", "dra.cpu", "", "", Form.CPUS, "0-3")
    assert list(held_by_two_pods(held, DEVICES, [container_holding, cpus], pods)) == [
        "pod ns/b has gpu GPU-a1, which belongs to pod ns/a (source: container)"
    ]
    assert (
        list(
            held_by_two_pods(
                held, DEVICES, [msgspec.structs.replace(container_holding, uid="a")], pods
            )
        )
        == []
    )


def claim(
    uid: str = "a",
    driver: str = "dra.cpu",
    device: str = "cpudevnuma000",
    cdi: str = "dra.k8s.io/cpu=claim-5f-7e",
) -> ReportedDevices:
    return ReportedDevices(
        uid, "main", driver, (device,), HoldingSource.CLAIM, f"ns/{uid}", cdi=(cdi,)
    )


def environment(uid: str, variables: dict[str, str]) -> tuple[ReportedDevices, ...]:
    return of_carriers(uid, "main", Carriers(environment=tuple(variables.items())))


@pytest.mark.parametrize(
    "claims",
    [
        claim(),
        claim(device="cpudev003"),
        claim(driver="balloons.nri.io", cdi="balloons.nri.io/device=claim-5f-7e-0"),
        claim(driver="x", device="cpudevmachine"),
    ],
)
def test_cpus_are_owned_by_a_claim_and_its_variable(claims: ReportedDevices) -> None:
    found = claimed_cpus((claims, *environment("a", {"DRA_CPUSET_5f-7e": "2-3,5", "PATH": "/"})))
    assert found.by_uid == {"a": {"main": CpuSet([2, 3, 5])}}
    assert [(each.part, each.claim) for each in found.holdings] == [("2-3,5", "ns/a")]
    assert found.problems == ()


def test_a_container_may_have_two_claims() -> None:
    other = msgspec.structs.replace(claim(), cdi=("dra.k8s.io/cpu=claim-9",), claim="ns/b")
    variables = {"DRA_CPUSET_5f-7e": "2-3", "DRA_CPUSET_9": "7"}
    found = claimed_cpus((claim(), other, *environment("a", variables)))
    assert found.by_uid == {"a": {"main": CpuSet([2, 3, 7])}}
    assert [each.claim for each in found.holdings] == ["ns/a", "ns/b"]


@pytest.mark.parametrize(
    "claims",
    [
        (),
        (claim("b"),),
        (claim(cdi="dra.k8s.io/cpu=claim-5f"),),
        (claim(cdi=""),),
        (claim(driver="gpu.example", device="gpu-0"),),
        (msgspec.structs.replace(claim(), container="side"),),
    ],
)
def test_a_variable_without_its_claim_owns_no_cpu(claims: tuple[ReportedDevices, ...]) -> None:
    """A user can set such a variable next to a ResourceClaim. It would own the whole pool."""
    found = claimed_cpus((*claims, *environment("a", {"DRA_CPUSET_5f-7e": "0-127"})))
    assert (found.by_uid, found.holdings) == ({}, ())
    (problem,) = found.problems
    assert problem.endswith("CPUs 0-127 in a variable, and the kubelet reports no such claim")


@pytest.mark.parametrize(
    ("value", "reason"),
    [("dynamic", "'dynamic' does not name the CPUs"), (",", "',' is not a list of CPUs")],
)
def test_a_variable_without_a_cpu_is_reported(value: str, reason: str) -> None:
    found = claimed_cpus((claim(), *environment("a", {"DRA_CPUSET_5f-7e": value})))
    assert found.by_uid == {}
    assert [each.partition(" in a variable: ")[2] for each in found.problems] == [reason]


def test_a_claim_without_a_variable_owns_no_cpu() -> None:
    """The CPUs are its own only while its container runs."""
    assert claimed_cpus((claim(),)).by_uid == {}
