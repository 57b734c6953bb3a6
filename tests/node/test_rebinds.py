"""The agent sets a RebindResource of its node to Failed if no scheduler takes it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from agent.kube.auth import FileAccess
from agent.kube.cluster import Cluster
from agent.kube.transport import Transport
from agent.model.audit import AuditEvent, Record
from agent.node.rebinds import UNTAKEN_SECONDS, NodeRebinds
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.kube.fake_api_server import server as server

Object = dict[str, Any]
NOON = 1_767_268_800.0
"""2026-01-01T12:00:00Z."""


class World:
    """An API server with RebindResources, and an agent of node n. `refuse`: the status code of
    every answer."""

    def __init__(self, server: Server) -> None:
        self.rebinds: dict[str, Object] = {}
        self.patches: list[str] = []
        self.refuse = 0
        self.taken_after_list = False
        self.seconds = 0.0
        self.selectors: set[str] = set()
        self.transport = Transport(FileAccess(server.url))
        self.records: list[Record] = []
        self.agent = NodeRebinds(
            Cluster(self.transport, "n"),
            "n",
            clock=lambda: self.seconds,
            now=lambda: NOON,
            append=self.records.extend,
        )
        server.answer = self._answer
        self.agent.step()

    def rebind(self, name: str, **status: Any) -> None:
        self.rebinds[name] = {
            "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "7"},
            "spec": {"nodeName": "n", "rebindAction": "RebindCPU"},
            "status": {"phase": "Unknown", **status},
        }

    def step(self, seconds: float = 0.0) -> None:
        self.seconds += seconds
        self.agent.step()

    def phase(self, name: str) -> str:
        return str(self.rebinds[name]["status"]["phase"])

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if self.refuse:
            return reply(connection, self.refuse, status(self.refuse, "Refused"))
        if request.method == "GET":
            self.selectors.add(request.query.get("fieldSelector", ""))
            items = list(self.rebinds.values())
            return reply(connection, 200, {"metadata": {"resourceVersion": "9"}, "items": items})
        name = request.path.split("/")[-2]
        patch = json.loads(request.body)
        metadata = self.rebinds[name]["metadata"]
        if self.taken_after_list:
            metadata["resourceVersion"] = "8"
        if patch["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            return reply(connection, 409, status(409, "Conflict"))
        self.patches.append(name)
        self.rebinds[name]["status"] = patch["status"]
        return reply(connection, 200, self.rebinds[name])


@pytest.fixture
def world(server: Server) -> Iterator[World]:
    world = World(server)
    yield world
    world.transport.close()


def test_an_object_that_no_scheduler_takes_fails_with_the_reason(world: World) -> None:
    world.rebind("r")
    world.step()
    world.step(UNTAKEN_SECONDS - 1)
    assert world.phase("r") == "Unknown"
    world.step(1)
    status_of_r = world.rebinds["r"]["status"]
    assert (status_of_r["phase"], status_of_r["updateTimestamp"]) == (
        "Failed",
        "2026-01-01T12:00:00Z",
    )
    assert (
        status_of_r["reason"]
        == "NoController: no scheduler of Topolet has taken it for more than a minute"
    )
    assert world.selectors == {"spec.nodeName=n"}
    world.step(UNTAKEN_SECONDS)
    assert world.patches == ["r"]


@pytest.mark.parametrize("phase", ["Pending", "Succeed", "Unknown"])
def test_an_object_that_a_scheduler_took_is_not_changed(world: World, phase: str) -> None:
    world.rebind("r", phase=phase, updateTimestamp="2026-01-01T11:00:00Z")
    world.step()
    world.step(10 * UNTAKEN_SECONDS)
    assert not world.patches


def test_a_status_that_a_scheduler_wrote_meanwhile_is_not_overwritten(
    world: World,
) -> None:
    world.rebind("r")
    world.step()
    world.taken_after_list = True
    world.step(UNTAKEN_SECONDS)
    assert not world.patches
    assert world.phase("r") == "Unknown"


@pytest.mark.parametrize("code", [400, 403, 404, 500])
def test_a_server_that_refuses_changes_nothing(
    world: World, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Reasons are kinds or fields that it does not serve, an older role, or a fault."""
    world.rebind("r")
    world.step()
    world.refuse = code
    world.step(30)
    world.step(1)
    assert len(caplog.records) == (0 if code == 404 else 1), "one line for a lasting problem"
    world.refuse = 0
    world.step()
    assert not world.patches


def test_a_deleted_object_starts_again(world: World) -> None:
    world.rebind("r")
    world.step()
    deleted = world.rebinds.pop("r")
    world.step(UNTAKEN_SECONDS)
    world.rebinds["r"] = deleted
    world.step()
    assert not world.patches


MOVE = {"uid": "u", "pod": "ns/own", "from": '{"cpuset": "1"}', "to": '{"cpuset": "3"}'}


def test_a_rebind_that_ended_is_recorded_once_for_each_pod(world: World) -> None:
    ended = {"updateTimestamp": "2026-01-01T12:00:10Z", "reason": "pods moved: 1"}
    world.rebind("mend", phase="Pending", plan={"moves": [MOVE]}, updateTimestamp="x")
    world.step()
    assert world.records == []
    world.rebind("mend", phase="Succeed", plan={"moves": [MOVE]}, **ended)
    world.step()
    world.step()
    (record,) = world.records
    assert (record.event, record.title, record.uid) == (AuditEvent.CPUS_REBOUND, "ns/own", "u")
    assert (record.field, record.before, record.after) == ("cpus", "1", "3")
    assert (record.reason, record.message) == ("Succeed", "RebindResource mend: pods moved: 1")


def test_a_rebind_without_a_plan_has_one_record(world: World) -> None:
    ended = {"updateTimestamp": "2026-01-01T12:00:10Z", "reason": "NothingToMove"}
    world.rebind("mend", phase="Succeed", **ended)
    world.step()
    (record,) = world.records
    assert (record.title, record.reason) == ("", "Succeed")


def test_a_rebind_that_ended_before_the_agents_start_is_not_recorded(world: World) -> None:
    world.rebind("old", phase="Failed", updateTimestamp="2026-01-01T11:59:59Z")
    world.rebind("odd", phase="Failed", updateTimestamp="yesterday")
    world.step()
    assert world.records == []


def test_a_dry_run_is_not_recorded(world: World) -> None:
    ended = {"updateTimestamp": "2026-01-01T12:00:10Z", "plan": {"moves": [MOVE]}}
    world.rebind("dry", phase="Succeed", **ended)
    world.rebinds["dry"]["spec"]["dryRun"] = True
    world.step()
    assert world.records == []
