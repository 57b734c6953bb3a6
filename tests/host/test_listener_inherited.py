"""Sockets as a service manager passes them: descriptor 3 of a new process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHILD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = sys.argv[2] or str(os.getpid())
os.environ["LISTEN_FDS"] = sys.argv[3]
from agent.host.listener import ActivationError, inherited
try:
    given = inherited(os.environ)
    print("none" if given is None else given.getsockname(), "LISTEN_FDS" in os.environ)
except ActivationError as error:
    print(error)
"""


def output_of(given: socket.socket, pid: str = "", count: str = "1") -> str:
    command = [sys.executable, "-c", CHILD, str(given.fileno()), pid, count]
    done = subprocess.run(
        command, pass_fds=[given.fileno()], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(str(tmp_path / "s"))
        it.listen()
        yield it


def test_a_socket_is_taken_and_its_variables_are_removed(listening: socket.socket) -> None:
    assert output_of(listening) == f"{listening.getsockname()} False"


def test_a_socket_for_another_process_is_not_taken(listening: socket.socket) -> None:
    assert output_of(listening, pid="1") == "none False"
    assert output_of(listening, count="0") == "none False"


def test_more_or_other_sockets_are_refused(listening: socket.socket) -> None:
    assert "only one socket is supported" in output_of(listening, count="2")
    with socket.socket(socket.AF_UNIX) as deaf:
        assert "not a listening unix stream socket" in output_of(deaf)
    with socket.create_server(("127.0.0.1", 0)) as inet:
        assert "not a listening unix stream socket" in output_of(inet)
    with open(os.devnull) as file:
        assert "is not a socket" in output_of(file)  # type: ignore[arg-type]
