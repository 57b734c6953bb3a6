"""The events to the agents of many nodes after an outage of a real API server."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from agent.kube.cluster import Cluster
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Change
from agent.kube.transport import Transport
from tests.integration.apiserver.server import ApiServer
from tests.kube.reading import as_type
from tests.waiting import eventually

AGENTS = 8
BACK_SECONDS = 22.0
"""Seventeen are documented: a step and a half, and two; the rest is for a busy machine."""

_numbers = itertools.count(1)


class Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}


class Labelled(msgspec.Struct):
    metadata: Metadata


class Agent:
    """The watches of one node's agent. `told_at`, by kind: when the new label arrived."""

    def __init__(self, server: ApiServer, node: str) -> None:
        self._transport = Transport(server.access())
        cluster = Cluster(self._transport, node, spread_seconds=0)
        self.told_at: dict[str, float] = {}
        self.watches: dict[str, ListWatch[Labelled]] = {
            "pods": cluster.watch_pods(node, as_type(Labelled), self._noting("pods")),
            "nodes": cluster.watch_node(node, as_type(Labelled), self._noting("nodes")),
        }

    def _noting(self, kind: str) -> Callable[[Sequence[Change[Labelled]]], None]:
        def changed(changes: Sequence[Change[Labelled]]) -> None:
            if any("new" in each.value.metadata.labels for each in changes):
                self.told_at.setdefault(kind, time.monotonic())

        return changed

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        for each in self.watches.values():
            each.start()
        try:
            yield
        finally:
            for each in self.watches.values():
                each.stop()
            self._transport.close()


@pytest.mark.parametrize("seconds", [10, pytest.param(90, marks=pytest.mark.long)])
@pytest.mark.timeout(300)
def test_every_watch_is_restored_soon_after_an_outage(
    apiserver: ApiServer, seconds: float, record_property: Callable[[str, object], None]
) -> None:
    node = f"outage-{next(_numbers)}"
    apiserver.namespace(node)
    apiserver.account(node, "default", [])
    apiserver.node(node)
    apiserver.pod(node, "p", node)
    agents = [Agent(apiserver, node) for _ in range(AGENTS)]
    watches = [each for agent in agents for each in agent.watches.values()]
    with contextlib.ExitStack() as running:
        for each in agents:
            running.enter_context(each.running())
        eventually("synced", lambda: all(each.synced for each in watches))
        with apiserver.outage(seconds):
            eventually("noticed", lambda: all(each.problem for each in watches))
        back_at = time.monotonic()
        new = {"metadata": {"labels": {"new": "1"}}}
        apiserver.admin.merge(f"/api/v1/namespaces/{node}/pods/p", new)
        apiserver.admin.merge(f"/api/v1/nodes/{node}", new)
        eventually(
            "the watches report it",
            lambda: all(len(each.told_at) == 2 for each in agents),
            BACK_SECONDS,
        )
        assert all(each.problem is None for each in watches)
        assert max(each.age_seconds for each in watches) < BACK_SECONDS
    late = sorted(at - back_at for each in agents for at in each.told_at.values())
    record_property(
        "summary",
        f"watches of agents after an outage of {seconds} s: back after {late[len(late) // 2]:.1f} s"
        f" (median), {late[-1]:.1f} s (last of {len(late)})",
    )
    apiserver.admin.delete(f"/api/v1/nodes/{node}")
