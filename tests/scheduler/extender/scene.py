"""The extender's handlers with a small cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.apiobjects import ApiPod
from agent.scheduler.extender.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderFilterResult,
)
from agent.scheduler.state.binder import Binder, ReservationExpiry
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfoCache
from agent.scheduler.state.pods_api import BindingApi
from tests.fixtures.fleet import CARDS, SMALL, Kind
from tests.kube import fake_api_server
from tests.scheduler import clusters
from tests.scheduler.podserver import PodServer

NODES = ["a", "b", "c"]


class Scene:
    """The handlers with the small nodes a and b, and node c, which has cards."""

    def __init__(
        self, server: fake_api_server.Server, *, best_only: bool = True, placing: bool = False
    ) -> None:
        self.server = server
        self.pods = PodServer(server)
        self.cluster: SchedulerCache = clusters.cluster({"a": SMALL, "b": SMALL, "c": CARDS})
        self.now = 0.0
        self.transport = Transport(FileAccess(server.url))
        groups = GroupReservations(self.cluster, clock=lambda: self.now)
        pod_infos = PodInfoCache(device_resources=self.cluster.device_resources)
        bindings = BindingApi(self.transport)
        self.expiry = ReservationExpiry(self.cluster, groups, bindings)
        binder = Binder(self.cluster, groups, bindings, pod_infos)
        self.handlers = clusters.handlers(
            self.cluster, groups, binder.bind, pod_infos, best_only=best_only, placing=placing
        )

    def pod(self, kind: Kind, name: str, **annotations: str) -> ApiPod:
        """A pod that also exists on the API server."""
        body = kind.pod(name)
        body["metadata"]["annotations"] |= annotations
        self.pods.pods["default", name] = body
        return clusters.api_pod(body)

    def filter(self, pod: ApiPod, nodes: Sequence[str] = NODES) -> ExtenderFilterResult:
        return self.handlers.filter(ExtenderArgs(pod, nodes))

    def fits(self, pod: ApiPod, nodes: Sequence[str] = NODES) -> list[str]:
        names = self.filter(pod, nodes).node_names
        return list(names)

    def scores(self, pod: ApiPod, nodes: Sequence[str] = NODES) -> dict[str, int]:
        entries = json.loads(bytes(self.handlers.prioritize(ExtenderArgs(pod, nodes))))
        return {each["Host"]: each["Score"] for each in entries}

    def cards(self, name: str) -> list[int]:
        """The minors of the cards in the pod's annotation."""
        notes = self.pods.pods["default", name]["metadata"]["annotations"]
        return [each["minor"] for each in json.loads(notes[DEVICE_ALLOCATED])["gpu"]]

    def bind(self, pod: ApiPod, node: str) -> str:
        args = ExtenderBindingArgs(pod.name, pod.namespace, pod.uid, node)
        return self.handlers.bind(args).error
