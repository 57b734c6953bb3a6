"""What every node answers to a kind of pod, remembered until the node changes.

Pods of one shape get the same answers, so a table has one row a shape and one column a node. An
answer is found when it is first asked for, and forgotten when the cluster's log names its node:
what a bind costs later is one new answer for each shape that asks about that node again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from agent.scheduler.changelog import Changes

SHAPES: Final = 512
"""Rows kept: a pod of a shape that was not asked for of late pays for its answers anew."""

# A cold row takes the cluster's lock anew after so many answers: binds and watches go between.
_AT_ONCE: Final = 32


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
    """A node without room, and why, for people. `unresolvable`: nobody's eviction helps."""

    reason: str
    unresolvable: bool = False


Answer = Fit | Misfit
UNKNOWN: Final = Misfit("the node is not known to the scheduler", unresolvable=True)


class Question(Protocol):
    """A kind of pod: `shape` is equal where the answers are equal on every node."""

    @property
    def shape(self) -> Hashable: ...

    def answer(self, node: str) -> Answer:
        """Of a node that is known. Under the cluster's lock."""
        ...


class Node(Protocol):
    @property
    def name(self) -> str: ...


class Log(Protocol):
    """Which nodes there are, and which have changed; all of it to be read under the lock."""

    @property
    def lock(self) -> threading.RLock: ...

    def changed_since(self, serial: int) -> Changes:
        """Those that came, changed or went."""
        ...

    def node(self, name: str) -> Node | None: ...

    def nodes(self) -> Iterable[Node]: ...


class Shapes:
    """The table. Any thread may ask. `asked`: answers given; `offered`: those found anew."""

    def __init__(self, log: Log, shapes: int = SHAPES) -> None:
        self._log = log
        self._most = shapes
        self._serial = 0
        self._columns: dict[str, int] = {}
        self._spare: list[int] = []
        self._width = 0
        self._rows: OrderedDict[Hashable, _Row] = OrderedDict()
        self.asked = 0
        self.offered = 0

    def answers(self, question: Question, nodes: Sequence[str]) -> list[Answer]:
        """Of each of the nodes, in their order; nodes that nobody knows are UNKNOWN."""
        with self._log.lock:
            self._follow()
            remembered = self._row(question.shape).answers
            column = self._columns.get
            found = [UNKNOWN if at is None else remembered[at] for at in map(column, nodes)]
            self.asked += len(nodes)
        answers = [each for each in found if each is not None]
        if len(answers) == len(found):
            return answers
        missing = [place for place, answer in enumerate(found) if answer is None]
        for first in range(0, len(missing), _AT_ONCE):
            with self._log.lock:
                self._follow()
                for place in missing[first : first + _AT_ONCE]:
                    found[place] = self._answer(question, nodes[place])
        return [each for each in found if each is not None]

    def _answer(self, question: Question, node: str) -> Answer:
        column = self._columns.get(node)
        if column is None:
            return UNKNOWN
        row = self._row(question.shape)
        answer = row.answers[column]
        if answer is None:
            self.offered += 1
            answer = row.put(column, question.answer(node))
        return answer

    def _row(self, shape: Hashable) -> _Row:
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = _Row(self._width)
            if len(self._rows) > self._most:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(shape)
        return row

    def _follow(self) -> None:
        """Forgets what the log says has changed."""
        changes = self._log.changed_since(self._serial)
        self._serial = changes.serial
        if changes.names is None:
            self._columns = {node.name: at for at, node in enumerate(self._log.nodes())}
            self._spare = []
            self._width = len(self._columns)
            self._rows.clear()
        else:
            for node in changes.names:
                self._changed(node)

    def _changed(self, node: str) -> None:
        column = self._columns.get(node)
        if self._log.node(node) is None:
            if column is not None:
                del self._columns[node]
                self._spare.append(column)
        elif column is None:
            self._columns[node] = self._new_column()
            return
        if column is not None:
            for row in self._rows.values():
                row.answers[column] = None

    def _new_column(self) -> int:
        if self._spare:
            return self._spare.pop()
        self._width += 1
        for row in self._rows.values():
            row.answers.append(None)
        return self._width - 1


class _Row:
    """One shape's answers by column; equal ones are one object."""

    def __init__(self, width: int) -> None:
        self.answers: list[Answer | None] = [None] * width
        self._alike: dict[Hashable, Answer] = {}

    def put(self, column: int, answer: Answer) -> Answer:
        if len(self._alike) > 2 * len(self.answers) + 64:
            self._alike = {_content(each): each for each in self.answers if each is not None}
        answer = self._alike.setdefault(_content(answer), answer)
        self.answers[column] = answer
        return answer


def _content(answer: Answer) -> Hashable:
    return answer.key if isinstance(answer, Fit) else (answer.reason, answer.unresolvable)
