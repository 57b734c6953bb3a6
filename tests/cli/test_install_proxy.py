"""How a signal ends `topolet install-proxy` and `topolet uninstall-node`."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_PROGRAM = """import signal
from agent.cli.install_proxy import fail_on_signals
from agent.install.installer import CheckError
#  A nohup of the test run would be inherited.
signal.signal(signal.SIGHUP, signal.SIG_IGN if {ignored} else signal.SIG_DFL)
fail_on_signals()
try:
    print("ready", flush=True)
    input()
except CheckError as error:
    print(error)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_makes_the_step_fail(number: signal.Signals) -> None:
    """A lost session sends SIGHUP: the installation is undone, and its lock is released."""
    assert _output(number, ignored=False) == f"ended by {number.name}"


def test_nohup_is_respected() -> None:
    assert _output(signal.SIGHUP, ignored=True) == ""


def _output(number: signal.Signals, *, ignored: bool) -> str:
    argv = [sys.executable, "-c", _PROGRAM.format(ignored=ignored)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        return process.communicate("\n")[0].strip()
