"""In a process of its own, which gets real signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal
from agent.host.ending import Ending

stops = []
with Ending(lambda: stops.append(1)):
    os.kill(os.getpid(), signal.{first})
assert stops == [1], stops
os.kill(os.getpid(), signal.{second})
assert stops == [1], stops
print("ended")
"""

PROXY = """
import os, signal, socket, sys
from agent.model.settings.frontends import ProxySettings
from agent.proxy import daemon
from agent.telemetry import logs

logs.start("info")
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1] + "/cri.sock")
    listening.listen()
    daemon.run(ProxySettings(state_dir=sys.argv[1], proxy_http=""), listening)
    os.kill(os.getpid(), signal.SIGTERM)
print("ended")
"""


@pytest.mark.parametrize("first", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("second", ["SIGTERM", "SIGINT"])
def test_the_second_signal_is_ignored(first: str, second: str) -> None:
    program = PROGRAM.format(first=first, second=second)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_proxy_that_is_signalled_again_while_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROXY, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as proxy:
        assert proxy.stderr is not None
        assert "proxy listens" in proxy.stderr.readline()
        proxy.terminate()
        out, errors = proxy.communicate(timeout=20)
    assert (proxy.returncode, out, errors) == (0, "ended\n", "")
