"""Builders of values for many tests."""

from __future__ import annotations

import json
from typing import Literal

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Cpu, NumaNode, Topology
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC, RESOURCE_STATUS
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QOS_LABEL, KubeClass


def machine(
    nodes: int = 1, cpus_per_node: int = 4, isolated: str = "", offline: str = ""
) -> Topology:
    """A topology with one NUMA node per socket and without SMT; CPUs are numbered node by node."""
    out = CpuSet.parse(offline)
    cpus = [
        Cpu(
            id=cpu,
            core=cpu,
            l3=None,
            die=None,
            socket=cpu // cpus_per_node,
            node=cpu // cpus_per_node,
        )
        for cpu in range(nodes * cpus_per_node)
        if cpu not in out
    ]
    numa_nodes = [
        NumaNode(node, CpuSet(cpu.id for cpu in cpus if cpu.node == node), 1 << 30)
        for node in range(nodes)
    ]
    return Topology(tuple(cpus), tuple(numa_nodes), out, CpuSet.parse(isolated), False)


def pod(
    name: str,
    qos: str = "",
    cpuset: str = "",
    *,
    kube_class: KubeClass | Literal[""] | None = "",
    created_at: int = 0,
    status: str | None = None,
    numa_nodes: tuple[int, ...] = (),
    containers: tuple[Container, ...] = (),
    cpu_milli: int | None = None,
) -> Pod:
    """A pod whose uid is its name; `status` is the raw resource-status, `cpu_milli` the batch-cpu
    that its container requests. Without a `kube_class` a BE pod is BestEffort, any other
    Burstable."""
    body: dict[str, object] = {"cpuset": cpuset} if cpuset else {}
    if numa_nodes:
        body["numaNodeResources"] = [{"node": n, "resources": {"cpu": "2"}} for n in numa_nodes]
    text = status if status is not None else json.dumps(body) if body else None
    notes = {} if text is None else {RESOURCE_STATUS: text}
    if cpu_milli is not None:
        amounts = {"requests": {"kubernetes.io/batch-cpu": str(cpu_milli)}}
        notes[EXTENDED_RESOURCE_SPEC] = json.dumps({"containers": {"main": amounts}})
    return Pod(
        uid=name,
        namespace="ns",
        name=name,
        labels={QOS_LABEL: qos} if qos else {},
        annotations=notes,
        kube_class=("besteffort" if qos == "BE" else "burstable")
        if kube_class == ""
        else kube_class,
        created_at=created_at,
        containers=containers,
    )


def running(container_id: str, group: str | None = None) -> Container:
    """A running container named main."""
    return Container(container_id, "main", ContainerState.RUNNING, group)
