"""Errors of `topolet agent` and `topolet nri` before they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.host import locks
from tests.cli.conftest import Topolet


def agent(
    folder: Path, *flags: str, first: str = "", last: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs `topolet agent` in a process, between the lines `first` and `last` of Python."""
    argv = ["agent", "--standalone", f"--state-dir={folder}", "--http=", *flags]
    code = f"import sys\n{first}\nfrom agent.__main__ import main\ncode = main({argv!r})\n{last}\n"
    return subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(code)"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("option", ["hook-server-socket", "corrected-pod-resources-socket"])
def test_a_server_without_grpcio_is_an_error_that_names_the_extra(
    tmp_path: Path, option: str
) -> None:
    done = agent(tmp_path, f"--{option}={tmp_path}/s", first="sys.modules['grpc'] = None")
    assert done.returncode == 1
    assert f"{option}: needs grpcio" in done.stderr
    assert ".whl[hookserver]" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--hook-server-socket=hooks.sock"], "'hooks.sock' is not unix:///absolute/path"),
        (["--corrected-pod-resources-socket=s"], "'s' is not unix:///absolute/path"),
        (
            [
                "--corrected-pod-resources-socket=unix:///x/../k/pod-resources/kubelet.sock",
                "--kubelet-dir=/k",
            ],
            "/x/../k/pod-resources/kubelet.sock is the kubelet's own socket",
        ),
    ],
)
def test_a_wrong_socket_is_named(tmp_path: Path, flags: list[str], message: str) -> None:
    done = agent(tmp_path, *flags)
    assert done.returncode == 1
    assert message in done.stderr


def test_grpcio_is_loaded_only_for_the_hook_server(tmp_path: Path) -> None:
    """Each command ends before the agent starts, because its state folder is a file."""
    (tmp_path / "file").touch()
    wrong = f"--state-dir={tmp_path}/file/state"
    loaded = "print('grpc' in sys.modules)"
    without_hook_server = agent(tmp_path, wrong, last=loaded)
    with_hook_server = agent(tmp_path, wrong, f"--hook-server-socket={tmp_path}/s", last=loaded)
    assert (without_hook_server.stdout, with_hook_server.stdout) == ("False\n", "True\n"), (
        without_hook_server.stderr
    )


def test_a_running_relay_is_named(
    tmp_path: Path, topolet: Topolet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.nri.daemon.LOCK_SECONDS", 0)
    relay = locks.lock_for_relay(str(tmp_path))
    printed = topolet("nri", f"--state-dir={tmp_path}", code=1)
    assert "door.lock is held by topolet proxy (process" in printed.err
    relay.release()


def test_an_invalid_plugin_socket_is_named(
    tmp_path: Path, topolet: Topolet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NRI_PLUGIN_SOCKET", "x")
    printed = topolet("nri", f"--state-dir={tmp_path}", code=1)
    assert "NRI_PLUGIN_SOCKET=x is not a socket" in printed.err
