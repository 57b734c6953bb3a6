"""One vector file judged case by case.

A case shows its kind by its keys and by the value of `op`. A kind is added by an entry in KINDS and
a Judge under its name in the JUDGES of its module.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.conformance import files
from agent.conformance.files import Case, CaseVerdict, Difference, FileError, Judge


class CaseKind(msgspec.Struct, frozen=True):
    """`keys`: those that every case has; a case may have more. `ops`: the values of the key `op`,
    empty for a kind without that key. `module`: has the kind's Judge in JUDGES, by name."""

    name: str
    module: str
    keys: frozenset[str]
    ops: tuple[str, ...] = ()

    def fits(self, case: Case) -> bool:
        """Whether the case may be of this kind."""
        return self.keys <= case.keys() and (not self.ops or case.get("op") in self.ops)

    def load(self) -> Judge:
        """Imports the module."""
        judges: Mapping[str, Judge] = importlib.import_module(self.module).JUDGES
        return judges[self.name]


def _kind(name: str, module: str, keys: str, ops: str = "") -> CaseKind:
    path = f"agent.conformance.{module}"
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
    """The kind of a case: of those that it fits, the one with most keys."""
    fitting = [kind for kind in kinds if kind.fits(case)]
    return max(fitting, key=lambda kind: len(kind.keys), default=None)


DECLARED_PERCENT: Final = 2
"""How much of a set may differ in declared ways that are not listed."""

_UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The exceptions of code that takes a value for another type."""


class UnknownKindError(FileError):
    """A file whose first case is of no known kind."""


class Disagreement(msgspec.Struct, frozen=True):
    """`ours`: our answer in the form of the case's `expect`."""

    line: int
    case: Case
    ours: Any


class Declared(msgspec.Struct, frozen=True):
    """How many cases differ in this way; at least one."""

    difference: Difference
    cases: int


class FileResult(msgspec.Struct, frozen=True):
    """What came of a file. Every case agrees, is declared or disagrees; `first` of the latter."""

    file: str
    kind: str
    cases: int
    agree: int
    declared: tuple[Declared, ...]
    disagree: int
    first: Disagreement | None

    @property
    def unlisted(self) -> int:
        """Cases that differ in declared ways which the vectors' own tables do not call wrong."""
        return sum(each.cases for each in self.declared if not each.difference.listed)

    @property
    def too_many_declared(self) -> bool:
        return self.unlisted * 100 > self.cases * DECLARED_PERCENT

    @property
    def passes(self) -> bool:
        return not self.disagree and not self.too_many_declared


def judge(path: str, known: Sequence[CaseKind] = KINDS) -> FileResult:
    """Runs a file; its first case shows the kind, and all cases must be of that kind.

    Raises UnknownKindError for a file whose first case is of no known kind, and FileError for one
    that can't be read, that has cases of several kinds, or that has no case."""
    kind: CaseKind | None = None
    agree = disagree = 0
    declared: Counter[str] = Counter()
    first: Disagreement | None = None
    for line, case in files.read(path):
        found = find(case, known)
        if found is None:
            fault = FileError if kind else UnknownKindError
            raise fault(path, f"a case of no known kind; {_keys(case)}", line)
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
            first = first or Disagreement(line, case, verdict.ours)
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
    """In the order of the kind's differences."""
    known = {difference.name: difference for difference in by.differences}
    unknown = counts.keys() - known.keys()
    if unknown:
        raise ValueError(f"declared but not among the differences: {sorted(unknown)}")
    return tuple(Declared(known[name], counts[name]) for name in known if counts[name])
