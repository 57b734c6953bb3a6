"""benchmarks/cpuquality.py: the default is no worse than Koordinator's rules, and every arm assigns
free CPUs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agent.model.cpu import layout
from conformance import machines

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def cpuquality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("cpuquality", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("cpuquality")


def test_no_figure_of_the_default_is_worse_than_koordinators(cpuquality: ModuleType) -> None:
    table = {row["case"]: row for row in cpuquality.rows(cpuquality.measured(200, 1))}
    assert {name: ratio for name, row in table.items() if (ratio := row.get("ratio", 0)) > 1} == {}
    assert {f"{figure}_vs_koordinator" for figure in cpuquality.FIGURES} <= table.keys()


def test_every_arm_assigns_free_cpus_of_the_requested_number(cpuquality: ModuleType) -> None:
    made = layout.of(machines.cpus((2, 1, 4, 2), "adjacent", 2))
    for name, new_arm in cpuquality.ARMS.items():
        arm = new_arm(made)
        first, second = arm.place("a", 6), arm.place("b", 8)
        assert (first.bit_count(), second.bit_count(), first & second) == (6, 8, 0), name
        assert arm.place("c", 3) == 0, name
        arm.end("a")
        again = arm.place("d", 5)
        assert again.bit_count() in (5, 6), name
        assert not again & second, name
