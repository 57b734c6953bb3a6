"""Real machines: the topology read from each snapshot equals that of hwloc 2.9."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent.discover import cpus
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from tests.conftest import DATA
from tests.discover.oracle import summary

EXPECTED: dict[str, Any] = json.loads((DATA / "sysfs" / "expected.json").read_text())

NO_CORES = {"4fake-4gr1nu1pu": "no thread_siblings files: hwloc has no cores, Topolet one per CPU"}
NO_SOCKETS = {
    "2ps3-2t": "no core_siblings and no package id: hwloc has no package, Topolet socket 0"
}
HIDDEN_NODES = {
    "nvidiagpunumanodes": ("250-255", "memory of GPUs, which hwloc hides on POWER"),
}
PLACED_NODES = {
    "fakeheteromemtiers": ("4,6,8-9", "hwloc gives CPU-less nodes the CPUs of their initiators"),
    "fakememinitiators-1np2c+1npp+gi": ("4-10", "the same, with generic initiators"),
}


@pytest.fixture(params=list(EXPECTED))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topology(name: str, snapshot: Callable[[str], str]) -> Topology:
    return cpus.read(snapshot(name))


def test_online_cpus(name: str, topology: Topology) -> None:
    assert str(topology.online) == EXPECTED[name]["cpus"]


def test_cores(name: str, topology: Topology) -> None:
    found = summary(topology).cores
    if name in NO_CORES:
        assert EXPECTED[name]["cores"] == []
        assert found == {str(cpu.id) for cpu in topology.cpus}
    else:
        assert found == set(EXPECTED[name]["cores"])


def test_sockets(name: str, topology: Topology) -> None:
    found = summary(topology).socket_ids
    if name in NO_SOCKETS:
        assert EXPECTED[name]["packages"] == []
        assert found == {str(topology.online): 0}
    else:
        assert found == {each["cpus"]: each["id"] for each in EXPECTED[name]["packages"]}


def test_numa_nodes(name: str, topology: Topology) -> None:
    placed = CpuSet.parse(PLACED_NODES.get(name, ("",))[0])
    expected = {
        each["id"]: ("" if each["id"] in placed else each["cpus"], each["memory_bytes"])
        for each in EXPECTED[name]["numa_nodes"]
    }
    hidden = CpuSet.parse(HIDDEN_NODES.get(name, ("",))[0])
    found = summary(topology).nodes
    assert {node: found[node] for node in found if node not in hidden} == expected
    assert all(found[node][0] == "" for node in hidden)


@pytest.mark.parametrize(
    ("machine", "node", "row"),
    [
        ("48amd64-4pa2n6c-sparse", 33, (22, 16, 16, 10, 16, 16, 22, 22)),
        ("nvidiagpunumanodes", 8, (40, 10, 80, 80, 80, 80, 80, 80)),
        ("8ia64-2n2s2c", 1, (15, 10)),
        ("2arm-2c", 0, ()),
    ],
)
def test_distances(
    machine: str, node: int, row: tuple[int, ...], snapshot: Callable[[str], str]
) -> None:
    nodes = {each.id: each for each in cpus.read(snapshot(machine)).numa_nodes}
    assert nodes[node].distances == row


def test_hugepages_are_part_of_the_memory(snapshot: Callable[[str], str]) -> None:
    """As in hwloc, `memory_bytes` is MemTotal: it includes the pools of huge pages."""
    (first, _) = cpus.read(snapshot("32intel64-2p8co2t+8ve")).numa_nodes
    assert [(pool.size_bytes, pool.total, pool.free) for pool in first.hugepages] == [
        (2 << 20, 2048, 2048),
        (1 << 30, 0, 0),
    ]
    assert first.memory_bytes == 47_925_628 << 10


def test_cpu_of_an_offline_node_keeps_its_number(snapshot: Callable[[str], str]) -> None:
    topology = cpus.read(snapshot("offline-cpu0-node0"))
    assert {cpu.id: cpu.node for cpu in topology.cpus}[4] == 0
    assert [node.id for node in topology.numa_nodes] == [1]
    assert str(topology.offline) == "0-3,21-23"
