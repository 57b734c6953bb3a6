from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agent.host.sdnotify import ServiceManager


def listening(address: str) -> socket.socket:
    it = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    it.bind(address)
    it.settimeout(5)
    return it


@pytest.mark.parametrize("abstract", [False, True])
def test_a_manager_hears_what_is_said(tmp_path: Path, abstract: bool) -> None:
    name = f"@topolet-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "500000"}
    with listening("\0" + name[1:] if abstract else name) as it:
        manager = ServiceManager(environment)
        manager.ready()
        manager.alive()
        manager.stopping()
        assert [it.recv(64) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert manager.watchdog_seconds == 0.5
    assert environment == {}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "500000"},
    ],
)
def test_without_a_manager_nobody_hears_and_nothing_fails(environment: dict[str, str]) -> None:
    manager = ServiceManager(environment)
    manager.ready()
    assert manager.watchdog_seconds is None
