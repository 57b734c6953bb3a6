"""Changes of the machine that several test runs make at the same time."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import machinewide
from tests.skips import ROOT

_OTHER = """
import sys
from pathlib import Path
from tests.integration import machinewide
folder = Path(sys.argv[1])
it = folder / "it"
with machinewide.change("it", it.touch, lambda _: it.unlink(), folder):
    print("in", flush=True)
    sys.stdin.readline()
"""


def other(folder: Path) -> subprocess.Popen[str]:
    """Another process in the block, which leaves it after a line of input."""
    command = [sys.executable, "-c", _OTHER, str(folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.communicate("\n", timeout=60)
    assert process.returncode == 0


def change_here(folder: Path, actions: list[str]) -> Any:
    def make() -> str:
        actions.append("made")
        (folder / "it").touch(exist_ok=False)
        return "by us"

    def undo(what: str | None) -> None:
        actions.append(f"undone: {what}")
        (folder / "it").unlink()

    return machinewide.change("it", make, undo, folder)


def test_the_last_run_undoes_the_change(tmp_path: Path) -> None:
    first = other(tmp_path)
    actions: list[str] = []
    with change_here(tmp_path, actions):
        end(first)
        assert (tmp_path / "it").exists()
    assert (actions, (tmp_path / "it").exists()) == (["undone: None"], False)


def test_only_the_first_run_makes_the_change(tmp_path: Path) -> None:
    actions: list[str] = []
    with change_here(tmp_path, actions):
        second = other(tmp_path)
    assert (actions, (tmp_path / "it").exists()) == (["made"], True)
    end(second)
    assert not (tmp_path / "it").exists()


def test_the_change_of_a_killed_run_is_undone_first(tmp_path: Path) -> None:
    with other(tmp_path) as killed:
        killed.send_signal(signal.SIGKILL)
    assert (tmp_path / "it").exists()
    actions: list[str] = []
    with change_here(tmp_path, actions):
        assert actions == ["undone: None", "made"]
    assert actions[2:] == ["undone: by us"]


def test_a_failed_change_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("not here")

    with (
        pytest.raises(OSError, match="not here"),
        machinewide.change("it", fail, lambda _: None, tmp_path),
    ):
        raise AssertionError("made")
    actions: list[str] = []
    with change_here(tmp_path, actions):
        pass
    assert actions == ["made", "undone: by us"]
