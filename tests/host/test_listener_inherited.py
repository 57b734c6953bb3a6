"""A listening socket that a service manager passes as descriptor 3."""

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
