"""Answers of other implementations, in files beside the checkout."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from agent.conformance.verdict import Verdict
from tests.conftest import SHARED


def vectors(name: str) -> Iterator[dict[str, Any]]:
    """Skips the test where there are none."""
    path = SHARED / "vectors" / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    with gzip.open(path) as lines:
        for line in lines:
            yield msgspec.json.decode(line)


def outcomes(name: str, judge: Callable[[dict[str, Any]], Verdict]) -> Counter[str | None]:
    """By declared difference, None for agreement. Fails at a case that is neither."""
    counted: Counter[str | None] = Counter()
    for case in vectors(name):
        verdict = judge(case)
        assert verdict.agrees or verdict.declared, (case, verdict.ours)
        counted[verdict.declared] += 1
    return counted
