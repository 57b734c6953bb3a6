from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from agent.host import locks
from agent.host.locks import FrontendSession, Lock, LockedError
from agent.host.processes import lock_holders

SPAWN = multiprocessing.get_context("spawn")


def hold(path: str, locked: Event) -> None:
    Lock(path)
    locked.set()
    signal.pause()


def test_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    locked = SPAWN.Event()
    holder = SPAWN.Process(target=hold, args=(path, locked))
    holder.start()
    assert locked.wait(30)
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


def test_two_relays_run_while_one_drains(tmp_path: Path) -> None:
    draining, new = (locks.lock_for_relay(str(tmp_path / "state")) for _ in range(2))
    with pytest.raises(LockedError, match=rf"held by topolet proxy \(process {os.getpid()}\)"):
        locks.lock_for_plugin(str(tmp_path / "state"), 0)
    draining.release()
    with pytest.raises(LockedError, match="only one of proxy, NRI plugin"):
        locks.lock_for_plugin(str(tmp_path / "state"), 0)
    new.release()
    locks.lock_for_plugin(str(tmp_path / "state"), 0).release()


def test_a_plugin_runs_with_no_other_frontend(tmp_path: Path) -> None:
    plugin = locks.lock_for_plugin(str(tmp_path), 0)
    for lock in (locks.lock_for_relay, lambda state: locks.lock_for_plugin(state, 0)):
        with pytest.raises(LockedError, match=r"door.lock is held by topolet nri \(process"):
            lock(str(tmp_path))
    plugin.release()
    locks.lock_for_relay(str(tmp_path)).release()


def test_a_plugin_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    """A runtime may launch the next plugin before the previous one has ended."""
    previous = locks.lock_for_plugin(str(tmp_path), 0)
    waiting = threading.Event()
    ending = threading.Thread(target=lambda: (waiting.wait(10), previous.release()))
    ending.start()
    threading.Timer(0.1, waiting.set).start()
    locks.lock_for_plugin(str(tmp_path), 10).release()
    ending.join()


def test_the_restore_is_refused_while_a_plugin_runs(tmp_path: Path) -> None:
    relay = locks.lock_for_relay(str(tmp_path))
    locks.lock_for_restore(str(tmp_path)).release()
    relay.release()
    plugin = locks.lock_for_plugin(str(tmp_path), 0)
    with pytest.raises(LockedError, match="held by topolet nri"):
        locks.lock_for_restore(str(tmp_path))
    plugin.release()


def hold_session(state_dir: str, sessions: Connection, end: Event) -> None:
    lock = locks.lock_for_relay(state_dir)
    sessions.send(tuple(lock.session()))
    end.wait()


def test_the_session_of_a_killed_process_has_ended_and_others_have_not(tmp_path: Path) -> None:
    receiver, sender = SPAWN.Pipe(duplex=False)
    never = SPAWN.Event()
    holder = SPAWN.Process(target=hold_session, args=(str(tmp_path), sender, never))
    holder.start()
    killed = FrontendSession(*receiver.recv())
    draining = locks.lock_for_relay(str(tmp_path))
    draining_session = draining.session()
    assert not locks.has_ended(str(tmp_path), killed)
    holder.kill()
    holder.join()
    assert locks.has_ended(str(tmp_path), killed)
    assert not locks.has_ended(str(tmp_path), draining_session), (
        "the draining relay still has calls in progress"
    )
    draining.release()
    assert locks.has_ended(str(tmp_path), draining_session)


def test_a_relay_knows_whether_others_live_or_were_cut_off(tmp_path: Path) -> None:
    receiver, sender = SPAWN.Pipe(duplex=False)
    never = SPAWN.Event()
    holder = SPAWN.Process(target=hold_session, args=(str(tmp_path), sender, never))
    holder.start()
    receiver.recv()
    relay = locks.lock_for_relay(str(tmp_path))
    relay.session()
    assert relay.has_others()
    holder.kill()
    holder.join()
    assert not relay.has_others(), "its own session does not count"
    relay.release(cut_off=True)
    after = locks.lock_for_relay(str(tmp_path))
    assert after.was_cut_off
    after.release()
    last = locks.lock_for_relay(str(tmp_path))
    assert not last.was_cut_off
    last.release()


@pytest.mark.parametrize("byte", [-1, 1 << 64])
def test_a_session_whose_lock_is_unknown_has_not_ended(tmp_path: Path, byte: int) -> None:
    lock = locks.lock_for_relay(str(tmp_path))
    session = lock.session()
    assert not locks.has_ended(str(tmp_path), session._replace(byte=byte))
    lock.release()
    os.rename(tmp_path / "door.lock", tmp_path / "replaced")
    assert not locks.has_ended(str(tmp_path), session)
    locks.lock_for_relay(str(tmp_path)).release()
    assert not locks.has_ended(str(tmp_path), session)


def test_the_kernel_names_the_holder_of_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "one.lock")
    assert lock_holders(path) == frozenset()
    lock = Lock(path)
    assert lock_holders(path) == {os.getpid()}
    assert lock_holders(str(tmp_path / "other.lock")) == frozenset()
    assert lock_holders(path, str(tmp_path)) == frozenset(), "a procfs without locks"
    lock.release()
    Path(path).write_text(f"{os.getpid()}\n")
    assert lock_holders(path) == frozenset(), "the content of the file does not lock it"
