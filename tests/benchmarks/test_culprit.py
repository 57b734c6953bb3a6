"""benchmarks/culprit.py: real containers, where they can run, and what counts as right."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def culprit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("culprit", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("culprit")


@pytest.mark.parametrize(
    ("parts", "right"),
    [
        ({"batch": 0.3, "backup": 0.2}, True),
        ({"backup": 0.3, "batch": 0.2}, True),
        ({"batch": 0.3, "others": 0.2, "backup": 0.1}, False),
        ({"others": 0.3, "batch": 0.2}, False),
    ],
)
def test_two_culprits_are_the_first_two_in_any_order(
    culprit: ModuleType, parts: dict[str, float], right: bool
) -> None:
    both = ("batch", "backup")
    assert culprit.is_right(parts, (both, both)) == right


def test_what_was_there_before_is_no_answer(culprit: ModuleType) -> None:
    before = culprit.noticed({"others": 0.3, "ksmd": 0.001})
    new = culprit.without(before, {"others": 0.4, "ksmd": 0.15, "batch": 0.2, "own": 0.0})
    assert list(new) == ["batch", "ksmd"]
    assert culprit.is_answer(new, 2)
    assert not culprit.is_answer(new, 3)


@pytest.mark.timeout(120)
@pytest.mark.long
def test_real_containers_are_disturbed(culprit: ModuleType) -> None:
    """Which takers are named on a busy machine depends on its load. That a container has too many
    threads does not."""
    done = subprocess.run(
        [sys.executable, "benchmarks/culprit.py", "--quick", "--output", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = {row["case"]: row for row in json.loads(done.stdout)}
    if reason := table["tried"].get("skipped"):
        pytest.skip(reason)
    assert table["tried"]["value"] == 3
    assert {"named_right", "accused_idle", "accused_normal", "noise"} <= table.keys()
    named = table["own_threads"]
    assert (named["parts"] | named["before"])[culprit.OWN] > culprit.LONG
