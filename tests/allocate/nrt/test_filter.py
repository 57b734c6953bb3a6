from __future__ import annotations

from typing import Any

import pytest

from agent.allocate.nrt.filter import PASSED, ZoneFit, filter
from agent.allocate.nrt.node import zoned_node
from agent.allocate.refusal import Reason, Refusal
from agent.model.nrt.node_annotations import AGENT_SETTINGS
from agent.model.pod.numa_request import PartKind
from tests.allocate.nrt.values import CPU, GPU, NIC, container, node, pod, sidecar, topology

GIB = 1 << 30
SINGLE = "single-numa-node"
TWO = {0: {"cpu": 4 * CPU, "memory": 8 * GIB}, 1: {"cpu": 8 * CPU, "memory": 8 * GIB}}


def small(cpus: int = 1, memory: int = GIB, **more: int) -> Any:
    return container(cpu=cpus * CPU, memory=memory, **more)


def misfit(found: ZoneFit | Refusal) -> Refusal:
    assert isinstance(found, Refusal)
    return found


@pytest.mark.parametrize("policy", [SINGLE, "restricted"])
@pytest.mark.parametrize("amounts", [{"memory": 20 * GIB}, {"memory": GIB, "hugepages-2Mi": GIB}])
@pytest.mark.parametrize(("manager", "fits"), [("", False), ("Static", False), ("None", True)])
def test_memory_is_compared_unless_the_kubelet_takes_it_from_any_numa_node(
    policy: str, amounts: dict[str, int], manager: str, *, fits: bool
) -> None:
    """Reports of other agents do not name the policy of the kubelet's memory manager."""
    notes = {AGENT_SETTINGS: f'{{"memoryManagerPolicy": "{manager}"}}'}
    zones = {zone: {**there, "hugepages-2Mi": GIB // 4} for zone, there in TWO.items()}
    reported = zoned_node(topology(zones, policy, annotations=notes), zones[0])
    found = filter(reported, pod(container(cpu=CPU, **amounts)))
    assert isinstance(found, ZoneFit) == fits
    assert isinstance(filter(reported, pod(small(9))), Refusal) == (policy == SINGLE)


def test_a_pod_that_requests_only_devices_needs_a_numa_node_of_them() -> None:
    node_ = node({0: {GPU: 1}, 1: {GPU: 2}})
    assert filter(node_, pod(container(gpu=2, limited=False))) == ZoneFit((1,))
    assert misfit(filter(node_, pod(container(gpu=3, limited=False)))).available == 2


def test_containers_share_the_resources_of_the_numa_nodes() -> None:
    assert filter(node(TWO), pod(small(4), small(4), small(4))) == ZoneFit((0, 1, 1))
    last = container("last", cpu=5 * CPU, memory=GIB)
    found = misfit(filter(node(TWO), pod(small(4), small(4), last)))
    assert (found.name, found.resource, found.available) == ("last", "cpu", 4 * CPU)


def test_pod_scope_puts_all_containers_on_one_numa_node() -> None:
    node_ = node(TWO, scope="pod")
    assert filter(node_, pod(small(4), small(4))) == ZoneFit((1,))
    found = misfit(filter(node_, pod(small(4), small(4), small(1))))
    assert (found.kind, found.name) == (PartKind.POD, "")
    assert filter(node_, pod(small(4), small(4), overhead={"cpu": 1})) == Refusal(
        Reason.NO_ZONE_HOLDS, "cpu", 8 * CPU + 1, 8 * CPU, (0, 1), kind=PartKind.POD
    )


def test_a_sidecar_that_fits_nowhere_is_named() -> None:
    found = misfit(filter(node(TWO), pod(small(), init=(sidecar("mesh", cpu=9 * CPU, memory=1),))))
    assert (found.kind, found.name) == (PartKind.SIDECAR, "mesh")


def test_a_pod_that_is_not_guaranteed_needs_a_numa_node_with_the_resource_but_no_amount() -> None:
    node_ = node({0: {"memory": 1}, 1: {"cpu": 0, "memory": 0, NIC: 1}})
    limits = {"cpu": 64 * CPU, "memory": GIB}
    assert filter(node_, pod(container(limited=False, **limits))) == ZoneFit((1,))
    found = misfit(filter(node_, pod(container(limited=False, **limits, nic=2))))
    assert (found.resource, found.available, found.nodes) == (NIC, 1, (1,))


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_the_kubelet_aligns_only_the_devices_of_a_pod_with_pod_level_resources(scope: str) -> None:
    """As in kubelet 1.36.3 without the feature gate PodLevelResourceManagers."""
    node_ = node({0: {**TWO[0], NIC: 1}, 1: TWO[1]}, scope=scope)
    whole = {"cpu": 99 * CPU, "memory": 99 * GIB}
    assert isinstance(filter(node_, pod(container(**whole))), Refusal)
    found = pod(container(**whole), requests=whole, limits=whole)
    assert filter(node_, found) == ZoneFit((0,))
    assert found.whole.taken == {}
    with_nic = pod(container(**whole, nic=1), requests=whole, limits=whole)
    assert (filter(node_, with_nic), with_nic.whole.taken) == (ZoneFit((0,)), {NIC: 1})
    too_many = pod(container(**whole, nic=2), requests=whole, limits=whole)
    assert misfit(filter(node_, too_many)).resource == NIC


@pytest.mark.parametrize(
    ("requested", "cause", "resource", "unresolvable"),
    [
        ({"example.com/licence": 1}, Reason.NOT_ON_NODE, "example.com/licence", True),
        ({"hugepages-1Gi": 1}, Reason.NOT_ON_NODE, "hugepages-1Gi", True),
        ({"memory": 1}, Reason.NOT_IN_ZONES, "memory", True),
        ({"cpu": 2 * CPU}, Reason.NO_ZONE_HOLDS, "cpu", False),
        ({"gpu": 2}, Reason.NO_ZONE_HOLDS, GPU, False),
    ],
)
def test_the_reason_names_the_resource(
    requested: dict[str, int], cause: Reason, resource: str, unresolvable: bool
) -> None:
    node_ = node({0: {"cpu": CPU, GPU: 1}, 1: {"cpu": CPU}})
    guaranteed = pod(container(**{"nic": 1, **requested}), kube_class="guaranteed")
    found = misfit(filter(node_, guaranteed))
    assert (found.reason, found.resource, found.unresolvable) == (cause, resource, unresolvable)
    assert resource in found.text
    assert "container main" in found.text


def test_the_reason_names_the_numa_nodes_with_the_other_resources() -> None:
    node_ = node({0: {"cpu": CPU, GPU: 2}, 1: {"cpu": 4 * CPU, GPU: 1}})
    guaranteed = pod(container(cpu=2 * CPU, gpu=2), kube_class="guaranteed")
    found = misfit(filter(node_, guaranteed))
    assert (found.resource, found.available, found.nodes) == (GPU, 1, (1,))


def test_under_restricted_all_numa_nodes_together_must_suffice() -> None:
    node_ = node(TWO, "restricted")
    found = misfit(filter(node_, pod(small(6), small(7))))
    assert (found.reason, found.requested, found.available) == (
        Reason.ZONES_TOGETHER,
        13 * CPU,
        12 * CPU,
    )
    assert filter(node_, pod(container(cpu=13 * CPU))) == PASSED
    assert filter(node_, pod(small(1, nic=5))) == PASSED


@pytest.mark.parametrize(
    ("found", "text", "summary"),
    [
        (
            Refusal(
                Reason.NO_ZONE_HOLDS,
                "cpu",
                2500,
                1000,
                (0, 2),
                kind=PartKind.CONTAINER,
                name="main",
            ),
            "container main requests 2500m cpu: NUMA nodes 0, 2 have at most 1 left each",
            "container main requests 2500m cpu: no NUMA node has that much left",
        ),
        (
            Refusal(Reason.NO_ZONE_HOLDS, GPU, 1, None, (1,), kind=PartKind.POD),
            f"pod requests 1 {GPU}: NUMA node 1 has none",
            f"pod requests 1 {GPU}: no NUMA node has that much left",
        ),
        (
            Refusal(Reason.ZONES_TOGETHER, GPU, 5, 4, (0, 1), kind=PartKind.POD),
            f"pod requests 5 {GPU}: all NUMA nodes together have 4 left",
            f"pod requests 5 {GPU}: all NUMA nodes together do not have that much left",
        ),
        (
            Refusal(Reason.NOT_ON_NODE, GPU, 5, kind=PartKind.INIT, name="copy"),
            f"init container copy requests 5 {GPU}: the node has none",
            f"init container copy requests 5 {GPU}: the node has none",
        ),
        (
            Refusal(Reason.NOT_IN_ZONES, "memory", 5, kind=PartKind.POD),
            "pod requests 5 memory: the NodeResourceTopology reports none in any zone",
            "pod requests 5 memory: the NodeResourceTopology reports none in any zone",
        ),
    ],
)
def test_the_reason_with_and_without_the_available_amount(
    found: Refusal, text: str, summary: str
) -> None:
    assert found.text == text
    assert found.summary == summary
