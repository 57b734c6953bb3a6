"""`kubectl topolet rollout` on a real API server with the DaemonSet controller: agents are replaced
node by node until a doctor finds something. Kubelets are simulated; so is the agents' doctor, which
tests/cluster runs for real."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.__main__ import main
from agent.cli import rollout
from agent.kube.errors import ConflictError, KubeError, NotFoundError
from tests.integration import helmcluster
from tests.integration.apiserver.commands import kubeconfig, program_or_skip
from tests.integration.apiserver.server import ApiServer
from tests.integration.helmcluster import NAMESPACE, Cluster
from tests.waiting import eventually

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "install.md"
NODES = ("n1", "n2", "n3", "n4")
NAME = "topolet-agent"
KUBECTL = """#!/bin/sh
case " $* " in
*" exec "*)
    node=$(KUBECTL get pod -n NAMESPACE "$4" -o 'jsonpath={.spec.nodeName}')
    echo "$node" >>FOLDER/examined
    if [ ! -e "FOLDER/$node" ] || grep -qx "$4" "FOLDER/sound"; then
        echo '{"node": [], "findings": []}'
        exit 0
    fi
    cat "FOLDER/$node"
    echo "command terminated with exit code 1" >&2
    exit 1
    ;;
esac
exec KUBECTL "$@"
"""

pytestmark = pytest.mark.timeout(600)


@contextlib.contextmanager
def simulated_kubelets(server: ApiServer) -> Iterator[None]:
    """Kubelets that bind the pods of the DaemonSet to their nodes, set them Ready, and delete
    them."""
    ended = threading.Event()
    problems: list[KubeError] = []

    def run() -> None:
        while not ended.wait(0.2):
            try:
                for pod in json.loads(server.admin.get(PODS))["items"]:
                    with contextlib.suppress(NotFoundError, ConflictError):
                        _serve(server, pod)
            except KubeError as error:
                problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert problems == []


def _serve(server: ApiServer, pod: dict[str, Any]) -> None:
    name = pod["metadata"]["name"]
    if "deletionTimestamp" in pod["metadata"]:
        server.admin.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    elif "nodeName" not in pod["spec"]:
        required = pod["spec"]["affinity"]["nodeAffinity"]
        (term,) = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        (node,) = term["matchFields"][0]["values"]
        target = {"kind": "Node", "name": node}
        server.create(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})
    elif not pod["status"].get("containerStatuses"):
        container = {
            "name": "agent",
            "image": "topolet",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {}},
        }
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [container],
        }
        server.admin.merge(f"{PODS}/{name}/status", {"status": status})


class Pool:
    """The agents of all nodes, and the actions of an administrator."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._examined = folder / "examined"

    def upgrade(self, **pool: Any) -> None:
        self.install({"updateStrategy": "OnDelete", **pool})

    def install(self, *pools: Any) -> None:
        self._cluster.install({"pools": pools})

    def label(self, node: str, label: str) -> None:
        self._cluster.kubectl("label", "node", node, label)

    def agents(self) -> dict[str, str]:
        """The name of the agent's pod, by node."""
        listed = json.loads(self._cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "json"))
        return {
            each["spec"].get("nodeName", ""): each["metadata"]["name"] for each in listed["items"]
        }

    def daemonsets(self) -> int:
        """The number of DaemonSets with agents; 0 if a node has no agent."""
        agents = self.agents()
        return len({name.rpartition("-")[0] for name in agents.values()}) * (
            set(agents) == {*NODES}
        )

    def set_ready(self, node: str, status: str) -> None:
        body = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        self._cluster.server.admin.merge(f"/api/v1/nodes/{node}/status", body)

    def set_finding(self, node: str, code: str, text: str) -> None:
        """The doctor of later pods of the node finds this."""
        (self._folder / "sound").write_text("".join(f"{each}\n" for each in self.agents().values()))
        finding = {"code": code, "text": text, "severity": "error", "remedy": "repair it"}
        (self._folder / node).write_text(json.dumps({"node": [finding], "findings": []}))

    def repair(self, node: str) -> None:
        (self._folder / node).unlink()

    def rollout(self, *words: str, name: str = NAME) -> int:
        self._examined.write_text("")
        return main(["rollout", name, *words])

    def examined(self) -> list[str]:
        return self._examined.read_text().split()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One pool for all tests, which begin with a release of their own."""
    kubectl = program_or_skip("kubectl")
    base = tmp_path_factory.mktemp("rollout")
    folder = base / "bin"
    folder.mkdir()
    program = folder / "kubectl"
    text = KUBECTL.replace("KUBECTL", str(kubectl)).replace("NAMESPACE", NAMESPACE)
    program.write_text(text.replace("FOLDER", str(folder)))
    program.chmod(0o755)
    with (
        helmcluster.running(base, "daemonset-controller", namespaces=[NAMESPACE]) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("KUBECONFIG", str(kubeconfig(cluster.server)))
        patch.setattr(rollout, "SETTLE_SECONDS", 0.5)
        patch.setattr(rollout, "POLL_SECONDS", 0.1)
        made = Pool(cluster, folder)
        for node in NODES:
            cluster.server.node(node)
            made.label(node, "kubernetes.io/os=linux")
            made.set_ready(node, "True")
        with simulated_kubelets(cluster.server):
            made.upgrade()
            eventually("each node has an agent", lambda: set(made.agents()) == set(NODES))
            yield made


def test_agents_are_replaced_until_a_doctor_finds_something(
    pool: Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    before = pool.agents()
    pool.upgrade(settings={"period-seconds": 30})
    assert pool.agents() == before, "the DaemonSet controller replaces no pod"

    assert pool.rollout("--max-nodes=1") == 0
    output = capfd.readouterr().out
    assert "node n1: the new agent is Ready, topolet doctor finds nothing new\n" in output
    assert "1 agent replaced; the other nodes keep their old agent" in output
    first = pool.agents()
    assert {node for node in NODES if first[node] != before[node]} == {"n1"}

    pool.set_finding("n2", "agent-does-not-answer", "it hangs")
    assert pool.rollout() == 1
    output, error = capfd.readouterr()
    assert "agent-does-not-answer: it hangs\n" in output
    assert "node n2: topolet doctor has findings" in error
    second = pool.agents()
    assert {node for node in NODES if second[node] != first[node]} == {"n2"}
    assert pool.examined()[0] == "n1"

    # A repeated run replaces no agent before the findings are repaired.
    assert pool.rollout() == 1
    assert pool.agents() == second

    pool.repair("n2")
    pool.set_ready("n3", "False")
    assert pool.rollout() == 1
    assert "skipped, because they are not Ready: n3" in capfd.readouterr().err
    third = pool.agents()
    assert {node for node in NODES if third[node] != second[node]} == {"n4"}
    assert pool.examined() == ["n1", "n2", "n4", "n4"]

    pool.set_ready("n3", "True")
    assert pool.rollout() == 0
    assert pool.agents()["n3"] != third["n3"]
    last = pool.agents()
    assert pool.rollout() == 0
    assert pool.agents() == last


def test_a_canary_is_rolled_out_first(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    """The nodes are chosen by the line with shuf and xargs in docs/install.md."""
    cards = {
        "name": "gpu",
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "updateStrategy": "OnDelete",
        "canary": {"settings": {"period-seconds": 40}},
    }
    others = {"updateStrategy": "OnDelete"}
    for node in ("n1", "n2"):
        pool.label(node, "nvidia.com/gpu.present=true")
    (line,) = (each for each in PAGE.read_text().splitlines() if "shuf -n 10" in each)
    subprocess.run(["sh", "-ec", line.replace("-n 10", "-n 1")], check=True)
    pool.install(cards, others)
    eventually("each node has an agent of its pool", lambda: pool.daemonsets() == 3)
    before = pool.agents()
    pool.install({**cards, "canary": {"settings": {"period-seconds": 30}}}, others)
    assert pool.rollout(name="topolet-agent-gpu-canary") == 0
    after = pool.agents()
    (canary,) = (node for node in NODES if after[node] != before[node])
    assert canary in ("n1", "n2")
    assert pool.examined() == [canary, canary]
    capfd.readouterr()


def test_a_daemonset_with_rolling_updates_is_refused(
    pool: Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    pool.upgrade(updateStrategy="RollingUpdate")
    assert pool.rollout() == 2
    error = capfd.readouterr().err
    assert f"DaemonSet {NAMESPACE}/{NAME}: spec.updateStrategy.type is RollingUpdate" in error
    assert "give the pool `updateStrategy: OnDelete`" in error
    assert main(["rollout", "absent"]) == 2
    assert 'daemonsets.apps "absent" not found' in capfd.readouterr().err
