"""Invariants for any node and any sequence of pods: nothing is allocated twice or lost, and the
annotations are the complete state."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.devices.inventory import inventory
from agent.allocate.devices.partitions import Partition, Partitions
from agent.allocate.node_allocator.allocator import NodeAllocator, StaleOfferError
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import assigned_pod_of
from agent.allocate.node_allocator.properties import Imported, NodeProperties
from agent.allocate.policies_in_force import NodePolicies
from agent.model.cpu.policies import BindPolicy, NumaPolicy
from agent.model.devices.device_object import Device
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import PodRequest, request_of
from tests.allocate.devices.builders import (
    CARDS,
    CORE,
    GPU,
    HINT,
    JOINT,
    MEMORY,
    RATIO,
    RDMA,
    gpu,
    nic,
    part,
)
from tests.allocate.node_allocator.builders import NUMA_SPEC, SPEC, annotated, pod
from tests.allocate.nodes import GIB, node_options
from tests.fixtures.overlaps import overlaps

no_requests: dict[str, Any] = {}

# The parts of each card that the agent reports: five whole cards, a half, and a lost one.
LISTED = [part(100)] * 5 + [part(50), part(0)]
TABLE = Partitions(
    {
        size: tuple(
            Partition(tuple(range(first, first + size)), ((1 << size) - 1) << first)
            for first in range(0, 4, size)
        )
        for size in (1, 2)
    }
)


@st.composite
def devices(draw: st.DrawFn) -> tuple[Device, ...]:
    topologies = st.sampled_from([(0, "p0"), (0, "p1"), (1, "p2"), (-1, "p3"), (None, "")])
    devices_ = []
    for minor in range(draw(st.integers(0, 4))):
        node, pcie = draw(topologies)
        card = gpu(minor, node, pcie, healthy=draw(st.integers(0, 5)) > 0)
        devices_.append(msgspec.structs.replace(card, resources=draw(st.sampled_from(LISTED))))
    for minor in range(draw(st.integers(0, 2))):
        node, pcie = draw(topologies)
        devices_.append(nic(minor, node, pcie, functions=[f"{minor}.1", f"{minor}.2"]))
    return tuple(devices_)


@st.composite
def nodes(draw: st.DrawFn) -> NodeProperties:
    shape = draw(st.sampled_from([(2, 1, 2, 2), (1, 1, 4, 2), (1, 4, 2, 1)]))
    policies = NodePolicies(
        numa_label=draw(st.sampled_from(NumaPolicy)),
        bind_label=draw(st.sampled_from([None, None, *list(BindPolicy)[1:3]])),
    )
    cpus = node_options(
        shape,
        policies=policies,
        cpu_ratio=draw(st.sampled_from([1.0, 1.0, 1.5])),
        cpu_milli=12_000,
    )
    devices_ = draw(devices())
    imported = {}
    if devices_ and draw(st.booleans()):
        held = draw(st.sampled_from(devices_))
        imported["other"] = Imported({(held.type, held.minor): held.resources}, {})
    table = draw(st.sampled_from([None, TABLE]))
    return NodeProperties("n", cpus, inventory(devices_, table), imported)


of_cpus = st.fixed_dictionaries(
    {"cpu": st.sampled_from(["500m", "1", "2", "3", "4"])}, optional={"memory": st.just(3 * GIB)}
)
of_devices = st.sampled_from(
    [
        {CARDS: 1},
        {CARDS: 2},
        {GPU: 50},
        {GPU: 30},
        {CORE: 40, RATIO: 33},
        {CORE: 20, MEMORY: 339},
        {MEMORY: 9},
        {GPU: 70},
        {RDMA: 1},
        {RDMA: 200},
        {CARDS: 1, RDMA: 1},
    ]
)
BURST = {"preferredCPUBindPolicy": "ConstrainedBurst"}
notes = st.fixed_dictionaries(
    {},
    optional={
        SPEC: st.sampled_from(
            [
                {"requiredCPUBindPolicy": "FullPCPUs"},
                {"preferredCPUBindPolicy": "SpreadByPCPUs"},
                BURST,
                {"preferredCPUExclusivePolicy": "NUMANodeLevel"},
            ]
        ),
        NUMA_SPEC: st.just({"numaTopologyPolicy": "SingleNUMANode"}),
        HINT: st.sampled_from(
            [
                {"rdma": {"vfSelector": {}}},
                {"rdma": {"vfSelector": {}, "allocateStrategy": "ApplyForAll"}},
                {"rdma": {"exclusivePolicy": "PCIeLevel"}},
            ]
        ),
        JOINT: st.just({"deviceTypes": ["gpu", "rdma"]}),
    },
)
pods = st.builds(
    lambda cpus, cards, qos, pod_notes: pod(
        "x",
        {**cpus, **cards},
        qos,
        {} if qos in ("LSR", "LSE") and pod_notes.get(SPEC) == BURST else pod_notes,
        None if qos in ("LSR", "LSE") else {"cpu": "4"},
    ),
    of_cpus | st.just(no_requests),
    of_devices | st.just(no_requests),
    st.sampled_from([None, "LS", "LSR", "LSE", "BE"]),
    notes | st.just(no_requests),
)
steps = st.lists(st.tuples(pods, st.integers(0, 9), st.integers(0, 3)), max_size=14)


def named(of: ApiPod, uid: str) -> ApiPod:
    return msgspec.structs.replace(of, uid=uid, name=uid)


def rebuilt(allocator: NodeAllocator, api: dict[str, ApiPod]) -> NodeAllocator:
    return NodeAllocator(
        allocator.properties, [assigned_pod_of(each) for each in reversed(api.values())]
    )


def used(allocator: NodeAllocator) -> dict[tuple[str, int, str], int]:
    """The amounts of every device."""
    sums: dict[tuple[str, int, str], int] = {}
    holders = [held.devices for held in allocator.assigned_pods.values()]
    for held in (*holders, *(each.devices for each in allocator.properties.imported.values())):
        for (kind, minor), amounts in held.items():
            for name, amount in amounts.items():
                sums[kind, minor, name] = sums.get((kind, minor, name), 0) + amount
    return sums


@given(nodes(), steps)
def test_nothing_is_allocated_twice_or_lost_and_annotations_are_complete(
    node: NodeProperties, history: list[tuple[ApiPod, int, int]]
) -> None:
    allocator = NodeAllocator(node)
    assert node.inventory
    api: dict[str, ApiPod] = {}
    for number, (of, when, index) in enumerate(history):
        arrived = named(of, f"p{number}")
        pod_request = request_of(arrived)
        before = NodeAllocator(node, allocator.assigned_pods.values())
        found = allocator.offer(pod_request)
        assert allocator.assigned_pods == before.assigned_pods
        if isinstance(found, NodeOffer):
            held = allocator.commit(found)
            api[arrived.uid] = annotated(arrived, found.annotations())
            assert assigned_pod_of(api[arrived.uid]) == held
            assert allocator.offer(pod_request) == found
        if len(api) > when:
            deleted = list(api)[index % len(api)]
            assert allocator.release(deleted) == assigned_pod_of(api.pop(deleted))
        recreated = rebuilt(allocator, api)
        assert dict(allocator.assigned_pods) == dict(recreated.assigned_pods)
        assert allocator.offer(pod_request) == recreated.offer(pod_request)
        assert overlaps(allocator) == ()
    for (kind, minor, name), amount in used(allocator).items():
        assert amount <= node.inventory.fleets[kind].devices[minor].resources[name]
    for uid in list(api):
        allocator.release(uid)
    assert all(
        allocator.offer(pod_request) == NodeAllocator(node).offer(pod_request)
        for pod_request in (request_of(named(of, "last")) for of, _, _ in history)
    )


@given(nodes(), st.lists(pods, min_size=2, max_size=8))
def test_every_concurrent_offer_that_still_fits_can_be_committed(
    node: NodeProperties, wanted: list[ApiPod]
) -> None:
    """As if several pods were bound concurrently: the committed offers do not overlap."""
    allocator = NodeAllocator(node)
    assert node.inventory
    first: list[tuple[PodRequest, NodeOffer]] = []
    for number, of in enumerate(wanted):
        pod_request = request_of(named(of, f"p{number}"))
        found = allocator.offer(pod_request)
        if isinstance(found, NodeOffer):
            first.append((pod_request, found))
    for pod_request, found in first:
        assigned_pods = dict(allocator.assigned_pods)
        try:
            allocator.commit(found)
            refused = ""
        except StaleOfferError as error:
            refused = str(error)
        if refused:
            assert refused.startswith(f"pod {pod_request.title} on node n: ")
            assert dict(allocator.assigned_pods) == assigned_pods
            assert allocator.offer(pod_request) != found
    assert overlaps(allocator) == ()
    for (kind, minor, name), amount in used(allocator).items():
        assert amount <= node.inventory.fleets[kind].devices[minor].resources[name]


@given(nodes(), st.lists(pods, min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_an_allocator_without_some_pods_equals_a_new_one(
    node: NodeProperties, wanted: list[ApiPod], left_out: set[int]
) -> None:
    allocator = NodeAllocator(node)
    for number, of in enumerate(wanted[:-1]):
        found = allocator.offer(request_of(named(of, f"p{number}")))
        if isinstance(found, NodeOffer):
            allocator.commit(found)
    uids = {f"p{number}" for number in left_out}
    other = allocator.without(uids)
    others = [held for uid, held in allocator.assigned_pods.items() if uid not in uids]
    last = request_of(named(wanted[-1], "last"))
    assert other.offer(last) == NodeAllocator(node, others).offer(last)
