"""ListWatch with a faulty API server on real sockets; pauses use the test's clock."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from agent.kube.auth import FileAccess
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Change, ChangeKind, ObjectKey, Read
from agent.kube.schedule import WatchPace
from agent.kube.transport import ResponseLimits, Transport
from agent.kube.wire import PAGE
from tests.kube import fake_api_server
from tests.kube.fake_api_server import (
    Answer,
    Request,
    Server,
    chunk,
    end,
    event,
    head,
    reply,
    status,
)
from tests.kube.reading import as_type
from tests.waiting import eventually

LIMITS = ResponseLimits(line_bytes=100_000, body_bytes=1_000_000)
SHORT_TIMEOUTS = msgspec.structs.replace(LIMITS, read_seconds=0.1)
"""For a server that hangs: a correct one on a busy machine may take longer."""
FAULT_SECONDS = 100.0
HANGING_FAULT_SECONDS = 30.0
"""For watches that hang: each takes real time, so about twelve of them."""


class Item(msgspec.Struct):
    value: str = ""


READ: Final = as_type(Item)


class Clock:
    """Advances only in `wait`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited: Callable[[], None] = lambda: None

    def wait(self, stopped: threading.Event, seconds: float) -> bool:
        self.now += seconds
        self.waited()
        return stopped.is_set()


class Follower:
    """Records the reported changes; `wrong` has those that contradict the earlier ones."""

    def __init__(
        self,
        server: Server,
        clock: Clock,
        limits: ResponseLimits = LIMITS,
        watch_seconds: float = 300,
        read: Read[Item] = READ,
        first_seconds: float = 0.0,
    ) -> None:
        self.known: dict[str, str] = {}
        self.changes: list[Change[Item]] = []
        self.wrong: list[Change[Item]] = []
        pace = WatchPace(random.Random(7).random, lambda: clock.now, clock.wait, watch_seconds, 0.1)
        transport = Transport(FileAccess(server.url), limits=limits)
        self.watch = ListWatch(
            transport, "/objects", {}, read, self._changed, first_seconds=first_seconds, pace=pace
        )

    def _changed(self, changes: Sequence[Change[Item]]) -> None:
        for change in changes:
            name = change.key.name
            known = name in self.known
            if known is (change.kind is ChangeKind.ADDED):
                self.wrong.append(change)
            if change.kind is ChangeKind.DELETED:
                self.known.pop(name, None)
            else:
                self.known[name] = change.value.value
            self.changes.append(change)

    def equals(self, server: Server) -> bool:
        values = {key.name: each.value for key, each in self.watch.objects().items()}
        return self.known == values == server.values()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[Server]:
    with fake_api_server.serving(lambda: clock.now) as it:
        yield it


@contextlib.contextmanager
def following(
    server: Server, clock: Clock, limits: ResponseLimits = LIMITS, **options: Any
) -> Iterator[Follower]:
    follower = Follower(server, clock, limits, **options)
    follower.watch.start()
    try:
        yield follower
    finally:
        follower.watch.stop()
        assert not follower.wrong


def busiest_ten_seconds(requests: list[Request]) -> int:
    times = [each.at for each in requests]
    return max(sum(first <= at < first + 10 for at in times) for first in times)


# Faults of a server: each is an answer to any request.
def status_answer(code: int, **details: int) -> Answer:
    return lambda server, connection, request: reply(
        connection, code, status(code, "x", "x", **details)
    )


def error_event(code: int) -> Answer:
    def answer(server: Server, connection: socket.socket, request: Request) -> bool:
        if not request.watches:
            return fake_api_server.standard_answer(server, connection, request)
        head(connection)
        chunk(connection, event("ERROR", status(code, "x", "x")))
        end(connection)
        return True

    return answer


def only_watches(fault: Answer) -> Answer:
    return lambda server, connection, request: (
        fault if request.watches else fake_api_server.standard_answer
    )(server, connection, request)


