"""The extender of a small cluster."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.kube.transport import Transport
from agent.model.pod.apiobjects import ApiPod
from agent.scheduler.extender.extender import ExtenderFilterResult
from agent.scheduler.state.pods_api import BindingApi
from tests.fixtures.fleet import CARDS, SMALL, Kind
from tests.kube.fake_api_server import Server
from tests.scheduler import clusters
from tests.scheduler.podserver import PodServer

NODES = ["a", "b", "c"]


class Scene(clusters.Extender):
    """The extender of the small nodes a and b, and of node c, which has cards."""

    def __init__(self, server: Server, transport: Transport, **options: bool) -> None:
        self.pods = PodServer(server)
        self.now = 0.0
        super().__init__(
            clusters.cluster({"a": SMALL, "b": SMALL, "c": CARDS}),
            BindingApi(transport),
            clock=lambda: self.now,
            **options,  # type: ignore[arg-type]
        )

    def pod(self, kind: Kind, name: str, **annotations: str) -> ApiPod:
        """A pod that also exists on the API server."""
        body = kind.pod(name)
        body["metadata"]["annotations"] |= annotations
        self.pods.pods["default", name] = body
        return clusters.api_pod(body)

    def filter(self, pod: ApiPod, nodes: Sequence[str] = NODES) -> ExtenderFilterResult:
        return super().filter(pod, nodes)

    def fits(self, pod: ApiPod, nodes: Sequence[str] = NODES) -> list[str]:
        return super().fits(pod, nodes)

    def scores(self, pod: ApiPod, nodes: Sequence[str] = NODES) -> dict[str, int]:
        return super().scores(pod, nodes)


@pytest.fixture
def scene(server: Server, transport: Transport) -> Scene:
    """For the folder's conftest."""
    return Scene(server, transport)
