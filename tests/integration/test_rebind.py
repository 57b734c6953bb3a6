"""A RebindResource on a real API server moves containers of a real runtime: the scheduler rewrites
annotations with the role of its overlay, the agent moves the containers.

The machine of this test has two NUMA nodes of one CPU each. Two pods are bound to both, and a plan
binds each to one."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.__main__ import main
from agent.kube.errors import NotFoundError
from agent.model.nrt.node_annotations import CPU_TOPOLOGY
from agent.node.rebinds import PERIOD_SECONDS, UNTAKEN_SECONDS
from tests.fixtures import trees
from tests.fixtures.pods import run_pod
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.incluster import QOS, READ_RULES, STATUS, TOPOLOGY, WRITE_RULES, Account
from tests.integration.scheduling import NO_AGENT_PODS, REBINDS, Scheduler, write_kubeconfig
from tests.waiting import eventually

Object = dict[str, Any]

TIMEOUT_SECONDS = 60.0
BOTH = {
    "numaNodeResources": [
        {"node": 0, "resources": {"cpu": "200m"}},
        {"node": 1, "resources": {"cpu": "200m"}},
    ]
}


class Mended:
    """A node with two pods on both NUMA nodes."""

    def __init__(self, api: ApiServer, node: TestNode, name: str, config: Path) -> None:
        self.api, self.node, self.name, self.config = api, node, name, config
        api.namespace(name)
        api.node(name)
        api.account(name, "agent", [*READ_RULES, *WRITE_RULES])
        api.account(name, "default", [])
        account = Account(api, node)
        account.write_token(api.token(name, "agent"))
        self.containers: dict[str, str] = {}
        for pod in ("a", "b"):
            made = api.pod(
                name,
                pod,
                name,
                labels={QOS: "LS"},
                annotations={STATUS: json.dumps(BOTH)},
            )
            uid = str(made["metadata"]["uid"])
            self.containers[pod] = run_pod(node.direct, node.spec(pod, "LS", uid=uid))[1]
        root = trees.write(str(node.folder / "machine"), trees.machine(2, 1, 1, 1, 1))
        (Path(root) / "proc").mkdir(exist_ok=True)
        account.start_agent(node, f"--root={root}", f"--node-name={name}")
        # The scheduler plans by this report.
        eventually("the CPUs are reported", self.reported, TIMEOUT_SECONDS)
        self.until(a="0-1", b="0-1")

    def reported(self) -> bool:
        try:
            found = json.loads(self.api.admin.get(TOPOLOGY + self.name))
        except NotFoundError:
            return False
        return CPU_TOPOLOGY in found["metadata"].get("annotations", {})

    def until(self, **cpus: str) -> None:
        eventually(f"on {cpus}", lambda: self.cpus() == cpus, TIMEOUT_SECONDS)

    def cpus(self) -> dict[str, str]:
        """Of the running containers, in the kernel."""
        return {pod: self.node.cpus(each) for pod, each in self.containers.items()}

    def numa_nodes(self) -> dict[str, list[int]]:
        """In the annotations."""
        found = {}
        for pod in self.containers:
            path = f"/api/v1/namespaces/{self.name}/pods/{pod}"
            notes = json.loads(self.api.admin.get(path))["metadata"]["annotations"]
            parts = json.loads(notes[STATUS])["numaNodeResources"]
            found[pod] = [each["node"] for each in parts]
        return found

    def rebind(self, name: str, **spec: Any) -> None:
        wanted = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "RebindResource",
            "metadata": {"name": name},
            "spec": {"nodeName": self.name, "rebindAction": "RebindCPU", **spec},
        }
        self.api.create(REBINDS, wanted)

    def status(self, name: str) -> Object:
        found: Object = json.loads(self.api.admin.get(f"{REBINDS}/{name}"))["status"]
        return found

    def ended(self, name: str) -> Object:
        eventually(
            f"{name} has ended",
            lambda: (
                self.status(name).get("updateTimestamp") and self.status(name)["phase"] != "Pending"
            ),
            TIMEOUT_SECONDS,
        )
        return self.status(name)


@pytest.fixture
def config(apiserver: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(apiserver, path)
    return path


@pytest.fixture
def scheduler(config: Path, tmp_path: Path) -> Iterator[Scheduler]:
    with Scheduler(tmp_path, config) as it:
        yield it


def operators_token(apiserver: ApiServer, namespace: str) -> str:
    """Of an account with the role of the overlay for `topolet rebind`."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    apiserver.create(accounts, {"metadata": {"name": "operator"}})
    body: Object = {"metadata": {"name": f"rebind-{namespace}"}}
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "topolet-rebind",
    }
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    body |= {"roleRef": role, "subjects": [subject]}
    apiserver.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body)
    return apiserver.token(namespace, "operator")


