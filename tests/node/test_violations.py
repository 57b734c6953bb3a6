from __future__ import annotations

import msgspec
import pytest

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.model import bounds
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.pod.annotations import MIXED_CONTAINERS, RESOURCE_STATUS, SHARED_CONTAINERS
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QoS
from agent.model.snapshot import Owner
from agent.node import violations
from tests.builders import machine, pod, running
from tests.hooks.snapshots import EMPTY

LSE = Owner("own", "ns/own", QoS.LSE, "1-2")
LSR = Owner("own", "ns/own", QoS.LSR, "1-2")


@pytest.mark.parametrize(
    ("uid", "qos", "owner", "effective", "cpus"),
    [
        ("p", "LS", LSE, "0-1", "1"),
        ("p", "LS", LSR, "0-3", "1-2"),
        ("p", "BE", LSE, "2", "2"),
        ("p", "BE", LSR, "2", None),
        ("p", "LSE", LSR, "2-3", "2"),
        ("p", "LS", LSE, "0,3", None),
        ("own", "LSE", LSE, "1-2", None),
    ],
)
def test_overlaps_of_containers_with_owners(
    uid: str, qos: str, owner: Owner, effective: str, cpus: str | None
) -> None:
    pods = (pod(uid, qos, containers=(running("c"),)),)
    found = violations.find_overlaps(pods, (owner,), {"c": CpuSet.parse(effective)})
    assert [each.cpus for each in found] == ([] if cpus is None else [cpus])
    for each in found:
        assert (each.container_id, each.title, each.owner) == ("c", f"ns/{uid}", "ns/own")


def test_container_whose_cpus_are_unknown_is_left_out() -> None:
    pods = (pod("p", "LS", containers=(running("c"), running("d"))),)
    found = violations.find_overlaps(pods, (LSE,), {"d": CpuSet([1])})
    assert [each.container_id for each in found] == ["d"]


def test_started_pods_are_those_with_a_running_container() -> None:
    waiting = Container("c", "main", ContainerState.CREATED)
    pods = (
        pod("running", containers=(waiting, running("d"))),
        pod("waiting", containers=(waiting,)),
        pod("empty"),
    )
    assert violations.started(pods) == {"running"}


def named(*names: str) -> tuple[Container, ...]:
    return tuple(Container(f"c-{name}", name, ContainerState.RUNNING) for name in names)


def checkpoint(**of_a: str) -> KubeletCpus:
    entries = {name: CpuSet.parse(cpus) for name, cpus in of_a.items()}
    return KubeletCpus(True, {"a": union(entries.values())}, {"a": entries} if entries else {})


def found(each: Pod, kubelet: KubeletCpus, **effective: str) -> list[tuple[str, str, str, str]]:
    decision = decide(machine(2, 4), (each,), kubelet, {}, {})
    held = {f"c-{name}": CpuSet.parse(cpus) for name, cpus in effective.items()}
    return [
        (shortfall.container, shortfall.promised, shortfall.held, shortfall.reason)
        for shortfall in violations.find_shortfalls((each,), decision, kubelet, held)
    ]


def owner(cpuset: str, *names: str, kube_class: str = "guaranteed") -> Pod:
    return pod("a", "LSE", cpuset, kube_class=kube_class, containers=named(*names))  # type: ignore[arg-type]


def test_no_shortfall_with_as_many_cpus_as_claimed() -> None:
    assert found(owner("2-3", "main"), KubeletCpus(), main="2-3") == []
    assert found(owner("2-3", "main"), checkpoint(main="4-5"), main="4-5") == []
    two = owner("2-5", "main", "other")
    assert found(two, checkpoint(main="4-5", other="6-7"), main="4-5", other="6-7") == []


def test_cpus_that_the_cgroup_lacks_are_a_shortfall() -> None:
    shortfalls = [("main", "2-3", "2", "its cgroup lacks CPUs 3")]
    assert found(owner("2-3", "main"), KubeletCpus(), main="0,2") == shortfalls
    shortfalls = [("main", "4-5", "", "its cgroup lacks CPUs 4-5")]
    assert found(owner("", "main"), checkpoint(main="4-5"), main="0") == shortfalls


def test_container_without_cpus_of_the_kubelet_has_a_shortfall() -> None:
    reason = "the kubelet assigned it CPUs 4"
    assert found(owner("2-3", "main", "part"), checkpoint(main="4"), main="4", part="0-3") == [
        ("part", "2-3", "", reason)
    ]


def test_sidecar_has_no_shortfall() -> None:
    each = owner("2-3", "main", "envoy")
    each.annotations[SHARED_CONTAINERS] = "envoy"
    assert found(each, KubeletCpus(), main="2-3", envoy="0-1,4-7") == []


