from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import HugePages, Topology
from agent.model.devices.device_object import Device, DeviceTopology, Portion
from agent.model.devices.gpus import GpuInfo
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.nrt.resource_topology import OwnerReference, Version, decode, encode
from agent.model.pod.qos import Pool
from agent.node.node_resource_topology import (
    Allocated,
    DeviceReport,
    Report,
    ReportValues,
    Reserved,
    build,
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


def big_machine() -> Topology:
    topology = machine(2, 2)
    pages = (HugePages(2 << 20, 10, 4), HugePages(1 << 30, 0, 0), HugePages(64 << 10, 1, 1))
    first, second = topology.numa_nodes
    return msgspec.structs.replace(
        topology,
        numa_nodes=(
            msgspec.structs.replace(
                first, memory_bytes=8 << 30, distances=(10, 21), hugepages=pages
            ),
            msgspec.structs.replace(second, memory_bytes=4 << 30, distances=(21, 10)),
        ),
    )


def report_of(topology: Topology, **changes: Any) -> Report:
    values = ReportValues("n", topology, {}, (), (), Reserved(), NodeConfiguration())
    return build(msgspec.structs.replace(values, **changes))


def amounts(report: Report, node: int = 0) -> dict[str, tuple[int, int, int]]:
    resources = report.topology.zones[node].resources
    return {name: msgspec.structs.astuple(each) for name, each in resources.items()}


def test_zones_have_capacity_and_available_amounts() -> None:
    held = Allocated(CpuSet([0]), {0: {"memory": 1 << 30}}), Allocated(CpuSet([2]))
    report = report_of(big_machine(), held=held)
    available = (8 << 30) - (20 << 20) - (64 << 10)
    assert amounts(report) == {
        "cpu": (2000, 2000, 1000),
        "hugepages-64Ki": (65536, 65536, 65536),
        "hugepages-2Mi": (20 << 20, 20 << 20, 8 << 20),
        "memory": (available, available, available - (1 << 30)),
    }
    assert amounts(report, 1)["cpu"] == (2000, 2000, 1000)
    assert report.topology.zones[0].costs == {0: 10, 1: 21}


def test_reserved_amounts_are_not_available() -> None:
    report = report_of(big_machine(), reserved=Reserved(CpuSet([3]), {1: 1 << 30}))
    assert amounts(report, 1)["cpu"] == (2000, 2000, 1000)
    assert amounts(report, 1)["memory"] == (4 << 30, 3 << 30, 3 << 30)


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
        big_machine(),
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
