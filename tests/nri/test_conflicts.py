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


def test_processes_connected_to_the_runtime_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "nri.sock")
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as own:
        listening.bind(path)
        listening.listen()
        own.connect(path)
        accepted = [listening.accept()[0]]
        assert conflicts.connected_processes(path) == (), "the test's own process is not listed"
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


def test_the_number_of_plugin_names_is_bounded() -> None:
    """A plugin chooses its name, and has another process id after each restart."""
    found = conflicts.Conflicts("10-topolet", lambda: ())
    for number in range(1000):
        names = f'plugins "10-topolet" and "{number}{"x" * 1000}" both tried to set cpu'
        found.error("container ns/p main", names)
    assert sum(found.found.values()) == 1000
    assert len(found.found) <= conflicts.MAX_NAMES + 1
    assert found.found["error", "other"] == 1000 - conflicts.MAX_NAMES
    assert max(len(name) for _, name in found.found) < 500
