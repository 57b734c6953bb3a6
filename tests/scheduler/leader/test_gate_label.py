from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from agent.kube.transport import MERGE, Transport
from agent.scheduler.leader.gate import AGAIN_SECONDS, LABEL, LeaderLabel
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.waiting import eventually


class Pod:
    """The labels of a pod on an API server. `refusal`: the status code of each answer, if set."""

    def __init__(self, server: Server) -> None:
        self.labels: dict[str, str] = {"app": "a"}
        self.refusal: int | None = None
        self.patches = 0
        server.answer = self._answer

    def _answer(self, _: Server, connection: socket.socket, request: Request) -> bool:
        assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/n/pods/p")
        assert request.headers["content-type"] == MERGE
        self.patches += 1
        if self.refusal is not None:
            return reply(connection, self.refusal, status(self.refusal, "InternalError"))
        body: dict[str, Any] = json.loads(request.body)
        assert body.keys() == {"metadata"}
        assert body["metadata"].keys() == {"labels"}
        for name, value in body["metadata"]["labels"].items():
            self.labels.pop(name, None)
            if value is not None:
                self.labels[name] = value
        return reply(connection, 200, {})


class Environment:
    def __init__(self, transport: Transport) -> None:
        self.leading = False
        self.now = 0.0
        self.label = LeaderLabel(
            transport, ("n", "p"), lambda: self.leading, clock=lambda: self.now
        )

    def step(self) -> str | None:
        self.label.step()
        return self.label.unready()


@pytest.fixture
def pod(server: Server) -> Pod:
    return Pod(server)


@pytest.fixture
def env(transport: Transport) -> Environment:
    return Environment(transport)


def test_the_label_follows_the_leadership(pod: Pod, env: Environment) -> None:
    env.leading = True
    assert env.label.unready() == f"the label {LABEL} is not written yet"
    assert env.step() is None
    assert pod.labels == {"app": "a", LABEL: "true"}
    env.leading = False
    assert env.step() is None
    assert pod.labels == {"app": "a"}


def test_a_standby_removes_the_label_of_the_former_process(pod: Pod, env: Environment) -> None:
    pod.labels[LABEL] = "true"
    assert env.step() is None
    assert pod.labels == {"app": "a"}


def test_the_label_is_written_when_it_changes_and_at_intervals(pod: Pod, env: Environment) -> None:
    for _ in range(5):
        env.step()
    assert pod.patches == 1
    env.leading = True
    env.step()
    env.now += AGAIN_SECONDS - 1
    env.step()
    assert pod.patches == 2
    pod.labels.clear()
    env.now += 1
    env.step()
    assert pod.labels == {LABEL: "true"}, "another client removed it"


@pytest.mark.parametrize("code", [403, 404, 500])
def test_a_process_whose_pod_may_have_the_wrong_label_is_not_ready(
    pod: Pod, env: Environment, code: int
) -> None:
    env.leading = True
    assert env.step() is None
    env.leading, pod.refusal = False, code
    reason = env.step()
    assert reason is not None
    assert str(code) in reason
    assert LABEL in pod.labels
    pod.refusal = None
    assert env.step() is None
    assert LABEL not in pod.labels


def test_the_thread_writes_the_label_and_removes_it_at_its_end(pod: Pod, env: Environment) -> None:
    env.leading = True
    env.label.start()
    eventually("labelled", lambda: LABEL in pod.labels)
    env.leading = False
    env.label.hurry()
    eventually("removed", lambda: LABEL not in pod.labels)
    env.leading = True
    env.label.hurry()
    eventually("labelled again", lambda: LABEL in pod.labels)
    env.leading = False
    env.label.stop()
    assert LABEL not in pod.labels
