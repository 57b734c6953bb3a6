import msgspec

from agent.model.cpuset import CpuSet
from agent.model.qos import QoS
from agent.model.resources import (
    NodeConfiguration,
    PodCpuAlloc,
    node_labels,
    node_resource_topology,
)
from agent.model.snapshot import Owner, Pool
from agent.model.topology import HugePages, Topology
from tests.builders import machine


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


def test_zones_tell_what_is_there_and_what_nobody_owns() -> None:
    owners = (Owner("a", "ns/a", QoS.LSE, "0"),)
    allocs = (PodCpuAlloc("ns", "g", "g", "2", True), PodCpuAlloc("ns", "a", "a", "1"))
    body = node_resource_topology("n", big_machine(), (), (), owners, allocs, NodeConfiguration())
    first, second = body["zones"]
    assert (first["name"], first["type"]) == ("node-0", "Node")
    assert first["costs"] == [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]
    assert {each["name"]: (each["capacity"], each["available"]) for each in first["resources"]} == {
        "cpu": ("2", "1"),
        "hugepages-64Ki": ("65536", "65536"),
        "hugepages-2Mi": (str(20 << 20), str(8 << 20)),
        "memory": (str((8 << 30) - (20 << 20) - (64 << 10)),) * 2,
    }
    assert second["resources"][0] == {
        "name": "cpu",
        "capacity": "2",
        "allocatable": "2",
        "available": "1",
    }


def test_names_and_types_are_those_of_the_api() -> None:
    pools = (Pool(0, 0, "1"),)
    body = node_resource_topology("n", machine(), pools, (), (), (), NodeConfiguration())
    assert (body["apiVersion"], body["kind"]) == (
        "topology.node.k8s.io/v1alpha2",
        "NodeResourceTopology",
    )
    assert all(isinstance(value, str) for value in body["metadata"]["annotations"].values())
    assert "costs" not in body["zones"][0], "a machine that reports no distances"
    assert body == msgspec.json.decode(msgspec.json.encode(body)), "plain JSON values"


def test_node_labels_tell_the_kind_of_machine() -> None:
    topology = machine(2, 2)
    kinds = ("core", "atom", "core", None)
    cpus = tuple(
        msgspec.structs.replace(cpu, core=cpu.id & 2, kind=kind)
        for cpu, kind in zip(topology.cpus, kinds, strict=True)
    )
    hybrid = msgspec.structs.replace(topology, cpus=cpus, smt=True, offline=CpuSet([9]))
    labels = node_labels("n", hybrid)["metadata"]["labels"]
    assert {key.partition("/")[2]: value for key, value in labels.items()} == {
        "cpus": "4",
        "cores": "2",
        "sockets": "2",
        "numa-nodes": "2",
        "l3-caches": "0",
        "smt": "true",
        "core-kinds": "atom_core",
    }
