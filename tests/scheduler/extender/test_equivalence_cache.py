from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Hashable, Iterable
from sys import intern

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.refusal import Reason, Refusal
from agent.scheduler.extender import equivalence_cache
from agent.scheduler.extender.equivalence_cache import EquivalenceCache
from agent.scheduler.state.cluster import ChangedNodes, ChangeLog
from agent.scheduler.state.node_info import NodeChange
from agent.scheduler.state.pod_info import UNKNOWN_NODE, Feasibility, Feasible


class Node(msgspec.Struct, frozen=True):
    name: str


class Nodes:
    """Nodes with their numbers of free CPUs, and change logs of at most `max_names` names.
    `checked`: the node of every check."""

    def __init__(self, free: dict[str, int], max_names: int = 1000) -> None:
        self.lock = threading.RLock()
        self.free: dict[str, int] = {}
        self.log = ChangeLog(max_names)
        self.zone_log, self.placement_log = ChangeLog(max_names), ChangeLog(max_names)
        self.checked: list[str] = []
        for node, cpus in free.items():
            self.set(intern(node), cpus)

    def changed_since(self, serial: int) -> ChangedNodes:
        return self.log.since(serial)

    def zones_changed_since(self, serial: int) -> ChangedNodes:
        return self.zone_log.since(serial)

    def placement_changed_since(self, serial: int) -> ChangedNodes:
        return self.placement_log.since(serial)

    def node(self, name: str) -> Node | None:
        return Node(name) if name in self.free else None

    def nodes(self) -> Iterable[Node]:
        return map(Node, self.free)

    def set(self, node: str, free: int | None) -> None:
        if free is None:
            self.free.pop(node, None)
        else:
            self.free[node] = free
        for log in (self.log, self.zone_log, self.placement_log):
            log.add(node)

    def check(self, node: str, cpus: int) -> Feasibility:
        self.checked.append(node)
        if node not in self.free:
            return UNKNOWN_NODE
        left = self.free[node] - cpus
        return (
            Feasible(left) if left >= 0 else Refusal(Reason.GROUP, detail=f"{-left} CPUs too few")
        )


class CpuCheck(msgspec.Struct, frozen=True):
    """Whether a node has a number of free CPUs."""

    nodes: Nodes
    cpus: int
    least_change: NodeChange = NodeChange.ALL

    @property
    def equivalence_class(self) -> Hashable:
        return self.cpus, self.least_change

    def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
        return self.nodes.check(node, self.cpus)


def values_of(results: list[Feasibility]) -> list[object]:
    """Scores and reasons: results themselves are compared by identity."""
    return [each.score if isinstance(each, Feasible) else each.text for each in results]


@pytest.fixture
def nodes() -> Nodes:
    return Nodes({"a": 4, "b": 2, "c": 2})


def test_a_node_is_checked_once_until_it_changes(nodes: Nodes) -> None:
    cache = EquivalenceCache(nodes)
    for _ in range(3):
        cache.results(CpuCheck(nodes, 1), ["a", "b", "c"])
    assert nodes.checked == ["a", "b", "c"]
    nodes.set("b", 1)
    assert values_of(cache.results(CpuCheck(nodes, 1), ["a", "b", "c"])) == [3, 0, 1]
    assert nodes.checked == ["a", "b", "c", "b"]


def test_the_names_of_a_request_are_not_kept() -> None:
    """Each row would have its own copies: 70 bytes for each node and class."""
    nodes = Nodes({f"node-{number}.example": 4 for number in range(200)})
    cache = EquivalenceCache(nodes)
    tracemalloc.start()
    try:
        for cpus in range(10):
            asked = [str(bytes(name, "ascii"), "ascii") for name in nodes.free]
            cache.results(CpuCheck(nodes, cpus), asked)
            del asked
        nodes.checked.clear()
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    of_test = snapshot.filter_traces([tracemalloc.Filter(True, __file__)])
    assert sum(each.size for each in of_test.statistics("filename")) < 200 * 70


