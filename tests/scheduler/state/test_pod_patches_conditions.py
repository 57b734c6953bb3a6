"""The condition of pods whose CPU claim the agent of their node refuses."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from agent.kube.objects import ChangeKind
from agent.kube.transport import Transport
from agent.model import bounds
from agent.model.nrt.node_annotations import REFUSED_CLAIMS
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_patches import FREE_WRITES, LASTING_SECONDS, ClaimConditions
from agent.scheduler.state.records import CLAIM_REFUSED
from tests.kube.clock import Clock
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.scheduler import objects

Object = dict[str, Any]


class Api:
    """The patches of pods, as (pod, status, message)."""

    def __init__(self, server: Server) -> None:
        self.patches: list[tuple[str, str, str]] = []
        self.refusals: list[int] = []
        server.answer = self._answer

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if self.refusals:
            code = self.refusals.pop(0)
            return reply(connection, code, status(code, "Refused"))
        *_, name, subresource = request.path.split("/")
        body = json.loads(request.body)
        assert (request.method, subresource) == ("PATCH", "status")
        assert body["metadata"] == {"uid": f"uid-{name}"}
        (condition,) = body["status"]["conditions"]
        assert condition["type"] == CLAIM_REFUSED
        self.patches.append((name, condition["status"], condition["message"]))
        return reply(connection, 200, body)


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


class Scene:
    """Node `n1` with pods `a` and `b`, and another node with pod `c`."""

    def __init__(self, api: Api, transport: Transport, clock: Clock) -> None:
        self.api = api
        self.clock = clock
        self.leads = True
        self.cluster = SchedulerCache(clock=clock)
        for node in ("n1", "n2"):
            self.cluster.nodes_changed([objects.node_change(objects.node(node))])
        for name, node in (("a", "n1"), ("b", "n1"), ("c", "n2")):
            self.report_pod(name, node)
        self._transport = transport
        self.start()

    def start(self) -> None:
        """Starts a process without the state of the previous one."""
        self.conditions = ClaimConditions(
            self._transport, self.cluster, lambda: self.leads, clock=self.clock
        )

    def report_pod(
        self, name: str, node: str, kind: ChangeKind = ChangeKind.MODIFIED, **status: Object
    ) -> None:
        body = objects.pod(name, node, cpus="2-3")
        body["status"].update(status)
        self.cluster.pods_changed([objects.pod_change(body, kind)])

    def report(self, text: str | None = None, **reasons: str) -> None:
        """Reports the topology of `n1` with refused claims: reasons by pod, or the annotation."""
        entries = [
            {"namespace": "ns", "name": name, "uid": f"uid-{name}", "reason": reason}
            for name, reason in reasons.items()
        ]
        topology = objects.topology("n1")
        if entries or text is not None:
            topology["metadata"]["annotations"][REFUSED_CLAIMS] = text or json.dumps(entries)
        self.cluster.topologies_changed([objects.topology_change(topology)])

    def step_after(self, seconds: float) -> list[tuple[str, str, str]]:
        """The patches of one step, after this time."""
        before = len(self.api.patches)
        self.clock.now += seconds
        self.conditions.step()
        return self.api.patches[before:]


@pytest.fixture
def scene(transport: Transport, api: Api, clock: Clock) -> Scene:
    return Scene(api, transport, clock)


def test_a_refusal_that_lasts_sets_a_condition_until_it_ends(scene: Scene) -> None:
    scene.report(a="reason")
    assert scene.step_after(0) == []
    assert scene.step_after(LASTING_SECONDS - 1) == []
    assert scene.step_after(1) == [("a", "True", "reason")]
    assert scene.step_after(100) == []
    scene.report(a="another reason")
    assert scene.step_after(1) == []
    assert scene.step_after(LASTING_SECONDS) == [("a", "True", "another reason")]
    scene.report()
    assert scene.step_after(1) == [("a", "False", "")]
    assert scene.step_after(100) == []


def test_a_refusal_that_ends_soon_sets_no_condition(scene: Scene) -> None:
    scene.report(a="reason")
    scene.step_after(1)
    scene.report()
    assert scene.step_after(100) == []
    scene.report(a="reason")
    assert scene.step_after(1) == []


def test_only_pods_of_the_node_get_a_condition(scene: Scene) -> None:
    scene.report(a="reason", c="reason", unknown="reason")
    scene.step_after(0)
    assert scene.step_after(LASTING_SECONDS) == [("a", "True", "reason")]


def test_the_next_leader_ends_a_condition_that_the_previous_one_left(scene: Scene) -> None:
    scene.report(b="reason")
    scene.step_after(0)
    scene.step_after(LASTING_SECONDS)
    for name in "ab":
        scene.report_pod(name, "n1", conditions=[{"type": CLAIM_REFUSED, "status": "True"}])
    scene.start()
    assert scene.step_after(0) == [("a", "False", "")]
    assert scene.step_after(LASTING_SECONDS) == [("b", "True", "reason")]
    assert scene.step_after(100) == []


def test_only_the_leader_writes(scene: Scene) -> None:
    scene.report(a="reason")
    scene.leads = False
    scene.step_after(0)
    assert scene.step_after(LASTING_SECONDS) == []
    scene.leads = True
    scene.step_after(0)
    assert scene.step_after(LASTING_SECONDS) == [("a", "True", "reason")]


@pytest.mark.parametrize("code", [429, 500, 403])
def test_a_failed_write_is_repeated(scene: Scene, code: int) -> None:
    scene.report(a="reason")
    scene.step_after(0)
    scene.api.refusals = [code]
    assert scene.step_after(LASTING_SECONDS) == []
    assert scene.step_after(300) == [("a", "True", "reason")]


@pytest.mark.parametrize("code", [404, 422])
def test_a_deleted_pod_gets_no_condition(scene: Scene, code: int) -> None:
    scene.report(a="reason")
    scene.step_after(0)
    scene.api.refusals = [code]
    assert scene.step_after(LASTING_SECONDS) == []
    assert scene.step_after(300) == []
    scene.report_pod("a", "n1", ChangeKind.DELETED)
    scene.report(b="reason")
    scene.step_after(0)
    assert scene.step_after(LASTING_SECONDS) == [("b", "True", "reason")]


@pytest.mark.parametrize("text", ["[", "{}", '[{"uid": 1}]'])
def test_an_invalid_annotation_sets_no_condition(scene: Scene, text: str) -> None:
    scene.report(text)
    scene.step_after(0)
    assert scene.step_after(LASTING_SECONDS) == []


def test_the_reason_in_a_condition_is_short_whatever_the_report_has(scene: Scene) -> None:
    scene.report(a="x" * 100_000)
    scene.step_after(0)
    ((_, _, message),) = scene.step_after(LASTING_SECONDS)
    assert message == bounds.reason("x" * 100_000)


def test_a_refusal_that_comes_and_goes_causes_few_writes(scene: Scene) -> None:
    for number in range(300):
        scene.report(**({"a": f"reason {number}"} if number % 4 < 2 else {}))
        scene.step_after(LASTING_SECONDS)
    assert FREE_WRITES < len(scene.api.patches) < 25
