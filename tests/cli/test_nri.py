"""Errors of `topolet nri` before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.host import locks
from tests.cli.conftest import Topolet


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
