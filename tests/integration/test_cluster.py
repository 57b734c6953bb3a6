"""The agent with a real API server and a real runtime."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.deploy.manifests import objects
from tests.fixtures.pods import run_pod
from tests.fixtures.ports import free_port
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.incluster import READ_RULES, STATUS, WRITE_RULES, ClusterNode
from tests.waiting import eventually

PATIENCE_SECONDS = 60.0


@pytest.fixture
def definitions(apiserver: ApiServer) -> ApiServer:
    for each in objects("crds"):
        apiserver.apply(each)
    return apiserver


def test_a_claim_that_changes_in_the_cluster_moves_a_running_container(
    definitions: ApiServer, node: TestNode
) -> None:
    place = ClusterNode(definitions, node, "moves", [*READ_RULES, *WRITE_RULES])
    uid = place.pod("own", "LSR", "1")
    _, own = run_pod(node.direct, node.spec("own", "LSR", "1", uid=uid))
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    place.start_agent(node)
    eventually("pinned", lambda: (node.cpus(own), node.cpus(ls)) == ("1", "0"))
    changed = {"metadata": {"annotations": {STATUS: '{"cpuset": "0"}'}}}
    place.api.admin.merge("/api/v1/namespaces/moves/pods/own", changed)
    moved = lambda: (node.cpus(own), node.cpus(ls)) == ("0", "1")  # noqa: E731
    eventually("moved", moved, PATIENCE_SECONDS)
    node.kill_agent()
    place.api.kill_server()
    try:
        place.start_agent(node)
        eventually(
            "the agent has made a pass",
            lambda: node.metric('topolet_reconciliations_total{result="succeeded"}') >= 2,
        )
        assert moved(), "a restart without a server decides as before"
    finally:
        place.api.start_server()


def test_an_agent_without_a_permission_reports_it_and_does_the_rest(
    definitions: ApiServer, node: TestNode
) -> None:
    nodes_only = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}
    place = ClusterNode(definitions, node, "lacks", [*READ_RULES, nodes_only])
    place.start_agent(node)
    account = "system:serviceaccount:lacks:agent"
    lacking = (
        f"no role allows {account} get noderesourcetopologies of topology.node.k8s.io",
        f"no role allows {account} get devices of scheduling.koordinator.sh",
    )
    eventually(
        "it is reported",
        lambda: all(each in node.log("agent") for each in lacking),
        PATIENCE_SECONDS,
    )
    # The log line is counted a moment after it was written.
    eventually("counted", lambda: node.metric("topolet_cluster_problems") == 1)
    labels = json.loads(place.api.admin.get("/api/v1/nodes/lacks"))["metadata"]["labels"]
    assert labels["topology.topolet.io/cpus"]


def test_the_agent_manages_the_node_without_a_server(node: TestNode) -> None:
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    _, own = run_pod(node.direct, node.spec("own", "LSE", "1"))
    folder = node.folder / "account"
    folder.mkdir()
    (folder / "token").write_text("token")
    node.start_agent(
        f"--service-account-dir={folder}",
        environ={
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(free_port()),
        },
    )
    eventually("pinned", lambda: (node.cpus(own), node.cpus(ls)) == ("1", "0"))
    eventually(
        "it is reported", lambda: node.metric("topolet_cluster_problems") >= 1, PATIENCE_SECONDS
    )
    node.stop_agent()


def test_pod_that_loses_its_cpus_to_a_static_kubelet_gets_an_event(
    definitions: ApiServer, node: TestNode
) -> None:
    events = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}
    place = ClusterNode(definitions, node, "loses", [*READ_RULES, *WRITE_RULES, events])
    kubelet = node.folder / "kubelet"
    kubelet.mkdir()

    def gives(**pods: str) -> None:
        entries = {uid: {"main": cpus} for uid, cpus in pods.items()}
        body = {"policyName": "static", "defaultCpuSet": "0-1", "entries": entries}
        (kubelet / "cpu_manager_state").write_text(json.dumps(body))

    gives()
    uid = place.pod("own", "LSE", "1")
    _, own = run_pod(node.direct, node.spec("own", "LSE", "1", uid=uid))
    place.start_agent(node)
    eventually("pinned", lambda: node.cpus(own) == "1")
    assert node.metric("topolet_containers_short_of_cpus") == 0
    gives(other="1")
    eventually("the kubelet's container has it", lambda: node.cpus(own) == "0")

    def told() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            definitions.admin.get("/api/v1/namespaces/loses/events")
        )["items"]
        return [each for each in found if each["type"] == "Warning"]

    eventually("it is reported", told, PATIENCE_SECONDS)
    (event,) = told()
    assert event["involvedObject"]["uid"] == uid
    assert event["reason"] == "CPUClaimNotHonored"
    assert event["message"] == (
        f"annotation {STATUS} claims CPUs 1, container main has no CPUs of its own: "
        "CPUs 1 are assigned by the kubelet"
    )
    assert event["reportingComponent"] == "topolet.io/agent"
    assert node.metric("topolet_containers_short_of_cpus") == 1
