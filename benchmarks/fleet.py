"""A made-up cluster as an API server tells of it: nodes of a few models, each with the objects that
its agent would report, and pods of many shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agent.conformance import machines
from agent.model import deviceobject, interconnect, nodetopology, partitions
from agent.model.availability import Reserved
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.devices import Device, DeviceTopology
from agent.model.gpus import GpuPair
from agent.model.nodestatus import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA, GpuFacts
from agent.model.report import DeviceReport, Facts, Report, built
from agent.model.resources import NodeConfiguration
from agent.model.topology import NumaNode, Topology

Object = dict[str, Any]

QOS: Final = "koordinator.sh/qosClass"
RESOURCE_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
NUMA_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"
NAMESPACE: Final = "default"


class Model(msgspec.Struct, frozen=True):
    """`shape`: sockets, NUMA nodes a socket, cores a NUMA node, threads a core. `policy`: the
    kubelet's for its topology. A switch has `switch_gpus` cards and one RDMA device. `pairs`: what
    links the cards, `GPU-0` and so on."""

    name: str
    shape: tuple[int, int, int, int]
    memory_bytes: int = 256 << 30
    gpus: int = 0
    policy: str = "none"
    switch_gpus: int = 4
    product: str = "NVIDIA H100 80GB HBM3"
    pairs: tuple[GpuPair, ...] = ()

    @property
    def nodes(self) -> int:
        return self.shape[0] * self.shape[1]


SMALL: Final = Model("small", (2, 1, 8, 2))
WIDE: Final = Model("wide", (2, 1, 24, 2), 512 << 30)
EIGHT: Final = Model("eight", (2, 4, 8, 2), 512 << 30, policy="restricted")
SINGLE: Final = Model("single", (2, 1, 24, 2), 512 << 30, policy="single-numa-node")
CARDS: Final = Model("cards", (2, 1, 24, 2), 1024 << 30, gpus=8)
MODELS: Final = (SMALL, WIDE, EIGHT, SINGLE, CARDS)


class Machine:
    """The objects of all nodes of one model, which differ in their names."""

    def __init__(self, model: Model, labels: Mapping[str, str] | None = None) -> None:
        """`labels`: of each Node beside its agent's."""
        self.model = model
        self._labels = dict(labels or {})
        self._report = _report(model)

    def node(self, name: str) -> Object:
        report = self._report
        allocatable = {
            "cpu": str(len(_cpus(self.model))),
            "memory": str(self.model.memory_bytes),
            "pods": "256",
            **{resource: str(amount) for resource, amount in report.resources.items()},
        }
        return {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": {"kubernetes.io/hostname": name, **report.labels, **self._labels},
            },
            "status": {"allocatable": allocatable, "capacity": allocatable},
        }

    def topology(self, name: str) -> Object:
        told = msgspec.structs.replace(self._report.topology, name=name)
        return nodetopology.encode(told, nodetopology.Version.V1ALPHA2)

    def devices(self, name: str) -> Object:
        devices = [
            msgspec.structs.replace(each, uuid=f"{name}-{each.uuid}")
            for each in self._report.devices.devices
        ]
        return deviceobject.encode(name, devices, annotations=self._report.devices.annotations)


def agent(node: str) -> Object:
    """The agent's pod on a node."""
    labels = {"app.kubernetes.io/name": "topolet", "app.kubernetes.io/component": "agent"}
    body = pod(f"agent-{node}", node=node, labels=labels)
    ready = {"type": "Ready", "status": "True"}
    return body | {"status": {"phase": "Running", "conditions": [ready]}}


def pod(
    name: str,
    requests: Mapping[str, str] | None = None,
    *,
    node: str = "",
    uid: str = "",
    limits: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
    **spec: Any,
) -> Object:
    """One container, Guaranteed where `limits` say so; `spec`: further fields."""
    wanted, most = dict(requests or {}), dict(limits or {})
    guaranteed = bool(wanted) and wanted == most
    quality = "Guaranteed" if guaranteed else "Burstable" if wanted or most else "BestEffort"
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-10-01T10:00:00Z",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "nodeName": node,
            "schedulerName": "topolet",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/main:1",
                    "resources": {"requests": wanted, "limits": most},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            **spec,
        },
        "status": {"phase": "Running" if node else "Pending", "qosClass": quality},
    }


class Kind(msgspec.Struct, frozen=True):
    """A shape of pods."""

    requests: dict[str, str]
    limits: dict[str, str] = {}
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    spec: dict[str, Any] = {}

    def pod(self, name: str, *, uid: str = "", node: str = "") -> Object:
        return pod(
            name,
            self.requests,
            uid=uid,
            node=node,
            limits=self.limits,
            labels=self.labels,
            annotations=self.annotations,
            **self.spec,
        )


def owner(cpus: int, memory_gib: int, policy: str = "", qos: str = "LSR") -> Kind:
    """A pod with CPUs of its own."""
    amounts = {"cpu": str(cpus), "memory": f"{memory_gib}Gi"}
    notes = {RESOURCE_SPEC: f'{{"requiredCPUBindPolicy":"{policy}"}}'} if policy else {}
    return Kind(amounts, amounts, {QOS: qos}, notes, {"priority": 9500})


