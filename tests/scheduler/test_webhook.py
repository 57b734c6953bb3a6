from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from agent.kube.auth import FileAccess
from agent.kube.transport import ResponseLimits, Transport
from agent.scheduler.extender.http_routes import BadRequestError
from agent.scheduler.webhook import PATH, LookUp, LookUpError, gpus, pods, routes
from tests.kube import hostile
from tests.kube.hostile import Request, Server, reply, status
from tests.scheduler.test_webhook_admission import review

POD = {
    "metadata": {"name": "p", "namespace": "gpu", "uid": "u"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}


@pytest.fixture
def look_up(server: Server) -> Iterator[LookUp]:
    limits = ResponseLimits(read_seconds=1)
    transport = Transport(FileAccess(server.url), limits=limits)
    yield pods(transport)
    transport.close()


def test_a_pod_is_read_by_its_name(server: Server, look_up: LookUp) -> None:
    server.answer = lambda _, connection, request: reply(connection, 200, POD)
    found = look_up("gpu", "p/../../q")
    assert found is not None
    assert gpus(found) == ["nvidia.com/gpu"]
    (request,) = server.requests
    assert request.path == "/api/v1/namespaces/gpu/pods/p%2F..%2F..%2Fq"


def test_a_missing_pod_is_none(server: Server, look_up: LookUp) -> None:
    server.answer = lambda _, connection, request: reply(connection, 404, status(404, "NotFound"))
    assert look_up("gpu", "p") is None


def silent(server: Server, connection: socket.socket, request: Request) -> bool:
    connection.recv(1)
    return False


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda _, connection, request: reply(connection, 500, status(500, "InternalError")),
            "500",
        ),
        (lambda _, connection, request: reply(connection, 403, status(403, "Forbidden")), "403"),
        (lambda _, connection, request: reply(connection, 200, {}), "Pod without a name"),
        (lambda _, connection, request: reply(connection, 200, []), "Pod without a name"),
        (lambda _, connection, request: False, "GET /api/v1/namespaces/gpu/pods/p"),
        (silent, "GET /api/v1/namespaces/gpu/pods/p"),
    ],
)
def test_a_failed_read_of_a_pod_is_an_error_with_the_reason(
    server: Server, look_up: LookUp, answer: hostile.Answer, message: str
) -> None:
    server.answer = answer
    with pytest.raises(LookUpError, match=message):
        look_up("gpu", "p")


def test_the_page_answers_reviews(
    server: Server, look_up: LookUp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    admit = routes(look_up, "Fail")[PATH]
    for found, allowed in ((POD, False), ({**POD, "spec": {"containers": []}}, True)):
        server.answer = lambda _, connection, request, it=found: reply(connection, 200, it)
        answer = admit.handle(json.dumps(review()).encode())
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert json.loads(answer.body)["response"]["allowed"] is allowed
    assert [each for each in caplog.messages if each.startswith("refused: alice may not bind")]
    with pytest.raises(BadRequestError, match="AdmissionReview"):
        admit.handle(b"{}")
