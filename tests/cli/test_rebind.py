"""`topolet rebind` against an API server whose objects a scheduler changes, and what it prints."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from agent.cli import rebind
from agent.model.rebind_resource import (
    RebindPhase,
    RebindRequest,
    RebindStatus,
    StatusMeasures,
    StatusMove,
    StatusPlan,
)
from tests.cli.conftest import Printed, Topolet
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.kube.fake_api_server import server as server

Object = dict[str, Any]
TAKEN_AT = "2026-01-01T12:00:00Z"
PLAN: Object = {
    "moves": [
        {"uid": "u", "pod": "ns/a", "from": '{"cpuset":"0,4"}', "to": '{"cpuset":"4-5"}'},
    ],
    "before": {"numaCrossings": 1},
    "after": {"numaCrossings": 0},
}
UNTAKEN: Object = {"phase": "Unknown", "reason": "no controller has taken it"}
PLANNED: Object = {
    "phase": "Pending",
    "reason": "pods to move: 1",
    "updateTimestamp": TAKEN_AT,
    "plan": PLAN,
}
MOVED: Object = PLANNED | {"phase": "Succeed", "reason": "pods moved: 1"}
FAILED: Object = {
    "phase": "Failed",
    "reason": "NoController: no scheduler",
    "updateTimestamp": TAKEN_AT,
}


class World:
    """An API server. `statuses`: the statuses of the object, in order; the last one stays."""

    def __init__(self, server: Server, config: Path, topolet: Topolet) -> None:
        self._topolet = topolet
        self.statuses: list[Object] = [UNTAKEN, PLANNED, MOVED]
        self.specs: list[Object] = []
        self.refuse = 0
        self.deleted: list[Object] = []
        self.delete_codes = [200]
        self.config = f"--kubeconfig={config}"
        server.answer = self._answer
        name = {"name": "test"}
        kubeconfig = {
            "current-context": "test",
            "clusters": [{**name, "cluster": {"server": server.url}}],
            "users": [{**name, "user": {"token": "t"}}],
            "contexts": [{**name, "context": {"cluster": "test", "user": "test"}}],
        }
        config.write_text(json.dumps(kubeconfig))

    def run(self, *arguments: str, code: int = 0) -> Printed:
        return self._topolet("rebind", "n", self.config, *arguments, code=code)

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if self.refuse:
            return reply(connection, self.refuse, status(self.refuse, "Forbidden"))
        if request.method == "DELETE":
            self.deleted.append(json.loads(request.body)["preconditions"])
            code = self.delete_codes.pop(0)
            return reply(connection, code, status(code, "the reason"))
        if request.method == "POST":
            body = json.loads(request.body)
            assert body["metadata"] == {"generateName": "n-"}
            self.specs.append(body["spec"])
        statuses = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        metadata = {"name": "n-x7k2p", "uid": "u", "resourceVersion": "1"}
        spec = {"nodeName": "n", "rebindAction": "RebindCPU"}
        return reply(connection, 200, {"metadata": metadata, "spec": spec, "status": statuses})


@pytest.fixture
def world(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topolet: Topolet
) -> World:
    monkeypatch.setattr(rebind, "POLL_SECONDS", 0.0)
    return World(server, tmp_path / "kubeconfig", topolet)


def test_the_plan_is_shown_when_it_is_made(world: World) -> None:
    printed = world.run()
    assert "RebindResource n-x7k2p of node n: Pending: pods to move: 1" in printed.out
    assert "ns/a  0,4   4-5" in printed.out
    assert printed.err == "RebindResource n-x7k2p is created\n"
    assert world.specs == [{"nodeName": "n", "rebindAction": "RebindCPU"}]


def test_wait_shows_the_result(world: World) -> None:
    assert "Succeed: pods moved: 1" in world.run("--wait", "--max-pods=3").out
    assert world.specs[0]["maxPods"] == 3


def test_a_dry_run_waits_for_its_plan(world: World) -> None:
    assert world.run("--dry-run", "-o", "json").json["status"]["plan"] == PLAN
    assert world.specs[0]["dryRun"] is True


def test_a_rebind_that_failed_has_another_exit_code(world: World) -> None:
    world.statuses = [UNTAKEN, FAILED]
    assert "Failed: NoController: no scheduler" in world.run(code=1).out


def test_an_object_that_no_scheduler_takes_is_reported_after_a_time() -> None:
    body = {
        "metadata": {"name": "r", "uid": "u"},
        "spec": {"nodeName": "n", "rebindAction": "RebindCPU"},
        "status": UNTAKEN,
    }
    seconds = [0.0]

    def pause(_: float) -> None:
        seconds[0] += 10

    text = json.dumps(body).encode()
    found = rebind.followed(lambda: text, wait=True, clock=lambda: seconds[0], pause=pause)
    assert (found, seconds[0]) == (text, rebind.UNTAKEN_SECONDS)


def test_a_caller_without_the_right_gets_the_servers_reason(world: World) -> None:
    world.refuse = 403
    assert "403" in world.run(code=2).err


@pytest.mark.parametrize("argument", ["--max-pods=0", "--max-pods=x"])
def test_a_wrong_number_is_refused(world: World, argument: str) -> None:
    world.run(argument, code=2)
    assert not world.specs


def test_a_plan_is_shown_with_its_moves_and_measures() -> None:
    shared = '{"numaNodeResources":[{"node":0,"resources":{"cpu":"1"}},{"node":1,"resources":{}}]}'
    moves = (
        StatusMove("u1", "ns/a", '{"cpuset":"0,4"}', '{"cpuset":"4-5"}'),
        StatusMove("u2", "ns/b", shared, '{"numaNodeResources":[{"node":1,"resources":{}}]}'),
        StatusMove("u3", "ns/c", "unreadable", '{"cpuset":"9"}'),
    )
    plan = StatusPlan("", False, StatusMeasures(2, 1, 6, 2), StatusMeasures(0, 0, 4, 1), moves)
    status = RebindStatus(RebindPhase.SUCCEED, "pods moved: 3", "now", plan)
    assert rebind.draw(RebindRequest("r", "u", "n", status=status), 80).splitlines() == [
        "RebindResource r of node n: Succeed: pods moved: 3",
        "",
        "POD   FROM            TO",
        "ns/a  0,4             4-5",
        "ns/b  NUMA nodes 0,1  NUMA nodes 1",
        "ns/c  unreadable      9",
        "",
        "MEASURE            BEFORE  AFTER",
        "NUMA crossings     2       0",
        "broken cores       1       0",
        "cores in use       6       4",
        "NUMA nodes in use  2       1",
    ]


def test_without_a_plan_the_reason_is_shown() -> None:
    status = RebindStatus(RebindPhase.FAILED, "node n does not exist", "now")
    text = rebind.draw(RebindRequest("r", "u", "n", status=status), 80)
    assert text == "RebindResource r of node n: Failed: node n does not exist\n"
    assert rebind.draw(RebindRequest("r", "u", "n"), 80) == "RebindResource r of node n: Unknown\n"


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        ([200], "no scheduler has taken RebindResource n-x7k2p within 0 s, so it is deleted"),
        ([403], "it is not deleted (DELETE "),
        ([403], "): kubectl delete rebindresource n-x7k2p\n"),
        ([409, 200], "so it is deleted"),
    ],
)
def test_an_object_that_no_scheduler_takes_is_deleted(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    codes: list[int],
    text: str,
) -> None:
    monkeypatch.setattr(rebind, "UNTAKEN_SECONDS", 0.0)
    world.statuses, world.delete_codes = [UNTAKEN], list(codes)
    assert text in world.run(code=1).err
    assert world.deleted == [{"resourceVersion": "1", "uid": "u"}] * len(codes)
