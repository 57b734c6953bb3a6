"""One vector file judged case by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agent.conformance import files, kinds
from agent.conformance.files import Case, CaseVerdict, Difference, FileError
from agent.conformance.kinds import KINDS, CaseKind, Judge

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
        found = kinds.find(case, known)
        if found is None:
            fault = FileError if kind else UnknownKindError
            raise fault(path, f"a case of no known kind; {_keys(case)}", line)
        if kind is None:
            kind, module = found, found.load()
        elif found is not kind:
            raise FileError(path, f"{found.name} among {kind.name}; {_keys(case)}", line)
        verdict = _verdict(path, line, case, module)
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
        declared=_explained(declared, module),
        disagree=disagree,
        first=first,
    )


def _keys(case: Case) -> str:
    return f"its keys: {', '.join(sorted(case)) or 'none'}"


def _verdict(path: str, line: int, case: Case, module: Judge) -> CaseVerdict:
    try:
        return module.judge(case)
    except KeyError as error:
        raise FileError(path, f"missing or unknown: {error}", line) from error
    except _UNREADABLE as error:
        raise FileError(path, f"{type(error).__name__}: {error}", line) from error


def _explained(counts: Counter[str], module: Judge) -> tuple[Declared, ...]:
    """In the order of the module's differences."""
    known = {difference.name: difference for difference in module.DIFFERENCES}
    unknown = counts.keys() - known.keys()
    if unknown:
        raise ValueError(f"declared but not among DIFFERENCES: {sorted(unknown)}")
    return tuple(Declared(known[name], counts[name]) for name in known if counts[name])
