"""Requests of evictions, and the answers of an API server to them."""

from __future__ import annotations

import json
import socket

import pytest

from agent.kube.errors import TooManyRequestsError
from agent.kube.events import Regarding
from agent.kube.eviction import EvictionResult, delete, evict
from agent.kube.transport import Transport
from tests.kube.fake_api_server import Request, Server, reply, status

POD = Regarding("ns", "web", "uid-1")
BUDGET = "The disruption budget web needs 2 healthy pods and has 2 currently"


def answers(server: Server, code: int, *causes: dict[str, str]) -> None:
    body = status(code, "TooManyRequests", "Cannot evict pod.", causes=list(causes))

    def answer(server: Server, connection: socket.socket, request: Request) -> bool:
        return reply(connection, code, body)

    server.answer = answer


def test_the_request_names_the_uid(server: Server, transport: Transport) -> None:
    answers(server, 201)
    assert evict(transport, POD) is EvictionResult.EVICTED
    assert evict(transport, POD, dry_run=True) is EvictionResult.EVICTED
    assert delete(transport, POD) is EvictionResult.EVICTED
    path = "/api/v1/namespaces/ns/pods/web"
    sent = [(request.method, request.path) for request in server.requests]
    assert sent == [("POST", f"{path}/eviction")] * 2 + [("DELETE", path)]
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "uid-1"},
    }
    bodies = [json.loads(request.body) for request in server.requests]
    assert bodies[0]["deleteOptions"] == options
    assert bodies[1]["deleteOptions"] == {**options, "dryRun": ["All"]}
    assert bodies[2] == {**options, "gracePeriodSeconds": 1}


@pytest.mark.parametrize("code", [404, 409])
def test_a_pod_that_is_gone_or_another_one(server: Server, transport: Transport, code: int) -> None:
    answers(server, code)
    assert evict(transport, POD) is EvictionResult.DELETED
    assert delete(transport, POD) is EvictionResult.DELETED


def test_a_budget_is_told_from_a_busy_server(server: Server, transport: Transport) -> None:
    answers(server, 429, {"reason": "DisruptionBudget", "message": BUDGET})
    with pytest.raises(TooManyRequestsError) as refused:
        evict(transport, POD)
    assert refused.value.disruption_budget == BUDGET
    answers(server, 429)
    with pytest.raises(TooManyRequestsError) as busy:
        evict(transport, POD)
    assert busy.value.disruption_budget == ""