def test_a_node_is_mended_while_its_containers_run(
    apiserver: ApiServer,
    node: TestNode,
    config: Path,
    scheduler: Scheduler,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mended = Mended(apiserver, node, "mended", config)
    mended.rebind("untaken")
    assert mended.status("untaken")["phase"] == "Unknown"
    assert "no controller has taken it" in mended.status("untaken")["reason"]
    apiserver.admin.delete(f"{REBINDS}/untaken")

    scheduler.start(NO_AGENT_PODS)
    scheduler.until_ready()
    mended.rebind("dry", dryRun=True)
    shown = mended.ended("dry")
    assert (shown["phase"], shown["reason"]) == ("Succeed", "dry run; pods to move: 2")
    assert len(shown["plan"]["moves"]) == 2
    assert mended.numa_nodes() == {"a": [0, 1], "b": [0, 1]}

    mended.rebind("mend")
    shown = mended.ended("mend")
    assert (shown["phase"], shown["reason"]) == ("Succeed", "pods moved: 2"), scheduler.log()
    before, after = shown["plan"]["before"], shown["plan"]["after"]
    assert (before["numaCrossings"], after["numaCrossings"]) == (2, 0)
    assert mended.numa_nodes() == {"a": [0], "b": [0]}
    mended.until(a="0", b="0")

    # An operator without another right uses the command.
    operator = tmp_path / "operator"
    operator.write_text(json.dumps(apiserver.kubeconfig(operators_token(apiserver, mended.name))))
    assert main(["rebind", mended.name, f"--kubeconfig={operator}", "--wait"]) == 0
    assert "Succeed: no pods could be placed better" in capsys.readouterr().out
    mended.rebind("nowhere", nodeName="nowhere")
    shown = mended.ended("nowhere")
    assert (shown["phase"], shown["reason"]) == ("Failed", "node nowhere does not exist")


def test_a_scheduler_that_is_killed_is_followed_by_one_that_completes(
    apiserver: ApiServer, node: TestNode, config: Path, scheduler: Scheduler
) -> None:
    mended = Mended(apiserver, node, "killed", config)
    scheduler.start(NO_AGENT_PODS)
    scheduler.until_ready()
    mended.rebind("mend-killed")
    eventually("the plan is written", lambda: "plan" in mended.status("mend-killed"))
    scheduler.end(signal.SIGKILL)
    assert mended.status("mend-killed")["plan"]["moves"]
    scheduler.start(NO_AGENT_PODS)
    scheduler.until_ready()
    shown = mended.ended("mend-killed")
    assert shown["phase"] == "Succeed", (shown, scheduler.log())
    assert mended.numa_nodes() == {"a": [0], "b": [0]}
    mended.until(a="0", b="0")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_agent_of_the_node_reports_that_no_scheduler_serves_it(
    apiserver: ApiServer, node: TestNode, config: Path
) -> None:
    mended = Mended(apiserver, node, "alone", config)
    mended.rebind("nobody-serves")
    patience_seconds = 3 * (PERIOD_SECONDS + UNTAKEN_SECONDS)
    eventually(
        "failed", lambda: mended.status("nobody-serves")["phase"] == "Failed", patience_seconds
    )
    assert mended.status("nobody-serves")["reason"].startswith("NoController: ")
    mended.until(a="0-1", b="0-1")