def test_a_mixed_container_differs_by_its_own_cpus_alone() -> None:
    each = owner("2-3", "main", "side")
    each.annotations[MIXED_CONTAINERS] = "main"
    assert found(each, KubeletCpus(), main="0-7", side="2-3") == []
    short = ("main", "2-3", "2", "its cgroup lacks CPUs 3")
    assert found(each, KubeletCpus(), main="0-2,4-7", side="2-3") == [short]
    decision = decide(machine(2, 4), (each,), KubeletCpus(), {}, {})
    holds = {"c-main": CpuSet(range(8)), "c-side": CpuSet.parse("2-3")}
    assert not +violations.count_differing((each,), decision, KubeletCpus(), holds)
    last = msgspec.structs.replace(EMPTY, containers={"c-main": decision.pods["a"].of("main")})
    own = violations.without_shares(holds, last)
    assert violations.running_on((each,), own) == {"a": CpuSet.parse("2-3")}
    assert violations.without_shares(holds, None) == holds


def test_invalid_annotation_of_sharing_containers_names_none() -> None:
    each = owner("2-3", "main", "envoy")
    each.annotations[SHARED_CONTAINERS] = "x" * (bounds.POD_VALUE_BYTES + 1)
    shortfalls = found(each, KubeletCpus(), main="2-3", envoy="0-1,4-7")
    assert [container for container, *_ in shortfalls] == ["envoy"]


def test_refused_claim_has_its_reason() -> None:
    assert found(owner("2-9", "main"), KubeletCpus(), main="0-7") == [
        ("main", "2-9", "", "CPUs 8-9 do not exist")
    ]


@pytest.mark.parametrize(("assigned", "shortfalls"), [("4-5", False), ("4", True)])
def test_pod_whose_containers_are_not_in_the_kubelets_file(assigned: str, shortfalls: bool) -> None:
    kubelet = KubeletCpus(True, {"a": CpuSet.parse(assigned)})
    assert bool(found(owner("2-3", "main"), kubelet, main=assigned)) is shortfalls


def test_shortfall_names_annotation_and_cpus() -> None:
    each = owner("2-9", "main")
    decision = decide(machine(2, 4), (each,), KubeletCpus(), {}, {})
    (shortfall,) = violations.find_shortfalls((each,), decision, KubeletCpus(), {})
    assert shortfall.text == (
        f"annotation {RESOURCE_STATUS} claims CPUs 2-9, container main has no CPUs of its own: "
        "CPUs 8-9 do not exist"
    )


def unallocated(each: Pod, kubelet: KubeletCpus | None = None) -> list[str]:
    kubelet = kubelet or KubeletCpus()
    decision = decide(machine(2, 4), (each,), kubelet, {}, {})
    return [
        unallocated.uid for unallocated in violations.find_unallocated((each,), decision, kubelet)
    ]


MAIN = named("main")


@pytest.mark.parametrize(
    ("each", "found"),
    [
        (pod("a", "LSR", containers=MAIN), True),
        (pod("a", "LSE", containers=MAIN), True),
        (pod("a", "LSE", status="{}", containers=MAIN), True),
        (pod("a", "LS", containers=MAIN), False),
        (pod("a", containers=MAIN), False),
        (pod("a", "LSR", "2-3", containers=MAIN), False),
        # The pod has no container yet.
        (pod("a", "LSR"), False),
        # A scheduler bound the pod to NUMA nodes instead.
        (pod("a", "LSR", numa_nodes=(1,), containers=MAIN), False),
        # These are reported as refusals.
        (pod("a", "LSR", "2-9", containers=MAIN), False),
        (pod("a", "LSR", status="[", containers=MAIN), False),
    ],
)
def test_pods_of_owner_classes_to_which_nobody_allocated_cpus(each: Pod, found: bool) -> None:
    assert unallocated(each) == ["a"] * found


def test_the_cpus_of_a_static_kubelet_or_of_a_resource_claim_are_an_allocation() -> None:
    each = pod("a", "LSR", kube_class="guaranteed", containers=MAIN)
    assert unallocated(each, checkpoint()) == ["a"]
    assert unallocated(each, checkpoint(main="4-5")) == []
    claimed = KubeletCpus(of_dra={"a": {"main": CpuSet([2])}})
    assert unallocated(each, claimed) == []


@pytest.mark.parametrize(
    ("claim", "kubelet", "unmet"),
    [
        ("2-3", KubeletCpus(), []),
        ("2-9", KubeletCpus(), ["2-9"]),
        # The scheduler corrects the annotation.
        ("2-3", checkpoint(main="4-5"), []),
        ("2-4", checkpoint(main="4-5"), ["2-4"]),
        ("x", checkpoint(main="4-5"), [""]),
    ],
)
def test_claims_that_are_not_met(claim: str, kubelet: KubeletCpus, unmet: list[str]) -> None:
    decision = decide(machine(2, 4), (owner(claim, "main"),), kubelet, {}, {})
    assert [each.claimed for each in violations.unmet(decision)] == unmet
