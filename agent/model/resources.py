"""Annotations and labels that describe a node's CPUs: Koordinator's (apis/extension/numa_aware.go,
pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go) and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agent.model import bounds
from agent.model.annotations import cpu_list, decoded
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node_annotations import RESERVATION, SYSTEM_QOS, NodeReservation, SystemQos
from agent.model.snapshot import Pool
from agent.model.topology import Cpu, Topology

Object = dict[str, Any]

CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
CPU_SHARED_POOLS = "node.koordinator.sh/cpu-shared-pools"
BE_CPU_SHARED_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_PREFIX = "topology.topolet.io/"


class PodCpuAlloc(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One entry of the pod-cpu-allocs annotation."""

    namespace: str
    name: str
    uid: str
    cpuset: str
    managed_by_kubelet: bool = False


def shared_pools(annotations: Mapping[str, str], key: str) -> tuple[Pool, ...]:
    """The pools in one of the two annotations, none when it is absent. Raises AnnotationError."""
    pools = decoded(annotations, key, _pools, bounds.OBJECT_VALUE_BYTES) or ()
    for pool in pools:
        cpu_list(key, "cpuset", pool.cpuset)
    return pools


class NodeConfiguration(msgspec.Struct, frozen=True):
    """The configuration of the node: the kubelet's policies for CPUs and NUMA nodes with the CPUs
    that it reserves, the Node's annotations, and the agent's settings for reserved CPUs.
    `kubelet_memory`: the kubelet binds the memory of Guaranteed pods, and keeps
    `reserved_memory_bytes` of each NUMA node from pods; `max_numa_nodes`: the limit of its topology
    manager, None for its default."""

    kubelet_policy: str = "none"
    kubelet_options: dict[str, str] = {}
    kubelet_reserved: CpuSet = EMPTY
    topology_policy: str = "none"
    topology_scope: str = "container"
    system_qos: SystemQos = SystemQos()
    reservation: NodeReservation = NodeReservation()
    cpu_normalization_ratio: float = 1.0
    bind_memory: bool = False
    kubelet_memory: bool = False
    reserved_memory_bytes: dict[int, int] = {}
    max_numa_nodes: int | None = None
    owners_on_reserved: bool = False
    be_on_reserved: bool = False


def koordinator_annotations(
    topology: Topology,
    ls_pools: tuple[Pool, ...],
    be_pools: tuple[Pool, ...],
    allocs: tuple[PodCpuAlloc, ...],
    configured: NodeConfiguration,
) -> dict[str, str]:
    """Koordinator's, of a NodeResourceTopology."""
    set_aside = {SYSTEM_QOS: configured.system_qos, RESERVATION: configured.reservation}
    return {
        CPU_TOPOLOGY: _json({"detail": [_cpu(each) for each in topology.cpus]}),
        CPU_SHARED_POOLS: _json(ls_pools),
        BE_CPU_SHARED_POOLS: _json(be_pools),
        POD_CPU_ALLOCS: _json(allocs),
        CPU_MANAGER_POLICY: _json(_cpu_manager(configured)),
        **{key: text for key, value in set_aside.items() if (text := _json(value)) != "{}"},
    }


def node_labels(topology: Topology) -> dict[str, str]:
    """Labels of the Node that describe its machine."""
    kinds = sorted({cpu.kind for cpu in topology.cpus if cpu.kind is not None})
    facts = {
        "cpus": str(len(topology.cpus)),
        "cores": str(len({cpu.core for cpu in topology.cpus})),
        "sockets": str(len({cpu.socket for cpu in topology.cpus})),
        "numa-nodes": str(len(topology.numa_nodes)),
        "l3-caches": str(len({cpu.l3 for cpu in topology.cpus if cpu.l3 is not None})),
        "smt": "true" if topology.smt else "false",
        **({"core-kinds": "_".join(kinds)} if kinds else {}),
    }
    return {f"{LABEL_PREFIX}{key}": value for key, value in facts.items()}


def node(name: str, labels: dict[str, str]) -> Object:
    """The Node, as far as we write it, but for its status."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


_pools: Final = msgspec.json.Decoder(tuple[Pool, ...] | None)


def _cpu_manager(configured: NodeConfiguration) -> Object:
    options, reserved = configured.kubelet_options, configured.kubelet_reserved
    return {
        "policy": configured.kubelet_policy,
        **({"options": dict(sorted(options.items()))} if options else {}),
        **({"reservedCPUs": str(reserved)} if reserved else {}),
    }


def _cpu(cpu: Cpu) -> dict[str, int]:
    return {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