def only_lists(fault: Answer) -> Answer:
    return lambda server, connection, request: (
        fake_api_server.standard_answer if request.watches else fault
    )(server, connection, request)


def closes(server: Server, connection: socket.socket, request: Request) -> bool:
    return False


def hangs(server: Server, connection: socket.socket, request: Request) -> bool:
    connection.settimeout(5)
    connection.recv(1)
    return False


def ends_at_once(server: Server, connection: socket.socket, request: Request) -> bool:
    head(connection)
    end(connection)
    return True


def begins_and_hangs(server: Server, connection: socket.socket, request: Request) -> bool:
    head(connection)
    return hangs(server, connection, request)


def raw(data: bytes) -> Answer:
    def answer(server: Server, connection: socket.socket, request: Request) -> bool:
        connection.sendall(data)
        return False

    return answer


def chunked(*chunks: bytes) -> Answer:
    def answer(server: Server, connection: socket.socket, request: Request) -> bool:
        head(connection)
        for each in chunks:
            chunk(connection, each)
        end(connection)
        return True

    return answer


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FAULTS: dict[str, Answer] = {
    "500": status_answer(500),
    "429 with Retry-After": status_answer(429, retryAfterSeconds=1),
    "410": status_answer(410),
    "401": status_answer(401),
    "504": status_answer(504),
    "closes": closes,
    "hangs": hangs,
    "ends at once": ends_at_once,
    "not HTTP": raw(b"\x16\x03\x01\x02\x00"),
    "incomplete head": raw(b"HTTP/1.1 200 OK\r\nTransfer-En"),
    "incomplete chunk": raw(HEAD + b"40\r\n{"),
    "invalid chunk size": raw(HEAD + b"zz\r\n{}\r\n"),
    "huge chunk size": raw(HEAD + b"ffffffffffffffff\r\n{}"),
    "truncated JSON": chunked(b'{"type": "ADDED", "obj\n'),
    "truncated line": chunked(b'{"type": "ADDED", "obj'),
    "not an object": chunked(b'{"type": "ADDED", "object": 3}\n'),
    "not UTF-8": chunked(b'{"type": "ADDED", "object": {"metadata": {"name": "\xff"}}}\n'),
    "deeply nested": chunked(b"[" * 50_000 + b"\n"),
    "items that are not objects": lambda server, connection, request: reply(
        connection, 200, {"metadata": {"resourceVersion": "1"}, "items": [3]}
    ),
    "no version": chunked(b'{"type": "ADDED", "object": {"metadata": {"name": "a"}}}\n'),
    "huge line": chunked(*[b" " * 50_000] * 5),
    "HTTP/1.0": raw(b"HTTP/1.0 200 OK\r\n\r\n{"),
    "HTML page of a proxy": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"),
    "only watches 500": only_watches(status_answer(500)),
    "only watches 410": only_watches(status_answer(410)),
    "only watches 422": only_watches(status_answer(422)),
    "only watches end": only_watches(ends_at_once),
    "only watches begin and hang": only_watches(begins_and_hangs),
    "only lists 500": only_lists(status_answer(500)),
    "ERROR 410": error_event(410),
    "ERROR 500": error_event(500),
    "ERROR 504": error_event(504),
}


