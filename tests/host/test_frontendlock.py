"""Who may be between kubelet and containers at the same time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agent.host import frontendlock
from agent.host.locks import LockedError


def test_relays_overlap_while_one_drains(tmp_path: Path) -> None:
    draining, fresh = (frontendlock.for_relay(str(tmp_path / "state")) for _ in range(2))
    with pytest.raises(LockedError, match=rf"held by topolet proxy \(process {os.getpid()}\)"):
        frontendlock.for_plugin(str(tmp_path / "state"), 0)
    draining.release()
    with pytest.raises(LockedError, match="only one of relay, NRI plugin"):
        frontendlock.for_plugin(str(tmp_path / "state"), 0)
    fresh.release()
    frontendlock.for_plugin(str(tmp_path / "state"), 0).release()


def test_a_plugin_is_alone(tmp_path: Path) -> None:
    plugin = frontendlock.for_plugin(str(tmp_path), 0)
    for take in (frontendlock.for_relay, lambda state: frontendlock.for_plugin(state, 0)):
        with pytest.raises(LockedError, match=r"door.lock is held by topolet nri \(process"):
            take(str(tmp_path))
    plugin.release()
    frontendlock.for_relay(str(tmp_path)).release()


def test_a_plugin_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    """A runtime that launches plugins starts the next before the last has gone."""
    last = frontendlock.for_plugin(str(tmp_path), 0)
    tried = threading.Event()
    ending = threading.Thread(target=lambda: (tried.wait(10), last.release()))
    ending.start()
    threading.Timer(0.1, tried.set).start()
    frontendlock.for_plugin(str(tmp_path), 10).release()
    ending.join()


def test_nothing_is_given_back_under_a_plugin(tmp_path: Path) -> None:
    relay = frontendlock.for_relay(str(tmp_path))
    frontendlock.for_restore(str(tmp_path)).release()
    relay.release()
    plugin = frontendlock.for_plugin(str(tmp_path), 0)
    with pytest.raises(LockedError, match="held by topolet nri"):
        frontendlock.for_restore(str(tmp_path))
    plugin.release()
