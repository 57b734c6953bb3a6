from __future__ import annotations

import json

import msgspec
import pytest

from agent.kube.errors import GoneError, KubeError, MalformedError, TooLargeError
from agent.kube.transport import Query
from agent.kube.wire import PAGE, listed


def name(raw: msgspec.Raw) -> str:
    return str(json.loads(bytes(raw))["metadata"]["name"])


def page(names: list[str], token: str = "", version: str = "7") -> bytes:
    metadata = {"resourceVersion": version, "continue": token}
    items = [{"metadata": {"name": each}} for each in names]
    return json.dumps({"metadata": metadata, "items": items}).encode()


class Server:
    """Returns the answers in their order, and records the queries."""

    def __init__(self, *answers: bytes | KubeError) -> None:
        self._answers = iter(answers)
        self.queries: list[Query] = []

    def get(self, path: str, query: Query) -> bytes:
        self.queries.append(query)
        answer = next(self._answers)
        if isinstance(answer, KubeError):
            raise answer
        return answer


def test_pages_are_one_list() -> None:
    server = Server(page(["a", "b"], "x"), page(["c"], version="9"))
    result = listed("/pods", {"fieldSelector": "f"}, server.get, name)
    assert (result.found, result.version) == (["a", "b", "c"], "9")
    assert server.queries == [
        {"fieldSelector": "f", "limit": PAGE},
        {"fieldSelector": "f", "limit": PAGE, "continue": "x"},
    ]


def test_only_the_first_page_is_read_from_the_cache() -> None:
    server = Server(page(["a"], "x"), page(["b"]))
    listed("/pods", {}, server.get, name, from_cache=True)
    assert [each.get("resourceVersion") for each in server.queries] == ["0", None]


def test_pages_that_are_too_large_shrink() -> None:
    """A server that answers from its cache sends all objects at once."""
    large = TooLargeError("more than is read")
    server = Server(
        large,
        page(["a"], "x"),
        large,
        page(["a"], "y"),
        GoneError("gone"),
        page(["b"], version="9"),
    )
    result = listed("/pods", {"f": "v"}, server.get, name, from_cache=True)
    assert (result.found, result.version) == (["b"], "9")
    assert server.queries == [
        {"f": "v", "limit": PAGE, "resourceVersion": "0"},
        {"f": "v", "limit": 20},
        {"f": "v", "limit": 20, "continue": "x"},
        {"f": "v", "limit": 1},
        {"f": "v", "limit": 1, "continue": "y"},
        {"f": "v", "limit": 1},
    ]


def test_one_object_that_is_too_large_is_an_error() -> None:
    with pytest.raises(TooLargeError):
        listed("/pods", {}, Server(*[TooLargeError("more than is read")] * 3).get, name)


def test_an_expired_page_restarts_the_list_without_pages() -> None:
    server = Server(page(["old"], "x"), GoneError("too old"), page(["new"]))
    assert listed("/pods", {"fieldSelector": "f"}, server.get, name).found == ["new"]
    assert server.queries[-1] == {"fieldSelector": "f"}


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ([GoneError("too old")], GoneError, "too old"),
        ([page(["a"], "x"), page(["a"], "x")], MalformedError, "list of /pods: the same page"),
        ([page([], version="")], MalformedError, "list of /pods: has no resourceVersion"),
        ([b"[]"], MalformedError, "list of /pods: "),
    ],
)
def test_invalid_lists(
    answers: list[bytes | GoneError], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        listed("/pods", {}, Server(*answers).get, name)
