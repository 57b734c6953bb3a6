from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.extender import equivalence_cache as shapes_module
from agent.scheduler.extender.equivalence_cache import EquivalenceCache
from agent.scheduler.state.pod_info import (
    UNKNOWN_NODE,
    ChangedNodes,
    ChangeLog,
    Feasibility,
    Feasible,
    Infeasible,
)


class Room(msgspec.Struct, frozen=True):
    name: str


class Rooms:
    """Nodes with their numbers of free CPUs, and a change log of at most `reach` names."""

    def __init__(self, free: dict[str, int], reach: int = 1000) -> None:
        self.lock = threading.RLock()
        self.free: dict[str, int] = {}
        self.log = ChangeLog(reach)
        self.firm_log = ChangeLog(reach)
        self.told: list[str] = []
        for node, cpus in free.items():
            self.set(node, cpus)

    def changed_since(self, serial: int) -> ChangedNodes:
        return self.log.since(serial)

    def placement_changed_since(self, serial: int) -> ChangedNodes:
        return self.firm_log.since(serial)

    def node(self, name: str) -> Room | None:
        return Room(name) if name in self.free else None

    def nodes(self) -> Iterable[Room]:
        return map(Room, self.free)

    def set(self, node: str, free: int | None) -> None:
        if free is None:
            self.free.pop(node, None)
        else:
            self.free[node] = free
        self.log.add(node)
        self.firm_log.add(node)

    def run(self, node: str, cpus: int) -> Feasibility:
        self.told.append(node)
        if node not in self.free:
            return UNKNOWN_NODE
        left = self.free[node] - cpus
        return Feasible(left) if left >= 0 else Infeasible(f"{-left} CPUs too few")


class Wants(msgspec.Struct, frozen=True):
    """A request for a number of CPUs."""

    rooms: Rooms
    cpus: int
    reads_zone_report: bool = False

    @property
    def equivalence_class(self) -> Hashable:
        return self.cpus, self.reads_zone_report

    def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
        return self.rooms.run(node, self.cpus)


def values_of(answers: list[Feasibility]) -> list[object]:
    """Values to compare: the results themselves compare as objects."""
    return [each.score if isinstance(each, Feasible) else each.reason for each in answers]


@pytest.fixture
def rooms() -> Rooms:
    return Rooms({"a": 4, "b": 2, "c": 2})


def test_results_are_in_the_order_of_the_nodes(rooms: Rooms) -> None:
    shapes = EquivalenceCache(rooms)
    assert values_of(shapes.results(Wants(rooms, 3), ["b", "a"])) == ["1 CPUs too few", 1]


def test_a_node_is_checked_once_until_it_changes(rooms: Rooms) -> None:
    shapes = EquivalenceCache(rooms)
    for _ in range(3):
        shapes.results(Wants(rooms, 1), ["a", "b", "c"])
    assert rooms.told == ["a", "b", "c"]
    rooms.set("b", 1)
    assert values_of(shapes.results(Wants(rooms, 1), ["a", "b", "c"])) == [3, 0, 1]
    assert rooms.told == ["a", "b", "c", "b"]


def test_a_nodes_report_is_checked_again_only_if_it_matters(rooms: Rooms) -> None:
    shapes = EquivalenceCache(rooms)
    firm, reads_zone_report = Wants(rooms, 1), Wants(rooms, 1, reads_zone_report=True)
    for each in (firm, reads_zone_report):
        shapes.results(each, ["a", "b"])
    rooms.told.clear()
    rooms.log.add("b")
    for each in (firm, reads_zone_report):
        shapes.results(each, ["a", "b"])
    assert rooms.told == ["b"]
    rooms.set("a", 3)
    for each in (firm, reads_zone_report):
        assert values_of(shapes.results(each, ["a", "b"])) == [2, 1]
    assert rooms.told == ["b", "a", "a"]


def test_only_named_nodes_are_checked(rooms: Rooms) -> None:
    EquivalenceCache(rooms).results(Wants(rooms, 1), ["c"])
    assert rooms.told == ["c"]


