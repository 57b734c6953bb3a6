"""Caches the feasibility of nodes for pods of one equivalence class until the node changes.

Pods of one class get the same result on every node, so the cache has one row per class, with a
result per node. A result is computed at its first lookup (`RequirementsCheck`), once for all nodes
in the same state (`allocate.node_allocator.node_states`), and dropped when the cluster's change log
names its node: after a bind, each class that needs the result of that node computes it again.
`StateNumbering` numbers the states before a lookup needs them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from sys import intern
from typing import Any, Final, TypeVar

import msgspec

from agent.model.pod_request import Reads
from agent.scheduler.state.cluster import ChangedNodes, SchedulerCache
from agent.scheduler.state.node_info import NodeChange
from agent.scheduler.state.pod_info import (
    UNKNOWN_NODE,
    Feasibility,
    Feasible,
    RequirementsCheck,
    Undecided,
)

Item = TypeVar("Item")

MAX_RESULTS: Final = 1_000_000
"""Results kept, of some 60 bytes each. Beyond them the least recently used row is dropped."""
MAX_CLASSES: Final = 512
"""Rows kept: a change of a node takes time for each row."""
MAX_STATES: Final = 4096
"""Results by state of the node that a row keeps for further nodes: beyond them all are dropped."""
_FEW: Final = 32
"""Results that may be missing when the common result of all nodes is asked for."""
# While a row is filled, the lock is released for binds and watches after this time.
_LOCKED_SECONDS: Final = 0.003
# Numbering pauses as long as it holds the lock.
_NUMBERING_SECONDS: Final = 0.001
# A thread that waits for a lock rarely gets it if another thread takes it again at once.
_PAUSE_SECONDS: Final = 0.00005


def best_node(nodes: Sequence[str], results: Sequence[Feasibility | None]) -> str | None:
    """The best node by score, order and name, which exclude ties; None if no node is feasible."""
    feasible = [each for each in set(results) if isinstance(each, Feasible)]
    if not feasible:
        return None
    least = min(each.key for each in feasible)
    first, *more = (each for each in feasible if each.key == least)
    pairs = zip(nodes, results, strict=True)
    if not more:
        return min(node for node, result in pairs if result is first)
    return min(node for node, result in pairs if result is first or result in more)


class EquivalenceCache:
    """The results by equivalence class and node. Safe for many threads."""

    def __init__(self, cluster: SchedulerCache, max_results: int = MAX_RESULTS) -> None:
        self._cluster = cluster
        self._max_results = max_results
        self._serial = self._zone_serial = self._placement_serial = 0
        self._rows: OrderedDict[Hashable, _Row] = OrderedDict()
        self._nodes: set[str] = set()
        self.lookups = 0
        """The number of results returned."""
        self.misses = 0
        """The number of results computed."""

    def node_names(self) -> list[str]:
        """The names of all nodes."""
        return [each.name for each in self._cluster.nodes()]

    def changed_since(self, serial: int) -> ChangedNodes:
        """The nodes that were added, changed or removed."""
        return self._cluster.changed_since(serial)

    def results(self, check: RequirementsCheck, nodes: Sequence[str]) -> list[Feasibility]:
        """Returns the result of each node, in the order of `nodes`."""
        with self._cluster.lock:
            self._invalidate()
            found = list(map(self._row(check).results.get, nodes))
            self.lookups += len(nodes)
        if None in set(found):

            def compute(row: _Row, index: int) -> None:
                found[index] = self._result(check, row, nodes[index])

            missing = deque(index for index, result in enumerate(found) if result is None)
            self._in_slices(check, missing, compute)
        return found  # type: ignore[return-value]

    def results_apart(self, check: RequirementsCheck, nodes: Sequence[str]) -> list[Feasibility]:
        """Returns the results of a check that takes long, in the order of the nodes. Each is
        computed on a copy of the node, without the lock, and kept unless the node has changed
        since."""
        results: list[Feasibility] = []
        for node in nodes:
            with self._cluster.lock:
                self._invalidate()
                row, serial = self._row(check), self._serial
                self.lookups += 1
                result = row.results.get(node) or check.apart(node, row.by_state)
            if isinstance(result, Undecided):
                self.misses += 1
                number, result = result.number, check.decided(result)
                with self._cluster.lock:
                    self._invalidate()
                    row, changed = self._row(check), self._cluster.changed_since(serial).names
                    if number is not None:
                        row.by_state[number] = result
                    if changed is not None and node not in changed:
                        row.put(node, result)
                    self._evict()
            results.append(result)
        return results

    def best(self, check: RequirementsCheck, nodes: Sequence[str]) -> str | None:
        """The best of `nodes` by score, order and name, which exclude ties; None if none is
        feasible. Nodes whose bound is below the best score found are not asked for a result."""
        with self._cluster.lock:
            self._invalidate()
            row = self._row(check)
            found = list(map(row.results.get, nodes))
            bounds = list(map(row.bounded.get, nodes))
            self.lookups += len(nodes)
        best = _Best()
        if (first := best_node(nodes, found)) is not None:
            best.take(first, found[nodes.index(first)])
        if None not in set(found):
            return first
        too_low = {each for each in set(bounds) if each is not None and each.bound < best.score}
        missing = deque(
            node
            for node, result, bounded in zip(nodes, found, bounds, strict=True)
            if result is None and bounded not in too_low
        )
        groups = self._bounds(check, missing, best)
        pending = deque(sorted(groups, key=lambda group: group.bound, reverse=True))

        def ask(row: _Row, group: _Unasked) -> None:
            if group.bound < best.score:
                pending.clear()
                return
            node = min(group.names)
            group.names.remove(node)
            bounded = row.bounded.get(node)
            changed = bounded is None or bounded.number != group.number
            best.take(node, self._result(check, row, node))
            if changed and group.names:  # its result is not that of the others any more
                pending.appendleft(group)

        self._in_slices(check, pending, ask)
        return best.node

    def _bounds(self, check: RequirementsCheck, missing: deque[str], best: _Best) -> list[_Unasked]:
        """Those of the nodes without a result that may be better than the best, by their state."""
        groups: dict[int | str, _Unasked] = {}

        def note(row: _Row, node: str) -> None:
            known = self._result_or_bound(check, row, node)
            if isinstance(known, Feasible):
                best.take(node, known)
            elif isinstance(known, _Bounded) and known.bound >= max(best.score, 0):
                key = node if known.number is None else known.number
                if (group := groups.get(key)) is None:
                    groups[key] = _Unasked(known.bound, known.number, [node])
                else:
                    group.names.append(node)

        self._in_slices(check, missing, note)
        return list(groups.values())

    def _result_or_bound(
        self, check: RequirementsCheck, row: _Row, node: str
    ) -> Feasibility | _Bounded:
        """The result if the node's state has one."""
        bounded = row.bounded.get(node)
        if bounded is None:
            known = check.known(node, row.by_state)
            if isinstance(known, Undecided):
                return row.put_bound(node, known.number, partial(check.bound, known))
            return known if known is UNKNOWN_NODE else row.put(node, known)
        result = None if bounded.number is None else row.by_state.get(bounded.number)
        return bounded if result is None else row.put(node, result)

    def uniform(self, check: RequirementsCheck) -> Feasibility | None:
        """Returns the result of all existing nodes; None if their results differ, or if some are
        not computed yet."""

        def compute(row: _Row, node: str) -> None:
            self._result(check, row, node)

        with self._cluster.lock:
            self._invalidate()
            row = self._row(check)
            if len(row.changed) > _FEW:
                return None
            missing = deque(row.changed)
        self._in_slices(check, missing, compute)
        with self._cluster.lock:
            self._invalidate()
            row = self._row(check)
            return row.uniform if len(row.results) == len(self._nodes) else None

    def _in_slices(
        self, check: RequirementsCheck, pending: deque[Item], do: Callable[[_Row, Item], None]
    ) -> None:
        """Takes the items one by one until none is pending. Binds and watches get the lock in
        between."""
        while pending:
            with self._cluster.lock:
                self._invalidate()
                row = self._row(check)
                until = time.perf_counter() + _LOCKED_SECONDS
                while pending and time.perf_counter() < until:
                    do(row, pending.popleft())
                if not pending:
                    self._evict()
            if pending:
                time.sleep(_PAUSE_SECONDS)

    def _result(self, check: RequirementsCheck, row: _Row, node: str) -> Feasibility:
        result = row.results.get(node)
        if result is not None:
            return result
        self.misses += 1
        result = check.run(node, row.by_state)
        # Names of nodes that do not exist would never be dropped.
        return result if result is UNKNOWN_NODE else row.put(node, result)

    def _row(self, check: RequirementsCheck) -> _Row:
        key = check.equivalence_class
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(check.least_change)
            if len(self._rows) > MAX_CLASSES:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return row

    def _evict(self) -> None:
        """Drops the least recently used rows while there are too many results, but not the row in
        use."""
        kept = sum(row.size for row in self._rows.values())
        while len(self._rows) > 1 and kept > self._max_results:
            _, row = self._rows.popitem(last=False)
            kept -= row.size

    def _invalidate(self) -> None:
        """Drops the results of nodes that changed."""
        changes = self._cluster.changed_since(self._serial)
        zones = self._cluster.zones_changed_since(self._zone_serial)
        placement = self._cluster.placement_changed_since(self._placement_serial)
        self._serial, self._zone_serial = changes.serial, zones.serial
        self._placement_serial = placement.serial
        if changes.names is None or zones.names is None or placement.names is None:
            self._rows.clear()
            self._nodes = {each.name for each in self._cluster.nodes()}
            return
        for node in changes.names:
            exists = self._cluster.node(node) is not None
            new = exists and node not in self._nodes
            if exists:
                self._nodes.add(node)
            else:
                self._nodes.discard(node)
            change = NodeChange.ZONE_REPORT if node in zones.names else NodeChange.DEVICE_ZONES
            change = NodeChange.ALL if node in placement.names else change
            for row in self._rows.values():
                if change >= row.least_change:
                    row.drop(node, exists, new)


