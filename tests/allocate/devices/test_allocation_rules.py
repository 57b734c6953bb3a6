"""Invariants of every allocation, on random nodes."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.devices.allocation import Allocation, allocate
from agent.allocate.devices.inventory import LinkTable, NodeDevices, inventory, linked, node_devices
from agent.model.cpu.policies import Strategy
from agent.model.devices.device_allocation import DeviceAmounts
from agent.model.devices.device_object import Device
from agent.model.devices.device_request import RequestError, device_request
from tests.allocate.devices.builders import (
    CARDS,
    CORE,
    GPU,
    HINT,
    JOINT,
    MEMORY,
    RATIO,
    RDMA,
    SHARED,
    allocation,
    gpu,
    nic,
    part,
)
from tests.allocate.devices.links import symmetric

STRATEGIES = st.sampled_from((None, Strategy.LEAST_ALLOCATED, Strategy.MOST_ALLOCATED))
SCOPES = st.sampled_from(("", "Node", "NUMANode", "PCIe"))
AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        CARDS: st.integers(1, 4),
        GPU: st.sampled_from((10, 50, 100, 200)),
        CORE: st.sampled_from((20, 100, 200)),
        MEMORY: st.integers(1, 1500),
        RATIO: st.sampled_from((20, 100, 200)),
        SHARED: st.integers(1, 3),
        RDMA: st.sampled_from((1, 50, 100, 200)),
    },
)


class RandomNode(msgspec.Struct, frozen=True):
    devices: list[Device]
    held: DeviceAmounts
    links: LinkTable | None

    def node(self, devices: list[Device] | None = None) -> NodeDevices:
        known = inventory(devices or self.devices, None, self.links)
        return node_devices(known, self.held)


@st.composite
def nodes(draw: st.DrawFn) -> RandomNode:
    devices: list[Device] = []
    held: DeviceAmounts = {}
    for make, count in ((gpu, draw(st.integers(1, 6))), (nic, draw(st.integers(0, 4)))):
        for minor in range(count):
            pcie = draw(st.integers(0, 3))
            healthy = draw(st.integers(0, 5)) > 0
            device = make(minor, pcie // 2, f"p{pcie}", healthy=healthy)
            devices.append(device)
            if percent := draw(st.sampled_from((0, 0, 30, 100))):
                amounts = part(percent) if make is gpu else {RDMA: percent}
                held[device.type, minor] = amounts
    matrix = draw(st.none() | st.integers(0, 2**40))
    cards = sum(device.type == "gpu" for device in devices)
    links = None
    if matrix is not None:
        links = linked(range(cards), symmetric(cards, lambda i, j: matrix >> (3 * i + 5 * j) & 3))
    return RandomNode(devices, held, links)


def fits(node_: NodeDevices, kind: str, minor: int, amounts: dict[str, int]) -> bool:
    free = node_.stocks[kind].free[minor]
    return all(free.get(name, 0) >= amount for name, amount in amounts.items())


def switches(devices: list[Device], kind: str, chosen: list[int]) -> set[str]:
    return {
        device.topology.pcie
        for device in devices
        if device.type == kind and device.minor in chosen and device.topology
    }


@given(nodes(), AMOUNTS, SCOPES, STRATEGIES, st.none() | st.integers(1, 3))
def test_only_free_devices_are_allocated(
    random_node: RandomNode,
    amounts: dict[str, int],
    scope: str,
    strategy: Strategy | None,
    numa: int | None,
) -> None:
    devices, node_ = random_node.devices, random_node.node()
    hint = {"gpu": {"requiredTopologyScope": scope}}
    try:
        request = device_request(amounts, {HINT: msgspec.json.encode(hint).decode()})
    except RequestError:
        return
    if request is None:
        return
    found = allocate(node_, request, numa=numa, strategy=strategy)
    if not isinstance(found, Allocation):
        return
    by_minor = {(device.type, device.minor): device for device in devices}
    for kind, type_request in request.requests.items():
        chosen = found.devices[kind]
        minors = [each.minor for each in chosen]
        assert len(set(minors)) == len(minors) == type_request.count
        for each in chosen:
            device = by_minor[kind, each.minor]
            assert device.healthy
            assert device.topology
            assert numa is None or numa >> device.topology.node & 1
            assert fits(node_, kind, each.minor, type_request.per)
            assert type_request.per.items() <= each.resources.items()
    if "gpu" in request.requests and scope in ("PCIe", "NUMANode"):
        cards = {by_minor["gpu", each.minor].topology for each in found.devices["gpu"]}
        assert len({topology.node for topology in cards if topology}) == 1
        assert scope == "NUMANode" or len({topology.pcie for topology in cards if topology}) == 1


@given(nodes(), st.integers(1, 5), STRATEGIES)
def test_whole_cards_are_refused_only_when_too_few_are_idle(
    random_node: RandomNode, cards: int, strategy: Strategy | None
) -> None:
    devices, node_ = random_node.devices, random_node.node()
    idle = [
        device
        for device in devices
        if device.type == "gpu" and device.healthy and fits(node_, "gpu", device.minor, part(100))
    ]
    found = allocation(node_, {CARDS: cards}, strategy=strategy)
    assert isinstance(found, Allocation) == (len(idle) >= cards)


@settings(max_examples=250)
@given(nodes(), st.integers(1, 3), st.sampled_from((1, 50, 100, 200)), STRATEGIES)
def test_switches_with_cards_and_nics_are_found_if_they_exist(
    random_node: RandomNode, cards: int, amount: int, strategy: Strategy | None
) -> None:
    """Compared with an enumeration: cards and a NIC for each of their switches, or more NICs under
    the same switches if more are requested."""
    devices, node_ = random_node.devices, random_node.node()
    joint = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
    each = min(amount, 100)
    count = amount // each
    free: dict[str, list[int]] = {
        kind: [
            device.minor
            for device in devices
            if device.type == kind and device.healthy and fits(node_, kind, device.minor, wanted)
        ]
        for kind, wanted in (("gpu", part(100)), ("rdma", {RDMA: each}))
    }
    nics = [
        switches(devices, "rdma", list(chosen))
        for size in range(count, len(free["rdma"]) + 1)
        for chosen in combinations(free["rdma"], size)
        if size == max(count, len(switches(devices, "rdma", list(chosen))))
    ]
    possible = any(
        switches(devices, "gpu", list(chosen)) in nics
        for chosen in combinations(free["gpu"], cards)
    )
    annotations: dict[str, Any] = {JOINT: joint}
    found = allocation(node_, {CARDS: cards, RDMA: amount}, annotations, strategy=strategy)
    assert isinstance(found, Allocation) == possible
    if isinstance(found, Allocation):
        chosen = {kind: [one.minor for one in of] for kind, of in found.devices.items()}
        assert switches(devices, "gpu", chosen["gpu"]) == switches(devices, "rdma", chosen["rdma"])


@given(nodes(), AMOUNTS, STRATEGIES, st.randoms())
def test_the_order_of_the_devices_does_not_matter(
    random_node: RandomNode, amounts: dict[str, int], strategy: Strategy | None, rng: random.Random
) -> None:
    try:
        request = device_request(amounts, {})
    except RequestError:
        return
    if request is not None:
        shuffled = random_node.node(rng.sample(random_node.devices, len(random_node.devices)))
        assert allocate(random_node.node(), request, strategy=strategy) == allocate(
            shuffled, request, strategy=strategy
        )
