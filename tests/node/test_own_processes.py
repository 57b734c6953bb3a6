from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent.host.locks import AGENT_LOCK
from agent.host.processes import Process
from agent.node.own_processes import (
    MetricSeries,
    OwnProcess,
    command_of,
    http_address,
    page,
    page_of,
    running,
    series,
)
from tests.fixtures.ports import free_port
from tests.node.procfs import process


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/bin/topolet", "agent", "--http="], "agent"),
        (["/usr/bin/python3", "/usr/bin/topolet", "proxy"], "proxy"),
        (["python3", "-m", "agent", "nri"], "nri"),
        (
            [
                *("/opt/topolet/lib/ld-linux.so", "--library-path", "/opt/topolet/lib"),
                *("/opt/topolet/bin/python3", "-I", "-S", "-B"),
                *("/opt/topolet/bin/topolet.py", "proxy", "--http="),
            ],
            "proxy",
        ),
        (["topolet", "doctor"], ""),
        (["topolet"], ""),
        (["vi", "agent"], ""),
    ],
)
def test_processes_of_topolet_are_known_by_their_command_line(
    argv: list[str], command: str
) -> None:
    assert command_of(argv) == command


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--http=:1", "--bind-memory"], {"http": ":1"}),
        (["--standalone", "--http", ":1"], {"http": ":1"}),
        (["--http", ":1", "--http=:2", "--colour=red"], {"http": ":2"}),
        (["--http="], {"http": ""}),
    ],
)
def test_both_forms_of_an_option_are_read(
    tmp_path: Path, arguments: list[str], flags: dict[str, str]
) -> None:
    """With `--http ADDRESS` the doctor once used the default address."""
    process(tmp_path, 7, "/usr/bin/topolet", "agent", *arguments)
    assert list(running(str(tmp_path / "proc"))) == [OwnProcess(7, "agent", flags)]


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ({}, ("127.0.0.1", 9326)),
        ({"http": "0.0.0.0:1234"}, ("127.0.0.1", 1234)),
        ({"http": "127.0.0.1:1234"}, ("127.0.0.1", 1234)),
        ({"http": "192.0.2.1:1234"}, None),
        ({"http": "0.0.0.0"}, ("127.0.0.1", 9326)),
        ({"http": ""}, None),
        ({"http": "x:y"}, None),
    ],
)
def test_the_agents_address_is_that_of_its_command_line(
    flags: dict[str, str], address: tuple[str, int] | None
) -> None:
    own = [OwnProcess(1, "proxy", {}), OwnProcess(2, "agent", flags)]
    assert http_address("agent", own, {2}) == address
    assert http_address("agent", own, {1, 3}) is None, "the process does not have the lock"


class MetricsHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"topolet_ready 1\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), MetricsHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


_FAKE_AGENT = """import fcntl, sys
if sys.argv[1] != "agent":
    raise SystemExit(1)
file = open(sys.argv[3], "a")
if sys.argv[4] == "locks":
    fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def fake_agent(folder: Path, port: int, *, locks: bool) -> Iterator[None]:
    """A process with the command line of an agent."""
    program = folder / "topolet"
    program.write_text(_FAKE_AGENT)
    arguments = [sys.executable, str(program), "agent", f"--http=127.0.0.1:{port}"]
    arguments += [str(folder / AGENT_LOCK), "locks" if locks else "does not lock"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.terminate()


@pytest.mark.parametrize("locks", [True, False])
def test_only_the_page_of_the_process_with_the_lock_is_read(
    tmp_path: Path, port: int, locks: bool
) -> None:
    with fake_agent(tmp_path, port, locks=locks):
        found = page_of("agent", "/proc", str(tmp_path))
    assert (found is not None) == locks


def test_a_port_in_another_network_namespace_is_not_the_agents(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server at that address in this namespace is not the agent in its pod."""
    monkeypatch.setattr(Process, "namespace", lambda process, kind: "net:[1]")
    with fake_agent(tmp_path, port, locks=True):
        assert page_of("agent", "/proc", str(tmp_path)) is None


def test_series_are_read_with_their_labels() -> None:
    text = '# HELP a b\n# TYPE a gauge\na 1\nb{x="1",y="a \\"q\\" }"} 2.5\nc NaN\nd x\n\n{} 3\n'
    found = list(series(text))
    assert found[:2] == [
        MetricSeries("a", {}, 1.0),
        MetricSeries("b", {"x": "1", "y": 'a \\"q\\" }'}, 2.5),
    ]
    assert [each.name for each in found] == ["a", "b", "c"]


def test_a_port_without_a_server() -> None:
    assert page(("127.0.0.1", free_port())) is None
