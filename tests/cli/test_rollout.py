"""`topolet rollout` with simulated pods and revisions; tests/integration/test_rollout.py has an API
server and the DaemonSet controller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.cli import remote, rollout
from agent.cli.remote import Agent, RemoteError
from agent.cli.rollout import (
    AgentPod,
    StoppedError,
    errors_in,
    newest,
    problem,
    rolled_out,
)
from agent.model.pod.qos import QoS
from agent.node import doctor, drift, node_findings
from agent.node.doctor import Examination
from agent.node.drift import ObservedContainer
from tests.cli.conftest import Topolet


def revision(number: int, name: str) -> dict[str, Any]:
    return {"revision": number, "metadata": {"labels": {rollout.REVISION: name}}}


def test_the_newest_revision_is_that_with_the_highest_number() -> None:
    found = [revision(9, "old"), revision(10, "new"), revision(2, "first")]
    assert newest(found, "topolet-agent") == "new"
    with pytest.raises(RemoteError, match="topolet-agent has no ControllerRevision"):
        newest([], "topolet-agent")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"conditions": [{"type": "Ready", "status": "True"}]}, ""),
        ({"phase": "Pending"}, "phase Pending, not Ready"),
        ({}, "phase unknown, not Ready"),
        (
            {
                "conditions": [{"type": "Ready", "status": "False"}],
                "initContainerStatuses": [
                    {"name": "before", "state": {"terminated": {"exitCode": 0}}},
                    {
                        "name": "install-proxy",
                        "state": {
                            "terminated": {"exitCode": 1, "reason": "Error", "message": "failed"}
                        },
                    },
                ],
                "containerStatuses": [
                    {"name": "agent", "state": {"waiting": {"reason": "PodInitializing"}}}
                ],
            },
            "container install-proxy: Error failed",
        ),
        (
            {
                "containerStatuses": [{"name": "agent", "state": {"running": {}}}],
                "phase": "Running",
            },
            "phase Running, not Ready",
        ),
    ],
)
def test_why_a_pod_is_not_ready(status: dict[str, Any], text: str) -> None:
    assert problem({"status": status}) == text


class SimulatedAgents(rollout.Agents):
    """A DaemonSet whose pods are replaced at once. `found`: what the doctor finds by node, in
    order; the last answer stays."""

    def __init__(self, revisions: dict[str, str], found: dict[str, list[list[str]]]) -> None:
        super().__init__(("kubectl",), "ns", "topolet-agent")
        self.revisions = revisions
        self.desired = len(revisions)
        self.without_agent: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        """Why the new agent of a node does not become Ready."""
        self.deleted: list[str] = []
        self.seconds = 0.0
        self._found = found

    def roll_out(self) -> int:
        """On a clock that only pauses advance."""
        return rolled_out(self, None, 60.0, lambda: self.seconds, self._pause)

    def _pause(self, seconds: float) -> None:
        self.seconds += seconds

    def revision(self) -> str:
        return "new"

    def pods(self) -> list[AgentPod]:
        return [
            AgentPod(
                Agent((), "ns", f"agent-{node}", node, 1),
                each,
                self.problems.get(node, "") if each == "new" else "",
            )
            for node, each in self.revisions.items()
        ] + [
            AgentPod(Agent((), "ns", f"agent-{node}", node, 1), "old", each, ending=True)
            for node, each in self.without_agent.items()
            if each
        ]

    def nodes(self) -> dict[str, bool]:
        return dict.fromkeys((*self.revisions, *self.without_agent), True)

    def delete(self, pod: AgentPod) -> None:
        self.deleted.append(pod.agent.node)
        self.revisions[pod.agent.node] = "new"

    def doctor(self, pod: AgentPod) -> dict[str, str]:
        answers = self._found.get(pod.agent.node, [[]])
        return {each: each for each in (answers.pop(0) if len(answers) > 1 else answers[0])}


def test_findings_while_pods_start_do_not_stop_the_rollout() -> None:
    agents = SimulatedAgents(
        {"a": "old", "b": "old"}, {"a": [[], ["drift"], ["runtime"], ["drift"], []]}
    )
    assert agents.roll_out() == 0
    assert agents.deleted == ["a", "b"]
    assert agents.seconds == 3 * rollout.POLL_SECONDS


def test_findings_of_an_updated_node_stop_the_rollout_before_a_pod_is_deleted() -> None:
    agents = SimulatedAgents({"a": "old", "b": "new"}, {"b": [["drift"]]})
    with pytest.raises(StoppedError, match="node b: topolet doctor has findings"):
        agents.roll_out()
    assert agents.deleted == []
    assert agents.seconds > rollout.SETTLE_SECONDS


def test_a_rollout_stops_only_at_what_was_not_found_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {"a": [["gpu"], ["gpu"]], "b": [["gpu"], ["gpu", "drift"]]}
    agents = SimulatedAgents({"a": "old", "b": "old", "c": "old"}, found)
    with pytest.raises(StoppedError, match="node b: topolet doctor has findings"):
        agents.roll_out()
    assert agents.deleted == ["a", "b"]
    assert capsys.readouterr().out.endswith("\ndrift\n")


def test_a_new_agent_without_an_answer_stops_the_rollout_whatever_the_old_one_did() -> None:
    silent = {"a": [[rollout.NO_ANSWER], [rollout.NO_ANSWER]]}
    agents = SimulatedAgents({"a": "old", "b": "old"}, silent)
    with pytest.raises(StoppedError, match="node a: topolet doctor has findings"):
        agents.roll_out()
    assert agents.deleted == ["a"]


def test_what_a_tenant_can_cause_does_not_stop_a_rollout() -> None:
    node = node_findings.found(
        node_findings.of_programs([["koordlet"], ["nri-resource-policy-balloons"]], proxy=True)
    )
    container = ObservedContainer("u", "ns/p c", QoS.LS, problem="an annotation is invalid")
    examined = Examination(node, (container,), drift.findings((container,), ()))
    assert examined.errors == 1  # no-cgroup
    read = remote.examination(json.dumps(doctor.body(examined)), 1)
    assert errors_in(read) == {"ns/p c: no-cgroup": "ns/p c: no-cgroup"}


@pytest.mark.parametrize(
    ("ending", "reason"),
    [("it is being deleted", "pod agent-a: it is being deleted"), ("", "it has no pod")],
)
def test_a_node_whose_agent_is_gone_stops_the_rollout(ending: str, reason: str) -> None:
    agents = SimulatedAgents({"b": "old"}, {})
    agents.without_agent, agents.desired = {"a": ending}, 2
    with pytest.raises(StoppedError, match=f"node a: the agent is not Ready after 60 s: {reason}"):
        agents.roll_out()
    assert agents.deleted == []


def test_a_new_agent_that_does_not_become_ready_stops_the_rollout() -> None:
    agents = SimulatedAgents({"a": "old", "b": "old"}, {})
    agents.problems = {"a": "container agent: CrashLoopBackOff"}
    reason = "node a: the agent is not Ready after 60 s: pod agent-a: container agent: CrashLoop"
    with pytest.raises(StoppedError, match=reason):
        agents.roll_out()
    assert agents.deleted == ["a"]


def test_a_node_that_takes_no_agent_is_not_awaited() -> None:
    """The DaemonSet selects it, and a taint keeps agents off."""
    agents = SimulatedAgents({"b": "old"}, {})
    agents.without_agent = {"a": ""}
    assert agents.roll_out() == 0
    assert agents.deleted == ["b"]


def test_the_nodes_are_selected_as_the_pods_are() -> None:
    expressions = [
        {"key": "pool", "operator": "NotIn", "values": ["a", "b"]},
        {"key": "site", "operator": "In", "values": ["x"]},
        {"key": "gpu", "operator": "Exists"},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "cores", "operator": "Gt", "values": ["1"]},
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}, {}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    pod = {"nodeSelector": {"os": "linux", "arch": "a"}, "affinity": affinity}
    exactly = "arch=a,os=linux"
    assert remote.node_selectors(pod) == [
        f"{exactly},pool notin (a,b),site in (x),gpu,!old",
        exactly,
    ]
    assert remote.node_selectors({}) == [""]


def test_the_rollout_needs_kubectl(monkeypatch: pytest.MonkeyPatch, topolet: Topolet) -> None:
    monkeypatch.setenv("PATH", "/none")
    assert "rollout needs kubectl" in topolet("rollout", "topolet-agent", code=2).err
