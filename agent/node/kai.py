"""The annotation in which KAI's NUMA plugin reads on which NUMA nodes a pod has its resources.

KAI predicts what a kubelet will choose, and takes what this annotation says instead. Its format is
that of KAI's own numa-placement-exporter (KAI-Scheduler, docs/developer/designs/
numa-placement-agent): a list of zones of the NodeResourceTopology with amounts. It has what the
node's report counts for the pod: its own CPUs, and what the kubelet gave it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from agent.allocate.present import in_api
from agent.host.daemon import Periodic
from agent.host.log_once import Problem
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import ConflictError, KubeError, NotFoundError
from agent.model.cpu.topology import Topology
from agent.model.pod.annotations import NUMA_PLACEMENT_OBSERVED
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.node.node_resource_topology import Allocated

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 60.0
"""A value that another client has changed is written again after this time at the earliest."""
_SETTLE_SECONDS: Final = 1.0
_MOST_PATCHES: Final = 50
"""In one step: the agents of many nodes may start together."""


def placement(held: Allocated, topology: Topology) -> str:
    """The value for a pod that holds these resources, "" if it holds none."""
    node_of = {cpu.id: cpu.node for cpu in topology.cpus}
    zones: dict[int, dict[str, int]] = {}
    for cpu in held.cpus:
        if cpu in node_of:
            amounts = zones.setdefault(node_of[cpu], {})
            amounts["cpu"] = amounts.get("cpu", 0) + 1
    for node, of_node in held.amounts.items():
        zones.setdefault(node, {}).update(
            (resource, amount) for resource, amount in of_node.items() if resource != "cpu"
        )
    listed = [
        {"zone": f"node-{node}", "amount": {name: str(each) for name, each in sorted(of.items())}}
        for node, of in sorted(zones.items())
        if of
    ]
    return msgspec.json.encode(listed).decode() if listed else ""


class KaiPlacements:
    """Writes the annotation to the pods of the node, on a thread.

    `clock`: monotonic."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted: dict[str, tuple[ApiPod, str]] = {}
        """By the API's uid, the pods whose annotation differs."""
        self._written: dict[str, tuple[str, float]] = {}
        """By the API's uid, the last written value, and when it was written."""
        self._problem = Problem(log, f"the annotation {NUMA_PLACEMENT_OBSERVED} is not written: ")
        self._thread = Periodic("kai", PERIOD_SECONDS, self.step, _SETTLE_SECONDS)

    def start(self) -> None:
        self._thread.start()

    def close(self, wait_seconds: float | None = None) -> None:
        self._thread.stop(wait_seconds)

    def update(
        self,
        pods: Collection[Pod],
        api_pods: Collection[ApiPod],
        held: Mapping[str, Allocated],
        topology: Topology,
    ) -> None:
        """Keeps what has to be written.

        `held`: by the runtime's uid, what each pod holds."""
        wanted = {}
        for uid, api_pod in in_api(pods, api_pods).items():
            value = placement(held.get(uid, Allocated()), topology)
            if value and api_pod.annotations.get(NUMA_PLACEMENT_OBSERVED) != value:
                wanted[api_pod.uid] = api_pod, value
        with self._lock:
            is_new = bool(wanted) and wanted != self._wanted
            self._wanted = wanted
            present = {each.uid for each in api_pods}
            self._written = {uid: last for uid, last in self._written.items() if uid in present}
        if is_new:
            self._thread.hurry()

    def step(self) -> None:
        """Writes what differs. Never raises."""
        with self._lock:
            since = self._clock() - PERIOD_SECONDS
            due = [
                (pod, value)
                for uid, (pod, value) in sorted(self._wanted.items())
                if self._written.get(uid) is None
                or self._written[uid][0] != value
                or self._written[uid][1] <= since
            ]
        for pod, value in due[:_MOST_PATCHES]:
            try:
                self._cluster.annotate_pod(
                    pod.namespace, pod.name, pod.uid, {NUMA_PLACEMENT_OBSERVED: value}
                )
            except (NotFoundError, ConflictError):
                continue  # The pod is gone, or another one has its name.
            except (KubeError, AccessError) as error:
                self._problem.report(str(error))
                return
            with self._lock:
                self._written[pod.uid] = value, self._clock()
        self._problem.clear()
        if len(due) > _MOST_PATCHES:
            self._thread.hurry()
