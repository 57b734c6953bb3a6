"""`topolet doctor --all` with a program that replaces kubectl; tests/cluster has the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Topolet
from tests.cli.kubectl import CRASHED, RUNNING, pod

HANGS = "hangs"
KUBECTL = """#!/bin/sh
cd FOLDER
case "$1 $2 $*" in
"get nodes "*" -l "*) cat selected;;
"get nodes "*) cat nodes;;
"get pods "*) cat pods;;
"get daemonsets "*) cat daemonsets;;
"exec "*)
    echo "$4" >>asked
    if [ "$(cat "$4")" = hangs ]; then exec sleep 60; fi
    cat "$4"
    cat "$4.error" >&2 2>/dev/null
    exit "$(cat "$4.code")"
    ;;
*) exit 9;;
esac
"""
DRIFT = {
    "container": "team/web/main",
    "kind": "cgroup-differs",
    "expected": "0-1",
    "found": "0-3",
    "detail": "",
    "severity": "error",
    "remedy": "wait for the next pass",
}
PLUGIN = {
    "code": "device-plugin-offers-devices",
    "text": "a device plugin offers \x1b[31m8",
    "remedy": "leave it",
    "severity": "warning",
}


class Nodes:
    """The nodes of a cluster, with the output of their doctors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        program = folder / "kubectl"
        program.write_text(KUBECTL.replace("FOLDER", str(folder)))
        program.chmod(0o755)
        self._ready: dict[str, bool] = {}
        self._pods: list[dict[str, Any]] = []
        self._write("asked", "")
        daemonset = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}}
        self._write("daemonsets", json.dumps({"items": [daemonset]}))
        self._write("selected", "")

    def add(self, name: str, *, ready: bool = True) -> None:
        self._ready[name] = ready
        self._write("nodes", "".join(f"{node} {ready}\n" for node, ready in self._ready.items()))
        self._write("pods", json.dumps({"items": self._pods}))

    def with_pod(self, name: str, status: dict[str, Any]) -> None:
        body = pod(f"agent-{name}", status)
        self._pods.append({**body, "spec": {"nodeName": name}})
        self.add(name)

    def examined(self, name: str, *node: Any, findings: Any = (), ready: bool = True) -> None:
        self.with_pod(name, RUNNING)
        self.add(name, ready=ready)
        body = {"schema_version": 1, "node": node, "findings": findings}
        self.answer(name, json.dumps(body))

    def answer(self, name: str, output: str, error: str = "", code: int = 0) -> None:
        self._write(f"agent-{name}", output)
        self._write(f"agent-{name}.error", error)
        self._write(f"agent-{name}.code", str(code))

    def select(self, *names: str) -> None:
        self._write("selected", "".join(f"{name} True\n" for name in names))

    def asked(self) -> set[str]:
        return set((self._folder / "asked").read_text().split())

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)


@pytest.fixture
def nodes(programs: Path) -> Nodes:
    return Nodes(programs)


def test_the_findings_of_all_nodes_are_one_table(
    nodes: Nodes, topolet: Topolet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    nodes.examined("n1")
    nodes.examined("n2", PLUGIN, findings=[DRIFT])
    nodes.with_pod("n3", CRASHED)
    nodes.add("n4")
    nodes.add("n5")
    nodes.select("n1", "n2", "n3", "n4")
    nodes.examined("n6", ready=False)
    lines = [" ".join(each.split()) for each in topolet("doctor", "--all", code=1).out.splitlines()]
    assert lines[:7] == [
        "NODE SEVERITY FINDING TEXT",
        "n2 error cgroup-differs team/web/main: should be 0-1, is 0-3",
        "n2 warning device-plugin-offers-devices a device plugin offers ?[31m8",
        "n3 error agent-not-running pod topolet-system/agent-n3: CrashLoopBackOff back-off 5m0s",
        "n4 error agent-not-running a DaemonSet of agents selects the node, which has no pod",
        "n5 warning node-without-agent no DaemonSet of agents selects the node",
        "n6 error node-not-ready the Node is not Ready, so no command was run there",
    ]
    assert "cgroup-differs -> wait for the next pass" in lines
    assert lines[-1] == "6 nodes: 1 with findings, 1 without, 4 not examined"
    assert nodes.asked() == {"agent-n1", "agent-n2"}


def test_a_node_whose_runtime_hangs_is_named_and_not_waited_for(
    nodes: Nodes, topolet: Topolet
) -> None:
    for name in ("n1", "n2", "n3"):
        nodes.examined(name)
        nodes.answer(name, HANGS)
    nodes.examined("n4")
    nodes.answer("n4", "", "Error from server: error dialing backend: EOF\n", 1)

    body = topolet("doctor", "--all", "--node-seconds=1", "-o", "json", code=1).json
    assert body["schema_version"] == 1
    found = {each["node"]: each["findings"][0] for each in body["nodes"]}
    assert {each["code"] for each in found.values()} == {"doctor-does-not-answer"}
    assert "has not ended after 1 s" in found["n1"]["text"]
    assert "error dialing backend" in found["n4"]["text"]
    assert "on the host run `topolet doctor`" in found["n1"]["remedy"]


def test_warnings_alone_are_no_failure(nodes: Nodes, topolet: Topolet) -> None:
    nodes.examined("n1", PLUGIN)
    nodes.add("n2")
    assert topolet("doctor", "--all").out.endswith(
        "2 nodes: 0 with findings, 1 without, 1 not examined\n"
    )


def test_a_cluster_that_can_not_be_listed_is_an_error(
    nodes: Nodes, tmp_path: Path, topolet: Topolet
) -> None:
    nodes.add("n1")
    (tmp_path / "pods").unlink()
    assert "kubectl get pods" in topolet("doctor", "--all", code=2).err
    printed = topolet("doctor", "--all", "n1", code=2)
    assert "--all: it takes neither NODE nor --bundle" in printed.err


@pytest.mark.parametrize(
    "output", ["", "[" * 100_000, "null", '{"node": [1], "findings": []}', '{"node": []}']
)
def test_an_answer_that_can_not_be_read_is_that_nodes_finding(
    nodes: Nodes, output: str, topolet: Topolet
) -> None:
    nodes.examined("n1")
    nodes.examined("n2")
    nodes.answer("n1", output)
    codes = {
        each["node"]: [finding["code"] for finding in each["findings"]]
        for each in topolet("doctor", "--all", "-o", "json", code=1).json["nodes"]
    }
    assert codes == {"n1": ["doctor-does-not-answer"], "n2": []}
