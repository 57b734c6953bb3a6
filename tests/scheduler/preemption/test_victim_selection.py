"""Compares the victims on a node allocator with an exhaustive search of all sets of pods."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import Granted
from agent.allocate.node_allocator.assigned_pods import holding_of
from agent.allocate.node_allocator.pod_request import PodRequest, request_of
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.apiobjects import ApiPod
from agent.model.cpu.policies import NumaPolicy
from agent.model.objects import LabelSelector
from agent.scheduler.preemption.disruption_budgets import Budget, Budgets
from agent.scheduler.preemption.victim_selection import (
    BoundPod,
    NodeResources,
    PreemptionCandidate,
    select_victims,
)
from agent.scheduler.state.pod_info import PodRequirements
from tests.allocate.devices.builders import CORE, RATIO, gpu
from tests.allocate.node_allocator.builders import annotated, facts, pod

GUARDED = {"app": "guarded"}
ONE = NumaPolicy.SINGLE_NUMA_NODE
# Two NUMA nodes of 8 CPUs.
SHAPE = (2, 1, 4, 2)


def guarding(allowed: int) -> Budgets:
    budgets = Budgets()
    budget = Budget("ns", "b", LabelSelector(GUARDED), allowed)
    budgets.changed([Change(ChangeKind.ADDED, ObjectKey("ns", "b"), budget)])
    return budgets


def wanting(cpus: int, priority: int, qos: str = "LSR", **requests: int) -> PodRequest:
    return request_of(pod("new", {"cpu": cpus, **requests}, qos, priority=priority))


def settled(place: NodeAllocator, of: ApiPod) -> None:
    found = place.offer(request_of(of))
    if isinstance(found, Granted):
        place.commit(found)
        place.record(holding_of(annotated(of, found.annotations())))


def inhabited(*pods: ApiPod, place: NodeAllocator | None = None) -> NodeAllocator:
    """Each pod on its best CPUs, as far as there is room."""
    place = place or NodeAllocator(facts(SHAPE, ONE))
    for each in pods:
        settled(place, each)
    return place


def found(
    place: NodeAllocator, pod_request: PodRequest, tenants: Sequence[BoundPod], **more: object
) -> list[str] | None:
    answer = select_victims(
        place.without(()), tenants, PodRequirements(pod_request), Budgets(), **more
    )  # type: ignore[arg-type]
    return None if answer is None else [each.uid for each in answer.victims]


tenancies = st.lists(
    st.tuples(
        st.integers(1, 6), st.integers(0, 3), st.integers(0, 2), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(tenancies, st.integers(1, 8), st.integers(0, 4), st.integers(0, 2))
def test_equals_the_best_of_every_set(
    tenancy: list[tuple[int, int, int, bool, bool]], cpus: int, priority: int, allowed: int
) -> None:
    place = NodeAllocator(facts(SHAPE, ONE))
    tenants = []
    for number, (size, level, started, guarded, terminating) in enumerate(tenancy):
        uid = f"u{number}"
        settled(place, pod(uid, {"cpu": size}, "LSR", priority=level))
        if uid in place.holdings:
            labels = GUARDED if guarded else {}
            tenants.append(BoundPod(uid, "ns", uid, level, started, labels, terminating))
    pod_request = wanting(cpus, priority)
    answer = select_victims(
        place.without(()), tenants, PodRequirements(pod_request), guarding(allowed)
    )
    expected = brute(place, tenants, pod_request, allowed)
    if expected is None:
        assert answer is None
    else:
        assert answer is not None
        assert ({each.uid for each in answer.victims}, answer.violations) == expected


def brute(
    place: NodeAllocator, tenants: Sequence[BoundPod], pod_request: PodRequest, allowed: int
) -> tuple[set[str], int] | None:
    """The best of all sets of lower priority that make room: the fewest violations of the budget,
    then the lowest priorities, then the last started pods; terminating pods cost nothing."""
    lower = [each for each in tenants if each.priority < pod_request.priority]
    least = -(10**10)

    def important(each: BoundPod) -> tuple[int, int, str]:
        return -(least if each.terminating else each.priority), each.started_at, each.uid

    lower.sort(key=important)
    best = None
    for size in range(1, len(lower) + 1):
        for chosen in itertools.combinations(range(len(lower)), size):
            pods = [lower[each] for each in chosen]
            if not isinstance(
                place.without([each.uid for each in pods]).offer(pod_request), Granted
            ):
                continue
            over = sum(bool(each.labels) and not each.terminating for each in pods) - allowed
            key = (
                max(over, 0),
                [least if each.terminating else each.priority for each in pods],
                [-each for each in chosen],
                {each.uid for each in pods},
            )
            best = key if best is None or key[:3] < best[:3] else best
    return None if best is None else (best[3], best[0])


def test_both_pods_of_one_numa_node_are_selected() -> None:
    """In sum 8 of 16 CPUs are needed; two pods on one NUMA node release them, other pairs do
    not."""
    place = inhabited(*(pod(f"u{each}", {"cpu": 4}, "LSR") for each in range(4)))
    homes = {
        uid: {cpu // 8 for cpu in held.allocation.cpus} for uid, held in place.holdings.items()
    }
    tenants = [BoundPod(uid, "ns", uid, started_at=number) for number, uid in enumerate(homes)]
    chosen = found(place, wanting(8, 5), tenants)
    assert chosen is not None
    assert len(chosen) == 2
    assert len(homes[chosen[0]] | homes[chosen[1]]) == 1


@pytest.mark.parametrize(("percent", "victims"), [(100, ["whole"]), (50, ["part2"])])
def test_cards(percent: int, victims: list[str]) -> None:
    """Two cards: one is allocated whole, one is shared by two pods; the part that started last is
    the victim."""
    place = inhabited(
        pod("whole", {CORE: 100, RATIO: 100}),
        pod("part1", {CORE: 50, RATIO: 50}),
        pod("part2", {CORE: 50, RATIO: 50}),
        place=NodeAllocator(facts(SHAPE, devices=[gpu(0), gpu(1)])),
    )
    assert set(place.holdings) == {"whole", "part1", "part2"}
    tenants = [BoundPod(uid, "ns", uid, 0, at) for at, uid in enumerate(place.holdings)]
    pod_request = request_of(pod("new", {CORE: percent, RATIO: percent}, priority=1))
    assert found(place, pod_request, tenants) == victims


FULL = [pod("u0", {"cpu": 8}, "LSR"), pod("u1", {"cpu": 8}, "LSR")]


def test_no_victims_of_equal_priority() -> None:
    place = inhabited(*FULL)
    tenants = [BoundPod(uid, "ns", uid, 5) for uid in ("u0", "u1")]
    assert found(place, wanting(4, 5), tenants) is None


def test_victims_named_by_kube_scheduler_are_included() -> None:
    place = inhabited(*FULL, pod("plain", {"cpu": 1}))
    tenants = [BoundPod(uid, "ns", uid, 0, at) for at, uid in enumerate(("plain", "u0", "u1"))]
    assert found(place, wanting(4, 5), tenants, required=["plain"]) == ["plain", "u1"]
    assert found(place, wanting(4, 5), tenants, required=["unknown"]) is None


def test_victims_release_what_the_sum_needs() -> None:
    """Without the small pod alone the NUMA node would have room, but not the node in sum."""
    place = inhabited(pod("small", {"cpu": 2}, "LSR"), pod("large", {"cpu": 6}, "LSR"))
    tenants = [BoundPod("small", "ns", "small", 0, 2), BoundPod("large", "ns", "large", 0, 1)]
    requested = {uid: held.requests for uid, held in place.holdings.items()}
    wide, narrow = (NodeResources({"cpu": cpus * 1000}, requested) for cpus in (16, 8))
    assert found(place, wanting(6, 5), tenants, resources=narrow) == ["large"]
    assert wide.fits({"cpu": 6000}, ())


ROOM = NodeResources(
    {"cpu": 8000, "pods": 3}, {"a": {"cpu": 4000}, "b": {"cpu": 3000}, "c": {"cpu": 1000}}
)


@pytest.mark.parametrize(
    ("cpu_milli", "gone", "fits"),
    [(4000, "a", True), (5000, "a", False), (5000, "ac", True), (0, "", False), (0, "c", True)],
)
def test_room(cpu_milli: int, gone: str, fits: bool) -> None:
    requests = {"cpu": cpu_milli} if cpu_milli else {}
    assert ROOM.fits(requests, tuple(gone)) is fits


@pytest.mark.parametrize(
    ("named", "explained"), [("a", True), ("ab", False), ("c", False), ("bc", True)]
)
def test_named_victims_are_explained_by_resources(named: str, explained: bool) -> None:
    assert ROOM.explains({"cpu": 4000}, tuple(named)) is explained


def test_order_of_nodes() -> None:
    def of(node: str, violations: int, *priorities: int, started: int = 0) -> PreemptionCandidate:
        tenants = tuple(BoundPod(f"{each}", "ns", "p", each, started) for each in priorities)
        return PreemptionCandidate(node, tenants, violations)

    ordered = [
        of("z", 0, 1, 1),
        of("a", 0, 2, started=5),
        of("b", 0, 2, started=5),
        of("a", 0, 2, started=4),
        of("a", 0, 2, 0),
        of("a", 1, 0),
    ]
    shuffled = [ordered[each] for each in (3, 0, 5, 1, 4, 2)]
    assert sorted(shuffled, key=lambda each: each.key) == ordered