def test_a_new_zone_report_is_checked_only_for_classes_that_read_it(nodes: Nodes) -> None:
    cache = EquivalenceCache(nodes)
    levels = (NodeChange.ALL, NodeChange.ZONE_REPORT, NodeChange.DEVICE_ZONES)
    classes = [CpuCheck(nodes, 1, level) for level in levels]

    def checked_again() -> list[str]:
        nodes.checked.clear()
        for each in classes:
            cache.results(each, ["a", "b"])
        return nodes.checked

    assert checked_again() == ["a", "b"] * 3
    nodes.log.add("b")
    assert checked_again() == ["b"]
    nodes.log.add("b")
    nodes.zone_log.add("b")
    assert checked_again() == ["b", "b"]
    nodes.set("a", 3)
    assert checked_again() == ["a", "a", "a"]


def test_only_named_nodes_are_checked(nodes: Nodes) -> None:
    EquivalenceCache(nodes).results(CpuCheck(nodes, 1), ["c"])
    assert nodes.checked == ["c"]


def test_equal_results_are_one_object(nodes: Nodes) -> None:
    """5,000 full nodes have one reason, which is stored once."""
    first, second = EquivalenceCache(nodes).results(CpuCheck(nodes, 3), ["b", "c"])
    assert first is second


def test_a_dropped_class_is_computed_again(nodes: Nodes) -> None:
    cache = EquivalenceCache(nodes, max_results=4)
    for cpus in (1, 2, 3, 1):
        cache.results(CpuCheck(nodes, cpus), ["a", "b"])
    assert nodes.checked == ["a", "b"] * 4
    cache.results(CpuCheck(nodes, 3), ["a", "b"])
    assert len(nodes.checked) == 8


class Pauses:
    """Replaces `time` during a lookup: another thread takes the lock in each pause. `counts`: the
    number of results computed before each pause."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.now = 0.0
        self.counts: list[int] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        other = threading.Thread(target=self._take_lock)
        other.start()
        other.join(30)
        assert not other.is_alive(), "the lock is not released"

    def _take_lock(self) -> None:
        with self._nodes.lock:
            self.counts.append(len(self._nodes.checked))


@pytest.mark.parametrize(("seconds", "results"), [(0.0004, 8), (0.01, 1)])
def test_the_lock_is_released_while_many_results_are_computed(
    monkeypatch: pytest.MonkeyPatch, seconds: float, results: int
) -> None:
    """After several results, or after each slow one."""
    nodes = Nodes({f"n{place}": 8 for place in range(40)})
    pauses = Pauses(nodes)
    monkeypatch.setattr(equivalence_cache, "time", pauses)

    class Slow(CpuCheck, frozen=True):
        def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
            pauses.now += seconds
            return super().run(node, by_state)

    EquivalenceCache(nodes).results(Slow(nodes, 1), list(nodes.free))
    assert pauses.counts == list(range(results, 40, results))


def test_the_lock_is_released_while_the_common_result_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes({f"n{place}": 8 for place in range(20)})
    cache, pauses = EquivalenceCache(nodes), Pauses(nodes)
    cache.results(CpuCheck(nodes, 1), list(nodes.free))
    nodes.checked.clear()
    for node in list(nodes.free):
        nodes.set(node, 7)
    monkeypatch.setattr(equivalence_cache, "time", pauses)

    class Slow(CpuCheck, frozen=True):
        def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
            pauses.now += 0.01
            return super().run(node, by_state)

    found = cache.uniform(Slow(nodes, 1))
    assert isinstance(found, Feasible)
    assert found.score == 6
    assert pauses.counts == list(range(1, 20))


def test_results_by_state_are_bounded(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence_cache, "MAX_STATES", 3)
    sizes = []

    class Distinct(CpuCheck, frozen=True):
        def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
            sizes.append(len(by_state))
            found = by_state[len(sizes)] = super().run(node, by_state)
            return found

    cache = EquivalenceCache(nodes)
    for free in range(1, 10):
        nodes.set("a", free)
        cache.results(Distinct(nodes, 1), ["a"])
    assert max(sizes) == 3


def test_the_number_of_rows_is_bounded(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change of a node takes time for each row."""
    monkeypatch.setattr(equivalence_cache, "MAX_CLASSES", 2)
    cache = EquivalenceCache(nodes)
    for cpus in (1, 2, 3, 1):
        cache.results(CpuCheck(nodes, cpus), ["a"])
    assert nodes.checked == ["a"] * 4
    cache.results(CpuCheck(nodes, 3), ["a"])
    assert len(nodes.checked) == 4


