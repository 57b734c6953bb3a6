"""What a demo shares with the rest of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from demo.stage import identity
from tests.skips import ROOT

_PORTS = """
import random, sys
random.seed(1)
from demo.stage import free_port
print(*(free_port() for _ in range(20)), flush=True)
sys.stdin.readline()
"""


def test_two_processes_get_no_port_in_common() -> None:
    """Though nobody listens there yet, and both begin to look at the same one."""
    command = [sys.executable, "-c", _PORTS]
    pipe = subprocess.PIPE
    found: list[set[str]] = []
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        found.append(set(process.stdout.readline().split()))
    for process in processes:
        with process:
            process.communicate("\n", timeout=60)
    assert [len(ports) for ports in found] == [20, 20]
    assert found[0].isdisjoint(found[1])


def test_two_checkouts_are_told_apart(tmp_path: Path) -> None:
    one, other = (tmp_path / name / "var" for name in ("one", "other"))
    assert identity(one) != identity(other)
    assert identity(one) == identity(one / ".." / "var")