def sharer(cpu: str, memory_gib: int, policy: str = "") -> Kind:
    """A pod that shares CPUs; `policy`: that of NUMA nodes."""
    notes = {NUMA_SPEC: f'{{"numaTopologyPolicy":"{policy}"}}'} if policy else {}
    amounts = {"cpu": cpu, "memory": f"{memory_gib}Gi"}
    return Kind(amounts, {}, {QOS: "LS"}, notes)


def carder(gpus: int, cpus: int = 0, rdma: int = 0) -> Kind:
    """A pod with whole cards, and CPUs of its own where `cpus` says so."""
    amounts = {"cpu": str(cpus or 4), "memory": "32Gi", GPU: str(100 * gpus)}
    if rdma:
        amounts[RDMA] = str(rdma)
    labels = {QOS: "LSR"} if cpus else {}
    return Kind(amounts, amounts, labels, {}, {"priority": 9500} if cpus else {})


def part(percent: int) -> Kind:
    """A pod with a part of a card."""
    amounts = {"cpu": "2", "memory": "8Gi", GPU_CORE: str(percent), GPU_MEMORY_RATIO: str(percent)}
    return Kind(amounts, amounts)


def plain(cpu: str, memory: str) -> Kind:
    """A pod of no class of Koordinator's, Guaranteed."""
    amounts = {"cpu": cpu, "memory": memory}
    return Kind(amounts, amounts)


NOTHING: Final = Kind({"cpu": "100m", "memory": "128Mi"})
"""A pod that needs nothing of a scheduler of nodes' insides: Burstable, of no class."""


def kinds() -> tuple[Kind, ...]:
    """Sixty shapes, as mixed as those of a cluster of many users."""
    return (
        *(owner(cpus, 2 * cpus, policy) for cpus in (2, 4, 8, 16) for policy in _BINDING),
        *(owner(cpus, 4 * cpus, "FullPCPUs", "LSE") for cpus in (2, 4, 6, 8, 12, 16)),
        *(sharer(cpu, gib, policy) for cpu, gib in _SHARES for policy in _NUMA),
        *(carder(gpus, cpus) for gpus in (1, 2, 4) for cpus in (0, 8)),
        *(part(percent) for percent in (10, 25, 30, 50)),
        *(plain(cpu, gib) for cpu in ("500m", "2", "4", "6") for gib in ("1Gi", "8Gi")),
    )


_BINDING: Final = ("", "FullPCPUs", "SpreadByPCPUs")
_SHARES: Final = (("500m", 1), ("1500m", 2), ("2", 8), ("3", 4), ("6", 16), ("7500m", 12))
_NUMA: Final = ("", "BestEffort", "Restricted", "SingleNUMANode")


def _cpus(model: Model) -> tuple[Any, ...]:
    return machines.cpus(model.shape, "interleaved", caches=model.nodes)


def _report(model: Model) -> Report:
    cpus = _cpus(model)
    nodes = tuple(
        NumaNode(
            node,
            CpuSet(each.id for each in cpus if each.node == node),
            model.memory_bytes // model.nodes,
            tuple(10 if other == node else 21 for other in range(model.nodes)),
        )
        for node in range(model.nodes)
    )
    topology = Topology(cpus, nodes, EMPTY, EMPTY, smt=model.shape[3] > 1)
    cards = tuple(map(_card(model), range(model.gpus)))
    ports = map(_port(model), range(model.gpus // model.switch_gpus))
    return built(
        Facts(
            "",
            topology,
            (),
            (),
            (),
            (),
            Reserved(),
            NodeConfiguration(topology_policy=model.policy),
            DeviceReport(
                (*cards, *ports),
                GpuFacts("nvidia", model.product) if cards else GpuFacts(),
                {
                    **partitions.encode(
                        partitions.from_links(partitions.links(cards, model.pairs))
                    ),
                    **interconnect.encode(cards, model.pairs),
                },
            ),
        )
    )


def _card(model: Model) -> Any:
    def card(minor: int) -> Device:
        resources = {GPU_CORE: 100, GPU_MEMORY: 80 << 30, GPU_MEMORY_RATIO: 100}
        bus = f"0000:{0x10 + minor:02x}:00.0"
        return Device(
            "gpu",
            f"GPU-{minor}",
            minor,
            resources,
            topology=_seat(model, minor // model.switch_gpus, bus),
        )

    return card


def _port(model: Model) -> Any:
    def port(minor: int) -> Device:
        bus = f"0000:{0x80 + minor:02x}:00.0"
        return Device("rdma", bus, minor, {RDMA: 100}, topology=_seat(model, minor, bus))

    return port


def _seat(model: Model, switch: int, bus: str) -> DeviceTopology:
    node = switch * model.nodes // (model.gpus // model.switch_gpus)
    return DeviceTopology(node // model.shape[1], node, f"switch-{switch}", bus)
