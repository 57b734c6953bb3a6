from __future__ import annotations

import socket

import pytest

from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.scheduler.state.pod_info import PodName
from agent.scheduler.state.pods_api import BindingApi, BindOutcome, PodError
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.scheduler.podserver import PodServer

POD = PodName("default", "p", "u")
NOTES = {"topolet.test/given": "cpu 1-2"}


@pytest.fixture
def pods(server: Server) -> PodServer:
    it = PodServer(server)
    it.put("p", "u")
    return it


@pytest.fixture
def bindings(transport: Transport) -> BindingApi:
    return BindingApi(transport)


def test_a_binding_has_the_pods_uid_and_its_annotations(
    pods: PodServer, bindings: BindingApi, server: Server
) -> None:
    assert bindings.bind(POD, "n", NOTES) == BindOutcome(True)
    (binding,) = pods.bindings
    assert binding["metadata"] == {
        "name": "p",
        "namespace": "default",
        "uid": "u",
        "annotations": NOTES,
    }
    assert binding["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}
    assert [(each.method, each.path) for each in server.requests] == [
        ("POST", "/api/v1/namespaces/default/pods/p/binding")
    ]


def test_a_deleted_pod_is_known_not_to_be_bound(pods: PodServer, bindings: BindingApi) -> None:
    pods.pods.clear()
    outcome = bindings.bind(POD, "n", NOTES)
    assert outcome.bound is False
    assert "404" in outcome.error


def test_another_pod_with_that_name_is_not_bound(pods: PodServer, bindings: BindingApi) -> None:
    pods.put("p", "other")
    assert bindings.bind(POD, "n", NOTES) == BindOutcome(False, "pod default/p no longer exists")


def test_a_pod_that_another_client_has_bound_is_an_error(
    pods: PodServer, bindings: BindingApi
) -> None:
    pods.put("p", "u", node="m")
    text = "pod default/p is bound to node m already"
    assert bindings.bind(POD, "n", NOTES) == BindOutcome(False, text)


def test_a_conflict_over_a_pod_without_a_node_is_a_refusal(
    pods: PodServer, bindings: BindingApi
) -> None:
    """Such as a pod that is being deleted."""
    pods.intercept = lambda connection, _: reply(connection, 409, status(409, "Conflict"))
    assert bindings.bind(POD, "n", NOTES).bound is False


def test_the_outcome_of_a_lost_answer_is_read(pods: PodServer, bindings: BindingApi) -> None:
    def bind_without_answer(connection: socket.socket, request: Request) -> bool:
        pods.bind(request)
        return False

    pods.intercept = bind_without_answer
    assert bindings.bind(POD, "n", NOTES) == BindOutcome(True)


@pytest.mark.parametrize("code", [500, 503, 504])
def test_after_a_server_error_the_outcome_is_unknown(
    pods: PodServer, bindings: BindingApi, code: int
) -> None:
    pods.intercept = lambda connection, _: reply(connection, code, status(code, "InternalError"))
    outcome = bindings.bind(POD, "n", NOTES)
    assert outcome.bound is None
    assert str(code) in outcome.error


def test_without_any_answer_the_outcome_is_unknown(bindings: BindingApi, server: Server) -> None:
    server.answer = lambda *_: False
    assert bindings.bind(POD, "n", NOTES).bound is None


def test_the_read_of_the_outcome_has_its_own_time_limits(
    pods: PodServer, bindings: BindingApi, server: Server
) -> None:
    """A Binding may take long, and kube-scheduler waits until its outcome is read."""
    with fake_api_server.serving() as silent:
        silent.answer = lambda *_: False
        sending, reading = (Transport(FileAccess(each.url)) for each in (silent, server))
        pods.put("p", "u", node="n", metadata={"annotations": NOTES})
        assert BindingApi(sending, reading).bind(POD, "n", NOTES) == BindOutcome(True)
        sending.close()
        reading.close()


@pytest.mark.parametrize("code", [403, 422, 429])
def test_a_refusal_is_final(
    pods: PodServer, bindings: BindingApi, server: Server, code: int
) -> None:
    pods.intercept = lambda connection, _: reply(connection, code, status(code, "No"))
    assert bindings.bind(POD, "n", NOTES).bound is False
    assert len(server.requests) == 1


def test_pods_are_distinguished_by_uid(
    pods: PodServer, bindings: BindingApi, server: Server
) -> None:
    found = bindings.pod(POD)
    assert found is not None
    assert found.title == "default/p"
    assert bindings.pod(PodName("default", "p", "another")) is None
    assert bindings.pod(PodName("default", "q", "u")) is None
    server.answer = lambda _, connection, __: reply(connection, 500, status(500, "InternalError"))
    with pytest.raises(PodError, match=r"pod default/p: .*500"):
        bindings.pod(POD)
