"""Nodes with bound pods, fixed and random."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from agent.allocate.rebind.arrangement import PlacedNode, PlacedPod
from agent.model.cpu import layout
from agent.model.cpu.cpuset import CpuSet, members
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import ExclusivePolicy
from conformance.machines import cpus

ONE = layout.of(cpus((1, 1, 4, 2), "adjacent"))
"""CPUs 0-7, core k has CPUs 2k and 2k+1."""
TWO = layout.of(cpus((1, 2, 2, 2), "adjacent"))
"""The same cores in two NUMA nodes: CPUs 0-3 and 4-7."""
SIXTEEN = layout.of(cpus((2, 1, 4, 2), "adjacent"))
"""Two NUMA nodes: CPUs 0-7 and 8-15."""
SINGLE_THREADS = layout.of(cpus((2, 1, 3, 1), "adjacent"))
"""Six cores of one thread in two NUMA nodes."""
LARGE = layout.of(cpus((2, 4, 16, 2), "interleaved"))
"""256 CPUs in eight NUMA nodes; the sibling of CPU k is k + 128."""


def owner(uid: str, text: str, **more: object) -> PlacedPod:
    """A pod that owns these CPUs."""
    return PlacedPod(uid, f"default/{uid}", CpuSet.parse(text).mask, **more)  # type: ignore[arg-type]


def ls_pod(uid: str, cpu_milli: dict[int, int], **more: object) -> PlacedPod:
    """A pod that shares CPUs of these NUMA nodes."""
    place = sum(1 << id_ for id_ in cpu_milli)
    return PlacedPod(uid, f"default/{uid}", place, cpu_milli, **more)  # type: ignore[arg-type]


def node(machine: Layout, *pods: PlacedPod, **more: object) -> PlacedNode:
    """All CPUs may be owned."""
    return PlacedNode(machine, machine.cpus, pods, **more)  # type: ignore[arg-type]


@st.composite
def small_nodes(draw: st.DrawFn) -> PlacedNode:
    """At most four owners and one pod that shares CPUs, on six or eight CPUs."""
    machine = draw(st.sampled_from([ONE, TWO, SINGLE_THREADS]))
    order = draw(st.permutations(list(members(machine.cpus))))
    reserved = draw(st.sampled_from([0, 0, 1]))
    pods = []
    used = reserved
    for number in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 3))
        if used + count > len(order):
            break
        place = CpuSet(order[used : used + count])
        used += count
        pods.append(_drawn_owner(draw, machine, f"p{number}", place))
    rooms: dict[int, dict[str, int]] = {}
    ids = [area.id for area in machine.nodes]
    if draw(st.booleans()):
        rooms = {id_: {"cpu": 4000, "memory": draw(st.integers(2, 8))} for id_ in ids}
        spans = draw(st.booleans()) and len(ids) > 1
        pods.append(ls_pod("s", {ids[0]: 700, ids[1]: 500} if spans else {ids[0]: 900}))
    most_owned = {ids[0]: draw(st.integers(0, 4))} if draw(st.booleans()) else {}
    return PlacedNode(
        machine,
        machine.cpus & ~CpuSet(order[:reserved]).mask,
        tuple(pods),
        rooms,
        draw(st.sampled_from([1000, 1000, 1250])),
        most_owned,
    )


def _drawn_owner(draw: st.DrawFn, machine: Layout, uid: str, place: CpuSet) -> PlacedPod:
    here = machine.node_ids(place.mask)
    memory: dict[int, dict[str, int]] = {}
    if draw(st.integers(0, 3)) == 0:
        memory = {id_: {"memory": draw(st.integers(1, 3))} for id_ in here}
    return owner(
        uid,
        str(place),
        spread=draw(st.integers(0, 3)) == 0,
        exclusive=draw(
            st.sampled_from([ExclusivePolicy.NONE, ExclusivePolicy.NONE, *ExclusivePolicy])
        ),
        fixed=draw(st.sampled_from(["", "", "", "", "it is never moved"])),
        near=draw(st.sampled_from([None, None, None, frozenset(here)])),
        memory=memory,
    )


def fragmented(
    machine: Layout, pods: int, free: int, seed: int = 0, ls_pods: int = 0
) -> PlacedNode:
    """Owners at random places, which have all CPUs except `free` ones, and pods that share CPUs,
    half of them of two NUMA nodes."""
    rng = random.Random(seed)
    order = list(members(machine.cpus))
    rng.shuffle(order)
    counts = [1] * pods
    for _ in range(len(order) - free - pods):
        counts[rng.randrange(pods)] += 1
    found = []
    for number, count in enumerate(counts):
        found.append(owner(f"p{number:03}", str(CpuSet(order[:count]))))
        del order[:count]
    ids = [area.id for area in machine.nodes]
    for number in range(ls_pods):
        amounts = {rng.choice(ids): 20}
        if number % 2:
            amounts[rng.choice(ids)] = 20
        found.append(ls_pod(f"s{number:03}", amounts))
    rooms = {area.id: {"cpu": 1000 * area.cpus.bit_count()} for area in machine.nodes}
    return node(machine, *found, rooms=rooms)
