from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from agent.kube import kinds
from agent.kube.auth import FileAccess
from agent.kube.errors import ServerError
from agent.kube.kinds import Discovery
from agent.kube.objects import Change, ChangeKind
from agent.kube.schedule import WatchPace
from agent.kube.transport import Transport
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.records import PodRecord
from agent.scheduler.state.watches import KindWatch, Watches
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Request, Server
from tests.kube.reading import as_type
from tests.waiting import eventually

# Short pauses between two requests.
PACE = WatchPace(wait=lambda stopped, seconds: stopped.wait(0.01), random=random.Random(3).random)


class Item(msgspec.Struct):
    value: str = ""


class Api:
    """Serves topologies in these versions; a request for any other is a 404."""

    def __init__(self, server: Server) -> None:
        self.versions: list[str] = []
        self.trouble = False
        self.asked = 0
        server.answer = self._answer

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if self.trouble:
            return fake_api_server.reply(connection, 503, b"")
        for version in self.versions:
            base = f"/apis/topology.node.k8s.io/{version}"
            if request.path == base:
                self.asked += 1
                names = [{"name": "noderesourcetopologies"}]
                return fake_api_server.reply(connection, 200, {"resources": names})
            if request.path == f"{base}/noderesourcetopologies":
                return fake_api_server.standard_answer(server, connection, request)
        self.asked += 1
        return fake_api_server.reply(connection, 404, fake_api_server.status(404, "NotFound"))


class Recorded:
    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.kinds: list[ChangeKind] = []

    def __call__(self, changes: Sequence[Change[Item]]) -> None:
        for each in changes:
            self.kinds.append(each.kind)
            if each.kind is ChangeKind.DELETED:
                del self.known[each.key.name]
            else:
                self.known[each.key.name] = each.value.value


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


@pytest.fixture
def reported() -> Recorded:
    return Recorded()


@pytest.fixture
def watch(server: Server, api: Api, reported: Recorded) -> Iterator[KindWatch[Item]]:
    transport = Transport(FileAccess(server.url))
    it = KindWatch(transport, Discovery(transport), kinds.TOPOLOGY, as_type(Item), reported, PACE)
    yield it
    it.stop()
    transport.close()


def test_a_missing_kind_does_not_delay_the_sync(watch: KindWatch[Item], reported: Recorded) -> None:
    assert not watch.synced
    watch.check()
    assert (watch.synced, watch.problem, reported.known) == (True, None, {})


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_a_kind_that_is_added_later_is_watched(
    watch: KindWatch[Item], api: Api, server: Server, reported: Recorded, version: str
) -> None:
    watch.check()
    server.put("n1", "1")
    api.versions = [version]
    watch.check()
    eventually("the watch reports it", lambda: reported.known == {"n1": "1"})
    server.put("n1", "2")
    eventually("the watch reports it", lambda: reported.known == {"n1": "2"})
    assert watch.synced


def test_in_normal_operation_the_version_is_not_read(watch: KindWatch[Item], api: Api) -> None:
    api.versions = ["v1alpha2"]
    watch.check()
    eventually("synced", lambda: watch.synced)
    reads = api.asked
    watch.check()
    assert api.asked == reads


def test_all_objects_of_a_removed_kind_are_removed(
    watch: KindWatch[Item], api: Api, server: Server, reported: Recorded
) -> None:
    api.versions = ["v1alpha2"]
    server.put("n1", "1")
    watch.check()
    eventually("the watch reports it", lambda: reported.known == {"n1": "1"})
    api.versions = []
    server.break_watches()
    eventually("the failure is reported", lambda: watch.problem)
    watch.check()
    assert (reported.known, watch.synced, watch.problem) == ({}, True, None)


def test_another_version_reports_all_objects_again(
    watch: KindWatch[Item], api: Api, server: Server, reported: Recorded
) -> None:
    api.versions = ["v1alpha1"]
    server.put("n1", "1")
    server.put("n2", "1")
    watch.check()
    eventually("the watch reports it", lambda: len(reported.known) == 2)
    api.versions = ["v1alpha2"]
    server.remove("n2")
    eventually("the watch reports it", lambda: len(reported.known) == 1)
    server.break_watches()
    eventually("the failure is reported", lambda: watch.problem)
    watch.check()
    eventually("synced", lambda: watch.synced)
    assert reported.known == {"n1": "1"}


