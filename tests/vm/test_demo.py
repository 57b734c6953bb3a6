"""`make run-numa` without make."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.vm import guest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def emulator() -> None:
    if reasons := guest.lacking():
        pytest.skip("; ".join(reasons))


def test_the_demonstration_in_a_guest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.numa", "--seconds=60"],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 CPUs · 8 cores · 2 sockets · 4 NUMA nodes" in done.stdout
    assert "topolet-demo/lse: the pod owns CPUs 15" in done.stdout
    assert "container main moves to CPUs 0-14 (before: 0-15)" in done.stdout
    assert "cpusets restored" in done.stdout
