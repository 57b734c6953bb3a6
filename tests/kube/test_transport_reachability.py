from __future__ import annotations

import pytest

from agent.kube.auth import FileAccess
from agent.kube.errors import (
    ForbiddenError,
    KubeError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.kube.transport import Reachability, Transport
from agent.kube.wire import Stream
from tests.kube.fake_api_server import Server


class Listener:
    """Counts how often the server became reachable again."""

    def __init__(self) -> None:
        self.returns = 0
        self.reachability = Reachability()
        self.reachability.listen(self.returned)

    def returned(self) -> None:
        self.returns += 1

    def request(self, error: KubeError | None = None) -> None:
        if error is None:
            with self.reachability.reported():
                return
        with pytest.raises(type(error)), self.reachability.reported():
            raise error


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_first_answer_after_an_outage_is_reported_once(listener: Listener) -> None:
    listener.request()
    assert listener.returns == 0, "there was no outage"
    listener.request(UnreachableError("refused"))
    listener.request(UnreachableError("refused"))
    listener.request()
    listener.request()
    assert listener.returns == 1
    listener.request(UnreachableError("refused"))
    listener.request()
    assert listener.returns == 2


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (NotFoundError("404"), True),
        (ForbiddenError("403"), True),
        (ServerError("503"), False),
        (TooManyRequestsError("429"), False),
    ],
)
def test_a_4xx_counts_as_reachable_and_overload_does_not(
    listener: Listener, error: KubeError, answers: bool
) -> None:
    listener.request(UnreachableError("refused"))
    listener.request(error)
    assert listener.returns == int(answers)


def test_overload_is_not_an_outage(listener: Listener) -> None:
    """Otherwise answers to other requests would end the pause of a resource that always fails."""
    listener.request(ServerError("503"))
    listener.request()
    assert listener.returns == 0


def test_unsubscribed_listener_is_not_notified(listener: Listener) -> None:
    listener.reachability.ignore(listener.returned)
    listener.reachability.ignore(listener.returned)
    listener.request(UnreachableError("refused"))
    listener.request()
    assert listener.returns == 0


def test_requests_and_streams_report(server: Server, listener: Listener) -> None:
    transport = Transport(FileAccess(server.url), reachability=listener.reachability)
    stream = Stream(transport)
    server.answer = lambda server, connection, request: False
    with pytest.raises(UnreachableError):
        transport.get("/objects")
    server.answer = None
    next(stream.lines("/objects", {"watch": "true", "sendInitialEvents": "true"}, 10))
    assert listener.returns == 1
    server.answer = lambda server, connection, request: False
    with pytest.raises(UnreachableError):
        stream.get("/objects", {})
    server.answer = None
    transport.get("/objects")
    assert listener.returns == 2
    stream.drop()
    transport.close()