@pytest.mark.parametrize("fresh", [True, False], ids=["at start", "later"])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_faulty_server_gets_few_requests_and_no_change_is_lost(
    server: Server, clock: Clock, fault: str, fresh: bool
) -> None:
    for number in range(5):
        server.put(f"o{number}", "old")

    def change_or_recover() -> None:
        if began + fault_seconds < clock.now:
            server.answer = None
        server.put("o1", f"at {clock.now}")

    began = 0.0
    hangs_often = "begin and hang" in fault
    fault_seconds = HANGING_FAULT_SECONDS if hangs_often else FAULT_SECONDS
    server.watch_list = "only lists" not in fault
    if fresh:
        server.answer = FAULTS[fault]
    clock.waited = change_or_recover
    watch_seconds = 0.1 if hangs_often else 300
    limits = SHORT_TIMEOUTS if "hang" in fault else LIMITS
    with following(server, clock, limits, watch_seconds=watch_seconds) as follower:
        if not fresh:
            eventually("synced", lambda: follower.equals(server))
            began = clock.now
            server.requests.clear()
            server.answer = FAULTS[fault]
            server.put("o2", "changed")
            server.remove("o3")
            server.break_watches()
            if "only lists" in fault:
                server.answer = None
        eventually(
            "recovered",
            lambda: server.answer is None and follower.equals(server),
        )
        server.put("o4", "new")
        server.remove("o0")
        eventually("the changes are reported", lambda: follower.equals(server))
    assert busiest_ten_seconds(server.requests) <= 5


@pytest.mark.parametrize("watch_list", [True, False])
def test_every_change_is_reported_once_across_broken_connections(
    server: Server, clock: Clock, watch_list: bool
) -> None:
    server.watch_list = watch_list
    rng = random.Random(3)
    names = [f"o{number}" for number in range(8)]
    with following(server, clock) as follower:
        eventually("synced", lambda: follower.watch.synced)
        for step in range(300):
            name = rng.choice(names)
            if name in server.objects and rng.random() < 0.3:
                server.remove(name)
            else:
                server.put(name, str(step))
            if rng.random() < 0.05:
                server.break_watches()
        eventually("equal", lambda: follower.equals(server))
        assert follower.watch.syncs == 1, "a broken connection needs no list"
        reported = [(each.kind.value.upper(), each.key.name) for each in follower.changes]
        assert reported == [(kind, each["metadata"]["name"]) for _, kind, each in server.events]


def test_repeated_events_are_not_reported_again(server: Server, clock: Clock) -> None:
    server.put("a", "1")
    with following(server, clock) as follower:
        eventually("synced", lambda: follower.equals(server))
        server.put("a", "2")
        server.put("a", "3")
        eventually("reported", lambda: follower.equals(server))

        def replay(server: Server, connection: socket.socket, request: Request) -> bool:
            server.answer = None
            query = {**request.query, "resourceVersion": "0"}
            server.watched(connection, query)
            return False

        server.answer = replay
        server.break_watches()
        server.put("b", "1")
        eventually("reported", lambda: follower.equals(server))
        assert [each.key.name for each in follower.changes] == ["a", "a", "a", "b"]


@pytest.mark.parametrize("watch_list", [True, False])
def test_expired_version_leads_to_a_new_sync_that_reports_only_differences(
    server: Server, clock: Clock, watch_list: bool
) -> None:
    server.watch_list = watch_list
    for name in ("same", "changed", "removed", "replaced"):
        server.put(name, "1")
    with following(server, clock) as follower:
        eventually("synced", lambda: server.watching and follower.equals(server))
        follower.changes.clear()
        server.answer = closes
        server.break_watches()
        server.put("changed", "2")
        server.remove("removed")
        server.put("replaced", "1", uid="another")
        server.put("added", "1")
        server.compact()
        server.answer = None
        eventually("equal", lambda: follower.equals(server))
        reported = sorted((each.key.name, each.kind.value) for each in follower.changes)
        assert reported == [
            ("added", "added"),
            ("changed", "modified"),
            ("removed", "deleted"),
            ("replaced", "added"),
            ("replaced", "deleted"),
        ]