def test_equal_answers_are_one_object(rooms: Rooms) -> None:
    """The reason of 5,000 equal full nodes is stored once."""
    first, second = EquivalenceCache(rooms).results(Wants(rooms, 3), ["b", "c"])
    assert first is second


def test_a_missing_node_is_unknown_until_it_is_added(rooms: Rooms) -> None:
    shapes = EquivalenceCache(rooms)
    assert shapes.results(Wants(rooms, 1), ["x"]) == [UNKNOWN_NODE]
    rooms.set("x", 5)
    assert values_of(shapes.results(Wants(rooms, 1), ["x"])) == [4]


def test_a_removed_node_is_unknown(rooms: Rooms) -> None:
    shapes = EquivalenceCache(rooms)
    shapes.results(Wants(rooms, 1), ["a", "b", "c"])
    rooms.set("a", None)
    rooms.set("d", 8)
    answers = shapes.results(Wants(rooms, 1), ["a", "b", "c", "d"])
    assert answers[0] is UNKNOWN_NODE
    assert values_of(answers[1:]) == [1, 1, 7]


def test_a_dropped_class_is_computed_again(rooms: Rooms) -> None:
    shapes = EquivalenceCache(rooms, max_results=4)
    for cpus in (1, 2, 3, 1):
        shapes.results(Wants(rooms, cpus), ["a", "b"])
    assert rooms.told == ["a", "b"] * 4
    shapes.results(Wants(rooms, 3), ["a", "b"])
    assert len(rooms.told) == 8


class Pauses:
    """Replaces `time` during a lookup: in each pause another thread takes the lock. `told`: the
    number of results found by then."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self.now = 0.0
        self.told: list[int] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        other = threading.Thread(target=self._other)
        other.start()
        other.join(30)
        assert not other.is_alive(), "the lock is held"

    def _other(self) -> None:
        with self._rooms.lock:
            self.told.append(len(self._rooms.told))


@pytest.mark.parametrize(("seconds", "results"), [(0.0004, 8), (0.01, 1)])
def test_the_lock_is_released_while_many_results_are_computed(
    monkeypatch: pytest.MonkeyPatch, seconds: float, results: int
) -> None:
    """After some, or after each slow one, as for a large group."""
    rooms = Rooms({f"n{place}": 8 for place in range(40)})
    pauses = Pauses(rooms)
    monkeypatch.setattr(shapes_module, "time", pauses)

    class Slow(Wants, frozen=True):
        def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
            pauses.now += seconds
            return super().run(node, by_state)

    EquivalenceCache(rooms).results(Slow(rooms, 1), list(rooms.free))
    assert pauses.told == list(range(results, 40, results))


def test_results_by_state_are_bounded(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes_module, "MAX_STATES", 3)
    sizes = []

    class Distinct(Wants, frozen=True):
        def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
            sizes.append(len(by_state))
            found = by_state[len(sizes)] = super().run(node, by_state)
            return found

    cache = EquivalenceCache(rooms)
    for free in range(1, 10):
        rooms.set("a", free)
        cache.results(Distinct(rooms, 1), ["a"])
    assert max(sizes) == 3


def test_the_number_of_rows_is_bounded(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change of a node takes time for each row."""
    monkeypatch.setattr(shapes_module, "MAX_CLASSES", 2)
    shapes = EquivalenceCache(rooms)
    for cpus in (1, 2, 3, 1):
        shapes.results(Wants(rooms, cpus), ["a"])
    assert rooms.told == ["a"] * 4
    shapes.results(Wants(rooms, 3), ["a"])
    assert len(rooms.told) == 4


def test_requests_without_nodes_leave_no_row(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes_module, "MAX_CLASSES", 2)
    shapes = EquivalenceCache(rooms)
    shapes.results(Wants(rooms, 1), ["a"])
    for cpus in (2, 3):
        assert shapes.uniform(Wants(rooms, cpus)) is None
        assert shapes.results(Wants(rooms, cpus), []) == []
    shapes.results(Wants(rooms, 1), ["a"])
    assert rooms.told == ["a", "a"], "the oldest row went"


