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
from tests.kube.hostile import Server


class Listening:
    """Counts the calls of a listener."""

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
def listening() -> Listening:
    return Listening()


def test_first_answer_after_an_outage_is_reported_once(listening: Listening) -> None:
    listening.request()
    assert listening.returns == 0, "the server was reachable before"
    listening.request(UnreachableError("refused"))
    listening.request(UnreachableError("refused"))
    listening.request()
    listening.request()
    assert listening.returns == 1
    listening.request(UnreachableError("refused"))
    listening.request()
    assert listening.returns == 2


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (NotFoundError("404"), True),
        (ForbiddenError("403"), True),
        (ServerError("503"), False),
        (TooManyRequestsError("429"), False),
    ],
)
def test_refusal_counts_as_an_answer_and_overload_does_not(
    listening: Listening, error: KubeError, answers: bool
) -> None:
    listening.request(UnreachableError("refused"))
    listening.request(error)
    assert listening.returns == int(answers)


def test_overload_is_not_an_outage(listening: Listening) -> None:
    """Otherwise each answer to other requests would end the pause of a resource that is broken."""
    listening.request(ServerError("503"))
    listening.request()
    assert listening.returns == 0


def test_unsubscribed_listener_is_not_notified(listening: Listening) -> None:
    listening.reachability.ignore(listening.returned)
    listening.reachability.ignore(listening.returned)
    listening.request(UnreachableError("refused"))
    listening.request()
    assert listening.returns == 0


def test_requests_and_streams_report(server: Server, listening: Listening) -> None:
    transport = Transport(FileAccess(server.url), reachability=listening.reachability)
    stream = Stream(transport)
    server.answer = lambda server, connection, request: False
    with pytest.raises(UnreachableError):
        transport.get("/objects")
    server.answer = None
    next(stream.lines("/objects", {"watch": "true", "sendInitialEvents": "true"}, 10))
    assert listening.returns == 1
    server.answer = lambda server, connection, request: False
    with pytest.raises(UnreachableError):
        stream.get("/objects", {})
    server.answer = None
    transport.get("/objects")
    assert listening.returns == 2
    stream.drop()
    transport.close()
