"""The watches of the agents of several nodes after an outage of a real API server."""

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
"""The documents state 17 s; the rest is for a busy machine."""

_numbers = itertools.count(1)


class Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}


class Labelled(msgspec.Struct):
    metadata: Metadata


class Agent:
    """The watches of one node's agent. `label_seen_at`: when the new label arrived, by kind."""

    def __init__(self, server: ApiServer, node: str) -> None:
        self._transport = Transport(server.access())
        cluster = Cluster(self._transport, node, spread_seconds=0)
        self.label_seen_at: dict[str, float] = {}
        self.watches: dict[str, ListWatch[Labelled]] = {
            "pods": cluster.watch_pods(node, as_type(Labelled), self._on_change("pods")),
            "nodes": cluster.watch_node(node, as_type(Labelled), self._on_change("nodes")),
        }

    def _on_change(self, kind: str) -> Callable[[Sequence[Change[Labelled]]], None]:
        def changed(changes: Sequence[Change[Labelled]]) -> None:
            if any("new" in each.value.metadata.labels for each in changes):
                self.label_seen_at.setdefault(kind, time.monotonic())

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
        eventually("all watches are synced", lambda: all(each.synced for each in watches))
        with apiserver.outage(seconds):
            eventually(
                "all watches report the failure", lambda: all(each.problem for each in watches)
            )
        back_at = time.monotonic()
        new = {"metadata": {"labels": {"new": "1"}}}
        apiserver.admin.merge(f"/api/v1/namespaces/{node}/pods/p", new)
        apiserver.admin.merge(f"/api/v1/nodes/{node}", new)
        eventually(
            "the watches report it",
            lambda: all(len(each.label_seen_at) == 2 for each in agents),
            BACK_SECONDS,
        )
        assert all(each.problem is None for each in watches)
        assert max(each.age_seconds for each in watches) < BACK_SECONDS
    late = sorted(at - back_at for each in agents for at in each.label_seen_at.values())
    record_property(
        "summary",
        f"watches of agents after an outage of {seconds} s: back after {late[len(late) // 2]:.1f} s"
        f" (median), {late[-1]:.1f} s (last of {len(late)})",
    )
    apiserver.admin.delete(f"/api/v1/nodes/{node}")