def test_requests_without_nodes_leave_no_row(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence_cache, "MAX_CLASSES", 2)
    cache = EquivalenceCache(nodes)
    cache.results(CpuCheck(nodes, 1), ["a"])
    for cpus in (2, 3):
        assert cache.uniform(CpuCheck(nodes, cpus)) is None
        assert cache.results(CpuCheck(nodes, cpus), []) == []
    cache.results(CpuCheck(nodes, 1), ["a"])
    assert nodes.checked == ["a", "a"], "the oldest row was dropped"


def test_only_nodes_of_a_row_are_computed_again(nodes: Nodes) -> None:
    """Other nodes may change often while the row is not used."""
    cache = EquivalenceCache(nodes, max_results=3)
    cache.results(CpuCheck(nodes, 1), ["a"])
    for node in ("b", "c", "b"):
        nodes.set(node, 5)
    cache.results(CpuCheck(nodes, 2), ["b", "c"])
    nodes.checked.clear()
    cache.results(CpuCheck(nodes, 1), ["a"])
    assert not nodes.checked


def test_names_of_missing_nodes_are_not_kept(nodes: Nodes) -> None:
    cache = EquivalenceCache(nodes, max_results=3)
    cache.results(CpuCheck(nodes, 1), ["a", "b"])
    cache.results(CpuCheck(nodes, 2), [f"x{place}" for place in range(10)])
    nodes.checked.clear()
    cache.results(CpuCheck(nodes, 1), ["a", "b"])
    assert not nodes.checked


def test_a_uniform_result_needs_no_node_names() -> None:
    nodes = Nodes({"a": 2, "b": 2})
    cache = EquivalenceCache(nodes)
    assert cache.uniform(CpuCheck(nodes, 1)) is None, "no node is checked yet"
    cache.results(CpuCheck(nodes, 1), ["a"])
    assert cache.uniform(CpuCheck(nodes, 1)) is None
    cache.results(CpuCheck(nodes, 1), ["b"])
    same = cache.uniform(CpuCheck(nodes, 1))
    assert isinstance(same, Feasible)
    assert same.score == 1
    nodes.set("c", 2)
    assert cache.uniform(CpuCheck(nodes, 1)) is same, "a new node is checked immediately"
    nodes.set("a", 3)
    assert cache.uniform(CpuCheck(nodes, 1)) is None
    nodes.set("a", None)
    assert cache.uniform(CpuCheck(nodes, 1)) is same


def test_a_node_may_change_during_a_long_computation() -> None:
    """The lock is released in between: results that are already computed may be of the old state,
    later ones are of the new state, and a node that was deleted in between is unknown."""
    nodes = Nodes({f"n{place}": 8 for place in range(100)})
    cache = EquivalenceCache(nodes, max_results=1)

    class Changing(CpuCheck, frozen=True):
        def run(self, node: str, by_state: dict[int, Feasibility]) -> Feasibility:
            if node == "n3":
                self.nodes.set("n98", None)
                self.nodes.set("n99", 1)
                cache.results(CpuCheck(self.nodes, 5), ["n50"])
            return super().run(node, by_state)

    results = cache.results(Changing(nodes, 1), [f"n{place}" for place in range(100)])
    assert results[98] is UNKNOWN_NODE
    assert values_of(results[99:]) == [0]
    assert values_of(results[:98]) == [7] * 98


NAMES = st.sampled_from("abcdef")


@given(
    st.lists(
        st.one_of(
            st.tuples(NAMES, st.none() | st.integers(0, 4)),
            st.tuples(st.integers(0, 4), st.lists(NAMES, max_size=6)),
        ),
        max_size=40,
    ),
    st.integers(1, 8),
)
def test_every_result_is_that_of_the_current_node(
    steps: list[tuple[str, int | None] | tuple[int, list[str]]], max_results: int
) -> None:
    nodes = Nodes({"a": 1, "b": 2}, max_names=3)
    cache = EquivalenceCache(nodes, max_results)
    for step in steps:
        if isinstance(step[0], str):
            nodes.set(*step)
        else:
            cpus, names = step
            assert isinstance(names, list)
            found = values_of(cache.results(CpuCheck(nodes, cpus), names))
            assert found == values_of([nodes.check(node, cpus) for node in names])
            same = cache.uniform(CpuCheck(nodes, cpus))
            if same is not None:
                assert values_of([same] * len(nodes.free)) == values_of(
                    [nodes.check(node, cpus) for node in nodes.free]
                )
