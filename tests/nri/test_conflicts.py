import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.nri import conflicts

CLIENT = """
import socket, sys
it = socket.socket(socket.AF_UNIX)
it.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""


def test_other_processes_at_the_far_end_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "nri.sock")
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as own:
        listening.bind(path)
        listening.listen()
        own.connect(path)
        accepted = [listening.accept()[0]]
        assert conflicts.connected_processes(path) == (), "the own process is not another one"
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdout is not None
        assert client.stdout.readline() == b"connected\n"
        accepted.append(listening.accept()[0])
        found = conflicts.connected_processes(path)
        client.communicate()
        name = Path(os.path.realpath(sys.executable)).name
        if not found:
            pytest.skip("this kernel does not report unix sockets")
        assert [each.rpartition(" ")[2] for each in found] == [f"({client.pid})"]
        assert found[0].startswith(name[:4])
        for each in accepted:
            each.close()


def test_missing_socket_has_no_connected_processes() -> None:
    assert conflicts.connected_processes("/nowhere/nri.sock") == ()
