from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from agent.kube.errors import ServerError
from agent.kube.objects import Change, ChangeKind
from agent.kube.schedule import WatchPace
from agent.kube.transport import Transport
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.records import PodRecord
from agent.scheduler.state.watches import Watches
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Server
from tests.waiting import eventually

# Short pauses between requests.
PACE = WatchPace(wait=lambda stopped, seconds: stopped.wait(0.01), random=random.Random(3).random)


class PodNames(set[str]):
    """The names of the pods that the watch has reported."""

    def follow(self, changes: Sequence[Change[PodRecord]]) -> None:
        for each in changes:
            if each.kind is ChangeKind.DELETED:
                self.remove(each.key.name)
            else:
                self.add(each.key.name)


@pytest.fixture
def pods() -> PodNames:
    return PodNames()


@pytest.fixture
def watching(server: Server, transport: Transport, pods: PodNames) -> Iterator[Watches]:
    """Watches of a cluster of unbound pods, which have reported all objects."""
    watches = Watches(
        transport,
        SchedulerCache(),
        stale_seconds=30,
        pods_changed=(pods.follow,),
        pace=PACE,
        check_seconds=0.01,
    )
    server.put("first")
    watches.start()
    eventually("synced", lambda: watches.synced)
    eventually("watching", lambda: server.watching == 3)
    watches.mark_behind()
    yield watches
    watches.stop()


def lists(server: Server) -> int:
    """The number of lists of all pods."""
    pods = [each for each in server.requests if each.path.endswith("/pods")]
    return sum("sendInitialEvents" in each.query for each in pods)


def wait_short(seconds: float) -> bool:
    return threading.Event().wait(seconds / 100)


def wait_full(seconds: float) -> bool:
    return threading.Event().wait(seconds)


def test_nothing_is_listed_again_if_all_changes_were_reported(
    watching: Watches, server: Server, pods: PodNames
) -> None:
    server.put("second")
    assert watching.behind() is not None
    assert watching.catch_up(wait_full)
    assert watching.behind() is None
    assert pods == {"first", "second"}
    assert lists(server) == 1


def test_unreported_changes_are_listed_again(
    watching: Watches, server: Server, pods: PodNames
) -> None:
    server.put("second")
    server.events.clear()
    assert watching.catch_up(wait_short)
    assert pods == {"first", "second"}
    assert lists(server) == 2


def test_a_watch_of_a_server_restored_from_a_backup_is_listed_again(
    watching: Watches, server: Server, pods: PodNames
) -> None:
    """Its resource versions are lower than those that it sent before."""
    server.put("lost")
    eventually("the watch reports it", lambda: pods == {"first", "lost"})
    server.remove("lost")
    server.events.clear()
    server.version = 50
    assert watching.catch_up(wait_short)
    assert pods == {"first"}


def test_a_broken_watch_is_behind_until_it_has_caught_up(
    watching: Watches, server: Server, pods: PodNames
) -> None:
    assert watching.catch_up(wait_short)
    server.break_watches()
    eventually("behind", lambda: "the watch of pods" in (watching.behind() or ""))
    server.put("second")
    assert watching.catch_up(wait_full)
    assert watching.behind() is None
    assert pods == {"first", "second"}


def test_the_most_stale_watch_is_named_with_its_age(server: Server, transport: Transport) -> None:
    now = 0.0
    pace = msgspec.structs.replace(PACE, clock=lambda: now, wait=lambda event, _: event.wait(0.01))
    watches = Watches(transport, SchedulerCache(), stale_seconds=30, pace=pace, check_seconds=0.01)
    watches.start()
    eventually("synced", lambda: watches.synced and server.watching == 3)
    listed = {"noderesourcetopologies", "devices", "reservations"}
    assert set(watches.ages_seconds) == {"pods", "nodes", "namespaces"} | listed
    now = 30.0
    assert watches.stale() is None
    server.answer = lambda server, connection, request: fake_api_server.reply(connection, 503, b"")
    now = 31.0
    assert watches.stale() == "the watch of pods has been out of touch for 31 s"
    server.break_watches()
    eventually("the error is reported", lambda: "503" in (watches.stale() or ""))
    server.answer = None
    server.put("second")
    eventually("no watch is stale", lambda: watches.stale() is None)
    watches.stop()


def test_an_interrupted_catch_up_is_not_complete(watching: Watches, server: Server) -> None:
    server.put("second")
    server.events.clear()
    assert not watching.catch_up(lambda seconds: True)


def test_an_error_of_the_server_is_raised(watching: Watches, server: Server) -> None:
    server.answer = lambda server, connection, request: fake_api_server.reply(connection, 503, b"")
    with pytest.raises(ServerError):
        watching.catch_up(wait_short)


def test_all_watches_are_stopped(watching: Watches) -> None:
    watching.stop()
    names = {each.name for each in threading.enumerate()}
    assert not {each for each in names if each.startswith("watch /") or each == "kinds"}
