"""The extender's handlers choose the same nodes as the simulation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.kube.errors import NotFoundError
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.kube.transport import Transport
from agent.model.cpu.policies import PlacementPolicy
from agent.model.devices import device_object
from agent.model.devices.device_object import GPU_CORE, GPU_MEMORY_RATIO, Device, DeviceType
from agent.model.nrt.node_status import GPU_MODEL
from agent.model.pod import apiobjects
from agent.model.pod_request import GPU_MILLI, PodKind, request_of
from agent.scheduler import simulation
from agent.scheduler.simulation import TraceNode, arrivals, shuffled
from agent.scheduler.state import records
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pods_seen import PlacementUpdates, PodsSeen
from agent.scheduler.state.records import AgentSelector
from tests.scheduler import clusters
from tests.scheduler.openb import sample

SEED = 42
_read = records.pods(AgentSelector(), kinds=True)


class WithoutConfigMap:
    """An API server without a ConfigMap."""

    def get(self, path: str) -> bytes:
        raise NotFoundError("not found")

    def apply(self, path: str, wanted: object) -> None:
        pass


class Scene:
    def __init__(self, nodes: Sequence[TraceNode], policy: PlacementPolicy) -> None:
        self.cluster = SchedulerCache(agents=False)
        self.names = [f"n{number:05d}" for number in range(len(nodes))]
        for name, node in zip(self.names, nodes, strict=True):
            self._add(name, node)
        self.seen = PodsSeen()
        self.updates = PlacementUpdates(
            cast("Transport", WithoutConfigMap()),
            "topolet-system",
            self.cluster,
            self.seen,
            AllocatorRules(),
            policy,
            lambda: True,
            lambda: True,
        )
        self.extender = clusters.Extender(self.cluster, clusters.AcceptedBindings(), placing=True)

    def _add(self, name: str, node: TraceNode) -> None:
        key = ObjectKey("", name)
        amounts = {"cpu": f"{node.cpu_milli}m", "memory": str(node.memory_bytes)}
        labels = {"name": name, "uid": name, "labels": {GPU_MODEL: node.model}}
        body = {"metadata": labels, "status": {"allocatable": amounts}}
        record = records.node(json.dumps(body).encode())
        self.cluster.nodes_changed([Change(ChangeKind.ADDED, key, record)])
        whole = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}
        gpus = [Device(DeviceType.GPU, f"{name}-{at}", at, whole) for at in range(node.gpus)]
        if gpus:
            devices = records.devices(json.dumps(device_object.encode(name, gpus)).encode())
            self.cluster.devices_changed([Change(ChangeKind.ADDED, key, devices)])

    def place(self, name: str, kind: PodKind) -> str | None:
        """Schedules a pod as kube-scheduler does: the filter gets only nodes with enough resources
        in sum, and the node with the highest score is chosen."""
        body = pod(name, kind)
        text = json.dumps(body).encode()
        key = ObjectKey("default", name)
        self.seen.pods_changed([Change(ChangeKind.ADDED, key, _read(text))])
        self.updates.step()
        api_pod = apiobjects.from_object(body)
        nodes = [each for each in self.names if self._allocator(each).free.fits(kind)]
        fitting = self.extender.fits(api_pod, nodes) if nodes else []
        if len(fitting) > 1:
            scores = self.extender.scores(api_pod, fitting)
            fitting = [max(scores, key=scores.__getitem__)]
        for node in fitting:
            node_offer = self._allocator(node).offer(request_of(api_pod))
            assert isinstance(node_offer, NodeOffer)
            self.cluster.reserve(node, node_offer)
            return node
        return None

    def _allocator(self, node: str) -> Any:
        info = self.cluster.node(node)
        assert info is not None
        return info.allocator


def pod(name: str, kind: PodKind) -> dict[str, Any]:
    amounts = {"cpu": f"{kind.cpu_milli}m", "memory": str(kind.memory_bytes)}
    if kind.gpus:
        percent = str(kind.gpus * kind.gpu_milli * 100 // GPU_MILLI)
        amounts |= {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}
    containers = [{"name": "main", "resources": {"requests": amounts}}]
    metadata = {"name": name, "namespace": "default", "uid": name}
    return {"metadata": metadata, "spec": {"containers": containers}}


@pytest.mark.parametrize("policy", [PlacementPolicy.RESIDUAL, PlacementPolicy.BIN_PACK])
def test_the_extender_allocates_as_the_simulation(policy: PlacementPolicy) -> None:
    nodes, pods = sample()
    scene = Scene(shuffled(nodes, SEED), policy)
    gpus = sum(each.gpus for each in nodes)
    allocated_milli = 0
    for number, kind in enumerate(arrivals(pods, gpus, 1.3, SEED)):
        if scene.place(f"p{number}", kind) is not None:
            allocated_milli += kind.gpus * kind.gpu_milli
    simulated = simulation.run(nodes, pods, policy, 1.3, SEED)
    assert allocated_milli / GPU_MILLI / gpus * 100 == pytest.approx(simulated.curve[-1].allocated)
