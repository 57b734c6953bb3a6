"""The victims on a node, compared with an exhaustive search of all sets of pods."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import assigned_pod_of
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.cpu.policies import NumaPolicy
from agent.model.objects import LabelSelector
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import PodRequest, request_of
from agent.scheduler.preemption.disruption_budgets import Budget, Budgets
from agent.scheduler.preemption.victim_selection import (
    BoundPod,
    NodeResources,
    PreemptionCandidate,
    select_victims,
)
from agent.scheduler.state.pod_info import PodRequirements
from tests.allocate.devices.builders import CARDS, CORE, RATIO, gpu
from tests.allocate.node_allocator.builders import ALLOCATED, annotated, make_properties, pod

PROTECTED = {"app": "protected"}
ONE = NumaPolicy.SINGLE_NUMA_NODE
# Two NUMA nodes of 8 CPUs.
SHAPE = (2, 1, 4, 2)


def budgets_allowing(allowed: int) -> Budgets:
    budgets = Budgets()
    budget = Budget("ns", "b", LabelSelector(PROTECTED), allowed)
    budgets.changed([Change(ChangeKind.ADDED, ObjectKey("ns", "b"), budget)])
    return budgets


def lsr_request(cpus: int, priority: int) -> PodRequest:
    return request_of(pod("new", {"cpu": cpus}, "LSR", priority=priority))


def place_pod(allocator: NodeAllocator, api_pod: ApiPod) -> None:
    answer = allocator.offer(request_of(api_pod))
    if isinstance(answer, NodeOffer):
        allocator.commit(answer)
        allocator.record(assigned_pod_of(annotated(api_pod, answer.annotations())))


def allocator_with(*pods: ApiPod, allocator: NodeAllocator | None = None) -> NodeAllocator:
    """Allocates each pod by its best offer, if there is one."""
    allocator = allocator or NodeAllocator(make_properties(SHAPE, ONE))
    for each in pods:
        place_pod(allocator, each)
    return allocator


def victims(
    allocator: NodeAllocator,
    pod_request: PodRequest,
    bound_pods: Sequence[BoundPod],
    **more: object,
) -> list[str] | None:
    answer = select_victims(
        allocator.without(()), bound_pods, PodRequirements(pod_request), Budgets(), **more
    )  # type: ignore[arg-type]
    return None if answer is None else [each.uid for each in answer.victims]


pod_specs = st.lists(
    st.tuples(
        st.integers(1, 6), st.integers(0, 3), st.integers(0, 2), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(pod_specs, st.integers(1, 8), st.integers(0, 4), st.integers(0, 2))
def test_the_victims_are_the_best_of_all_sets(
    specs: list[tuple[int, int, int, bool, bool]], cpus: int, priority: int, allowed: int
) -> None:
    allocator = NodeAllocator(make_properties(SHAPE, ONE))
    bound_pods = []
    for number, (size, pod_priority, started, protected, terminating) in enumerate(specs):
        uid = f"u{number}"
        place_pod(allocator, pod(uid, {"cpu": size}, "LSR", priority=pod_priority))
        if uid in allocator.assigned_pods:
            labels = PROTECTED if protected else {}
            bound_pods.append(BoundPod(uid, "ns", uid, pod_priority, started, labels, terminating))
    pod_request = lsr_request(cpus, priority)
    answer = select_victims(
        allocator.without(()), bound_pods, PodRequirements(pod_request), budgets_allowing(allowed)
    )
    expected = exhaustive_search(allocator, bound_pods, pod_request, allowed)
    if expected is None:
        assert answer is None
    else:
        assert answer is not None
        assert ({each.uid for each in answer.victims}, answer.violations) == expected


def exhaustive_search(
    allocator: NodeAllocator, bound_pods: Sequence[BoundPod], pod_request: PodRequest, allowed: int
) -> tuple[set[str], int] | None:
    """The best of all sets of pods with lower priority that make room: the fewest violations of the
    budget, then the lowest priorities, then the last started; terminating pods cost nothing."""
    lower = [each for each in bound_pods if each.priority < pod_request.priority]
    lowest = -(10**10)

    def importance(each: BoundPod) -> tuple[int, int, str]:
        return -(lowest if each.terminating else each.priority), each.started_at, each.uid

    lower.sort(key=importance)
    best = None
    for size in range(1, len(lower) + 1):
        for chosen in itertools.combinations(range(len(lower)), size):
            pods = [lower[each] for each in chosen]
            if not isinstance(
                allocator.without([each.uid for each in pods]).offer(pod_request), NodeOffer
            ):
                continue
            violations = sum(bool(each.labels) and not each.terminating for each in pods) - allowed
            key = (
                max(violations, 0),
                [lowest if each.terminating else each.priority for each in pods],
                [-each for each in chosen],
                {each.uid for each in pods},
            )
            best = key if best is None or key[:3] < best[:3] else best
    return None if best is None else (best[3], best[0])


def test_both_pods_of_one_numa_node_are_selected() -> None:
    """The pod needs 8 of 16 CPUs on one NUMA node: only two pods of one NUMA node release them."""
    allocator = allocator_with(*(pod(f"u{each}", {"cpu": 4}, "LSR") for each in range(4)))
    numa_nodes = {
        uid: {cpu // 8 for cpu in held.allocation.cpus}
        for uid, held in allocator.assigned_pods.items()
    }
    bound_pods = [
        BoundPod(uid, "ns", uid, started_at=number) for number, uid in enumerate(numa_nodes)
    ]
    chosen = victims(allocator, lsr_request(8, 5), bound_pods)
    assert chosen is not None
    assert len(chosen) == 2
    assert len(numa_nodes[chosen[0]] | numa_nodes[chosen[1]]) == 1


@pytest.mark.parametrize(("percent", "expected"), [(100, ["whole"]), (50, ["share2"])])
def test_the_last_started_pod_on_enough_of_a_gpu_is_the_victim(
    percent: int, expected: list[str]
) -> None:
    """One GPU is allocated whole, another one is shared by two pods."""
    allocator = allocator_with(
        pod("whole", {CORE: 100, RATIO: 100}),
        pod("share1", {CORE: 50, RATIO: 50}),
        pod("share2", {CORE: 50, RATIO: 50}),
        allocator=NodeAllocator(make_properties(SHAPE, devices=[gpu(0), gpu(1)])),
    )
    assert set(allocator.assigned_pods) == {"whole", "share1", "share2"}
    bound_pods = [BoundPod(uid, "ns", uid, 0, at) for at, uid in enumerate(allocator.assigned_pods)]
    pod_request = request_of(pod("new", {CORE: percent, RATIO: percent}, priority=1))
    assert victims(allocator, pod_request, bound_pods) == expected


FULL = [pod("u0", {"cpu": 8}, "LSR"), pod("u1", {"cpu": 8}, "LSR")]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(NumaPolicy.NONE, ["d", "b"]), (ONE, ["c", "d"])],
)
def test_victims_release_devices_of_the_numa_nodes_that_the_policy_admits(
    policy: NumaPolicy, expected: list[str]
) -> None:
    """Four pods have a GPU each, two of them on each NUMA node. The last started ones are on
    different NUMA nodes."""
    gpus = [gpu(minor, minor // 2, f"p{minor // 2}") for minor in range(4)]
    allocator = NodeAllocator(make_properties(SHAPE, policy, gpus))
    started = {"a": 1, "b": 4, "c": 2, "d": 3}
    for minor, uid in enumerate(started):
        allocated = {"gpu": [{"minor": minor, "resources": {CORE: 100, RATIO: 100}}]}
        allocator.record(assigned_pod_of(pod(uid, {CARDS: 1}, notes={ALLOCATED: allocated})))
    bound_pods = [BoundPod(uid, "ns", uid, started_at=at) for uid, at in started.items()]
    pod_request = request_of(pod("new", {CARDS: 2}, "LS", priority=1))
    assert victims(allocator, pod_request, bound_pods) == expected


def test_victims_named_by_kube_scheduler_are_included() -> None:
    allocator = allocator_with(*FULL, pod("plain", {"cpu": 1}))
    bound_pods = [BoundPod(uid, "ns", uid, 0, at) for at, uid in enumerate(("plain", "u0", "u1"))]
    assert victims(allocator, lsr_request(4, 5), bound_pods, required=["plain"]) == ["plain", "u1"]
    assert victims(allocator, lsr_request(4, 5), bound_pods, required=["unknown"]) is None


def test_victims_release_the_requests_of_the_pod_in_sum() -> None:
    """After the eviction of the small pod alone the NUMA node has room, but the node has not enough
    CPUs in sum."""
    allocator = allocator_with(pod("small", {"cpu": 2}, "LSR"), pod("large", {"cpu": 6}, "LSR"))
    bound_pods = [BoundPod("small", "ns", "small", 0, 2), BoundPod("large", "ns", "large", 0, 1)]
    requested = {uid: held.requests for uid, held in allocator.assigned_pods.items()}
    wide, narrow = (NodeResources({"cpu": cpus * 1000}, requested) for cpus in (16, 8))
    assert victims(allocator, lsr_request(6, 5), bound_pods, resources=narrow) == ["large"]
    assert wide.fits({"cpu": 6000}, ())


RESOURCES = NodeResources(
    {"cpu": 8000, "pods": 3}, {"a": {"cpu": 4000}, "b": {"cpu": 3000}, "c": {"cpu": 1000}}
)


@pytest.mark.parametrize(
    ("cpu_milli", "evicted", "fits"),
    [(4000, "a", True), (5000, "a", False), (5000, "ac", True), (0, "", False), (0, "c", True)],
)
def test_a_node_fits_requests_without_the_evicted_pods(
    cpu_milli: int, evicted: str, fits: bool
) -> None:
    requests = {"cpu": cpu_milli} if cpu_milli else {}
    assert RESOURCES.fits(requests, tuple(evicted)) is fits


@pytest.mark.parametrize(
    ("named", "explained"), [("a", True), ("ab", False), ("c", False), ("bc", True)]
)
def test_named_victims_are_explained_by_resources(named: str, explained: bool) -> None:
    assert RESOURCES.explains({"cpu": 4000}, tuple(named)) is explained


def test_candidates_are_ordered_by_violations_priorities_and_start_times() -> None:
    def candidate(
        node: str, violations: int, *priorities: int, started: int = 0
    ) -> PreemptionCandidate:
        bound_pods = tuple(BoundPod(f"{each}", "ns", "p", each, started) for each in priorities)
        return PreemptionCandidate(node, bound_pods, violations)

    ordered = [
        candidate("z", 0, 1, 1),
        candidate("a", 0, 2, started=5),
        candidate("b", 0, 2, started=5),
        candidate("a", 0, 2, started=4),
        candidate("a", 0, 2, 0),
        candidate("a", 1, 0),
    ]
    shuffled = [ordered[each] for each in (3, 0, 5, 1, 4, 2)]
    assert sorted(shuffled, key=lambda each: each.key) == ordered


def test_the_best_set_so_far_is_the_result_when_the_time_is_over() -> None:
    """Each check of a node may take long, whatever the number of pods is."""
    allocator = NodeAllocator(make_properties(SHAPE, ONE))
    bound_pods = [BoundPod(f"u{number}", "ns", f"u{number}", 0, number) for number in range(4)]
    for each in bound_pods:
        place_pod(allocator, pod(each.uid, {"cpu": 1}, "LSR"))
    checks: list[int] = []

    def expired() -> bool:
        checks.append(len(checks))
        return len(checks) > 1

    found = victims(allocator, lsr_request(8, 1), bound_pods, expired=expired)
    assert found is not None
    assert set(found) == {"u0", "u1", "u2", "u3"}
    assert len(checks) < 8
    assert victims(allocator, lsr_request(8, 1), bound_pods, expired=lambda: True) is None
