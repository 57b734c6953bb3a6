from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from agent.host import locks
from agent.host.listener import Listener, ListenError
from agent.host.locks import FrontendSession, Lock, LockedError
from agent.host.processes import lock_holders

SPAWN = multiprocessing.get_context("spawn")


def hold(path: str, held: Event) -> None:
    Lock(path)
    held.set()
    signal.pause()


def test_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = SPAWN.Event()
    holder = SPAWN.Process(target=hold, args=(path, held))
    holder.start()
    assert held.wait(30)
    with pytest.raises(LockedError, match=f"lock is locked by process {holder.pid}"):
        Lock(path)
    holder.kill()
    holder.join()
    Lock(path).release()
    assert not os.path.exists(path)


def test_lock_is_free_after_its_release_and_not_before(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = Lock(path)
    with pytest.raises(LockedError):
        Lock(path)
    first.release()
    second = Lock(path)
    assert Path(path).read_text().split()[0] == str(os.getpid())
    second.release()


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def test_listener_takes_over_a_dead_socket_and_refuses_a_living_one(tmp_path: Path) -> None:
    path = str(tmp_path / "cri.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert not connects(path)
    first = Listener(path, 0o660)
    assert connects(path)
    assert os.stat(path).st_mode & 0o777 == 0o660
    with pytest.raises(ListenError, match="another process serves it"):
        Listener(path)
    assert connects(path), "the refused one took nothing away"
    first.close()
    assert os.listdir(tmp_path) == []


def test_listener_leaves_a_socket_that_is_no_longer_its_own(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    first = Listener(str(path))
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        first.close()
        assert path.exists()


@pytest.mark.parametrize("name", ["f", "x" * 120])
def test_invalid_socket_path_is_refused_with_the_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "f").write_text("precious")
    with pytest.raises(ListenError, match=name):
        Listener(str(tmp_path / name))
    assert (tmp_path / "f").read_text() == "precious"


def test_relays_overlap_while_one_drains(tmp_path: Path) -> None:
    draining, fresh = (locks.lock_for_relay(str(tmp_path / "state")) for _ in range(2))
    with pytest.raises(LockedError, match=rf"held by topolet proxy \(process {os.getpid()}\)"):
        locks.lock_for_plugin(str(tmp_path / "state"), 0)
    draining.release()
    with pytest.raises(LockedError, match="only one of proxy, NRI plugin"):
        locks.lock_for_plugin(str(tmp_path / "state"), 0)
    fresh.release()
    locks.lock_for_plugin(str(tmp_path / "state"), 0).release()


def test_only_one_plugin_runs(tmp_path: Path) -> None:
    plugin = locks.lock_for_plugin(str(tmp_path), 0)
    for take in (locks.lock_for_relay, lambda state: locks.lock_for_plugin(state, 0)):
        with pytest.raises(LockedError, match=r"door.lock is held by topolet nri \(process"):
            take(str(tmp_path))
    plugin.release()
    locks.lock_for_relay(str(tmp_path)).release()


def test_a_plugin_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    """A runtime that launches plugins starts the next before the last has ended."""
    last = locks.lock_for_plugin(str(tmp_path), 0)
    tried = threading.Event()
    ending = threading.Thread(target=lambda: (tried.wait(10), last.release()))
    ending.start()
    threading.Timer(0.1, tried.set).start()
    locks.lock_for_plugin(str(tmp_path), 10).release()
    ending.join()


def test_no_restore_while_a_plugin_runs(tmp_path: Path) -> None:
    relay = locks.lock_for_relay(str(tmp_path))
    locks.lock_for_restore(str(tmp_path)).release()
    relay.release()
    plugin = locks.lock_for_plugin(str(tmp_path), 0)
    with pytest.raises(LockedError, match="held by topolet nri"):
        locks.lock_for_restore(str(tmp_path))
    plugin.release()


def hold_session(state_dir: str, sessions: Connection, then: Event) -> None:
    lock = locks.lock_for_relay(state_dir)
    sessions.send(tuple(lock.session()))
    then.wait()


def test_session_ends_with_its_killed_process_and_no_other_does(tmp_path: Path) -> None:
    lives, sends = SPAWN.Pipe(duplex=False)
    never = SPAWN.Event()
    holder = SPAWN.Process(target=hold_session, args=(str(tmp_path), sends, never))
    holder.start()
    theirs = FrontendSession(*lives.recv())
    draining = locks.lock_for_relay(str(tmp_path))
    ours = draining.session()
    assert not locks.has_ended(str(tmp_path), theirs)
    holder.kill()
    holder.join()
    assert locks.has_ended(str(tmp_path), theirs)
    assert not locks.has_ended(str(tmp_path), ours), "it drains, with calls in progress"
    draining.release()
    assert locks.has_ended(str(tmp_path), ours)


@pytest.mark.parametrize("byte", [-1, 1 << 64])
def test_end_of_a_session_that_cannot_be_known_is_none(tmp_path: Path, byte: int) -> None:
    lock = locks.lock_for_relay(str(tmp_path))
    session = lock.session()
    assert not locks.has_ended(str(tmp_path), session._replace(byte=byte))
    lock.release()
    os.rename(tmp_path / "door.lock", tmp_path / "replaced")
    assert not locks.has_ended(str(tmp_path), session)
    locks.lock_for_relay(str(tmp_path)).release()
    assert not locks.has_ended(str(tmp_path), session)


def test_the_kernel_names_the_holder_of_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "it.lock")
    assert lock_holders(path) == frozenset()
    lock = Lock(path)
    assert lock_holders(path) == {os.getpid()}
    assert lock_holders(str(tmp_path / "other.lock")) == frozenset()
    assert lock_holders(path, str(tmp_path)) == frozenset(), "a procfs without locks"
    lock.release()
    Path(path).write_text(f"{os.getpid()}\n")
    assert lock_holders(path) == frozenset(), "a file that names a process is not locked by it"
