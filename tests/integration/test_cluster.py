"""The agent with a real API server and a real runtime."""

from __future__ import annotations

import json

import pytest

from agent.node.cluster_view import REPORT_CHANGED
from tests.deploy.manifests import objects
from tests.fixtures.pods import run_pod
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.incluster import READ_RULES, STATUS, TOPOLOGY, WRITE_RULES, ClusterNode
from tests.waiting import eventually

TIMEOUT_SECONDS = 60.0


@pytest.fixture
def definitions(apiserver: ApiServer) -> ApiServer:
    for each in objects("crds"):
        apiserver.apply(each)
    return apiserver


def test_a_claim_that_changes_in_the_cluster_moves_a_running_container(
    definitions: ApiServer, node: TestNode
) -> None:
    cluster_node = ClusterNode(definitions, node, "moves", [*READ_RULES, *WRITE_RULES])
    uid = cluster_node.pod("own", "LSR", "1")
    _, own = run_pod(node.direct, node.spec("own", "LSR", "1", uid=uid))
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    cluster_node.start_agent(node)
    eventually("the pods are on their CPUs", lambda: (node.cpus(own), node.cpus(ls)) == ("1", "0"))
    changed = {"metadata": {"annotations": {STATUS: '{"cpuset": "0"}'}}}
    cluster_node.api.admin.merge("/api/v1/namespaces/moves/pods/own", changed)
    is_moved = lambda: (node.cpus(own), node.cpus(ls)) == ("0", "1")  # noqa: E731
    eventually("the container has moved", is_moved, TIMEOUT_SECONDS)
    node.kill_agent()
    cluster_node.api.kill_server()
    try:
        cluster_node.start_agent(node)
        eventually(
            "the agent has completed a pass",
            lambda: node.metric('topolet_reconciliations_total{result="succeeded"}') >= 2,
        )
        assert is_moved(), "a restarted agent keeps the assignment without an API server"
    finally:
        cluster_node.api.start_server()


def test_an_agent_without_a_permission_reports_it_and_writes_its_other_objects(
    definitions: ApiServer, node: TestNode
) -> None:
    nodes_only = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}
    cluster_node = ClusterNode(definitions, node, "lacks", [*READ_RULES, nodes_only])
    cluster_node.start_agent(node)
    account = "system:serviceaccount:lacks:agent"
    lacking = (
        f"no role allows {account} get noderesourcetopologies of topology.node.k8s.io",
        f"no role allows {account} get devices of scheduling.koordinator.sh",
    )
    eventually(
        "it is reported",
        lambda: all(each in node.log("agent") for each in lacking),
        TIMEOUT_SECONDS,
    )
    # The counter is incremented after the log line is written.
    eventually("the metric counts it", lambda: node.metric("topolet_cluster_problems") == 1)
    labels = json.loads(cluster_node.api.admin.get("/api/v1/nodes/lacks"))["metadata"]["labels"]
    assert labels["topology.topolet.io/cpus"]


def test_an_edit_or_deletion_of_the_report_is_undone_and_an_event_names_the_client(
    definitions: ApiServer, node: TestNode
) -> None:
    events = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}
    cluster_node = ClusterNode(definitions, node, "edited", [*READ_RULES, *WRITE_RULES, events])
    cluster_node.start_agent(node)
    eventually("it is reported", cluster_node.reported, TIMEOUT_SECONDS)
    before = cluster_node.reported()
    assert before is not None
    admin, path = definitions.admin, TOPOLOGY + "edited"
    first, *others = before["zones"]
    edited = {"zones": [{**first, "type": "Other"}, *others]}
    query = {"fieldManager": "kubectl-edit"}
    admin.request("PATCH", path, query, edited, "application/merge-patch+json")

    def restored() -> bool:
        found = cluster_node.reported()
        return found is not None and found["zones"] == before["zones"]

    eventually("the zones are as before", restored, TIMEOUT_SECONDS)
    admin.delete(path)
    eventually("the object is there again", restored, TIMEOUT_SECONDS)

    def notes() -> set[str]:
        found = json.loads(admin.get("/api/v1/namespaces/default/events"))["items"]
        return {each["message"] for each in found if each["reason"] == REPORT_CHANGED}

    ends = "; the agent has written it again"
    text = "NodeResourceTopology edited was"
    expected = {f"{text} changed by kubectl-edit{ends}", f"{text} deleted{ends}"}
    eventually("the Events name it", lambda: notes() >= expected, TIMEOUT_SECONDS)
    assert node.metric('topolet_foreign_changes_total{kind="NodeResourceTopology"}') == 2
