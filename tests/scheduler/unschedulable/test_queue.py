"""Which pods are retried, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.state.pod_info import ChangedNodes, Feasibility, Feasible, Infeasible
from agent.scheduler.unschedulable.queue import (
    FORGET_SECONDS,
    MAX_NAMES,
    MAX_RETRIES,
    RETRY_INTERVAL_SECONDS,
    NodeSets,
    QueuedPod,
    UnschedulableQueue,
)


class Kind:
    """A check of that equivalence class."""

    def __init__(self, shape: str) -> None:
        self.equivalence_class = shape

    def run(self, node: str) -> Feasibility:
        raise AssertionError("the table answers")


class Nodes:
    """`room`: by node the equivalence classes that fit."""

    def __init__(self, *names: str) -> None:
        self.room: dict[str, set[str]] = {name: set() for name in names}
        self.log: list[str] = []
        self.reaches_back = True

    def changed_since(self, serial: int) -> ChangedNodes:
        names = frozenset(self.log[serial:]) if self.reaches_back else None
        return ChangedNodes(len(self.log), names)

    def node_names(self) -> Iterable[str]:
        return list(self.room)

    def results(self, check: object, nodes: Sequence[str]) -> list[Feasibility]:
        assert isinstance(check, Kind)
        return [
            Feasible(1) if check.equivalence_class in self.room[each] else Infeasible("full")
            for each in nodes
        ]

    def change(self, node: str, *shapes: str) -> None:
        self.room[node] = set(shapes)
        self.log.append(node)


def queued(uid: str, shape: str = "small", priority: int = 0, at: float = 0.0) -> QueuedPod:
    return QueuedPod(uid, "default", uid, Kind(shape), at, at, priority)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes("a", "b")


@pytest.fixture
def queue(nodes: Nodes) -> UnschedulableQueue:
    """With one pod, after the call that checks every node."""
    it = UnschedulableQueue()
    it.add(queued("p"))
    assert it.retryable(nodes, 0.0) == []
    return it


def tried(queue: UnschedulableQueue, nodes: Nodes, now: float) -> list[tuple[str, str]]:
    return [(each.queued.uid, each.node) for each in queue.retryable(nodes, now)]


def test_a_changed_node_with_room_causes_a_retry(queue: UnschedulableQueue, nodes: Nodes) -> None:
    nodes.change("b", "small")
    assert tried(queue, nodes, 1.0) == [("p", "b")]
    assert tried(queue, nodes, 2.0) == []


def test_a_change_without_room_causes_no_retry(queue: UnschedulableQueue, nodes: Nodes) -> None:
    nodes.change("b", "large")
    assert tried(queue, nodes, 1.0) == []


@pytest.mark.parametrize(("offered", "again"), [(["b"], True), (["a"], False), ([], False)])
def test_node_that_kube_scheduler_did_not_accept_causes_no_retry(
    nodes: Nodes, offered: list[str], again: bool
) -> None:
    """It rejects that node by its own rules, and retries the pod when these accept it."""
    queue = UnschedulableQueue()
    queue.add(queued("p"), ["unrelated", *offered])
    queue.retryable(nodes, 0.0)
    nodes.change("b", "small")
    assert tried(queue, nodes, 1.0) == ([("p", "b")] if again else [])


def test_names_of_deleted_nodes_are_dropped(nodes: Nodes) -> None:
    queue = UnschedulableQueue()
    queue.add(queued("p"), ["b"])
    queue.retryable(nodes, 0.0)
    queue.add(queued("q"), (f"gone{number}" for number in range(MAX_NAMES + 1)))
    queue.add(queued("q"), ["anew"])
    assert [each.offered for each in queue.pods()] == [None, 1]
    nodes.change("b", "small")
    assert tried(queue, nodes, 1.0) == [("p", "b")]


def test_a_removed_pod_is_not_retried(queue: UnschedulableQueue, nodes: Nodes) -> None:
    queue.remove("p")
    nodes.change("b", "small")
    assert tried(queue, nodes, 1.0) == []


def test_first_call_checks_every_node(nodes: Nodes) -> None:
    nodes.change("a", "small")
    it = UnschedulableQueue()
    it.add(queued("p"))
    assert tried(it, nodes, 0.0) == [("p", "a")]


def test_an_incomplete_log_means_every_node(queue: UnschedulableQueue, nodes: Nodes) -> None:
    nodes.change("a", "small")
    nodes.change("b")
    nodes.reaches_back = False
    assert tried(queue, nodes, 1.0) == [("p", "a")]


def test_a_change_during_the_filter_of_a_pod_is_checked(nodes: Nodes) -> None:
    """The call came between the filter, which did not see the change, and the rejection."""
    it = UnschedulableQueue()
    it.retryable(nodes, 0.0)
    nodes.change("b", "small")
    assert tried(it, nodes, 1.0) == []
    it.add(queued("p", at=1.1))
    assert tried(it, nodes, 1.5) == [("p", "b")]


def test_a_pod_waits_between_two_retries_and_is_not_dropped(
    queue: UnschedulableQueue, nodes: Nodes
) -> None:
    nodes.change("b", "small")
    assert tried(queue, nodes, 1.0) == [("p", "b")]
    nodes.change("b", "small")
    assert tried(queue, nodes, 1.0 + RETRY_INTERVAL_SECONDS / 2) == []
    assert tried(queue, nodes, 1.0 + RETRY_INTERVAL_SECONDS) == [("p", "b")]


def nominated(uid: str, node: str, priority: int = 0, at: float = 0.0) -> QueuedPod:
    return msgspec.structs.replace(queued(uid, priority=priority, at=at), nominated=node)


def test_node_is_reserved_for_the_pod_for_which_it_is_nominated() -> None:
    queue = UnschedulableQueue()
    queue.add(nominated("p", "a", 5, 1.0))
    assert queue.nominated_for_others("lesser", 4, 2.0) == {"a"}
    assert queue.nominated_for_others("equal", 5, 2.0) == {"a"}
    assert queue.nominated_for_others("greater", 6, 2.0) == set()
    assert queue.nominated_for_others("p", 5, 2.0) == set()
    queue.add(nominated("p", "", 5))
    assert queue.nominated_for_others("lesser", 4, 2.0) == set()


def test_one_of_two_pods_with_equal_priority_gets_the_nominated_node() -> None:
    queue = UnschedulableQueue()
    queue.add(nominated("old", "a", at=1.0))
    queue.add(nominated("young", "a", at=2.0))
    assert queue.nominated_for_others("old", 0, 3.0) == set()
    assert queue.nominated_for_others("young", 0, 3.0) == {"a"}


@pytest.mark.parametrize("end", ["settled", "given up"])
def test_a_withdrawn_nomination_is_checked_again(
    queue: UnschedulableQueue, nodes: Nodes, end: str
) -> None:
    """Its room is not a new change by then."""
    queue.add(queued("high", shape="large", priority=1))
    queue.nominate("high", "b")
    nodes.change("b", "small")
    tried(queue, nodes, 1.0)
    assert tried(queue, nodes, 1.0 + RETRY_INTERVAL_SECONDS) == []
    if end == "settled":
        queue.remove("high")
    else:
        queue.withdraw("high", "b")
    assert tried(queue, nodes, 2.0 + RETRY_INTERVAL_SECONDS) == [("p", "b")]
    assert queue.nominated_for_others("p", 0, 9.0) == set()


def test_a_retry_ends_when_the_room_is_taken(queue: UnschedulableQueue, nodes: Nodes) -> None:
    nodes.change("b", "small")
    tried(queue, nodes, 1.0)
    nodes.change("b", "small")
    tried(queue, nodes, 2.0)
    nodes.change("b")
    assert tried(queue, nodes, 1.0 + 2 * RETRY_INTERVAL_SECONDS) == []


def test_pod_that_is_not_retried_any_more_is_dropped(
    queue: UnschedulableQueue, nodes: Nodes
) -> None:
    nodes.change("b", "small")
    assert tried(queue, nodes, FORGET_SECONDS + 1) == []
    assert queue.pods() == []


def test_highest_priority_first_then_the_longest_wait(nodes: Nodes) -> None:
    it = UnschedulableQueue()
    for uid, priority, at in (("young", 0, 3.0), ("old", 0, 1.0), ("high", 7, 5.0)):
        it.add(queued(uid, priority=priority, at=at))
    it.add(queued("old", at=4.0))
    nodes.change("a", "small")
    assert [uid for uid, _ in tried(it, nodes, 9.0)] == ["high", "old", "young"]


def test_many_pods_are_retried_in_several_calls(nodes: Nodes) -> None:
    it = UnschedulableQueue()
    count = MAX_RETRIES + 5
    for number in range(count):
        it.add(queued(f"p{number:03}", at=number))
    nodes.change("a", "small")
    first, second = tried(it, nodes, 0.0), tried(it, nodes, 0.5)
    assert [uid for uid, _ in first + second] == [f"p{number:03}" for number in range(count)]
    assert len(first) == MAX_RETRIES
    assert tried(it, nodes, 1.0) == []


NAMES = st.sets(st.sampled_from("abcdefghijklmnopqrstuvwxyz"))


@given(st.lists(NAMES, min_size=1), NAMES)
def test_sets_of_names(sets: list[set[str]], queried: set[str]) -> None:
    names = NodeSets()
    kept = [names.bits(each) for each in sets]
    for before, bits in zip(sets, kept, strict=True):
        assert set(names.among(queried, bits)) == queried & before
        assert bool(bits & names.known_bits(queried)) is bool(queried & before)
    assert names.known_bits(queried) == names.bits(queried & set().union(*sets))


def test_a_set_of_many_names_is_small() -> None:
    names = NodeSets()
    bits = names.bits(f"n{number}" for number in range(5000))
    assert bits.bit_length() == 5000
    names.clear()
    assert names.known_bits(["n1"]) == 0
