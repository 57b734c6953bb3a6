"""benchmarks/quiet.py: a real owner beside all that disturbs, where it can run, and figures."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent.model.settings.quiet import QUIET_FEATURES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("quiet", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("quiet")


def test_figures_are_medians_and_each_feature_has_a_row(quiet: ModuleType) -> None:
    def turn(p9999_us: float, interrupts: int) -> Any:
        devices = {"36 disk": interrupts} if interrupts else {}
        return quiet.Turn(2.0, 1.0, p9999_us, 99.0, 20, devices, 100, 0.1, 90.0, 0.0)

    turns = {
        "pinned": [turn(40.0, 10), turn(60.0, 30), turn(50.0, 20)],
        "interrupts": [turn(25.0, 0)] * 3,
        "all": [turn(5.0, 0)] * 3,
    }
    others = set(QUIET_FEATURES) - {"interrupts"}
    table = {row["case"]: row for row in quiet.rows(turns, dict.fromkeys(others, "not here"))}
    assert table.keys() == {"pinned", "jitter_p9999_vs_pinned", *QUIET_FEATURES}
    assert table["jitter_p9999_vs_pinned"]["ratio"] == 0.1
    assert table["interrupts"]["ratio"] == 0.5
    assert table["pinned"]["interrupts"] == 10.0
    assert {table[name]["skipped"] for name in others} == {"not here"}
    counted = {row["case"]: row for row in quiet.interrupt_rows(turns)}
    assert counted["owner_interrupts_60s"]["value"] == 0
    assert counted["owner_interrupts_60s_before"]["value"] == 20
    assert counted["owner_interrupts_60s_before"]["seconds"] == 2.0


@pytest.mark.timeout(180)
@pytest.mark.long
def test_a_real_owner_measures_beside_all_that_disturbs(quiet: ModuleType) -> None:
    """How long its gaps are depends on the machine's other load, but the benchmark lets devices
    interrupt it, and everything of the machine is afterwards as it was."""

    def affinities() -> dict[str, str]:
        paths = Path("/proc/irq").glob("*/smp_affinity_list")
        return {str(path): path.read_text() for path in paths}

    before = affinities()
    done = subprocess.run(
        [sys.executable, "benchmarks/quiet.py", "--quick", "--output", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = {row["case"]: row for row in json.loads(done.stdout)}
    if reason := table["owner_interrupts_60s"].get("skipped"):
        pytest.skip(reason)
    assert table["pinned"]["p999"] <= table["pinned"]["p9999"] <= table["pinned"]["longest"]
    assert table["pinned"]["of_all"] > 0
    assert table["owner_interrupts_60s"]["seconds"] == quiet.QUICK_SECONDS
    assert {"jitter_p9999_vs_pinned", "static"} <= table.keys()
    assert affinities() == before
