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
    ("words", "flags"),
    [
        (["--http=:1", "--bind-memory"], {"http": ":1"}),
        (["--standalone", "--http", ":1"], {"http": ":1"}),
        (["--http", ":1", "--http=:2", "--colour=red"], {"http": ":2"}),
        (["--http="], {"http": ""}),
    ],
)
def test_both_forms_of_an_option_are_read(
    tmp_path: Path, words: list[str], flags: dict[str, str]
) -> None:
    """With `--http ADDRESS` the doctor looked for the agent at the default address."""
    process(tmp_path, 7, "/usr/bin/topolet", "agent", *words)
    assert list(running(str(tmp_path / "proc"))) == [OwnProcess(7, "agent", flags)]


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ({}, ("127.0.0.1", 9326)),
        ({"http": "0.0.0.0:1234"}, ("127.0.0.1", 1234)),
        ({"http": "127.0.0.1:1234"}, ("127.0.0.1", 1234)),
        ({"http": "192.0.2.1:1234"}, None),
        ({"http": ""}, None),
        ({"http": "x:y"}, None),
    ],
)
def test_the_agents_address_is_that_of_its_command_line(
    flags: dict[str, str], address: tuple[str, int] | None
) -> None:
    own = [OwnProcess(1, "proxy", {}), OwnProcess(2, "agent", flags)]
    assert http_address("agent", own, {2}) == address
    assert http_address("agent", own, {1, 3}) is None, "it does not hold the lock"


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"topolet_ready 1\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """Somebody answers there."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


_LIKE_AN_AGENT = """import fcntl, sys
if sys.argv[1] != "agent":
    raise SystemExit(1)
file = open(sys.argv[3], "a")
if sys.argv[4] == "locks":
    fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def like_an_agent(folder: Path, port: int, *, locks: bool) -> Iterator[None]:
    """A process with the command line of an agent."""
    program = folder / "topolet"
    program.write_text(_LIKE_AN_AGENT)
    words = [sys.executable, str(program), "agent", f"--http=127.0.0.1:{port}"]
    words += [str(folder / AGENT_LOCK), "locks" if locks else "does not lock"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.terminate()


@pytest.mark.parametrize("locks", [True, False])
def test_only_the_holder_of_the_lock_speaks_for_the_agent(
    tmp_path: Path, port: int, locks: bool
) -> None:
    with like_an_agent(tmp_path, port, locks=locks):
        found = page_of("agent", "/proc", str(tmp_path))
    assert (found is not None) == locks


def test_a_port_of_another_network_is_not_the_agents(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens at that address here is not the agent in its pod."""
    monkeypatch.setattr(Process, "namespace", lambda process, kind: "net:[1]")
    with like_an_agent(tmp_path, port, locks=True):
        assert page_of("agent", "/proc", str(tmp_path)) is None


def test_series_are_read_with_their_labels() -> None:
    text = '# HELP a b\n# TYPE a gauge\na 1\nb{x="1",y="a \\"q\\" }"} 2.5\nc NaN\nd x\n\n{} 3\n'
    got = list(series(text))
    assert got[:2] == [
        MetricSeries("a", {}, 1.0),
        MetricSeries("b", {"x": "1", "y": 'a \\"q\\" }'}, 2.5),
    ]
    assert [each.name for each in got] == ["a", "b", "c"]


def test_a_port_where_nobody_answers() -> None:
    assert page(("127.0.0.1", free_port())) is None