class _Bounded(msgspec.Struct, frozen=True, eq=False):
    """Nodes without a result: the number of their state, and a score that their result does not
    exceed, negative if they are surely not feasible."""

    number: int | None
    bound: int


class _Unasked(msgspec.Struct):
    """Nodes in one state, without a result. The one with the smallest name is the best of them."""

    bound: int
    number: int | None
    names: list[str]


class _Best:
    """The best node so far; `score` below all if there is none."""

    def __init__(self) -> None:
        self.score = -1
        self.node: str | None = None
        self._key: tuple[Any, ...] = ()

    def take(self, node: str, result: Feasibility | None) -> None:
        """Nothing if the result is not feasible."""
        if not isinstance(result, Feasible) or result.score < self.score:
            return
        key = (*result.key, node)
        if self.node is None or key < self._key:
            self.score, self.node, self._key = result.score, node, key


class _Row:
    """The results of one class by node; equal results are one object. `least_change`: no smaller
    change of a node changes its result. `changed` are the nodes whose result was dropped, and the
    nodes that were added since. `bounded`: nodes whose result was not computed, because another
    node was better than their bound."""

    def __init__(self, least_change: NodeChange) -> None:
        self.least_change = least_change
        self.results: dict[str, Feasibility] = {}
        self.by_state: dict[int, Feasibility] = {}
        self.bounded: dict[str, _Bounded] = {}
        self._bounded_by_state: dict[int, _Bounded] = {}
        self.changed: set[str] = set()
        self._distinct: dict[Hashable, Feasibility] = {}
        self._counts: dict[Feasibility, int] = {}

    @property
    def size(self) -> int:
        return len(self.results) + len(self.changed) + len(self.by_state) + len(self.bounded)

    @property
    def uniform(self) -> Feasibility | None:
        """The result of all nodes; None if their results differ."""
        return next(iter(self._counts)) if len(self._counts) == 1 else None

    def put_bound(self, node: str, number: int | None, bound: Callable[[], int]) -> _Bounded:
        """`bound` is called once for all nodes with the same number."""
        found = None if number is None else self._bounded_by_state.get(number)
        if found is None:
            found = _Bounded(number, bound())
            if number is not None:
                if len(self._bounded_by_state) > MAX_STATES:
                    self._bounded_by_state.clear()
                self._bounded_by_state[number] = found
        self.bounded[intern(node)] = found
        return found

    def put(self, node: str, result: Feasibility) -> Feasibility:
        if len(self.by_state) > MAX_STATES:
            self.by_state.clear()
        result = self._distinct.setdefault(_value(result), result)
        self._counts[result] = self._counts.get(result, 0) + 1
        self.results[intern(node)] = result
        self.changed.discard(node)
        self.bounded.pop(node, None)
        return result

    def drop(self, node: str, exists: bool, new: bool) -> None:
        """`exists`: the node still exists. `new`: it was added."""
        result = self.results.pop(node, None)
        self.bounded.pop(node, None)
        if not exists:
            self.changed.discard(node)
        elif new or result is not None:
            self.changed.add(node)
        if result is None:
            return
        self._counts[result] -= 1
        if not self._counts[result]:
            del self._counts[result]
            del self._distinct[_value(result)]


def _value(result: Feasibility) -> Hashable:
    return result.key if isinstance(result, Feasible) else result


class StateNumbering:
    """Numbers the states of nodes that changed, so that the first pod of an equivalence class does
    not wait for the numbers of all nodes. Safe for many threads."""

    def __init__(self, cluster: SchedulerCache) -> None:
        self._cluster = cluster
        self._stepping = threading.Lock()
        self._serial = 0

    def step(self) -> None:
        """Returns when each node has the numbers of a state that it had during this call. Holds the
        cluster's lock for about a millisecond at a time."""
        with self._stepping:
            changes = self._cluster.changed_since(self._serial)
            self._serial = changes.serial
            if changes.names is not None:
                pending = deque(changes.names)
            else:
                pending = deque(each.name for each in self._cluster.nodes())
            while pending:
                self._number_some(pending)

    def _number_some(self, pending: deque[str]) -> None:
        with self._cluster.lock:
            until = time.perf_counter() + _NUMBERING_SECONDS
            while pending and time.perf_counter() < until:
                node = self._cluster.node(pending.popleft())
                if node is not None:
                    for reads in Reads:
                        node.state_number(self._cluster.node_states, reads)
        if pending:
            time.sleep(_NUMBERING_SECONDS)
