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
from agent.model.pod.device_request import RequestError, device_request
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


class Made(msgspec.Struct, frozen=True):
    devices: list[Device]
    held: DeviceAmounts
    links: LinkTable | None

    def node(self, devices: list[Device] | None = None) -> NodeDevices:
        known = inventory(devices or self.devices, None, self.links)
        return node_devices(known, self.held)


@st.composite
def nodes(draw: st.DrawFn) -> Made:
    devices: list[Device] = []
    held: DeviceAmounts = {}
    for make, count in ((gpu, draw(st.integers(1, 6))), (nic, draw(st.integers(0, 4)))):
        for minor in range(count):
            pcie = draw(st.integers(0, 3))
            well = draw(st.integers(0, 5)) > 0
            device = make(minor, pcie // 2, f"p{pcie}", healthy=well)
            devices.append(device)
            if percent := draw(st.sampled_from((0, 0, 30, 100))):
                amounts = part(percent) if make is gpu else {RDMA: percent}
                held[device.type, minor] = amounts
    matrix = draw(st.none() | st.integers(0, 2**40))
    cards = sum(device.type == "gpu" for device in devices)
    links = None
    if matrix is not None:
        links = linked(range(cards), symmetric(cards, lambda i, j: matrix >> (3 * i + 5 * j) & 3))
    return Made(devices, held, links)


def fits(there: NodeDevices, kind: str, minor: int, amounts: dict[str, int]) -> bool:
    free = there.stocks[kind].free[minor]
    return all(free.get(name, 0) >= amount for name, amount in amounts.items())


def switches(devices: list[Device], kind: str, chosen: list[int]) -> set[str]:
    return {
        device.topology.pcie
        for device in devices
        if device.type == kind and device.minor in chosen and device.topology
    }


@given(nodes(), AMOUNTS, SCOPES, STRATEGIES, st.none() | st.integers(1, 3))
def test_only_free_devices_are_allocated(
    made: Made,
    amounts: dict[str, int],
    scope: str,
    strategy: Strategy | None,
    numa: int | None,
) -> None:
    devices, there = made.devices, made.node()
    hint = {"gpu": {"requiredTopologyScope": scope}}
    try:
        request = device_request(amounts, {HINT: msgspec.json.encode(hint).decode()})
    except RequestError:
        return
    if request is None:
        return
    found = allocate(there, request, numa=numa, strategy=strategy)
    if not isinstance(found, Allocation):
        return
    by_place = {(device.type, device.minor): device for device in devices}
    for kind, type_request in request.requests.items():
        chosen = found.devices[kind]
        minors = [each.minor for each in chosen]
        assert len(set(minors)) == len(minors) == type_request.count
        for each in chosen:
            device = by_place[kind, each.minor]
            assert device.healthy
            assert device.topology
            assert numa is None or numa >> device.topology.node & 1
            assert fits(there, kind, each.minor, type_request.per)
            assert type_request.per.items() <= each.resources.items()
    if "gpu" in request.requests and scope in ("PCIe", "NUMANode"):
        cards = {by_place["gpu", each.minor].topology for each in found.devices["gpu"]}
        assert len({place.node for place in cards if place}) == 1
        assert scope == "NUMANode" or len({place.pcie for place in cards if place}) == 1


@given(nodes(), st.integers(1, 5), STRATEGIES)
def test_whole_cards_are_refused_only_when_too_few_are_idle(
    made: Made, cards: int, strategy: Strategy | None
) -> None:
    devices, there = made.devices, made.node()
    idle = [
        device
        for device in devices
        if device.type == "gpu" and device.healthy and fits(there, "gpu", device.minor, part(100))
    ]
    found = allocation(there, {CARDS: cards}, strategy=strategy)
    assert isinstance(found, Allocation) == (len(idle) >= cards)


@settings(max_examples=250)
@given(nodes(), st.integers(1, 3), st.sampled_from((1, 50, 100, 200)), STRATEGIES)
def test_the_same_switches_are_found_whenever_they_exist(
    made: Made, cards: int, amount: int, strategy: Strategy | None
) -> None:
    """By definition: cards and a NIC for each of their switches, or more NICs if more are
    requested, under the same switches."""
    devices, there = made.devices, made.node()
    joint = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
    each = min(amount, 100)
    count = amount // each
    free: dict[str, list[int]] = {
        kind: [
            device.minor
            for device in devices
            if device.type == kind and device.healthy and fits(there, kind, device.minor, wanted)
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
    found = allocation(there, {CARDS: cards, RDMA: amount}, annotations, strategy=strategy)
    assert isinstance(found, Allocation) == possible
    if isinstance(found, Allocation):
        chosen = {kind: [one.minor for one in of] for kind, of in found.devices.items()}
        assert switches(devices, "gpu", chosen["gpu"]) == switches(devices, "rdma", chosen["rdma"])


@given(nodes(), AMOUNTS, STRATEGIES, st.randoms())
def test_the_order_of_the_devices_does_not_matter(
    made: Made, amounts: dict[str, int], strategy: Strategy | None, lot: random.Random
) -> None:
    try:
        request = device_request(amounts, {})
    except RequestError:
        return
    if request is not None:
        shuffled = made.node(lot.sample(made.devices, len(made.devices)))
        assert allocate(made.node(), request, strategy=strategy) == allocate(
            shuffled, request, strategy=strategy
        )