def test_nodes_that_a_row_never_had_are_not_added_to_it(rooms: Rooms) -> None:
    """They change all day, and the row is never used again."""
    shapes = EquivalenceCache(rooms, max_results=3)
    shapes.results(Wants(rooms, 1), ["a"])
    for node in ("b", "c", "b"):
        rooms.set(node, 5)
    shapes.results(Wants(rooms, 2), ["b", "c"])
    rooms.told.clear()
    shapes.results(Wants(rooms, 1), ["a"])
    assert not rooms.told


def test_names_of_missing_nodes_are_not_kept(rooms: Rooms) -> None:
    shapes = EquivalenceCache(rooms, max_results=3)
    shapes.results(Wants(rooms, 1), ["a", "b"])
    shapes.results(Wants(rooms, 2), [f"x{place}" for place in range(10)])
    rooms.told.clear()
    shapes.results(Wants(rooms, 1), ["a", "b"])
    assert not rooms.told


def test_a_uniform_result_needs_no_node_names() -> None:
    rooms = Rooms({"a": 2, "b": 2})
    shapes = EquivalenceCache(rooms)
    assert shapes.uniform(Wants(rooms, 1)) is None, "no node was checked yet"
    shapes.results(Wants(rooms, 1), ["a"])
    assert shapes.uniform(Wants(rooms, 1)) is None
    shapes.results(Wants(rooms, 1), ["b"])
    same = shapes.uniform(Wants(rooms, 1))
    assert isinstance(same, Feasible)
    assert same.score == 1
    rooms.set("c", 2)
    assert shapes.uniform(Wants(rooms, 1)) is same, "a new node is checked at once"
    rooms.set("a", 3)
    assert shapes.uniform(Wants(rooms, 1)) is None
    rooms.set("a", None)
    assert shapes.uniform(Wants(rooms, 1)) is same


def test_a_node_may_change_during_a_long_computation() -> None:
    """The lock is released between the parts: a result that was found already may be old, later
    ones are of the new state, and a node that was deleted meanwhile is unknown."""
    rooms = Rooms({f"n{place}": 8 for place in range(100)})
    shapes = EquivalenceCache(rooms, max_results=1)

    class Meddling(Wants, frozen=True):
        def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
            if node == "n3":
                self.rooms.set("n98", None)
                self.rooms.set("n99", 1)
                shapes.results(Wants(self.rooms, 5), ["n50"])
            return super().run(node, by_state)

    answers = shapes.results(Meddling(rooms, 1), [f"n{place}" for place in range(100)])
    assert answers[98] is UNKNOWN_NODE
    assert values_of(answers[99:]) == [0]
    assert values_of(answers[:98]) == [7] * 98


NODES = st.sampled_from("abcdef")


@given(
    st.lists(
        st.one_of(
            st.tuples(NODES, st.none() | st.integers(0, 4)),
            st.tuples(st.integers(0, 4), st.lists(NODES, max_size=6)),
        ),
        max_size=40,
    ),
    st.integers(1, 8),
)
def test_every_result_is_that_of_the_current_node(
    steps: list[tuple[str, int | None] | tuple[int, list[str]]], kept: int
) -> None:
    rooms = Rooms({"a": 1, "b": 2}, reach=3)
    shapes = EquivalenceCache(rooms, kept)
    for step in steps:
        if isinstance(step[0], str):
            rooms.set(*step)
        else:
            cpus, nodes = step
            assert isinstance(nodes, list)
            found = values_of(shapes.results(Wants(rooms, cpus), nodes))
            assert found == values_of([rooms.run(node, cpus) for node in nodes])
            same = shapes.uniform(Wants(rooms, cpus))
            if same is not None:
                assert values_of([same] * len(rooms.free)) == values_of(
                    [rooms.run(node, cpus) for node in rooms.free]
                )
