"""Listening sockets, and one that a service manager passes as descriptor 3."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.listener import Listener, ListenError, receives_datagrams


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def test_the_socket_appears_with_its_mode_and_is_removed_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = Listener(str(path), 0o660)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert connects(path)
    assert sorted(os.listdir(tmp_path)) == ["s.sock", "s.sock.lock"]
    listener.close()
    assert os.listdir(tmp_path) == []


def test_a_second_owner_is_refused_and_the_first_continues(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    first = Listener(str(path))
    with pytest.raises(ListenError, match=r"s\.sock: another process"):
        Listener(str(path))
    assert connects(path)
    first.close()
    Listener(str(path)).close()


def test_the_socket_of_a_killed_owner_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    program = (
        "import sys, os, signal; from agent.host.listener import Listener;"
        "Listener(sys.argv[1]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert path.exists()
    assert not connects(path)
    listener = Listener(str(path))
    assert connects(path)
    listener.close()


def test_a_dead_socket_without_a_lock_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert not connects(path)
    listener = Listener(str(path), 0o660)
    assert connects(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    with pytest.raises(ListenError, match="another process serves it"):
        Listener(str(path))
    assert connects(path), "the refused listener leaves the socket"
    listener.close()
    assert os.listdir(tmp_path) == []


def test_a_socket_of_another_process_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = Listener(str(path))
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        listener.close()
        assert path.exists()


@pytest.mark.parametrize("name", ["folder/s.sock", "x" * 120, "file"])
def test_an_invalid_path_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("content")
    with pytest.raises(ListenError, match=name[:20]):
        Listener(str(tmp_path / name))
    assert (tmp_path / "file").read_text() == "content"


def test_a_datagram_socket_with_a_full_queue_is_open(tmp_path: Path) -> None:
    path = tmp_path / "datagrams"
    assert not receives_datagrams(str(path))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
    ):
        receiver.bind(str(path))
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.sendto(b"", str(path))
        assert receives_datagrams(str(path))
    assert path.exists()
    assert not receives_datagrams(str(path)), "the socket file remains without a process"


CHILD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = sys.argv[2] or str(os.getpid())
os.environ["LISTEN_FDS"] = sys.argv[3]
from agent.host.listener import ActivationError, inherited
try:
    passed = inherited(os.environ)
    print("none" if passed is None else passed.getsockname(), "LISTEN_FDS" in os.environ)
except ActivationError as error:
    print(error)
"""


def output_of(passed: socket.socket, pid: str = "", count: str = "1") -> str:
    command = [sys.executable, "-c", CHILD, str(passed.fileno()), pid, count]
    done = subprocess.run(
        command, pass_fds=[passed.fileno()], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(str(tmp_path / "s"))
        it.listen()
        yield it


def test_a_passed_socket_is_used_and_its_variables_are_removed(listening: socket.socket) -> None:
    assert output_of(listening) == f"{listening.getsockname()} False"


def test_a_socket_for_another_process_is_not_used(listening: socket.socket) -> None:
    assert output_of(listening, pid="1") == "none False"
    assert output_of(listening, count="0") == "none False"


def test_several_sockets_and_sockets_of_another_kind_are_refused(listening: socket.socket) -> None:
    assert "only one socket is supported" in output_of(listening, count="2")
    with socket.socket(socket.AF_UNIX) as unconnected:
        assert "not a listening unix stream socket" in output_of(unconnected)
    with socket.create_server(("127.0.0.1", 0)) as inet:
        assert "not a listening unix stream socket" in output_of(inet)
    with open(os.devnull) as file:
        assert "is not a socket" in output_of(file)  # type: ignore[arg-type]