def test_list_in_pages_and_a_page_that_expired(server: Server, clock: Clock) -> None:
    server.watch_list = False
    for number in range(1200):
        server.put(f"o{number:04}", "1")
    expired = 0

    def answer(server: Server, connection: socket.socket, request: Request) -> bool:
        nonlocal expired
        if "continue" in request.query and not expired:
            expired += 1
            expired_status = status(410, "Expired", "the continue token is too old")
            return reply(connection, 410, {**expired_status, "metadata": {"continue": "500@999"}})
        return fake_api_server.standard_answer(server, connection, request)

    with following(server, clock) as follower:
        eventually("synced", lambda: follower.equals(server))
        limits = [each.query.get("continue", "") for each in server.requests if not each.watches]
        assert [each.partition("@")[0] for each in limits] == ["", "500", "1000"]

        eventually("watching", lambda: server.watching)
        server.requests.clear()
        server.answer = answer
        server.put("new", "1")
        eventually("reported", lambda: follower.equals(server))
        server.version += 1
        server.compact()
        server.break_watches()
        eventually("another sync", lambda: follower.watch.syncs == 2)
        assert follower.equals(server)
    first, second, third = [each.query for each in server.requests if not each.watches]
    assert first == {"limit": "500"}
    assert second["continue"].startswith("500@")
    assert third == {}, "the complete list, of one resource version"


def test_watch_requests_have_their_parameters(server: Server, clock: Clock) -> None:
    server.watch_list = False
    with following(server, clock):
        eventually("watching", lambda: server.watching)
    first, listed, watched = server.requests
    assert first.query["sendInitialEvents"] == "true"
    assert first.query["resourceVersionMatch"] == "NotOlderThan"
    assert listed.query == {"limit": "500", "resourceVersion": "0"}
    assert watched.query["allowWatchBookmarks"] == "true"
    assert watched.query["resourceVersion"] == "100"
    assert 240 <= int(watched.query["timeoutSeconds"]) <= 360
    assert {each.connection for each in server.requests} == {1}, "one connection, which stays open"


@pytest.mark.parametrize(
    "answer",
    [fake_api_server.standard_answer, hangs, begins_and_hangs],
    ids=["watching", "no head", "no event"],
)
def test_stop_from_another_thread_ends_the_watch_at_once(
    server: Server, clock: Clock, answer: Answer
) -> None:
    server.answer = answer
    follower = Follower(server, clock, ResponseLimits(read_seconds=600))
    follower.watch.start()
    eventually("requested", lambda: server.requests)
    follower.watch.stop()
    eventually("no thread", lambda: not _threads("watch /objects"))


def test_first_request_is_sent_after_the_delay_of_the_node(server: Server, clock: Clock) -> None:
    with following(server, clock, first_seconds=7.5):
        eventually("requested", lambda: server.requests)
    assert server.requests[0].at == 7.5


def test_page_is_decoded_before_the_next_is_requested(server: Server, clock: Clock) -> None:
    """The bytes of all objects would not fit into memory."""
    server.watch_list = False
    for number in range(PAGE + 1):
        server.put(f"each-{number:04}")
    pages_at: list[int] = []

    def read(text: bytes) -> Item:
        pages_at.append(sum(not each.watches for each in server.requests))
        return msgspec.json.decode(text, type=Item)

    with following(server, clock, read=read) as follower:
        eventually("synced", lambda: follower.watch.synced)
    assert pages_at == [1] * PAGE + [2]
    assert len(follower.changes) == PAGE + 1


@pytest.mark.parametrize("watch_list", [True, False])
def test_resync_reports_changes_that_the_watch_missed(
    server: Server, clock: Clock, watch_list: bool
) -> None:
    server.watch_list = watch_list
    server.put("old", "1")
    with following(server, clock) as follower:
        eventually("watching", lambda: follower.watch.synced and server.watching)
        reported, sent, began = len(follower.changes), len(server.requests), clock.now
        syncs = follower.watch.syncs
        # Simulates a stalled watch: the event is never sent.
        server.put("new", "1")
        server.events.clear()
        follower.watch.resync()
        eventually("listed again", lambda: follower.watch.syncs == syncs + 1)
        assert follower.equals(server)
        assert follower.watch.version == str(server.version)
        assert [each.key.name for each in follower.changes[reported:]] == ["new"]
        assert (server.requests[sent].at, follower.watch.problem) == (began, None)
        eventually("watching", lambda: server.watching)
        server.put("newer", "1")
        eventually("reported", lambda: follower.equals(server))


