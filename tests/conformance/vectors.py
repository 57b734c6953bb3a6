"""Answers of other implementations: the files of tests/data/vectors."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from conformance.files import CaseVerdict
from tests.conftest import DATA

_FOLDER = DATA / "vectors"


def set_names() -> tuple[str, ...]:
    """The names of all sets."""
    return tuple(sorted(path.name.partition(".")[0] for path in _FOLDER.glob("*.jsonl*")))


def file(name: str) -> Path:
    """The file of a set, plain or gzip."""
    (path,) = _FOLDER.glob(f"{name}.jsonl*")
    return path


def vectors(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(file(name)) as lines:
        for line in lines:
            yield msgspec.json.decode(line)


def count_verdicts(
    name: str, judge: Callable[[dict[str, Any]], CaseVerdict]
) -> Counter[str | None]:
    """Counts by declared difference, None for agreement. Fails at a case that is neither."""
    counted: Counter[str | None] = Counter()
    for case in vectors(name):
        verdict = judge(case)
        assert verdict.agrees or verdict.declared, (case, verdict.actual)
        counted[verdict.declared] += 1
    return counted
