"""benchmarks/quiet.py: a real owner beside all that disturbs, where it can run, and figures."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent.model.pod.annotations import QUIET_FEATURES
from tests.fixtures import interrupts

ROOT = Path(__file__).resolve().parents[2]
QUICK = (sys.executable, "benchmarks/quiet.py", "--quick", "--output", "json")
WORKQUEUES = Path("/sys/devices/virtual/workqueue/cpumask")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("quiet", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("quiet")


@pytest.fixture
def alone() -> Iterator[None]:
    with interrupts.alone():
        yield


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
@pytest.mark.usefixtures("alone")
def test_a_real_owner_measures_beside_all_that_disturbs(quiet: ModuleType) -> None:
    """How long its gaps are depends on the machine's other load, but devices interrupt it, and
    everything of the machine is afterwards as it was."""
    before = of_the_machine()
    done = subprocess.run(QUICK, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = {row["case"]: row for row in json.loads(done.stdout)}
    if reason := table["owner_interrupts_60s"].get("skipped"):
        pytest.skip(reason)
    assert table["pinned"]["p999"] <= table["pinned"]["p9999"] <= table["pinned"]["longest"]
    assert table["pinned"]["of_all"] > 0
    assert table["owner_interrupts_60s"]["seconds"] == quiet.QUICK_SECONDS
    assert {"jitter_p9999_vs_pinned", "static"} <= table.keys()
    assert of_the_machine() == before


@pytest.mark.timeout(180)
@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_a_run_that_is_ended_gives_everything_back(quiet: ModuleType) -> None:
    """It ends while unbound work is kept from the owner's CPU."""
    before = of_the_machine()
    with subprocess.Popen(QUICK, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        while WORKQUEUES.read_text() == before[WORKQUEUES]:
            if process.poll() is not None:
                assert process.stdout is not None
                pytest.skip(process.stdout.read())
            time.sleep(0.05)
        process.terminate()
    assert process.returncode == 1
    assert of_the_machine() == before
    assert not [
        path
        for path in Path("/proc").glob("[0-9]*/cgroup")
        if f"topolet-quiet-{process.pid}." in text_of(path)
    ]


def of_the_machine() -> dict[Path, str]:
    paths = (WORKQUEUES, *Path("/proc/irq").glob("*/smp_affinity_list"))
    return {path: text_of(path) for path in paths}


def text_of(path: Path) -> str:
    """It is empty if its process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
