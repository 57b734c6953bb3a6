"""Commands on a node through a program that replaces kubectl; tests/cluster has the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.__main__ import main
from agent.cli import remote
from agent.cli.remote import Agent, RemoteError, why_not_running
from tests.cli.conftest import Topolet
from tests.cli.kubectl import CRASHED, RUNNING, Kubectl, pod

MEMCACHE = """E0102 03:04:05.678901   12345 memcache.go:265] "Unhandled Error" err="couldn't get"
E0102 03:04:05.678912   12345 memcache.go:265] "Unhandled Error" err="couldn't get"
"""


@pytest.fixture
def kubectl(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    monkeypatch.delenv("COLUMNS", raising=False)
    return Kubectl(programs)


def test_the_command_runs_in_the_running_pod_of_the_node(kubectl: Kubectl) -> None:
    kubectl.set_answers(
        pods=[pod("old", RUNNING, deleting=True), pod("bad", CRASHED), pod("a", RUNNING)]
    )
    arguments = ["--context=lab", "--state-dir=/run/other", "-o", "json", "-n", "tools"]
    assert main(["doctor", "n1", *arguments]) == 0
    assert "--field-selector=spec.nodeName=n1" in kubectl.read("listed")
    assert kubectl.read("context") == "--context=lab"
    assert kubectl.read("executed") == (
        "exec -n tools a -c agent -- topolet doctor --output=json --state-dir=/run/other"
    )
    assert main(["topology", "n1", "--owners"]) == 0
    assert kubectl.read("executed") == (
        "exec -n topolet-system a -c agent -- topolet topology --owners --output=text"
    )


def test_the_command_has_the_width_of_the_callers_terminal(
    kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl.set_answers(pods=[pod("a", RUNNING)])
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["doctor", "n1"]) == 0
    assert kubectl.read("executed").endswith("-- env COLUMNS=40 topolet doctor --output=text")


def test_an_output_beyond_the_limit_is_refused(kubectl: Kubectl) -> None:
    agent = Agent(("kubectl",), "ns", "a", "n1", 1)
    assert remote.output_of(agent, ["topolet", "doctor"], len("output\n")) == (0, b"output\n")
    with pytest.raises(RemoteError, match="pod ns/a: topolet doctor writes more than 6 bytes"):
        remote.output_of(agent, ["topolet", "doctor"], len("output"))


def test_a_screen_of_the_node_is_drawn_for_the_local_terminal(
    kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of `kubectl exec` does not show the terminal."""
    kubectl.set_answers(pods=[pod("topolet-b", RUNNING)])
    monkeypatch.setenv("TERM", "tmux-256color")
    monkeypatch.setenv("NO_COLOR", "yes")
    assert main(["top", "n1", "--every=2", "--once"]) == 0
    exec_ = "exec -n topolet-system topolet-b -c agent -- env"
    command = "topolet top --every=2 --once --node-name=n1"
    assert kubectl.read("executed") == f"{exec_} TERM=tmux-256color NO_COLOR=1 {command}"
    monkeypatch.setenv("TERM", "no such; rm -rf")
    monkeypatch.delenv("NO_COLOR")
    assert main(["top", "n1"]) == 0
    assert kubectl.read("executed") == f"{exec_} topolet top --every=1 --node-name=n1"


@pytest.mark.parametrize(
    ("exec_code", "error", "code", "shown"),
    [
        (1, "command terminated with exit code 1\n", 1, ""),
        (2, "topolet: x\ncommand terminated with exit code 2\n", 2, "topolet: x\n"),
        (1, "error: unable to upgrade connection\n", 2, "error: unable to upgrade connection\n"),
    ],
)
def test_exit_codes_of_the_command_and_of_kubectl_differ(
    kubectl: Kubectl,
    capfd: pytest.CaptureFixture[str],
    exec_code: int,
    error: str,
    code: int,
    shown: str,
) -> None:
    kubectl.set_answers(pods=[pod("a", RUNNING)])
    kubectl.set_exec_result(exec_code, error)
    assert main(["doctor", "n1"]) == code
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("output\n", shown)


@pytest.mark.parametrize(
    ("pods", "node", "refused", "text"),
    [
        ([], "node/n1", "", "no agent runs on node n1: no pod with app.kubernetes.io/name=topolet"),
        ([], "", "", "node n1 does not exist"),
        (
            [pod("a", CRASHED)],
            "node/n1",
            "",
            "the agent of node n1 does not run: pod topolet-system/a: CrashLoopBackOff back-off",
        ),
        (
            [pod("a", RUNNING, deleting=True)],
            "node/n1",
            "",
            "the agent of node n1 does not run: pod topolet-system/a: it is being deleted, and has "
            "until 2026-01-02T03:04:05Z to end; on its node, crictl stop --timeout=0",
        ),
        ([], "", "Forbidden: pods", "kubectl get pods: Forbidden: pods"),
        (
            [],
            "",
            MEMCACHE + "The connection was refused",
            "topolet: kubectl get pods: The connection",
        ),
        ([], "", MEMCACHE, 'kubectl get pods: E0102 03:04:05.678901   12345 memcache.go:265] "'),
    ],
)
def test_a_node_without_a_running_agent(
    kubectl: Kubectl,
    topolet: Topolet,
    pods: list[Any],
    node: str,
    refused: str,
    text: str,
) -> None:
    kubectl.set_answers(pods=pods, node=node, refused=refused)
    assert text in topolet("doctor", "n1", code=2).err


def test_a_kubectl_that_hangs_ends_the_command_with_its_reason(
    kubectl: Kubectl, topolet: Topolet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "KUBECTL_SECONDS", 0.5)
    kubectl.hang("get pods")
    assert "kubectl get takes longer than 0.5 s" in topolet("doctor", "n1", code=2).err
    # This also limits `get pods`, which answers.
    monkeypatch.setattr(remote, "KUBECTL_SECONDS", 3.0)
    kubectl.hang("get node")
    assert "no agent runs on node n1" in topolet("doctor", "n1", code=2).err
    monkeypatch.setattr(remote, "KUBECTL_SECONDS", 0.5)
    kubectl.hang("logs -n")
    assert remote.logs(Agent(("kubectl",), "ns", "a", "n1", 1), 5) == {}


def test_a_name_that_is_not_a_node_and_a_machine_without_kubectl(
    topolet: Topolet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is not the name of a Node" in topolet("doctor", "n1,spec.x=y", code=2).err
    monkeypatch.setenv("PATH", "/none")
    assert "NODE needs kubectl" in topolet("topology", "n1", code=2).err


def test_a_pod_without_a_started_container_has_its_phase() -> None:
    assert why_not_running({"status": {"phase": "Pending"}}) == "phase Pending"
    assert why_not_running(pod("a", RUNNING)) == ""
