"""The watch of a kind that comes and goes."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from agent.kube import objects as kinds
from agent.kube.kind_watch import KindWatch
from agent.kube.objects import Change, ChangeKind, Discovery
from agent.kube.schedule import WatchPace
from agent.kube.transport import Transport
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Request, Server
from tests.kube.reading import as_type
from tests.waiting import eventually

# Short pauses between requests.
PACE = WatchPace(wait=lambda stopped, seconds: stopped.wait(0.01), random=random.Random(3).random)


class Item(msgspec.Struct):
    value: str = ""


class Api:
    """Serves topologies in `versions`, and answers requests for other versions with 404.
    `discovery_requests` counts the requests for the resources of a version."""

    def __init__(self, server: Server) -> None:
        self.versions: list[str] = []
        self.unavailable = False
        self.discovery_requests = 0
        server.answer = self._answer

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if self.unavailable:
            return fake_api_server.reply(connection, 503, b"")
        for version in self.versions:
            base = f"/apis/topology.node.k8s.io/{version}"
            if request.path == base:
                self.discovery_requests += 1
                names = [{"name": "noderesourcetopologies"}]
                return fake_api_server.reply(connection, 200, {"resources": names})
            if request.path == f"{base}/noderesourcetopologies":
                return fake_api_server.standard_answer(server, connection, request)
        self.discovery_requests += 1
        return fake_api_server.reply(connection, 404, fake_api_server.status(404, "NotFound"))


class Recorder:
    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.kinds: list[ChangeKind] = []

    def __call__(self, changes: Sequence[Change[Item]]) -> None:
        for change in changes:
            self.kinds.append(change.kind)
            if change.kind is ChangeKind.DELETED:
                del self.known[change.key.name]
            else:
                self.known[change.key.name] = change.value.value


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


@pytest.fixture
def reported() -> Recorder:
    return Recorder()


@pytest.fixture
def watch(transport: Transport, api: Api, reported: Recorder) -> Iterator[KindWatch[Item]]:
    kind_watch = KindWatch(
        transport, Discovery(transport), kinds.TOPOLOGY, as_type(Item), reported, PACE
    )
    yield kind_watch
    kind_watch.stop()


def test_a_missing_kind_does_not_delay_the_sync(watch: KindWatch[Item], reported: Recorder) -> None:
    assert not watch.synced
    watch.check()
    assert (watch.synced, watch.problem, reported.known) == (True, None, {})


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_a_kind_that_is_added_later_is_watched(
    watch: KindWatch[Item], api: Api, server: Server, reported: Recorder, version: str
) -> None:
    watch.check()
    server.put("n1", "1")
    api.versions = [version]
    watch.check()
    eventually("the watch reports it", lambda: reported.known == {"n1": "1"})
    server.put("n1", "2")
    eventually("the watch reports it", lambda: reported.known == {"n1": "2"})
    assert watch.synced


def test_the_version_is_not_read_again_while_the_watch_works(
    watch: KindWatch[Item], api: Api
) -> None:
    api.versions = ["v1alpha2"]
    watch.check()
    eventually("synced", lambda: watch.synced)
    reads = api.discovery_requests
    watch.check()
    assert api.discovery_requests == reads


def test_all_objects_of_a_removed_kind_are_removed(
    watch: KindWatch[Item], api: Api, server: Server, reported: Recorder
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
    watch: KindWatch[Item], api: Api, server: Server, reported: Recorder
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
    watch: KindWatch[Item], api: Api, server: Server, reported: Recorder
) -> None:
    api.unavailable = True
    watch.check()
    assert not watch.synced
    assert "noderesourcetopologies: " in (watch.problem or "")
    api.unavailable, api.versions = False, ["v1alpha2"]
    server.put("n1", "1")
    watch.check()
    eventually("the watch reports it", lambda: reported.known == {"n1": "1"})
    api.unavailable = True
    server.break_watches()
    eventually("the failure is reported", lambda: watch.problem)
    watch.check()
    assert reported.known == {"n1": "1"}
