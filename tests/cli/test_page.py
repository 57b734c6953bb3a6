"""`topolet page` on a machine, and on a node through a program that replaces kubectl."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

from agent.host.locks import AGENT_LOCK
from agent.http.page import page_routes
from agent.http.peers import NodeAddresses
from agent.http.requests import Route, text_reply
from agent.http.server import HttpServer
from agent.node.daemon import HTTP_LIMITS
from tests.cli.conftest import Topolet
from tests.cli.kubectl import RUNNING, pod
from tests.waiting import DEADLINE_SECONDS

KUBECTL = """#!/bin/sh
cd {folder}
case "$1 $2" in
"get lease") cat lease;;
"get pod") cat leader;;
"get pods") cat pods;;
port-forward*) echo "$@" >forwarded; echo $$ >pid; echo "{line}"; {after};;
esac
"""


@pytest.fixture(autouse=True)
def no_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def kubectl(folder: Path, after: str, line: str = "Forwarding from 127.0.0.1:9326 -> 9999") -> None:
    program = folder / "kubectl"
    program.write_text(KUBECTL.format(folder=folder, after=after, line=line))
    program.chmod(0o755)
    agent_pod = pod("a", RUNNING) | {
        "spec": {
            "containers": [
                {"name": "other", "ports": [{"name": "http", "containerPort": 1}]},
                {"name": "agent", "ports": [{"name": "http", "containerPort": 9999}]},
            ]
        }
    }
    (folder / "pods").write_text(json.dumps({"items": [agent_pod]}))


def test_on_a_node_the_page_is_forwarded_by_kubectl(programs: Path, topolet: Topolet) -> None:
    kubectl(programs, "exit 0")
    assert topolet("page", "n1", "-n", "tools").out == "http://localhost:9326/page\n"
    assert (programs / "forwarded").read_text().strip() == (
        "port-forward -n tools pod/a 9326:9999 --address=127.0.0.1"
    )
    kubectl(programs, "echo 'unable to listen' >&2; exit 1", line="")
    topolet("page", "n1", "--port=0", code=2)
    assert "pod/a :9999 " in (programs / "forwarded").read_text()


HOLDER = "topolet-scheduler-7d-x_5f0c"


@pytest.mark.parametrize(
    ("flags", "namespace", "port"),
    [
        (["--scheduler"], "topolet-system", 9329),
        (["--scheduler", "--port=8000", "-n=tools"], "tools", 8000),
    ],
)
def test_the_page_of_the_cluster_is_forwarded_from_the_holder_of_the_lease(
    programs: Path,
    topolet: Topolet,
    flags: list[str],
    namespace: str,
    port: int,
) -> None:
    kubectl(programs, "exit 0", line=f"Forwarding from 127.0.0.1:{port} -> 9111")
    (programs / "lease").write_text(json.dumps({"spec": {"holderIdentity": HOLDER}}))
    ports = [{"name": "extender", "containerPort": 1}, {"name": "http", "containerPort": 9111}]
    leader = {"spec": {"containers": [{"name": "scheduler", "ports": ports}]}}
    (programs / "leader").write_text(json.dumps(leader))
    assert topolet("page", *flags).out == f"http://localhost:{port}/page#holder={HOLDER}\n"
    assert (programs / "forwarded").read_text().strip() == (
        f"port-forward -n {namespace} pod/topolet-scheduler-7d-x {port}:9111 --address=127.0.0.1"
    )


@pytest.mark.parametrize(
    ("holder", "leader", "message"),
    [
        ("", "", "no scheduler leads now"),
        (HOLDER, "", "the pod of its holder, topolet-scheduler-7d-x, does not exist"),
        ("--kubeconfig=x_token", "", "'--kubeconfig=x' is not the name of a pod"),
    ],
)
def test_without_a_leading_scheduler_there_is_no_page(
    programs: Path,
    topolet: Topolet,
    holder: str,
    leader: str,
    message: str,
) -> None:
    kubectl(programs, "exit 0")
    (programs / "lease").write_text(json.dumps({"spec": {"holderIdentity": holder}}))
    (programs / "leader").write_text(leader)
    assert message in topolet("page", "--scheduler", code=2).err
    assert "either NODE or --scheduler" in topolet("page", "n1", "--scheduler", code=2).err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_kubectl(tmp_path: Path, number: signal.Signals) -> None:
    kubectl(tmp_path, "exec sleep 1000")
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(
        # Background jobs of a shell ignore SIGINT.
        ["env", "--default-signal=INT", sys.executable, "-m", "agent", "page", "n1"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        try:
            assert command.stdout is not None
            assert command.stdout.readline() == "http://localhost:9326/page\n"
            command.send_signal(number)
            assert command.wait(DEADLINE_SECONDS) == 0
            assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)


def test_an_invalid_port(topolet: Topolet) -> None:
    assert "--port: 70000" in topolet("page", "n1", "--port=70000", code=2).err


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a procfs without processes."""
    (tmp_path / "proc").mkdir()
    return tmp_path


def state_folder_locked_by(pid: int, root: Path) -> Path:
    """A state folder that this process has locked, in the network namespace of the test."""
    state = root / "state"
    state.mkdir()
    lock = state / AGENT_LOCK
    lock.touch()
    status = lock.stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    (root / "proc/locks").write_text(f"1: FLOCK  ADVISORY  WRITE {pid} {device} 0 EOF\n")
    networks = root / "proc" / str(pid) / "ns"
    networks.mkdir(parents=True)
    (networks / "net").symlink_to(os.readlink("/proc/self/ns/net"))
    return state


def test_without_an_agent(root: Path, topolet: Topolet) -> None:
    error = topolet("page", f"--root={root}", "--state-dir=/run/none", code=1).err
    assert "state-dir /run/none" in error
    assert "kubectl topolet page NODE" in error


def test_on_the_machine_of_the_agent(
    root: Path, monkeypatch: pytest.MonkeyPatch, topolet: Topolet
) -> None:
    """The command prints the address; on a desktop it also opens the page."""
    routes = {
        **page_routes("node", {}),
        "/readyz": Route("GET", lambda _: text_reply(200, "ok")),
        "/metrics": Route("GET", lambda _: text_reply(200, "")),
    }
    server = HttpServer("127.0.0.1:0", routes, HTTP_LIMITS, NodeAddresses())
    server.start()
    folder = root / "proc" / "7"
    folder.mkdir()
    state = f"--state-dir={state_folder_locked_by(7, root)}"
    argv = ["topolet", "agent", state, f"--http=127.0.0.1:{server.port}", ""]
    (folder / "cmdline").write_text("\0".join(argv))
    (folder / "stat").write_text("7 (topolet) S 1" + " 0" * 48)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))
    address = f"http://localhost:{server.port}/page"
    try:
        for flags, desktop in (([], ""), (["--no-open"], ":0"), ([], ":0")):
            monkeypatch.setenv("DISPLAY", desktop)
            arguments = ["page", f"--root={root}", state, *flags]
            assert topolet(*arguments).out == f"{address}\n"
        assert opened == [address]
    finally:
        server.close()
    assert "the agent does not answer" in topolet("page", f"--root={root}", state, code=1).err
