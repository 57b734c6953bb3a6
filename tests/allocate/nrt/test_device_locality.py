"""How near to its devices a pod would run: tables of nodes and pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.allocate.nrt.device_locality import LocalityRating, has_plugin_devices, rate
from agent.allocate.nrt.node import Assumed, ZonedNode, without
from agent.allocate.refusal import Reason
from agent.allocate.steps import OFFER_STEPS, Steps, TooComplexError
from agent.model.cpu.cpuset import CpuSet
from agent.model.nrt.node_annotations import CPU_MANAGER_POLICY
from agent.model.pod.apiobjects import ApiContainer
from agent.model.pod.numa_request import NumaRequest
from tests.allocate.nrt.values import CPU, GPU, NIC, container, node, pod

STATIC = {CPU_MANAGER_POLICY: '{"policy": "static"}'}
BEST_EFFORT = "best-effort"


def gpus(count: int, cpu: int = 0, **more: int) -> NumaRequest:
    """A Burstable pod with GPUs."""
    return pod(container(limited=False, cpu=cpu * CPU, gpu=count, **more))


def machine(
    zones: int = 2, of_zone: int = 4, policy: str = BEST_EFFORT, cpus: int = 48, **more: Any
) -> ZonedNode:
    """An empty node with GPUs on each NUMA node."""
    amounts = {zone: {"cpu": cpus * CPU, GPU: of_zone, NIC: 1} for zone in range(zones)}
    return node(amounts, policy, **more)


def with_free(empty: ZonedNode, *free: int, near: dict[str, int] | None = None) -> ZonedNode:
    """The node with so many free GPUs on each NUMA node. `near`: CPUs that are requested near to
    devices, by NUMA nodes."""
    requested = {CpuSet.parse(nodes).mask: cpus * CPU for nodes, cpus in (near or {}).items()}
    available = {**empty.available, GPU: dict(enumerate(free))}
    return msgspec.structs.replace(empty, available=available, near=requested)


def rated(empty: ZonedNode, request: NumaRequest, *free: int, **more: Any) -> LocalityRating:
    return rate(with_free(empty, *free, **more), empty, request)


def reason(rating: LocalityRating) -> tuple[Reason, str] | None:
    refusal = rating.refusal
    assert (refusal is None) == (rating.score >= 50)
    return None if refusal is None else (refusal.reason, refusal.text)


@pytest.mark.parametrize(
    ("zones", "free", "count", "near"),
    [
        (2, (4, 4), 4, True),
        (2, (3, 3), 4, False),
        (2, (3, 3), 3, True),
        (2, (1, 1), 2, False),
        (2, (4, 4), 8, True),
        (2, (3, 4), 6, True),
        (4, (2, 2, 0, 0), 4, True),
        (4, (1, 1, 2, 0), 4, False),
        (4, (1, 1, 2, 0), 2, True),
    ],
)
@pytest.mark.parametrize("policy", ["none", BEST_EFFORT, "restricted"])
def test_devices_are_near_on_as_few_numa_nodes_as_an_empty_machine_needs(
    zones: int, free: tuple[int, ...], count: int, near: bool, policy: str
) -> None:
    empty = machine(zones, 8 // zones, policy)
    assert (rated(empty, gpus(count), *free).refusal is None) == near


def test_the_reason_names_the_numa_nodes_of_the_free_devices() -> None:
    assert reason(rated(machine(), gpus(4), 3, 3)) == (
        Reason.DEVICES_APART,
        "container main requests 4 nvidia.com/gpu: the free ones are on more NUMA nodes than on an "
        "empty machine: NUMA nodes 0, 1",
    )


@pytest.mark.parametrize(
    ("policy", "near", "text"),
    [
        (BEST_EFFORT, {}, None),
        (BEST_EFFORT, {"1": 48}, None),
        (BEST_EFFORT, {"0": 36}, None),
        (BEST_EFFORT, {"0": 37}, "NUMA nodes 0 of its devices have 11 left"),
        ("none", {"1": 37}, "NUMA nodes 1 of its devices have 11 left"),
        (BEST_EFFORT, {"0-1": 96}, None),
    ],
)
def test_the_numa_nodes_of_the_devices_must_have_the_cpus(
    policy: str, near: dict[str, int], text: str | None
) -> None:
    """The kubelet's topology manager takes the lowest NUMA node; without it the plugin takes
    any."""
    refusal = rated(machine(policy=policy), gpus(1, cpu=12), 4, 4, near=near).refusal
    assert (None if refusal is None else refusal.text) == (
        text and f"container main requests 12 cpu: {text}"
    )


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_containers_without_devices_need_no_cpus_near_to_them(scope: str) -> None:
    empty = machine(scope=scope, cpus=16)
    with_device = container(limited=False, cpu=8 * CPU, gpu=1)
    without = container("log", limited=False, cpu=12 * CPU)
    assert rate(empty, empty, pod(with_device, without)).refusal is None
    near = with_free(empty, 4, 4, near={"0": 9})
    refusal = rate(near, empty, pod(with_device, without)).refusal
    assert refusal is not None
    assert refusal.text.endswith("requests 8 cpu: NUMA nodes 0 of its devices have 7 left")


def test_devices_of_two_kinds_are_near_where_one_numa_node_has_both() -> None:
    empty = machine()
    both = gpus(2, nic=1)
    nics = msgspec.structs.replace(empty, available={**empty.available, NIC: {0: 0, 1: 1}})
    assert rate(nics, empty, both).refusal is None
    assert rate(with_free(nics, 4, 1), empty, both).refusal is not None


def test_all_containers_take_their_devices() -> None:
    two = pod(*(container(name, limited=False, gpu=3) for name in ("a", "b")))
    assert rated(machine(), two, 4, 4).refusal is None
    refusal = rated(machine(), two, 3, 2).refusal
    assert refusal is not None
    assert refusal.name == "b"
    init = pod(container(limited=False, gpu=4), init=(container("i", limited=False, gpu=4),))
    assert rated(machine(), init, 4, 0).refusal is None, "an init container gives its devices back"


@pytest.mark.parametrize(
    ("policy", "cpus_left", "expected"),
    [
        (BEST_EFFORT, (48, 48), None),
        (BEST_EFFORT, (11, 48), None),
        (BEST_EFFORT, (11, 11), Reason.NO_CPUS_NEAR),
        ("none", (48, 48), Reason.NOT_NEAR),
    ],
)
def test_cpus_of_a_static_kubelet_are_near_if_its_topology_manager_aligns_them(
    policy: str, cpus_left: tuple[int, int], expected: Reason | None
) -> None:
    empty = machine(policy=policy, annotations=STATIC)
    left = {**empty.available, "cpu": {zone: cpus * CPU for zone, cpus in enumerate(cpus_left)}}
    guaranteed = pod(container(cpu=12 * CPU, memory=1, gpu=1), kube_class="guaranteed")
    found = reason(rate(msgspec.structs.replace(empty, available=left), empty, guaranteed))
    assert (found and found[0]) == expected


def test_devices_on_a_numa_node_without_cpus_are_near_to_the_nearest_ones_with_some() -> None:
    costs = {0: {0: 10, 1: 40, 2: 20}, 1: {0: 40, 1: 10, 2: 80}, 2: {0: 20, 1: 80, 2: 10}}
    zones = {0: {"cpu": 8 * CPU}, 1: {"cpu": 8 * CPU}, 2: {"cpu": 0, GPU: 1}}
    empty = node(zones, BEST_EFFORT, costs=costs)
    assert rate(empty, empty, gpus(1, cpu=8)).refusal is None
    full = msgspec.structs.replace(empty, near={1: 1 * CPU})
    assert rate(full, empty, gpus(1, cpu=8)).refusal is not None


def test_an_assumed_pod_may_be_near_to_each_numa_node() -> None:
    empty = machine()
    left = without(empty, [Assumed(anywhere={GPU: 1}, near_milli=40 * CPU)])
    assert left.near == {1: 40 * CPU, 2: 40 * CPU}
    assert reason(rate(left, empty, gpus(1, cpu=12))) is not None


@pytest.mark.parametrize(
    ("count", "better", "worse"),
    [
        (1, (1, 4), (4, 4)),
        (1, (3, 4), (4, 4)),
        (1, (1, 0), (2, 0)),
        (2, (2, 4), (4, 4)),
        (4, (4, 0), (4, 4)),
        (4, (4, 3), (4, 4)),
        (2, (2, 2), (1, 1)),
    ],
)
def test_what_remains_is_least_broken(
    count: int, better: tuple[int, int], worse: tuple[int, int]
) -> None:
    first, second = (rated(machine(), gpus(count), *free) for free in (better, worse))
    assert (-first.score, first.order) < (-second.score, second.order)


@pytest.mark.parametrize("free", [(a, b) for a in range(5) for b in range(5) if a + b])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_a_node_where_the_pod_is_near_has_the_better_score(
    free: tuple[int, int], count: int
) -> None:
    rating = rated(machine(), gpus(count, cpu=1), *free)
    assert 50 <= rating.score <= 100 if rating.refusal is None else 0 <= rating.score < 50


@pytest.mark.parametrize(("of_zone", "free"), [(0, 4), (1, 1), (-4, 4)])
def test_a_pod_that_no_empty_machine_could_take_is_not_near(of_zone: int, free: int) -> None:
    rating = rated(machine(of_zone=of_zone), gpus(3), free, free)
    assert reason(rating) is not None
    assert rating.order[0] == 0


def test_a_report_of_many_large_resources_takes_too_many_steps() -> None:
    names = [f"vendor.com/{number}" for number in range(64)]
    empty = node({zone: {"cpu": CPU, **dict.fromkeys(names, 1 << 40)} for zone in range(64)})
    every = pod(ApiContainer("main", dict.fromkeys(names, 2), {}))
    with pytest.raises(TooComplexError):
        rate(empty, empty, every, Steps(OFFER_STEPS))


def test_only_devices_that_zones_report_count() -> None:
    assert has_plugin_devices(machine(), gpus(1))
    assert not has_plugin_devices(machine(), pod(container(cpu=CPU)))
    assert not has_plugin_devices(node({0: {"cpu": CPU}}), gpus(1))
