"""Pods remove Topolet from all nodes, each within its time; tests/integration has an API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.install.nodes import (
    AGENT,
    COMPONENT,
    UNINSTALL,
    ClusterNode,
    ClusterRemoval,
    ExcludedLabel,
    NodePod,
    NodePool,
    NodePools,
    NodeProgress,
    NodeState,
    RemovalLimits,
    node_pod,
    nodes_to_clean,
    steps,
)
from agent.kube.auth import FileAccess
from agent.kube.errors import ForbiddenError, NotFoundError, UnreachableError
from agent.kube.transport import JSON, ApiResponse, Query, Transport

TEMPLATE = {"metadata": {"labels": {COMPONENT: UNINSTALL}}, "spec": {"containers": []}}
CARDS = NodePool("topolet-agent-cards", {"cards": "yes"}, (), TEMPLATE)
OTHERS = NodePool(
    "topolet-agent", {}, (ExcludedLabel("cards", "yes"),), TEMPLATE, "its proxy stays"
)
LIMITS = RemovalLimits(at_once=2, node_seconds=30, whole_seconds=100)
REPORTED = {"topology.topolet.io/cpus": "8"}


def node(name: str, *, ready: bool = True, **labels: str) -> ClusterNode:
    return ClusterNode(name, {**REPORTED, **labels}, ready)


def test_nodes_with_labels_or_agents_are_cleaned_and_ready_ones_come_first() -> None:
    nodes = [
        node("not-ready", ready=False),
        node("b", cards="yes"),
        ClusterNode("foreign", {}, True),
        ClusterNode("new", {}, True),
    ]
    pods = [NodePod("agent-1", "new", AGENT, "Running"), NodePod("agent-2", "", AGENT, "Pending")]
    found = nodes_to_clean(nodes, [CARDS, OTHERS], pods)
    assert [(each.node, each.pool) for each in found] == [
        ("b", CARDS),
        ("new", OTHERS),
        ("not-ready", OTHERS),
    ]


def test_a_node_without_a_pool_is_reported() -> None:
    (record,) = nodes_to_clean([node("n")], [CARDS], [])
    assert list(steps([record], [], LIMITS, 0)) == []
    assert (record.state, record.problem) == (
        NodeState.FAILED,
        "no pool of the release selects it",
    )


def test_a_pod_names_its_node_and_the_template_is_unchanged() -> None:
    pod = node_pod(CARDS, "n")
    assert pod["spec"]["nodeName"] == "n"
    assert pod["metadata"]["generateName"] == "topolet-uninstall-node-"
    assert TEMPLATE["spec"] == {"containers": []}


def test_no_pod_is_created_while_the_agent_runs() -> None:
    record = NodeProgress("n", OTHERS)
    agent = [NodePod("a", "n", AGENT, "Running")]
    assert list(steps([record], agent, LIMITS, 0)) == []
    assert list(steps([record], agent, LIMITS, 29)) == []
    (change,) = steps([record], [], LIMITS, 29.5)
    assert change.create is OTHERS


def test_an_agent_that_does_not_end_is_reported() -> None:
    record = NodeProgress("n", OTHERS)
    agent = [NodePod("a", "n", AGENT, "Running")]
    for now in (0, 30):
        assert list(steps([record], agent, LIMITS, now)) == []
    assert record.problem == "its agent has not ended after 30 s"


def test_the_pod_of_an_earlier_run_is_replaced() -> None:
    record = NodeProgress("n", OTHERS)
    (change,) = steps([record], [NodePod("old", "n", UNINSTALL, "Failed", "no")], LIMITS, 0)
    assert change.delete is not None
    assert (change.delete.name, record.state) == ("old", NodeState.BEGUN)
    (change,) = steps([record], [], LIMITS, 1)
    assert change.create is OTHERS


@given(
    count=st.integers(1, 12),
    at_once=st.integers(1, 5),
    seconds=st.lists(st.integers(0, 45), min_size=12, max_size=12),
)
def test_the_number_of_parallel_nodes_is_bounded_and_each_ends(
    count: int, at_once: int, seconds: list[int]
) -> None:
    """`seconds`: the run time of each pod, of which 30 s are allowed."""
    limits = RemovalLimits(at_once, 30, 10_000)
    found = [NodeProgress(f"n{index}", OTHERS) for index in range(count)]
    started: dict[str, int] = {}
    for now in range(count * 31 + 1):
        pods = [
            NodePod(name, name, UNINSTALL, "Succeeded" if now - start >= duration else "Running")
            for duration, (name, start) in zip(seconds, sorted(started.items()), strict=False)
        ]
        for change in list(steps(found, pods, limits, now)):
            if change.create:
                change.record.created = True
                started[change.record.node] = now
            elif change.delete:
                del started[change.delete.name]
        assert len(started) <= at_once
    assert started == {}
    assert all(each.state in (NodeState.DONE, NodeState.FAILED) for each in found)
    assert all((each.state is NodeState.FAILED) is bool(each.problem) for each in found)


class Server(Transport):
    """An API server whose clock only pauses advance. `answers`: by node, the phase and message of
    its pod; without one the pod stays Pending."""

    def __init__(self, nodes: list[str], answers: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(FileAccess("http://127.0.0.1:1"))
        self.now = 0.0
        self.deleted: list[str] = []
        self.at_once: set[str] = set()
        self.refused: Exception | None = None
        self.unreachable_until = 0.0
        self._nodes = nodes
        self._answers = answers
        self._pods: dict[str, str] = {}

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> ApiResponse:
        if 0 < self.now < self.unreachable_until:
            raise UnreachableError(f"{method} {path}: no answer")
        if method == "DELETE":
            name = path.rpartition("/")[2]
            self.deleted.append(name)
            if path.rpartition("/")[0].endswith("/pods") and query:
                self.at_once.add(name)
            if name == CARDS.daemon_set:
                raise NotFoundError("no such DaemonSet")
            self._pods.pop(name, None)
        elif method == "POST":
            if self.refused:
                raise self.refused
            self._pods[f"of-{body['spec']['nodeName']}"] = body["spec"]["nodeName"]
        listed = self.pods_listed() if path.endswith("/pods") else self._nodes_listed()
        return ApiResponse(200, json.dumps(_page(listed, query or {})).encode())

    def _nodes_listed(self) -> list[Any]:
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        return [
            {"metadata": {"name": n, "labels": REPORTED}, "status": status} for n in self._nodes
        ]

    def pods_listed(self) -> list[Any]:
        found = []
        for name, of in self._pods.items():
            phase, message = self._answers.get(of, ("Pending", ""))
            state = {"terminated": {"message": message}} if phase == "Failed" else {}
            found.append(
                {
                    "metadata": {"name": name, "labels": {COMPONENT: UNINSTALL}},
                    "spec": {"nodeName": of},
                    "status": {"phase": phase, "containerStatuses": [{"state": state}]},
                }
            )
        return found


def _page(listed: list[Any], query: Query) -> Any:
    """A page of one item, as of a list that is too large for one page."""
    first = int(str(query.get("continue", "0")))
    rest = {"continue": str(first + 1)} if first + 1 < len(listed) else {}
    return {"metadata": {"resourceVersion": "1", **rest}, "items": listed[first : first + 1]}


def run(server: Server) -> tuple[bool, ClusterRemoval, list[str]]:
    messages: list[str] = []
    pools = NodePools("topolet-system", (CARDS, OTHERS))
    removal = ClusterRemoval(
        server, pools, LIMITS, messages.append, lambda: server.now, server.pause
    )
    return removal.run(), removal, messages


def test_topolet_is_removed_from_all_nodes() -> None:
    server = Server(["a", "b", "c"], dict.fromkeys("abc", ("Succeeded", "")))
    done, removal, messages = run(server)
    assert (done, removal.left) == (True, [])
    assert server.deleted == [
        *("topolet-agent-cards", "topolet-agent"),
        *("of-a", "of-b", "of-c"),
    ]
    assert "node a: nothing of Topolet is left, but its proxy stays" in messages


def test_nodes_that_fail_or_do_not_answer_are_reported_and_the_others_are_done() -> None:
    answers = {"a": ("Failed", "topolet: left on node a: cgroups"), "c": ("Succeeded", "")}
    server = Server(["a", "b", "c"], answers)
    done, removal, _ = run(server)
    assert not done
    assert {each.node: each.problem for each in removal.left} == {
        "a": "topolet: left on node a: cgroups",
        "b": "its pod is Pending after 30 s",
    }
    assert {"of-a", "of-b", "of-c"} <= set(server.deleted)


def test_the_total_time_is_bounded_and_no_pod_is_left() -> None:
    server = Server([f"n{index}" for index in range(9)], {})
    done, removal, _ = run(server)
    assert not done
    assert server.now == 100
    problems = [each.problem for each in removal.left]
    assert len(problems) == 9
    assert problems[-1] == "it did not begin in the 100 s of all nodes"
    assert "it did not end in the 100 s of all nodes" in problems
    assert server.pods_listed() == []


def test_a_pod_that_runs_at_its_deadline_has_time_to_end() -> None:
    """The pod may have changed the kubelet's endpoint, and restores it."""
    server = Server(["running", "pending"], {"running": ("Running", "")})
    run(server)
    assert {"of-running", "of-pending"} <= set(server.deleted)
    assert server.at_once == {"of-pending"}


def test_requests_to_an_unreachable_api_server_are_repeated() -> None:
    server = Server(["a"], {"a": ("Succeeded", "")})
    server.unreachable_until = 5
    done, _, messages = run(server)
    assert done
    assert [each for each in messages if each.startswith("will be tried again: ")]


@pytest.mark.parametrize("refused", [ForbiddenError("quota")])
def test_a_refused_pod_is_the_problem_of_its_node(refused: Exception) -> None:
    server = Server(["a"], {})
    server.refused = refused
    _, removal, _ = run(server)
    (record,) = removal.left
    assert "quota" in record.problem
