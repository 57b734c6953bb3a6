"""`make run-numa` without make."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fixtures.screen import EmulatedTerminal
from tests.vm import guest
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
_LIMIT_SECONDS = 400.0


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


def test_keys_reach_the_guest() -> None:
    command = [sys.executable, "-m", "demo.numa"]
    with EmulatedTerminal(command, columns=120, rows=60) as terminal:

        def shown(text: str) -> bool:
            terminal.pump(0.5)
            return text in terminal.text

        eventually("the keys are shown", lambda: shown("a play"), _LIMIT_SECONDS)
        terminal.press("1")
        owned = "topolet-demo/lse: the pod owns CPUs 15"
        eventually("the LSE pod owns a CPU", lambda: shown(owned), _LIMIT_SECONDS)
        terminal.press("q")
        eventually("it has ended", lambda: shown("cpusets restored"), _LIMIT_SECONDS)
        assert terminal.ended() == 0
