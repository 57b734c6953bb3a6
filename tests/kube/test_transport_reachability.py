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
from agent.kube.stream import Stream
from agent.kube.transport import Reachability, Transport
from tests.kube.hostile import Server


class Heard:
    """Counts the returns that a listener was told of."""

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
def heard() -> Heard:
    return Heard()


def test_first_answer_after_an_outage_is_reported_once(heard: Heard) -> None:
    heard.request()
    assert heard.returns == 0, "nobody waits for a server that was there"
    heard.request(UnreachableError("refused"))
    heard.request(UnreachableError("refused"))
    heard.request()
    heard.request()
    assert heard.returns == 1
    heard.request(UnreachableError("refused"))
    heard.request()
    assert heard.returns == 2


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
    heard: Heard, error: KubeError, answers: bool
) -> None:
    heard.request(UnreachableError("refused"))
    heard.request(error)
    assert heard.returns == int(answers)


def test_overload_is_not_an_outage(heard: Heard) -> None:
    """Else a resource that alone is broken would be asked for at each answer to others."""
    heard.request(ServerError("503"))
    heard.request()
    assert heard.returns == 0


def test_unsubscribed_listener_is_not_notified(heard: Heard) -> None:
    heard.reachability.ignore(heard.returned)
    heard.reachability.ignore(heard.returned)
    heard.request(UnreachableError("refused"))
    heard.request()
    assert heard.returns == 0


def test_requests_and_streams_report(server: Server, heard: Heard) -> None:
    transport = Transport(FileAccess(server.url), reachability=heard.reachability)
    stream = Stream(transport)
    server.answer = lambda server, connection, request: False
    with pytest.raises(UnreachableError):
        transport.get("/objects")
    server.answer = None
    next(stream.lines("/objects", {"watch": "true", "sendInitialEvents": "true"}, 10))
    assert heard.returns == 1
    server.answer = lambda server, connection, request: False
    with pytest.raises(UnreachableError):
        stream.get("/objects", {})
    server.answer = None
    transport.get("/objects")
    assert heard.returns == 2
    stream.drop()
    transport.close()
