"""Errors of `topolet nri` before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.__main__ import main
from agent.host import locks


@pytest.mark.parametrize(
    ("flag", "error"),
    [
        ("--nri-socket=run/nri.sock", "is not unix:///absolute/path"),
        ("--http=9328", "is not ADDRESS or ADDRESS:PORT"),
        ("--hook-failure-policy=Start=fail", "hook-failure-policy"),
    ],
)
def test_a_wrong_option_is_named(flag: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nri", flag]) == 2
    assert error in capsys.readouterr().err


def test_a_running_relay_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.nri.daemon.LOCK_SECONDS", 0)
    relay = locks.lock_for_relay(str(tmp_path))
    assert main(["nri", f"--state-dir={tmp_path}"]) == 1
    assert "door.lock is held by topolet proxy (process" in capsys.readouterr().err
    relay.release()


def test_an_invalid_plugin_socket_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NRI_PLUGIN_SOCKET", "x")
    assert main(["nri", f"--state-dir={tmp_path}"]) == 1
    assert "NRI_PLUGIN_SOCKET=x is not a socket" in capsys.readouterr().err
