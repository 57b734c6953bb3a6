from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discover import cpus
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import HugePages, NumaNode, Topology
from agent.model.devices.device_object import Device, DeviceTopology, Portion, portions
from agent.model.devices.gpus import GpuInfo
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.nrt.resource_topology import (
    L3_CPUS,
    Amounts,
    OwnerReference,
    Version,
    decode,
    encode,
)
from agent.model.pod.qos import Pool
from agent.node.node_resource_topology import (
    Allocated,
    DeviceReport,
    Report,
    ReportValues,
    Reserved,
    build,
    core_kinds,
    zones,
)
from tests.builders import machine

GPUS = tuple(
    Device(
        "gpu",
        f"GPU-{minor}",
        minor,
        {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory": 80 << 30},
        healthy=minor != 1,
        topology=DeviceTopology(0, node=0),
    )
    for minor in range(2)
)
DEVICES = DeviceReport(
    GPUS,
    GpuInfo("nvidia", "NVIDIA H200", "570.1"),
    held={("gpu", 0): {"koordinator.sh/gpu-core": 40}},
)


def report_of(topology: Topology, **changes: Any) -> Report:
    values = ReportValues("n", topology, {}, (), (), Reserved(), NodeConfiguration())
    return build(msgspec.structs.replace(values, **changes))


def amounts(report: Report, node: int = 0) -> dict[str, tuple[int, int, int]]:
    resources = report.topology.zones[node].resources
    return {name: msgspec.structs.astuple(each) for name, each in resources.items()}


def test_devices_are_in_their_zone_and_add_up_on_the_node() -> None:
    of_plugin = Portion("vendor.com/nic", 1, 3, 2, 1)
    report = report_of(machine(2, 2), devices=DEVICES, plugged=(of_plugin,))
    assert amounts(report)["koordinator.sh/gpu-core"] == (200, 100, 60)
    assert amounts(report, 1)["vendor.com/nic"] == (3, 2, 1)
    assert "koordinator.sh/gpu-core" not in report.topology.zones[1].resources
    assert report.resources == {
        "koordinator.sh/gpu": 100,
        "koordinator.sh/gpu-core": 100,
        "koordinator.sh/gpu-memory": 80 << 30,
        "koordinator.sh/gpu.shared": 100,
    }
    assert report.labels["node.koordinator.sh/gpu-model"] == "H200"
    assert report.labels["nvidia.com/gpu.count"] == "2"


def test_owner_and_fingerprint_are_reported_to_a_cluster_only() -> None:
    standalone = report_of(machine()).topology
    assert (standalone.owner, standalone.fingerprint, standalone.attributes) == (None, None, {})
    shared = report_of(machine(), owner=OwnerReference("n", "u"), fingerprint="pfp0v001x").topology
    assert shared.owner == OwnerReference("n", "u")
    assert shared.attributes == {"nodeTopologyPodsFingerprintMethod": "all"}


@pytest.mark.parametrize("version", Version)
def test_objects_are_plain_values_that_read_back(version: Version) -> None:
    report = report_of(
        with_memory(),
        pools={"ls": (Pool(0, 0, "1"),)},
        configured=NodeConfiguration(topology_policy="restricted", max_numa_nodes=16),
    )
    body = encode(report.topology, version)
    assert body == msgspec.json.decode(msgspec.json.encode(body))
    decoded = decode(body)
    assert (decoded.zones, decoded.annotations) == (
        report.topology.zones,
        report.topology.annotations,
    )
    assert decoded.policy == "restricted"
    assert decoded.max_numa_nodes == (16 if version is Version.V1ALPHA2 else None)


GI = 1 << 30


def with_memory() -> Topology:
    """Two NUMA nodes with 2 CPUs each: 8 GiB with 1 GiB in huge pages, and 4 GiB."""
    topology = machine(2, 2)
    pages = (HugePages(2 << 20, 512, 500), HugePages(GI, 0, 0))
    first, second = topology.numa_nodes
    return msgspec.structs.replace(
        topology,
        numa_nodes=(
            msgspec.structs.replace(
                first, memory_bytes=8 * GI, distances=(10, 21), hugepages=pages
            ),
            msgspec.structs.replace(second, memory_bytes=4 * GI, distances=(21, 10)),
        ),
    )


def test_a_machine_without_pods() -> None:
    first, second = zones(with_memory())
    assert (first.costs, second.costs) == ({0: 10, 1: 21}, {0: 21, 1: 10})
    assert first.resources == {
        "cpu": Amounts(2000, 2000, 2000),
        "memory": Amounts(7 * GI, 7 * GI, 7 * GI),
        "hugepages-2Mi": Amounts(GI, GI, 500 << 21),
    }
    assert second.resources["memory"] == Amounts(4 * GI, 4 * GI, 4 * GI)


def test_held_amounts_are_subtracted_and_a_shared_cpu_once() -> None:
    held = (
        Allocated(CpuSet([0]), {0: {"memory": 2 * GI, "hugepages-2Mi": GI // 2}}),
        Allocated(CpuSet([0, 3]), {0: {"memory": GI}, 1: {"memory": 9 * GI, "cpu": 2000}}),
    )
    first, second = zones(with_memory(), held)
    assert first.resources["cpu"].available == 1000
    assert first.resources["memory"].available == 4 * GI
    assert first.resources["hugepages-2Mi"].available == GI // 2
    assert second.resources["cpu"].available == 1000, "a share of a pool is not exclusive"
    assert second.resources["memory"].available == 0


def test_reserved_amounts_are_not_available() -> None:
    first, second = zones(with_memory(), (), Reserved(CpuSet([0]), {0: 3 * GI, 1: 5 * GI}))
    assert first.resources["cpu"] == Amounts(2000, 2000, 1000)
    assert first.resources["memory"] == Amounts(7 * GI, 4 * GI, 4 * GI)
    assert second.resources["memory"] == Amounts(4 * GI, 0, 0)


def gpu(minor: int, node: int, *, healthy: bool = True) -> Device:
    return Device(
        "gpu",
        f"GPU-{minor}",
        minor,
        {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory": 80 * GI},
        healthy,
        topology=DeviceTopology(0, node, "p"),
    )


def test_devices_count_on_their_numa_node() -> None:
    devices = (gpu(0, 0), gpu(1, 0), gpu(2, 0, healthy=False), gpu(3, 1), gpu(4, -1))
    held = {
        ("gpu", 0): {"koordinator.sh/gpu-core": 50},
        ("gpu", 2): {"koordinator.sh/gpu-core": 100},
        ("rdma", 3): {"koordinator.sh/gpu-core": 100},
    }
    first, second = zones(machine(2, 2), devices=portions(devices, held))
    assert first.resources["koordinator.sh/gpu-core"] == Amounts(300, 200, 150)
    assert first.resources["koordinator.sh/gpu-memory"] == Amounts(240 * GI, 160 * GI, 160 * GI)
    assert second.resources["koordinator.sh/gpu-core"] == Amounts(100, 100, 100)


def test_numa_nodes_with_gaps_keep_their_distances() -> None:
    nodes = (NumaNode(1, CpuSet([0]), GI, (10, 40)), NumaNode(8, CpuSet(), GI, (40, 10)))
    topology = msgspec.structs.replace(machine(1, 1), numa_nodes=nodes)
    first, second = zones(topology)
    assert (first.costs, second.costs) == ({1: 10, 8: 40}, {1: 40, 8: 10})
    assert second.resources["cpu"] == Amounts(0, 0, 0)


def test_caches_and_core_kinds_are_reported_if_there_are_several() -> None:
    topology = machine(1, 4)
    assert zones(topology)[0].attributes == core_kinds(topology) == {}
    mixed = msgspec.structs.replace(
        topology,
        cpus=tuple(
            msgspec.structs.replace(cpu, l3=cpu.id & 2, kind="core" if cpu.id < 3 else "atom")
            for cpu in topology.cpus
        ),
    )
    assert zones(mixed)[0].attributes == {L3_CPUS: "0-1;2-3"}
    assert core_kinds(mixed) == {"cpu_core": "0-2", "cpu_atom": "3"}


claims = st.builds(
    Allocated,
    st.sets(st.integers(0, 5)).map(CpuSet),
    st.dictionaries(
        st.integers(0, 2),
        st.dictionaries(
            st.sampled_from(["cpu", "memory", "hugepages-2Mi"]), st.integers(0, 4 * GI)
        ),
    ),
)


@given(st.lists(claims, max_size=4), claims)
def test_another_pod_never_increases_the_available_amounts(
    held: list[Allocated], more: Allocated
) -> None:
    before, after = zones(with_memory(), held), zones(with_memory(), [*held, more])
    assert zones(with_memory(), held[::-1]) == before
    for old, new in zip(before, after, strict=True):
        for name, amounts in new.resources.items():
            assert 0 <= amounts.available <= old.resources[name].available
            assert amounts.available <= amounts.allocatable <= amounts.capacity


@pytest.mark.parametrize(
    "name", ["32amd64-4s2n4c-cgroup2", "48amd64-4pa2n6c-sparse", "8em64t-2s4c-asymcaches"]
)
def test_zones_of_real_machines_add_up(snapshot: Callable[[str], str], name: str) -> None:
    topology = cpus.read(snapshot(name))
    found = zones(topology, [Allocated(topology.online)])
    assert [each.node for each in found] == [each.id for each in topology.numa_nodes]
    assert sum(each.resources["cpu"].capacity for each in found) == 1000 * len(topology.cpus)
    assert not any(each.resources["cpu"].available for each in found)
    for node, zone in zip(topology.numa_nodes, found, strict=True):
        pages = sum(each.size_bytes * each.total for each in node.hugepages)
        assert zone.resources["memory"].capacity == node.memory_bytes - pages
        if node.distances:
            assert set(zone.costs) == {each.id for each in topology.numa_nodes}
