"""The objects that tell the cluster about this node, applied when they differ."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from agent.allocate.aside import KubeletCpus, kubelet_owned
from agent.allocate.pools import Decision
from agent.model import resources
from agent.model.pods import Pod
from agent.model.resources import NodeConfiguration, PodCpuAlloc
from agent.model.topology import Topology


class Store(Protocol):
    """Where objects go: the embedded store, or an API server."""

    def apply(self, wanted: dict[str, Any]) -> bool:
        """Makes the object so; False when it was so already."""
        ...


class Reporter:
    """Builds again only when what the objects are made of has changed."""

    def __init__(self, store: Store, node_name: str) -> None:
        self._store = store
        self._name = node_name
        self._reported: object = None

    def report(
        self,
        topology: Topology,
        decision: Decision,
        pods: tuple[Pod, ...],
        kubelet: KubeletCpus,
        configured: NodeConfiguration,
    ) -> bool:
        """Whether anything was written; raises what the store raises. The kubelet's state tells
        which policy is at work."""
        allocs = _allocs(pods, kubelet)
        policy = "static" if kubelet.static else "none"
        configured = msgspec.structs.replace(configured, kubelet_policy=policy)
        source = topology, decision.ls_pools, decision.be_pools, decision.owners, allocs, configured
        if source == self._reported:
            return False
        body = resources.node_resource_topology(self._name, *source)
        written = [
            self._store.apply(each) for each in (body, resources.node_labels(self._name, topology))
        ]
        self._reported = source
        return any(written)


def _allocs(pods: tuple[Pod, ...], kubelet: KubeletCpus) -> tuple[PodCpuAlloc, ...]:
    """Koordinator lists what the kubelet gave away here; our owners it knows by annotation."""
    by_uid = {pod.uid: pod for pod in pods}
    return tuple(
        PodCpuAlloc(
            by_uid[uid].namespace if uid in by_uid else "",
            by_uid[uid].name if uid in by_uid else "",
            uid,
            str(cpus),
            managed_by_kubelet=True,
        )
        for uid, cpus in sorted(kubelet_owned(pods, kubelet).items())
    )
