"""Which NUMA nodes containers with devices run on."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.locality import (
    Distances,
    FarReason,
    LocalityInput,
    NearContainer,
    NearNodes,
    places,
)
from agent.discover import cpus as machines
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from tests.builders import machine
from tests.fixtures import trees

CLUSTERS = ((10, 12, 32, 32), (12, 10, 32, 32), (32, 32, 10, 12), (32, 32, 12, 10))
"""Two sockets with two NUMA nodes each."""


def with_distances(topology: Topology, rows: tuple[tuple[int, ...], ...]) -> Topology:
    nodes = zip(topology.numa_nodes, rows, strict=True)
    numa_nodes = tuple(msgspec.structs.replace(node, distances=row) for node, row in nodes)
    return msgspec.structs.replace(topology, numa_nodes=numa_nodes)


def without_cpus(topology: Topology, *nodes: int) -> Topology:
    return msgspec.structs.replace(
        topology,
        cpus=tuple(cpu for cpu in topology.cpus if cpu.node not in nodes),
        numa_nodes=tuple(
            msgspec.structs.replace(node, cpus=CpuSet()) if node.id in nodes else node
            for node in topology.numa_nodes
        ),
    )


FOUR = with_distances(machine(4, 4), CLUSTERS)


@pytest.mark.parametrize(
    ("devices", "near"),
    [
        ("2", "2"),
        ("1 2 2", "1-2"),
        ("0-1", "0-1"),
        ("0-1 1", "1"),
        ("0-1 1-2", "1"),
        ("0-1 2-3", "0-3"),
        ("0-1 1-2 2-3", "0-3"),
        ("0 2-3", "0,2-3"),
        ("2 9", "2"),
        ("9", ""),
        ("", ""),
    ],
)
def test_near_nodes_are_the_smallest_set_with_one_of_each_device(devices: str, near: str) -> None:
    assert Distances(FOUR).near(tuple(map(CpuSet.parse, devices.split()))) == CpuSet.parse(near)


@pytest.mark.parametrize(
    ("rows", "nearest"),
    [
        ((), ""),
        (((10, 20, 30, 15), (20, 10, 20, 15), (30, 20, 10, 40), (15, 15, 40, 10)), "0"),
        (((10, 20, 30, 18), (20, 10, 20, 15), (30, 20, 10, 40), (18, 15, 40, 10)), "1"),
    ],
)
def test_a_numa_node_without_cpus_stands_for_the_nearest_of_one_socket(
    rows: tuple[tuple[int, ...], ...], nearest: str
) -> None:
    topology = without_cpus(machine(4, 4), 3)
    distances = Distances(with_distances(topology, rows) if rows else topology)
    assert distances.near((CpuSet((3,)),)) == CpuSet.parse(nearest)


def test_equally_near_numa_nodes_of_one_socket_are_all_near() -> None:
    topology = without_cpus(with_distances(machine(4, 4), CLUSTERS), 1)
    one_socket = tuple(msgspec.structs.replace(cpu, socket=0) for cpu in topology.cpus)
    rows = ((10, 12, 12, 32), (12, 10, 12, 32), (12, 12, 10, 32), (32, 32, 32, 10))
    topology = with_distances(msgspec.structs.replace(topology, cpus=one_socket), rows)
    assert Distances(topology).near((CpuSet((1,)),)) == CpuSet((0, 2))


@pytest.mark.parametrize(
    ("machine_name", "device_node", "near"),
    [
        ("nvidiagpunumanodes", 255, "0"),
        ("nvidiagpunumanodes", 8, "8"),
        ("48amd64-4pa2n6c-sparse", 33, "33"),
        ("fakeheteromemtiers", 4, "0-2"),
        ("fakememinitiators-1np2c+1npp+gi", 4, "0,2"),
        ("fakememinitiators-1np2c+1npp+gi", 8, "1"),
        ("fakememinitiators-1np2c+1npp+gi", 10, "1,3"),
    ],
)
def test_recorded_machines(tmp_path: Path, machine_name: str, device_node: int, near: str) -> None:
    topology = machines.read(trees.unpack(machine_name, tmp_path))
    assert Distances(topology).near((CpuSet((device_node,)),)) == CpuSet.parse(near)


def test_cards_of_a_gb200_are_near_to_the_cpus_of_their_socket() -> None:
    """34 NUMA nodes: two with CPUs, and 16 for each of two cards, whose memory they are."""
    numbers = range(34)

    def distance(one: int, other: int) -> int:
        if one == other:
            return 10
        sockets = (one if one < 2 else (one - 2) // 16, other if other < 2 else (other - 2) // 16)
        return 80 if sockets[0] == sockets[1] else 120

    topology = without_cpus(machine(34, 4), *numbers[2:])
    rows = tuple(tuple(distance(one, other) for other in numbers) for one in numbers)
    distances = Distances(with_distances(topology, rows))
    for card, socket in ((range(2, 18), 0), (range(18, 34), 1)):
        assert distances.near((CpuSet(card),)) == CpuSet((socket,))
        assert {distances.near((CpuSet((node,)),)) for node in card} == {CpuSet((socket,))}


def test_a_place_widens_by_distance() -> None:
    levels = Distances(FOUR).levels(CpuSet((2,)))
    assert list(map(str, levels)) == ["2", "2-3", "0-3"]


def container(name: str, near: str, cpus: float = 0, created_at: int = 0) -> NearContainer:
    return NearContainer(name, "main", CpuSet.parse(near), int(1000 * cpus), created_at)


def pool(cpus: str, topology: Topology = FOUR) -> dict[int, CpuSet]:
    of_pool = CpuSet.parse(cpus)
    return {node.id: node.cpus & of_pool for node in topology.numa_nodes}


MEMORY_BYTES = {0: 100, 1: 100, 2: 100, 3: 0}


def decided(
    cpus: str, *containers: NearContainer, resting: str = "", **before: str
) -> dict[str, str]:
    """The NUMA nodes by pod."""
    found = places(
        Distances(FOUR),
        pool(cpus),
        LocalityInput(
            containers,
            {(uid, "main"): CpuSet.parse(nodes) for uid, nodes in before.items()},
            frozenset((uid, "main") for uid in resting.split()),
        ),
        MEMORY_BYTES,
    )
    return {uid: str(place.nodes) for (uid, _), place in found.items()}


def test_the_newest_container_widens_first() -> None:
    old, new = container("old", "1", 3, 1), container("new", "1", 2, 2)
    small = container("small", "1", 1, 3)
    assert decided("0-15", new, old, small) == {"old": "1", "new": "0-1", "small": "1"}


def test_containers_on_more_numa_nodes_take_room_of_each() -> None:
    both = container("both", "0-1", 7, 1)
    assert decided("0-15", both, container("one", "1", 2, 2))["one"] == "0-3"
    assert decided("0-15", both, container("one", "1", 1, 2))["one"] == "1"


def test_requests_beyond_the_whole_pool_widen_none_that_would_not_gain() -> None:
    every = container("every", "0-3", 20, 1)
    assert decided("0-15", every, container("one", "1", 1, 2)) == {"every": "0-3", "one": "1"}


def test_without_a_cpu_of_the_pool_the_next_numa_nodes_are_used() -> None:
    found = places(Distances(FOUR), pool("0-3,8-15"), LocalityInput((container("a", "1"),)), {})
    assert found == {("a", "main"): NearNodes(CpuSet((0, 1)), CpuSet((1,)), FarReason.NO_CPUS)}
    assert places(Distances(FOUR), pool(""), LocalityInput((container("a", "1"),)), {}) == {}


def test_a_widened_container_returns_when_a_fifth_of_the_cpus_is_free() -> None:
    old = container("old", "1", 2, 1)
    assert decided("0-15", old, container("new", "1", 2, 2), new="0-1") == {
        "old": "1",
        "new": "0-1",
    }
    assert decided("0-15", old, container("new", "1", 1, 2), new="0-1")["new"] == "1"


def test_a_container_that_moved_a_short_time_ago_stays() -> None:
    old, new = container("old", "1", 3, 1), container("new", "1", 3, 2)
    assert decided("0-15", old, new, old="1", new="1", resting="old new")["new"] == "1"
    assert decided("0-15", new, new="0-1", resting="new") == {"new": "0-1"}
    assert decided("0-3,8-15", new, new="1", resting="new") == {"new": "0-1"}


@pytest.mark.parametrize(
    ("near", "memory_bytes", "taken_bytes", "memory", "why"),
    [
        ("1", 60, 0, "1", ""),
        (
            "1",
            60,
            41,
            None,
            "containers that are bound to NUMA nodes 1 may use more than these have",
        ),
        ("1", 60, 40, "1", ""),
        ("1", 0, 0, None, "it has no memory limit"),
        ("3", 60, 0, None, "NUMA nodes 3 have no memory"),
        ("2-3", 60, 0, "2", ""),
    ],
)
def test_memory_is_bound_where_it_fits(
    near: str, memory_bytes: int, taken_bytes: int, memory: str | None, why: str
) -> None:
    other = NearContainer("other", "main", CpuSet((1,)), bound=True, memory_bytes=taken_bytes)
    bound = NearContainer(
        "p", "main", CpuSet.parse(near), created_at=1, bound=True, memory_bytes=memory_bytes
    )
    wanted = LocalityInput((other, bound, container("q", "1")))
    found = places(Distances(FOUR), pool("0-15"), wanted, MEMORY_BYTES)
    place = found["p", "main"]
    assert place.memory == (None if memory is None else CpuSet.parse(memory))
    assert place.unbound == why
    assert (place.problem("main") == "") is (why == "")
    assert found["q", "main"].memory is None


CONTAINERS = st.lists(
    st.builds(
        NearContainer,
        st.sampled_from("abcdefgh"),
        st.just("main"),
        st.sets(st.integers(0, 3), min_size=1).map(CpuSet),
        st.integers(0, 6000),
        st.integers(0, 5),
        st.booleans(),
    ),
    unique_by=lambda each: each.uid,
)
BEFORE = st.dictionaries(
    st.tuples(st.sampled_from("abcdefgh"), st.just("main")),
    st.sets(st.integers(0, 3), min_size=1).map(CpuSet),
)


@given(CONTAINERS, BEFORE, st.sets(st.integers(0, 15), min_size=1).map(CpuSet), st.randoms())
def test_a_place_has_the_near_numa_nodes_and_a_cpu_and_no_later_container_changes_it(
    containers: list[NearContainer],
    before: dict[tuple[str, str], CpuSet],
    cpus: CpuSet,
    random: random.Random,
) -> None:
    distances, of_pool = Distances(FOUR), pool(str(cpus))
    wanted = LocalityInput(tuple(containers), before, frozenset(before))
    found = places(distances, of_pool, wanted, MEMORY_BYTES)
    for each in containers:
        place = found[each.key]
        assert place.near == each.near
        assert each.near <= place.nodes
        assert any(of_pool[node] for node in place.nodes)
        assert (place.far is None) == (place.nodes <= each.near)
    shuffled = containers.copy()
    random.shuffle(shuffled)
    last = list(found)[-1:]
    for others in (shuffled, [each for each in shuffled if each.key not in last]):
        again = places(
            distances,
            of_pool,
            msgspec.structs.replace(wanted, containers=tuple(others)),
            MEMORY_BYTES,
        )
        assert again == {key: found[key] for key in again}
