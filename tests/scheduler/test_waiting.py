"""Who is tried again, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pytest

from agent.scheduler.changelog import Changes
from agent.scheduler.nodenames import MOST_NAMES
from agent.scheduler.shapes import Answer, Fit, Misfit
from agent.scheduler.waiter import Waiter
from agent.scheduler.waiting import AT_ONCE, REST_SECONDS, STALE_SECONDS, Waiting


class Kind:
    """A question of that shape."""

    def __init__(self, shape: str) -> None:
        self.shape = shape

    def answer(self, node: str) -> Answer:
        raise AssertionError("the table answers")


class Nodes:
    """`room`: by node the shapes that fit."""

    def __init__(self, *names: str) -> None:
        self.room: dict[str, set[str]] = {name: set() for name in names}
        self.log: list[str] = []
        self.reaches_back = True

    def changed_since(self, serial: int) -> Changes:
        names = frozenset(self.log[serial:]) if self.reaches_back else None
        return Changes(len(self.log), names)

    def known(self) -> Iterable[str]:
        return list(self.room)

    def answers(self, question: object, nodes: Sequence[str]) -> list[Answer]:
        assert isinstance(question, Kind)
        return [Fit(1) if question.shape in self.room[each] else Misfit("full") for each in nodes]

    def change(self, node: str, *shapes: str) -> None:
        self.room[node] = set(shapes)
        self.log.append(node)


def waiter(uid: str, shape: str = "small", priority: int = 0, at: float = 0.0) -> Waiter:
    return Waiter(uid, "default", uid, Kind(shape), at, at, priority)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes("a", "b")


@pytest.fixture
def waiting(nodes: Nodes) -> Waiting:
    """With one pod, after the round that looks at every node."""
    it = Waiting()
    it.refused(waiter("p"))
    assert it.round(nodes, 0.0) == []
    return it


def tried(waiting: Waiting, nodes: Nodes, now: float) -> list[tuple[str, str]]:
    return [(each.waiter.uid, each.node) for each in waiting.round(nodes, now)]


def test_node_that_changed_and_has_room(waiting: Waiting, nodes: Nodes) -> None:
    nodes.change("b", "small")
    assert tried(waiting, nodes, 1.0) == [("p", "b")]
    assert tried(waiting, nodes, 2.0) == []


def test_change_without_room_is_none(waiting: Waiting, nodes: Nodes) -> None:
    nodes.change("b", "large")
    assert tried(waiting, nodes, 1.0) == []


@pytest.mark.parametrize(("offered", "again"), [(["b"], True), (["a"], False), ([], False)])
def test_node_that_kube_scheduler_did_not_offer_is_no_reason(
    nodes: Nodes, offered: list[str], again: bool
) -> None:
    """It has something against that node itself, and knows when that is over."""
    waiting = Waiting()
    waiting.refused(waiter("p"), ["unrelated", *offered])
    waiting.round(nodes, 0.0)
    nodes.change("b", "small")
    assert tried(waiting, nodes, 1.0) == ([("p", "b")] if again else [])


def test_names_of_nodes_that_are_gone_are_forgotten(nodes: Nodes) -> None:
    waiting = Waiting()
    waiting.refused(waiter("p"), ["b"])
    waiting.round(nodes, 0.0)
    waiting.refused(waiter("q"), (f"gone{number}" for number in range(MOST_NAMES + 1)))
    waiting.refused(waiter("q"), ["anew"])
    assert [each.offered for each in waiting.waiters()] == [None, 1]
    nodes.change("b", "small")
    assert tried(waiting, nodes, 1.0) == [("p", "b")]


def test_pod_that_settled_is_left_alone(waiting: Waiting, nodes: Nodes) -> None:
    waiting.settled("p")
    nodes.change("b", "small")
    assert tried(waiting, nodes, 1.0) == []


def test_first_round_looks_at_every_node(nodes: Nodes) -> None:
    nodes.change("a", "small")
    it = Waiting()
    it.refused(waiter("p"))
    assert tried(it, nodes, 0.0) == [("p", "a")]


def test_log_that_does_not_reach_back_means_every_node(waiting: Waiting, nodes: Nodes) -> None:
    nodes.change("a", "small")
    nodes.change("b")
    nodes.reaches_back = False
    assert tried(waiting, nodes, 1.0) == [("p", "a")]


def test_change_while_a_pod_was_judged(nodes: Nodes) -> None:
    """The round came between the answer, which did not know of the change, and the word of it."""
    it = Waiting()
    it.round(nodes, 0.0)
    nodes.change("b", "small")
    assert tried(it, nodes, 1.0) == []
    it.refused(waiter("p", at=1.1))
    assert tried(it, nodes, 1.5) == [("p", "b")]


def test_pod_rests_between_two_tries_and_is_not_forgotten(waiting: Waiting, nodes: Nodes) -> None:
    nodes.change("b", "small")
    assert tried(waiting, nodes, 1.0) == [("p", "b")]
    nodes.change("b", "small")
    assert tried(waiting, nodes, 1.0 + REST_SECONDS / 2) == []
    assert tried(waiting, nodes, 1.0 + REST_SECONDS) == [("p", "b")]


def nominated(uid: str, node: str, priority: int = 0, at: float = 0.0) -> Waiter:
    return msgspec.structs.replace(waiter(uid, priority=priority, at=at), nominated=node)


def test_node_is_kept_for_whom_it_is_nominated() -> None:
    waiting = Waiting()
    waiting.refused(nominated("p", "a", 5, 1.0))
    assert waiting.kept_from("lesser", 4, 2.0) == {"a"}
    assert waiting.kept_from("equal", 5, 2.0) == {"a"}
    assert waiting.kept_from("greater", 6, 2.0) == set()
    assert waiting.kept_from("p", 5, 2.0) == set()
    waiting.refused(nominated("p", "", 5))
    assert waiting.kept_from("lesser", 4, 2.0) == set()


def test_of_two_that_are_as_important_one_may_have_the_node() -> None:
    waiting = Waiting()
    waiting.refused(nominated("old", "a", at=1.0))
    waiting.refused(nominated("young", "a", at=2.0))
    assert waiting.kept_from("old", 0, 3.0) == set()
    assert waiting.kept_from("young", 0, 3.0) == {"a"}


@pytest.mark.parametrize("end", ["settled", "given up"])
def test_who_was_kept_from_a_node_looks_at_it_again(
    waiting: Waiting, nodes: Nodes, end: str
) -> None:
    """Its room is no news by then."""
    waiting.refused(waiter("high", shape="large", priority=1))
    waiting.keep("high", "b")
    nodes.change("b", "small")
    tried(waiting, nodes, 1.0)
    assert tried(waiting, nodes, 1.0 + REST_SECONDS) == []
    if end == "settled":
        waiting.settled("high")
    else:
        waiting.give_up("high", "b")
    assert tried(waiting, nodes, 2.0 + REST_SECONDS) == [("p", "b")]
    assert waiting.kept_from("p", 0, 9.0) == set()


def test_hope_ends_with_the_room(waiting: Waiting, nodes: Nodes) -> None:
    nodes.change("b", "small")
    tried(waiting, nodes, 1.0)
    nodes.change("b", "small")
    tried(waiting, nodes, 2.0)
    nodes.change("b")
    assert tried(waiting, nodes, 1.0 + 2 * REST_SECONDS) == []


def test_pod_that_nobody_asks_for_any_more_is_forgotten(waiting: Waiting, nodes: Nodes) -> None:
    nodes.change("b", "small")
    assert tried(waiting, nodes, STALE_SECONDS + 1) == []
    assert waiting.waiters() == []


def test_the_most_important_first_then_who_waits_longest(nodes: Nodes) -> None:
    it = Waiting()
    for uid, priority, at in (("young", 0, 3.0), ("old", 0, 1.0), ("high", 7, 5.0)):
        it.refused(waiter(uid, priority=priority, at=at))
    it.refused(waiter("old", at=4.0))
    nodes.change("a", "small")
    assert [uid for uid, _ in tried(it, nodes, 9.0)] == ["high", "old", "young"]


def test_crowd_comes_in_rounds(nodes: Nodes) -> None:
    it = Waiting()
    count = AT_ONCE + 5
    for number in range(count):
        it.refused(waiter(f"p{number:03}", at=number))
    nodes.change("a", "small")
    first, second = tried(it, nodes, 0.0), tried(it, nodes, 0.5)
    assert [uid for uid, _ in first + second] == [f"p{number:03}" for number in range(count)]
    assert len(first) == AT_ONCE
    assert tried(it, nodes, 1.0) == []