def test_invalid_object_is_left_out(server: Server, clock: Clock) -> None:
    server.put("good", "1")
    server.put("odd", "1")
    server.objects["odd"]["value"] = 3  # type: ignore[assignment]
    with following(server, clock) as follower:
        eventually("synced", lambda: follower.watch.synced)
        assert set(follower.watch.objects()) == {ObjectKey("", "good")}
        server.put("odd", "2")
        eventually("reported", lambda: follower.equals(server))


def test_unreadable_event_leads_to_a_new_list(server: Server, clock: Clock) -> None:
    """Every watch from an earlier version gets the invalid line again."""

    def unreadable(server: Server, connection: socket.socket, request: Request) -> bool:
        if not request.watches or "sendInitialEvents" in request.query:
            return fake_api_server.standard_answer(server, connection, request)
        return FAULTS["huge line"](server, connection, request)

    server.put("a", "1")
    with following(server, clock) as follower:
        eventually("synced", lambda: follower.equals(server))
        server.answer = unreadable
        server.break_watches()
        server.put("a", "2")
        eventually("another sync", lambda: follower.watch.syncs == 2)
        assert follower.equals(server)


def test_a_watch_that_ends_without_events_leads_to_a_new_list(server: Server, clock: Clock) -> None:
    """For example by a server that was restored from a backup and does not have the version."""
    server.put("a", "1")

    def silent(server: Server, connection: socket.socket, request: Request) -> bool:
        server.answer = None
        clock.now += 300
        return ends_at_once(server, connection, request)

    with following(server, clock) as follower:
        eventually("synced", lambda: follower.equals(server))
        server.answer = silent
        server.break_watches()
        eventually("another sync", lambda: follower.watch.syncs == 2)
        assert follower.watch.problem is None


def _threads(name: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == name]


def test_a_problem_is_reported_and_cleared(server: Server, clock: Clock) -> None:
    server.answer = status_answer(500)
    with following(server, clock) as follower:
        eventually("the failure is reported", lambda: "500" in (follower.watch.problem or ""))
        server.answer = None
        eventually("none", lambda: follower.watch.problem is None and follower.watch.synced)


def test_after_an_outage_and_410_all_is_listed_at_once(server: Server, clock: Clock) -> None:
    """The pauses of the outage, the 410 and the list do not add up."""
    server.put("a", "1")
    with following(server, clock) as follower:
        eventually("synced", lambda: follower.equals(server))
        recovered_at = clock.now + 120
        server.answer = lambda server, connection, request: (
            request.at >= recovered_at
            and fake_api_server.standard_answer(server, connection, request)
        )
        server.break_watches()
        server.put("a", "2")
        server.compact()
        eventually("reported", lambda: follower.equals(server) and server.watching)
        refused, listed = (
            each.at - recovered_at for each in server.requests if each.at >= recovered_at
        )
    assert refused <= 15, "no pause is longer than a step and a half"
    assert listed - refused == pytest.approx(0, abs=0.01)
    assert "sendInitialEvents" in server.requests[-1].query


class Sleeper:
    """A pause lasts until its event is set; `pauses` has the events."""

    def __init__(self) -> None:
        self.pauses: list[threading.Event] = []

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.pauses.append(event)
        return event.wait()


@pytest.mark.parametrize(
    ("fault", "ends"),
    [(closes, True), (status_answer(429), False)],
    ids=["no answer", "429 with a Retry-After"],
)
def test_answer_to_another_request_ends_the_pause(
    server: Server, fault: Answer, ends: bool
) -> None:
    sleeper = Sleeper()
    pace = WatchPace(wait=sleeper.wait, return_seconds=0)
    transport = Transport(FileAccess(server.url), limits=LIMITS)
    watches = [
        ListWatch(transport, "/objects", {}, as_type(Item), lambda changes: None, pace=pace)
        for _ in range(3)
    ]
    server.answer = fault
    for each in watches:
        each.start()
    eventually("all watches pause", lambda: len(sleeper.pauses) == 3)
    server.answer = None
    sent = len(server.requests)
    transport.get("/objects")
    if ends:
        eventually("all watches are current", lambda: all(each.synced for each in watches))
    else:
        assert not any(each.is_set() for each in sleeper.pauses)
        assert len(server.requests) == sent + 1
    for each in watches:
        each.stop()
    eventually("no thread", lambda: not _threads("watch /objects"))
    transport.close()


