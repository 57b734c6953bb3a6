"""Vector files (JSON lines, one case on each line, plain or gzip; blank lines are ignored), and the
verdict on each case: the same answer, a declared difference, or a disagreement.

The kind of a case follows from its keys and from the value of `op`. To add a kind, add an entry to
KINDS, and a Judge under its name to JUDGES of its module.
"""

from __future__ import annotations

import gzip
import importlib
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError

Case = dict[str, Any]

MAX_LINE_BYTES: Final = 1 << 26
"""A bound, so that a file without line breaks does not exhaust the memory."""

_GZIP: Final = b"\x1f\x8b"
_CASE: Final = msgspec.json.Decoder(Case)


class FileError(Exception):
    """A file that can't be read completely; the message names the file, and the line if there is
    one."""

    def __init__(self, path: str, reason: str, line: int | None = None) -> None:
        place = path if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {reason}")


def read(path: str) -> Iterator[tuple[int, Case]]:
    """The cases with their line numbers, from 1, one at a time. Raises FileError."""
    number = 0
    try:
        with open(path, "rb") as raw, _plain(raw) as content:
            while line := content.readline(MAX_LINE_BYTES + 1):
                number += 1
                if line.strip():
                    yield number, _case(path, number, line)
    except (EOFError, OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(path, reason, number + 1 if number else None) from None


def _plain(raw: io.BufferedReader) -> io.BufferedIOBase:
    return gzip.GzipFile(fileobj=raw) if raw.peek(len(_GZIP)).startswith(_GZIP) else raw


def _case(path: str, number: int, line: bytes) -> Case:
    if len(line) > MAX_LINE_BYTES:
        raise FileError(path, f"longer than {MAX_LINE_BYTES} bytes", number)
    try:
        return bounds.decode(_CASE, line)
    except JsonError as error:
        raise FileError(path, str(error), number) from None


class Difference(msgspec.Struct, frozen=True):
    """A case in which Topolet's answer differs on purpose, because the other system's answer is
    wrong. The differences that are not listed may be at most 2 % of a set together."""

    name: str
    reason: str
    listed: bool = False
    """It is known that the answer is wrong: the tables in the vectors' README or the issues of the
    other project list it, or it contradicts a proposal. Such a case is counted separately."""


class CaseVerdict(msgspec.Struct, frozen=True):
    """The verdict on a case."""

    agrees: bool
    actual: Any
    """Topolet's answer in the form of the case's `expect`."""
    declared: str | None = None
    """The name of a Difference, set only if the answers differ and the case satisfies the predicate
    of the Difference."""


class Judge(msgspec.Struct, frozen=True):
    """The comparison for one kind of case."""

    judge: Callable[[Case], CaseVerdict]
    """Raises an ArithmeticError, AttributeError, LookupError, TypeError or ValueError for a case
    that it can't read."""
    differences: tuple[Difference, ...] = ()
    """All that it may declare, in the order of the report."""


class CaseKind(msgspec.Struct, frozen=True):
    """A kind of case."""

    name: str
    module: str
    """The module whose JUDGES has the kind's Judge."""
    keys: frozenset[str]
    """The keys that every case has; a case may have more."""
    ops: tuple[str, ...] = ()
    """The values of the key `op`, empty for a kind without that key."""

    def fits(self, case: Case) -> bool:
        """Whether the case may be of this kind."""
        return self.keys <= case.keys() and (not self.ops or case.get("op") in self.ops)

    def load(self) -> Judge:
        judges: Mapping[str, Judge] = importlib.import_module(self.module).JUDGES
        return judges[self.name]


def _kind(name: str, module: str, keys: str, ops: str = "") -> CaseKind:
    path = f"conformance.{module}"
    return CaseKind(name, path, frozenset(keys.split()), tuple(ops.split()))


KINDS: Final = (
    _kind(
        "koordinator-take-cpus",
        "koordinator_node_numa",
        "shape numbering maxRef available need bind exclusive strategy allocated expect",
    ),
    _kind(
        "koordinator-merge-hints", "merge_hints", "policy numaNodes status exclusive hints expect"
    ),
    _kind("kubelet-take-cpus", "kubelet", "shape numbering l3 available need options expect"),
    _kind(
        "kubelet-static-policy",
        "kubelet",
        "shape numbering l3 options topologyPolicy pods steps expect",
    ),
    _kind("kubelet-merge-hints", "merge_hints", "policy options numaNodes hints expect"),
    _kind(
        "koordinator-cpuset-decisions",
        "koordinator_cpuset_decisions",
        "op expect",
        ops="pools hook hostapp",
    ),
    _kind("koordinator-aggregate", "koordinator_aggregate", "points expect"),
    _kind(
        "koordinator-batch-mid",
        "koordinator_batch_mid",
        "op strategy node pods nodeMetric expect",
        ops="batch mid",
    ),
    _kind("koordinator-predict", "koordinator_predict", "op expect", ops="histogram peak"),
    _kind("koordinator-cpu-burst", "koordinator_cpu_burst", "op expect", ops="round limiter"),
    _kind("koordinator-nodeslo", "koordinator_nodeslo", "config node expect"),
    _kind(
        "koordinator-evict",
        "koordinator_evict",
        "op features threshold node pods metrics evictedBefore cannotEvict expect",
        ops="cpu memory",
    ),
    _kind("koordinator-resctrl", "koordinator_resctrl", "op expect", ops="l3 mb"),
    _kind("koordinator-memory-qos", "koordinator_memory_qos", "strategy node pods expect"),
    _kind(
        "koordinator-be-suppress",
        "koordinator_be_suppress",
        "op expect",
        ops="amount pick cpuset quota",
    ),
    _kind("kubelet-state-files", "kubelet", "file"),
    _kind("koordinator-device-requests", "koordinator_devices", "pod devices expect"),
    _kind(
        "koordinator-device-allocate",
        "koordinator_devices",
        "pod devices allocated strategy numa expect",
    ),
    _kind(
        "koordinator-node-numa",
        "koordinator_node_numa",
        "shape numbering allocatable zones allocated pod expect",
    ),
    _kind("nrt-match", "nrt_match", "pod nrt nodeAllocatable expect"),
)


def find(case: Case, kinds: Sequence[CaseKind] = KINDS) -> CaseKind | None:
    """The kind of a case: of all that fit, the one with the most keys."""
    fitting = [kind for kind in kinds if kind.fits(case)]
    return max(fitting, key=lambda kind: len(kind.keys), default=None)


DECLARED_PERCENT: Final = 2
"""The largest part of a set that may have declared differences that are not listed."""

_UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The exceptions that code raises for a value of an unexpected type."""


class UnknownKindError(FileError):
    """The first case of a file is of an unknown kind."""


class Disagreement(msgspec.Struct, frozen=True):
    """A case in which the answers differ, and no difference is declared."""

    line: int
    case: Case
    actual: Any
    """Topolet's answer in the form of the case's `expect`."""


class Declared(msgspec.Struct, frozen=True):
    """The number of cases with this difference; at least one."""

    difference: Difference
    cases: int


class FileResult(msgspec.Struct, frozen=True):
    """The result of a file. Every case agrees, is declared or disagrees."""

    file: str
    kind: str
    cases: int
    agree: int
    declared: tuple[Declared, ...]
    disagree: int
    first: Disagreement | None
    """The first disagreement, None without one."""

    @property
    def unlisted(self) -> int:
        """The number of cases with declared differences that are not listed."""
        return sum(each.cases for each in self.declared if not each.difference.listed)

    @property
    def too_many_declared(self) -> bool:
        return self.unlisted * 100 > self.cases * DECLARED_PERCENT

    @property
    def passes(self) -> bool:
        return not self.disagree and not self.too_many_declared


def judge(path: str, known: Sequence[CaseKind] = KINDS) -> FileResult:
    """Judges a file. All cases must be of the kind of the first case.

    Raises UnknownKindError if the kind of the first case is unknown, and FileError for a file that
    can't be read, has cases of several kinds, or has no case."""
    kind: CaseKind | None = None
    agree = disagree = 0
    declared: Counter[str] = Counter()
    first: Disagreement | None = None
    for line, case in read(path):
        found = find(case, known)
        if found is None:
            fault = FileError if kind else UnknownKindError
            raise fault(path, f"a case of an unknown kind; {_keys(case)}", line)
        if kind is None:
            kind, by = found, found.load()
        elif found is not kind:
            raise FileError(path, f"{found.name} among {kind.name}; {_keys(case)}", line)
        verdict = _verdict(path, line, case, by)
        if verdict.agrees:
            agree += 1
        elif verdict.declared is not None:
            declared[verdict.declared] += 1
        else:
            disagree += 1
            first = first or Disagreement(line, case, verdict.actual)
    if kind is None:
        raise FileError(path, "has no case")
    return FileResult(
        file=path,
        kind=kind.name,
        cases=agree + disagree + declared.total(),
        agree=agree,
        declared=_explained(declared, by),
        disagree=disagree,
        first=first,
    )


def _keys(case: Case) -> str:
    return f"its keys: {', '.join(sorted(case)) or 'none'}"


def _verdict(path: str, line: int, case: Case, by: Judge) -> CaseVerdict:
    try:
        return by.judge(case)
    except KeyError as error:
        raise FileError(path, f"missing or unknown: {error}", line) from error
    except _UNREADABLE as error:
        raise FileError(path, f"{type(error).__name__}: {error}", line) from error


def _explained(counts: Counter[str], by: Judge) -> tuple[Declared, ...]:
    """The declared differences with their counts, in the order of the kind's differences."""
    known = {difference.name: difference for difference in by.differences}
    unknown = counts.keys() - known.keys()
    if unknown:
        raise ValueError(f"declared but not among the differences: {sorted(unknown)}")
    return tuple(Declared(known[name], counts[name]) for name in known if counts[name])
