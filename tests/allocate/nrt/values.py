"""Builders of nodes with NUMA nodes, and of pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.allocate.nrt.node import ZonedNode, zoned_node
from agent.model.nrt.resource_topology import Amounts, NodeTopology, Zone
from agent.model.pod.apiobjects import ApiContainer, ApiPod, Phase
from agent.model.pod.numa_request import NumaRequest, numa_request_of
from agent.model.pod.qos import KubeClass

GPU = "nvidia.com/gpu"
NIC = "vendor.com/nic"
CPU = 1000


def topology(
    zones: Mapping[int, Mapping[str, int]],
    policy: str = "single-numa-node",
    scope: str = "container",
    costs: Mapping[int, Mapping[int, int]] | None = None,
    **more: Any,
) -> NodeTopology:
    return NodeTopology(
        "node-a",
        tuple(
            Zone(
                node,
                {name: Amounts(amount, amount, amount) for name, amount in amounts.items()},
                dict((costs or {}).get(node, {})),
            )
            for node, amounts in zones.items()
        ),
        policy,
        scope,
        **more,
    )


def node(zones: Mapping[int, Mapping[str, int]], *args: Any, **more: Any) -> ZonedNode:
    return zoned_node(topology(zones, *args, **more), (GPU, NIC))


def container(name: str = "main", limited: bool = True, **requests: int) -> ApiContainer:
    """`gpu` and `nic` are short names of their resources."""
    names = {"gpu": GPU, "nic": NIC}
    amounts = {names.get(key, key): amount for key, amount in requests.items()}
    return ApiContainer(name, amounts, amounts if limited else {})


def sidecar(name: str = "side", **requests: int) -> ApiContainer:
    plain = container(name, **requests)
    return ApiContainer(name, plain.requests, plain.limits, sidecar=True)


def api_pod(
    *containers: ApiContainer,
    init: tuple[ApiContainer, ...] = (),
    kube_class: KubeClass | None = None,
    **more: Any,
) -> ApiPod:
    return ApiPod(
        "uid",
        "default",
        "pod-a",
        "",
        Phase.PENDING,
        {},
        {},
        kube_class,
        0,
        containers=containers,
        init_containers=init,
        **more,
    )


def pod(*containers: ApiContainer, init: tuple[ApiContainer, ...] = (), **more: Any) -> NumaRequest:
    return numa_request_of(api_pod(*containers, init=init, **more))
