"""benchmarks/colocation.py: a real service beside real batch, where they can run, and figures."""

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
def colocation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("colocation", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("colocation")


def test_figures_are_medians_and_compared_at_the_most_batch(colocation: ModuleType) -> None:
    def load(late: float, rate: float, steps: int) -> object:
        return colocation.Load((late,), rate, steps, steps, 4.0, 90.0, 0.0, 0.1)

    loads = {
        (service, number, arm): [load(late * number, rate, steps)] * 2 + [load(99.0, 1.0, 0)]
        for service in ("server", "loop")
        for number in (1, 4)
        for arm, late, rate, steps in (
            ("alone", 1.0, 50.0, 0),
            ("plain", 6.0, 40.0, 100),
            ("ours", 2.0, 45.0, 300),
        )
    }
    figures = {row["case"]: row for row in colocation.summary(colocation.rows(loads, 10_000.0))}
    assert figures["server_p99_vs_alone"]["ratio"] == 2.0
    assert figures["server_p99_vs_alone_plain"]["ours"] == 24.0
    assert figures["loop_rate_vs_alone"]["ratio"] == 0.9
    assert figures["batch_of_idle_percent"]["value"] == 75.0
    assert figures["batch_of_idle_percent_plain"]["value"] == 25.0
    assert figures["utilization_percent"]["value"] == 90.0


@pytest.mark.timeout(180)
@pytest.mark.long
def test_a_real_service_runs_beside_real_batch(colocation: ModuleType) -> None:
    """How late it is depends on the machine's other load. That the batch works, and the loop too,
    does not."""
    done = subprocess.run(
        [sys.executable, "benchmarks/colocation.py", "--quick", "--output", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = {row["case"]: row for row in json.loads(done.stdout)}
    assert colocation.GOALS.keys() <= table.keys()
    if reason := table[colocation.P99].get("skipped"):
        pytest.skip(reason)
    assert table["server_alone_4"]["batch_of_idle_percent"] == 0
    assert table["server_plain_4"]["batch_of_idle_percent"] > 0
    assert table["loop_ours_4"]["rate"] > 1
