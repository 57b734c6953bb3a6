"""The sandboxing of the host's services, and that the services work with it."""

from __future__ import annotations

import configparser
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.ports import free_port
from tests.waiting import DEADLINE_SECONDS, eventually

UNITS = Path(__file__).resolve().parents[2] / "systemd"
SERVICES = ["topolet-proxy.service", "topolet-nri.service", "topolet-nri-guard.service"]
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


def service(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    text = (UNITS / name).read_text()
    lines = re.findall(r"^SystemCallFilter=(.*)$", text, re.MULTILINE)
    parser.read_string(re.sub(r"^SystemCallFilter=.*\n", "", text, flags=re.MULTILINE))
    parser["Service"]["SystemCallFilter"] = "\n".join(lines)
    return parser["Service"]


@needs_systemd
@pytest.mark.parametrize(("name", "max_exposure"), list(zip(SERVICES, (18, 23, 15), strict=True)))
def test_the_exposure_of_a_host_service_does_not_grow(name: str, max_exposure: int) -> None:
    """`max_exposure`: ten times the level that `systemd-analyze security` prints."""
    words = [
        "systemd-analyze",
        "security",
        "--offline=true",
        f"--threshold={max_exposure}",
        "--no-pager",
    ]
    done = subprocess.run([*words, str(UNITS / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_journal_and_snapshot_remain_when_a_service_stops(name: str) -> None:
    """systemd removes a RuntimeDirectory that it does not preserve."""
    settings = service(name)
    assert settings["RuntimeDirectory"] == "topolet"
    assert settings["RuntimeDirectoryPreserve"] == "yes"


def expanded(filter_: str) -> set[str]:
    """The names of the system calls of a set."""
    if not filter_.startswith("@"):
        return {filter_}
    words = ["systemd-analyze", "--no-pager", "syscall-filter", filter_]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    names = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    found = set()
    for each in names:
        if not each.startswith("#"):
            found |= expanded(each)
    return found


def allowed(name: str) -> set[str]:
    """The system calls that the lines of SystemCallFilter allow (systemd.exec(5))."""
    found: set[str] = set()
    for line in service(name)["SystemCallFilter"].splitlines():
        words = line.removeprefix("~").split()
        named = set().union(*(expanded(each) for each in words))
        found = found - named if line.startswith("~") else found | named
    return found


_HARDENED = """
import ctypes, runpy, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE: as MemoryDenyWriteExecute
sys.argv[:] = ["topolet", *sys.argv[1:]]
runpy.run_module("agent", run_name="__main__")
"""


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "runtime.sock"))
        listening.listen()
        listening.settimeout(DEADLINE_SECONDS)
        yield listening


@needs_systemd
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_works_with_the_capabilities_and_system_calls_of_its_unit(
    name: str, tmp_path: Path, runtime: socket.socket
) -> None:
    (command,) = re.findall(r"/usr/local/bin/topolet ([\w-]+)", service(name)["ExecStart"])
    port = free_port()
    capability = service(name)["CapabilityBoundingSet"].lower().removeprefix("cap_")
    caps = f"-all,+{capability}" if capability else "-all"
    flags = {
        "proxy": [
            f"--runtime-endpoint=unix://{tmp_path}/runtime.sock",
            f"--http=127.0.0.1:{port}",
        ],
        "nri": [f"--nri-socket={tmp_path}/runtime.sock", f"--http=127.0.0.1:{port}"],
        "nri-guard": [f"--nri-socket={tmp_path}/runtime.sock"],
    }[command]
    trace = tmp_path / "trace"
    traced = ["strace", "-f", "-qq", "-o", str(trace)]
    dropped = ["setpriv", "--no-new-privs", f"--bounding-set={caps}", f"--inh-caps={caps}"]
    words = [command, f"--state-dir={tmp_path}/state", *flags]
    process = subprocess.Popen(
        [*traced, *dropped, sys.executable, "-c", _HARDENED, *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if command != "nri-guard":  # it has no port
            eventually("the service answers", lambda: healthy(port) or process.poll() is not None)
        if command == "proxy":
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"{tmp_path}/state/cri.sock")
                client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                with runtime.accept()[0] as upstream:
                    assert upstream.recv(64).startswith(b"PRI")
        else:
            with runtime.accept()[0] as upstream:
                assert upstream.recv(64)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert subprocess.run(["kill", children[0]], check=True).returncode == 0
        assert process.wait(DEADLINE_SECONDS) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        _, errors = process.communicate()
    assert "Traceback" not in errors
    made = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.MULTILINE))
    # setpriv makes these calls before the service starts.
    assert made - allowed(name) <= {"capset", "prctl", "execve"}, errors


def healthy(port: int) -> bool:
    with socket.socket() as client:
        if client.connect_ex(("127.0.0.1", port)) != 0:
            return False
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return client.recv(64).startswith(b"HTTP/1.1 200")
