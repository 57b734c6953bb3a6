from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kube.answers import Limits
from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.scheduler.admission import PATH, Accounts, AccountsError, pods, routes
from agent.scheduler.routes import BadRequestError
from agent.scheduler.webhook import LookUp, LookUpError, gpus
from tests.kube import hostile
from tests.kube.hostile import Request, Server, reply, status
from tests.scheduler.test_webhook import ALICE, OURS, review

POD = {
    "metadata": {"name": "p", "namespace": "gpu", "uid": "u"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}


@pytest.fixture
def look_up(server: Server) -> Iterator[LookUp]:
    limits = Limits(read_seconds=1)
    transport = Transport(FileAccess(server.url), limits=limits)
    yield pods(transport)
    transport.close()


def test_a_pod_is_asked_for_by_its_name(server: Server, look_up: LookUp) -> None:
    server.answer = lambda _, connection, request: reply(connection, 200, POD)
    found = look_up("gpu", "p/../../q")
    assert found is not None
    assert gpus(found) == ["nvidia.com/gpu"]
    (request,) = server.requests
    assert request.path == "/api/v1/namespaces/gpu/pods/p%2F..%2F..%2Fq"


def test_a_pod_that_is_not_there_is_none(server: Server, look_up: LookUp) -> None:
    server.answer = lambda _, connection, request: reply(connection, 404, status(404, "NotFound"))
    assert look_up("gpu", "p") is None


def silent(server: Server, connection: socket.socket, request: Request) -> bool:
    connection.recv(1)
    return False


@pytest.mark.parametrize(
    ("answer", "said"),
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
def test_a_pod_that_cannot_be_had_is_an_error_with_the_reason(
    server: Server, look_up: LookUp, answer: hostile.Answer, said: str
) -> None:
    server.answer = answer
    with pytest.raises(LookUpError, match=said):
        look_up("gpu", "p")


def test_accounts_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the kubelet replaces a ConfigMap: a link above the files is swapped."""
    for name, text in (("one", f" {OURS} \n\n"), ("two", f"{OURS}\r\n{ALICE}\n"), ("bad", "\xff")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "binders").write_text(text, encoding="latin-1")
    link = tmp_path / "current"
    link.symlink_to("one")
    accounts = Accounts(str(link / "binders"))
    assert accounts.names() == {OURS}
    assert accounts.names() is accounts.names()

    def swap(name: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.symlink_to(name)
        fresh.rename(link)

    swap("two")
    assert accounts.names() == {OURS, ALICE}
    for name in ("bad", "none"):
        swap(name)
        assert accounts.names() == {OURS, ALICE}
        assert "the last accounts stay in force" in caplog.messages[-1]
    swap("one")
    assert accounts.names() == {OURS}


def test_a_file_of_accounts_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccountsError, match=str(tmp_path / "binders")):
        Accounts(str(tmp_path / "binders"))


def test_the_page_answers_reviews(
    tmp_path: Path, server: Server, look_up: LookUp, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = lambda _, connection, request: reply(connection, 200, POD)
    (tmp_path / "binders").write_text(OURS)
    caplog.set_level("INFO")
    admit = routes(Accounts(str(tmp_path / "binders")), look_up, "Fail")[PATH]
    for user, allowed in ((ALICE, False), (OURS, True)):
        answer = admit.handle(json.dumps(review(user)).encode())
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert json.loads(answer.body)["response"]["allowed"] is allowed
    assert [each for each in caplog.messages if each.startswith("refused: alice may not bind")]
    with pytest.raises(BadRequestError, match="AdmissionReview"):
        admit.handle(b"{}")
