"""What every node answers to a kind of pod, remembered until the node changes.

Pods of one shape get the same answers, so a table has one row a shape with an answer by node. It is
found when it is first asked for, and forgotten when the cluster's log names its node: what a bind
costs later is one new answer for each shape that asks about that node again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from agent.scheduler.changelog import Changes

MOST: Final = 1_000_000
"""Answers kept, of some 60 bytes. Beyond them the row that was asked for least lately is forgotten,
and the next pod of its shape pays for its answers anew."""

ROWS: Final = 512
"""The same: every row is looked at for every node that changes."""

# A cold row takes the cluster's lock anew after so many answers, or so long: binds and watches go
# between. A large group's answer takes as long as hundreds of pods'.
_AT_ONCE: Final = 32
_HELD_SECONDS: Final = 0.003
# Who waits for a lock that is taken again at once hardly ever gets it.
_PAUSE_SECONDS: Final = 0.00005


class Fit(msgspec.Struct, frozen=True, eq=False):
    """A node that has room. `score`: 0-100; `order`: of two with one score the smaller is better.
    What is left to decide, the node's name does."""

    score: int
    order: tuple[Any, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Smaller is better."""
        return -self.score, self.order


class Misfit(msgspec.Struct, frozen=True, eq=False):
    """A node without room, and why, for people. `unresolvable`: nobody's eviction helps. `words`:
    the reason without amounts, where it has some."""

    reason: str
    unresolvable: bool = False
    words: str = ""


Answer = Fit | Misfit
UNKNOWN: Final = Misfit("the node is not known to the scheduler", unresolvable=True)


class Question(Protocol):
    """A kind of pod: `shape` is equal where the answers are equal on every node."""

    @property
    def shape(self) -> Hashable: ...

    @property
    def by_word(self) -> bool:
        """Whether the answer hangs on what a node says that its NUMA nodes have left."""
        ...

    def answer(self, node: str) -> Answer:
        """UNKNOWN of a node that is none. Under the cluster's lock."""
        ...


class Node(Protocol):
    @property
    def name(self) -> str: ...


class Log(Protocol):
    """Which nodes have changed."""

    @property
    def lock(self) -> threading.RLock: ...

    def changed_since(self, serial: int) -> Changes:
        """Those that came, changed or went."""
        ...

    def firmly_changed_since(self, serial: int) -> Changes:
        """Those of them that did not change by their word on their NUMA nodes alone."""
        ...

    def node(self, name: str) -> Node | None:
        """None for one that is none. To be read under the lock."""
        ...

    def nodes(self) -> Iterable[Node]: ...


class Shapes:
    """The table. Any thread may ask. `asked`: answers given; `offered`: those found anew."""

    def __init__(self, log: Log, most: int = MOST) -> None:
        self._log = log
        self._most = most
        self._serial = self._firm_serial = 0
        self._rows: OrderedDict[Hashable, _Row] = OrderedDict()
        self._nodes: set[str] = set()
        self.asked = 0
        self.offered = 0

    def answers(self, question: Question, nodes: Sequence[str]) -> list[Answer]:
        """Of each of the nodes, in their order."""
        with self._log.lock:
            self._follow()
            found = list(map(self._row(question).answers.get, nodes))
            self.asked += len(nodes)
        if None in set(found):
            self._complete(question, nodes, found)
        return found  # type: ignore[return-value]

    def same(self, question: Question) -> Answer | None:
        """What all nodes that there are answer alike; None where they do not, or were not all asked
        yet."""
        with self._log.lock:
            self._follow()
            row = self._row(question)
            if len(row.changed) > _AT_ONCE:
                return None
            for node in tuple(row.changed):
                self._answer(question, row, node)
            return row.same if len(row.answers) == len(self._nodes) else None

    def _complete(
        self, question: Question, nodes: Sequence[str], found: list[Answer | None]
    ) -> None:
        missing = deque(place for place, answer in enumerate(found) if answer is None)
        while missing:
            with self._log.lock:
                self._follow()
                row = self._row(question)
                until = time.perf_counter() + _HELD_SECONDS
                for _ in range(min(_AT_ONCE, len(missing))):
                    place = missing.popleft()
                    found[place] = self._answer(question, row, nodes[place])
                    if time.perf_counter() > until:
                        break
                self._forget()
            if missing:
                time.sleep(_PAUSE_SECONDS)

    def _answer(self, question: Question, row: _Row, node: str) -> Answer:
        known = row.answers.get(node)
        if known is not None:
            return known
        self.offered += 1
        answer = question.answer(node)
        # Names that mean nothing now would be kept for ever.
        return answer if answer is UNKNOWN else row.put(node, answer)

    def _row(self, question: Question) -> _Row:
        shape = question.shape
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = _Row(question.by_word)
            if len(self._rows) > ROWS:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(shape)
        return row

    def _forget(self) -> None:
        """The oldest rows, while there are too many answers; never the one in use."""
        kept = sum(row.size for row in self._rows.values())
        while len(self._rows) > 1 and kept > self._most:
            _, row = self._rows.popitem(last=False)
            kept -= row.size

    def _follow(self) -> None:
        """Forgets what the log says has changed."""
        changes = self._log.changed_since(self._serial)
        firm = self._log.firmly_changed_since(self._firm_serial)
        self._serial, self._firm_serial = changes.serial, firm.serial
        if changes.names is None or firm.names is None:
            self._rows.clear()
            self._nodes = {each.name for each in self._log.nodes()}
            return
        for node in changes.names:
            there = self._log.node(node) is not None
            new = there and node not in self._nodes
            if there:
                self._nodes.add(node)
            else:
                self._nodes.discard(node)
            firmly = node in firm.names
            for row in self._rows.values():
                if firmly or row.by_word:
                    row.drop(node, there, new)


class _Row:
    """One shape's answers by node; equal ones are one object. `changed`: nodes whose answer was
    forgotten, and those that came since."""

    def __init__(self, by_word: bool) -> None:
        self.by_word = by_word
        self.answers: dict[str, Answer] = {}
        self.changed: set[str] = set()
        self._alike: dict[Hashable, Answer] = {}
        self._times: dict[Answer, int] = {}

    @property
    def size(self) -> int:
        return len(self.answers) + len(self.changed)

    @property
    def same(self) -> Answer | None:
        """The answer, where there is but one."""
        return next(iter(self._times)) if len(self._times) == 1 else None

    def put(self, node: str, answer: Answer) -> Answer:
        answer = self._alike.setdefault(_content(answer), answer)
        self._times[answer] = self._times.get(answer, 0) + 1
        self.answers[node] = answer
        self.changed.discard(node)
        return answer

    def drop(self, node: str, there: bool, new: bool) -> None:
        """`there`: the node has but changed; `new`: it has come."""
        answer = self.answers.pop(node, None)
        if not there:
            self.changed.discard(node)
        elif new or answer is not None:
            self.changed.add(node)
        if answer is None:
            return
        self._times[answer] -= 1
        if not self._times[answer]:
            del self._times[answer]
            del self._alike[_content(answer)]


def _content(answer: Answer) -> Hashable:
    return answer.key if isinstance(answer, Fit) else (answer.reason, answer.unresolvable)