def test_age_is_since_the_servers_last_answer(server: Server, clock: Clock) -> None:
    server.put("a", "1")
    with following(server, clock) as follower:
        eventually("synced", lambda: follower.equals(server) and server.watching)
        clock.now += 100
        assert follower.watch.age_seconds >= 100
        server.put("a", "2")
        eventually("event", lambda: follower.watch.age_seconds == 0)
        clock.now += 70
        assert follower.watch.age_seconds == 70
        server.bookmark()
        eventually("bookmark", lambda: follower.watch.age_seconds == 0)
        last, server.answer = clock.now, closes
        server.break_watches()
        eventually("more requests", lambda: clock.now > last + 100)
        assert follower.watch.age_seconds > 100
        server.answer = None
        eventually("answer", lambda: follower.watch.age_seconds < 20)


def test_after_a_break_the_watch_has_caught_up_when_confirmed(server: Server, clock: Clock) -> None:
    with following(server, clock) as follower:
        eventually("watching", lambda: server.watching and follower.watch.caught_up)
        before = follower.watch.breaks
        server.break_watches()
        eventually("broken", lambda: not follower.watch.caught_up)
        server.put("a", "1")
        eventually("reported", lambda: follower.equals(server) and server.watching)
        assert not follower.watch.caught_up, "other changes may follow"
        follower.watch.mark_caught_up(before)
        assert not follower.watch.caught_up, "the confirmation is from before the break"
        follower.watch.mark_caught_up(follower.watch.breaks)
        assert follower.watch.caught_up


def test_list_is_as_of_its_request(server: Server, clock: Clock) -> None:
    def marks_behind(server: Server, connection: socket.socket, request: Request) -> bool:
        server.answer = None
        follower.watch.mark_behind()
        return fake_api_server.standard_answer(server, connection, request)

    with following(server, clock) as follower:
        eventually("watching", lambda: server.watching and follower.watch.caught_up)
        server.answer = marks_behind
        follower.watch.resync()
        eventually("listed", lambda: follower.watch.syncs == 2)
        assert not follower.watch.caught_up, "the list was requested before the mark"
        follower.watch.resync()
        eventually("listed", lambda: follower.watch.syncs == 3)
        assert follower.watch.caught_up
        server.compact()
        server.put("a", "1")
        server.compact()
        server.break_watches()
        eventually("a list after 410", lambda: follower.watch.syncs == 4)
        assert follower.watch.caught_up


def test_short_watches_last_long_enough_for_all_events(server: Server, clock: Clock) -> None:
    server.put("a", "1")
    with following(server, clock, watch_seconds=10) as follower:
        eventually("watching", lambda: server.watching and len(server.requests) == 2)
        server.put("a", "2")
        eventually("reported", lambda: follower.equals(server))
        assert (follower.watch.syncs, follower.watch.problem) == (1, None)
    first, second = [each.query for each in server.requests]
    assert "sendInitialEvents" in first
    assert 240 <= int(first["timeoutSeconds"]) <= 360
    assert "sendInitialEvents" not in second
    assert 8 <= int(second["timeoutSeconds"]) <= 12


def test_first_list_from_the_servers_cache_does_not_count_as_caught_up(
    server: Server, clock: Clock
) -> None:
    server.watch_list = False
    with following(server, clock) as follower:
        eventually("watching", lambda: server.watching and follower.watch.synced)
        assert not follower.watch.caught_up
