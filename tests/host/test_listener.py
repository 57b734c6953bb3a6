import contextlib
import os
import socket
import stat
import subprocess
import sys
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