def test_an_error_of_the_server_does_not_mean_that_the_kind_is_missing(
    watch: KindWatch[Item], api: Api, server: Server, reported: Recorded
) -> None:
    api.trouble = True
    watch.check()
    assert not watch.synced
    assert "noderesourcetopologies: " in (watch.problem or "")
    api.trouble, api.versions = False, ["v1alpha2"]
    server.put("n1", "1")
    watch.check()
    eventually("the watch reports it", lambda: reported.known == {"n1": "1"})
    api.trouble = True
    server.break_watches()
    eventually("the failure is reported", lambda: watch.problem)
    watch.check()
    assert reported.known == {"n1": "1"}


class PodNames(set[str]):
    """Of the pods that the watch has reported."""

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
def watching(server: Server, pods: PodNames) -> Iterator[Watches]:
    """A cluster of unbound pods; all objects were reported."""
    transport = Transport(FileAccess(server.url))
    it = Watches(
        transport,
        SchedulerCache(),
        stale_seconds=30,
        pods_changed=(pods.follow,),
        pace=PACE,
        check_seconds=0.01,
    )
    server.put("first")
    it.start()
    eventually("synced", lambda: it.synced)
    eventually("watching", lambda: server.watching == 2)
    it.mark_behind()
    yield it
    it.stop()
    transport.close()


def lists(server: Server) -> int:
    """How often a client has asked for all pods."""
    pods = [each for each in server.requests if each.path.endswith("/pods")]
    return sum("sendInitialEvents" in each.query for each in pods)


def soon(seconds: float) -> bool:
    return threading.Event().wait(seconds / 100)


def in_time(seconds: float) -> bool:
    return threading.Event().wait(seconds)


def test_nothing_is_listed_again_if_all_was_reported(
    watching: Watches, server: Server, pods: PodNames
) -> None:
    server.put("second")
    assert watching.behind() is not None
    assert watching.catch_up(in_time)
    assert watching.behind() is None
    assert pods == {"first", "second"}
    assert lists(server) == 1


def test_unreported_changes_are_listed_again(
    watching: Watches, server: Server, pods: PodNames
) -> None:
    server.put("second")
    server.events.clear()
    assert watching.catch_up(soon)
    assert pods == {"first", "second"}
    assert lists(server) == 2


def test_a_watch_of_a_server_restored_from_a_backup_is_listed_again(
    watching: Watches, server: Server, pods: PodNames
) -> None:
    """Its current versions are lower than those that it sent before."""
    server.put("lost")
    eventually("the watch reports it", lambda: pods == {"first", "lost"})
    server.remove("lost")
    server.events.clear()
    server.version = 50
    assert watching.catch_up(soon)
    assert pods == {"first"}


def test_a_broken_watch_is_behind_until_it_has_caught_up(
    watching: Watches, server: Server, pods: PodNames
) -> None:
    assert watching.catch_up(soon)
    server.break_watches()
    eventually("behind", lambda: "the watch of pods" in (watching.behind() or ""))
    server.put("second")
    assert watching.catch_up(in_time)
    assert watching.behind() is None
    assert pods == {"first", "second"}


def test_stalest_watch_is_named_with_its_age(server: Server) -> None:
    now = 0.0
    pace = msgspec.structs.replace(PACE, clock=lambda: now, wait=lambda event, _: event.wait(0.01))
    transport = Transport(FileAccess(server.url))
    it = Watches(transport, SchedulerCache(), stale_seconds=30, pace=pace, check_seconds=0.01)
    it.start()
    eventually("synced", lambda: it.synced and server.watching == 2)
    listed = {"noderesourcetopologies", "devices", "reservations"}
    assert set(it.ages_seconds) == {"pods", "nodes"} | listed
    now = 30.0
    assert it.stale() is None
    server.answer = lambda server, connection, request: fake_api_server.reply(connection, 503, b"")
    now = 31.0
    assert it.stale() == "the watch of pods has been out of touch for 31 s"
    server.break_watches()
    eventually("reason", lambda: "503" in (it.stale() or ""))
    server.answer = None
    server.put("second")
    eventually("in touch", lambda: it.stale() is None)
    it.stop()
    transport.close()


def test_an_interrupted_catch_up_is_not_complete(watching: Watches, server: Server) -> None:
    server.put("second")
    server.events.clear()
    assert not watching.catch_up(lambda seconds: True)


def test_an_error_of_the_server_is_raised(watching: Watches, server: Server) -> None:
    server.answer = lambda server, connection, request: fake_api_server.reply(connection, 503, b"")
    with pytest.raises(ServerError):
        watching.catch_up(soon)


def test_all_watches_are_stopped(watching: Watches) -> None:
    watching.stop()
    names = {each.name for each in threading.enumerate()}
    assert not {each for each in names if each.startswith("watch /") or each == "kinds"}
