"""Which pods are retried, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.refusal import Reason, Refusal
from agent.scheduler.state.cluster import ChangedNodes
from agent.scheduler.state.pod_info import Feasibility, Feasible
from agent.scheduler.unschedulable.queue import (
    FORGET_SECONDS,
    MAX_NAMES,
    MAX_RETRIES,
    RETRY_INTERVAL_SECONDS,
    NodeSets,
    QueuedPod,
    UnschedulableQueue,
)


class Check:
    """The check of an equivalence class."""

    def __init__(self, class_name: str) -> None:
        self.equivalence_class = class_name

    def run(self, node: str) -> Feasibility:
        raise AssertionError("the results of Nodes are used")


class Nodes:
    """`fitting`: the equivalence classes that fit, by node. `complete_log`: whether the log reaches
    back to the serial."""

    def __init__(self, *names: str) -> None:
        self.fitting: dict[str, set[str]] = {name: set() for name in names}
        self.log: list[str] = []
        self.complete_log = True

    def changed_since(self, serial: int) -> ChangedNodes:
        names = frozenset(self.log[serial:]) if self.complete_log else None
        return ChangedNodes(len(self.log), names)

    def node_names(self) -> Iterable[str]:
        return list(self.fitting)

    def results(self, check: object, nodes: Sequence[str]) -> list[Feasibility]:
        assert isinstance(check, Check)
        return [
            Feasible(1)
            if check.equivalence_class in self.fitting[each]
            else Refusal(Reason.NOT_ENOUGH_CPUS, detail="full")
            for each in nodes
        ]

    def change(self, node: str, *class_names: str) -> None:
        self.fitting[node] = set(class_names)
        self.log.append(node)


def queued(uid: str, class_name: str = "small", priority: int = 0, at: float = 0.0) -> QueuedPod:
    return QueuedPod(uid, "default", uid, Check(class_name), at, at, priority)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes("a", "b")


@pytest.fixture
def queue(nodes: Nodes) -> UnschedulableQueue:
    """A queue with one pod, after the call that checks every node."""
    queue = UnschedulableQueue()
    queue.add(queued("p"))
    assert queue.retryable(nodes, 0.0) == []
    return queue


def retried(queue: UnschedulableQueue, nodes: Nodes, now: float) -> list[tuple[str, str]]:
    return [(each.queued.uid, each.node) for each in queue.retryable(nodes, now)]


def test_a_changed_node_with_room_causes_a_retry(queue: UnschedulableQueue, nodes: Nodes) -> None:
    nodes.change("b", "small")
    assert retried(queue, nodes, 1.0) == [("p", "b")]
    assert retried(queue, nodes, 2.0) == []


def test_a_change_without_room_causes_no_retry(queue: UnschedulableQueue, nodes: Nodes) -> None:
    nodes.change("b", "large")
    assert retried(queue, nodes, 1.0) == []


@pytest.mark.parametrize(("offered", "again"), [(["b"], True), (["a"], False), ([], False)])
def test_a_node_that_kube_scheduler_did_not_pass_causes_no_retry(
    nodes: Nodes, offered: list[str], again: bool
) -> None:
    """Its own plugins reject that node, and it retries the pod when they no longer do."""
    queue = UnschedulableQueue()
    queue.add(queued("p"), ["unrelated", *offered])
    queue.retryable(nodes, 0.0)
    nodes.change("b", "small")
    assert retried(queue, nodes, 1.0) == ([("p", "b")] if again else [])


def test_names_of_deleted_nodes_are_dropped(nodes: Nodes) -> None:
    queue = UnschedulableQueue()
    queue.add(queued("p"), ["b"])
    queue.retryable(nodes, 0.0)
    queue.add(queued("q"), (f"deleted{number}" for number in range(MAX_NAMES + 1)))
    queue.add(queued("q"), ["new"])
    assert [each.offered for each in queue.pods()] == [None, 1]
    nodes.change("b", "small")
    assert retried(queue, nodes, 1.0) == [("p", "b")]


def test_a_removed_pod_is_not_retried(queue: UnschedulableQueue, nodes: Nodes) -> None:
    queue.remove("p")
    nodes.change("b", "small")
    assert retried(queue, nodes, 1.0) == []


def test_the_first_call_checks_every_node(nodes: Nodes) -> None:
    nodes.change("a", "small")
    queue = UnschedulableQueue()
    queue.add(queued("p"))
    assert retried(queue, nodes, 0.0) == [("p", "a")]


def test_with_an_incomplete_log_every_node_is_checked(
    queue: UnschedulableQueue, nodes: Nodes
) -> None:
    nodes.change("a", "small")
    nodes.change("b")
    nodes.complete_log = False
    assert retried(queue, nodes, 1.0) == [("p", "a")]


def test_a_change_during_the_filter_of_a_pod_is_checked(nodes: Nodes) -> None:
    """The call comes after a filter that did not see the change, and before the pod is queued."""
    queue = UnschedulableQueue()
    queue.retryable(nodes, 0.0)
    nodes.change("b", "small")
    assert retried(queue, nodes, 1.0) == []
    queue.add(queued("p", at=1.1))
    assert retried(queue, nodes, 1.5) == [("p", "b")]


def test_a_pod_waits_between_two_retries_and_is_not_dropped(
    queue: UnschedulableQueue, nodes: Nodes
) -> None:
    nodes.change("b", "small")
    assert retried(queue, nodes, 1.0) == [("p", "b")]
    nodes.change("b", "small")
    assert retried(queue, nodes, 1.0 + RETRY_INTERVAL_SECONDS / 2) == []
    assert retried(queue, nodes, 1.0 + RETRY_INTERVAL_SECONDS) == [("p", "b")]


def nominated(uid: str, node: str, priority: int = 0, at: float = 0.0) -> QueuedPod:
    return msgspec.structs.replace(queued(uid, priority=priority, at=at), nominated=node)


def test_a_node_is_reserved_for_the_pod_for_which_it_is_nominated() -> None:
    queue = UnschedulableQueue()
    queue.add(nominated("p", "a", 5, 1.0))
    assert queue.nominated_for_others("lower", 4, 2.0) == {"a"}
    assert queue.nominated_for_others("equal", 5, 2.0) == {"a"}
    assert queue.nominated_for_others("higher", 6, 2.0) == set()
    assert queue.nominated_for_others("p", 5, 2.0) == set()
    queue.add(nominated("p", "", 5))
    assert queue.nominated_for_others("lower", 4, 2.0) == set()


def test_one_of_two_pods_with_equal_priority_gets_the_nominated_node() -> None:
    queue = UnschedulableQueue()
    queue.add(nominated("old", "a", at=1.0))
    queue.add(nominated("young", "a", at=2.0))
    assert queue.nominated_for_others("old", 0, 3.0) == set()
    assert queue.nominated_for_others("young", 0, 3.0) == {"a"}


@pytest.mark.parametrize("end", ["removed", "withdrawn"])
def test_a_withdrawn_nomination_is_checked_again(
    queue: UnschedulableQueue, nodes: Nodes, end: str
) -> None:
    """The node has not changed again by then."""
    queue.add(queued("high", class_name="large", priority=1))
    queue.nominate("high", "b")
    nodes.change("b", "small")
    retried(queue, nodes, 1.0)
    assert retried(queue, nodes, 1.0 + RETRY_INTERVAL_SECONDS) == []
    if end == "removed":
        queue.remove("high")
    else:
        queue.withdraw("high", "b")
    assert retried(queue, nodes, 2.0 + RETRY_INTERVAL_SECONDS) == [("p", "b")]
    assert queue.nominated_for_others("p", 0, 9.0) == set()


def test_a_pod_is_not_retried_when_its_node_is_full_again(
    queue: UnschedulableQueue, nodes: Nodes
) -> None:
    nodes.change("b", "small")
    retried(queue, nodes, 1.0)
    nodes.change("b", "small")
    retried(queue, nodes, 2.0)
    nodes.change("b")
    assert retried(queue, nodes, 1.0 + 2 * RETRY_INTERVAL_SECONDS) == []


def test_a_pod_that_is_not_retried_for_long_is_dropped(
    queue: UnschedulableQueue, nodes: Nodes
) -> None:
    nodes.change("b", "small")
    assert retried(queue, nodes, FORGET_SECONDS + 1) == []
    assert queue.pods() == []


def test_pods_are_retried_by_priority_and_waiting_time(nodes: Nodes) -> None:
    queue = UnschedulableQueue()
    for uid, priority, at in (("young", 0, 3.0), ("old", 0, 1.0), ("high", 7, 5.0)):
        queue.add(queued(uid, priority=priority, at=at))
    queue.add(queued("old", at=4.0))
    nodes.change("a", "small")
    assert [uid for uid, _ in retried(queue, nodes, 9.0)] == ["high", "old", "young"]


def test_many_pods_are_retried_in_several_calls(nodes: Nodes) -> None:
    queue = UnschedulableQueue()
    count = MAX_RETRIES + 5
    for number in range(count):
        queue.add(queued(f"p{number:03}", at=number))
    nodes.change("a", "small")
    first, second = retried(queue, nodes, 0.0), retried(queue, nodes, 0.5)
    assert [uid for uid, _ in first + second] == [f"p{number:03}" for number in range(count)]
    assert len(first) == MAX_RETRIES
    assert retried(queue, nodes, 1.0) == []


NAMES = st.sets(st.sampled_from("abcdefghijklmnopqrstuvwxyz"))


@given(st.lists(NAMES, min_size=1), NAMES)
def test_node_sets_contain_their_names(sets: list[set[str]], queried: set[str]) -> None:
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
