from __future__ import annotations

from agent.allocate.nrt.filter import ZoneFit, filter
from agent.allocate.nrt.node import FAR, zoned_node
from agent.allocate.refusal import Refusal
from agent.model.nrt.resource_topology import Amounts, NodeTopology, Zone
from tests.allocate.nrt.values import CPU, GPU, container, node, pod, topology


def test_zones_are_ordered_by_their_ids() -> None:
    node_ = node({9: {"cpu": 1}, 2: {"cpu": 2, GPU: 1}}, costs={9: {2: 21, 9: 10}, 2: {2: 10}})
    assert node_.zones == (2, 9)
    assert node_.available == {"cpu": {2: 2, 9: 1}, GPU: {2: 1}}
    assert node_.together == {"cpu": 3, GPU: 1}
    assert node_.distances == ((10, FAR), (21, 10))


def test_resources_that_kubernetes_counts_are_on_every_node() -> None:
    found = zoned_node(topology({}), ("example.com/licence",))
    assert {"cpu", "memory", "ephemeral-storage", "pods", "example.com/licence"} == found.resources


def test_an_empty_node_has_all_allocatable_resources() -> None:
    object_ = NodeTopology(
        "node-a", (Zone(0, {"cpu": Amounts(8 * CPU, 6 * CPU, CPU)}),), "single-numa-node"
    )
    for cpus, now, when_empty in (
        (1, ZoneFit, ZoneFit),
        (6, Refusal, ZoneFit),
        (7, Refusal, Refusal),
    ):
        pod_a = pod(container(cpu=cpus * CPU), kube_class="guaranteed")
        assert isinstance(filter(zoned_node(object_, ()), pod_a), now)
        assert isinstance(filter(zoned_node(object_, (), empty=True), pod_a), when_empty)
