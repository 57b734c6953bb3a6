"""The properties of a node from its NodeResourceTopology, written by the agent or by others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from agent.allocate.kubelet.static_policy import WholeCores
from agent.allocate.node_allocator.properties import node_properties, topology_options
from agent.model.cpu import layout
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import BindPolicy, NumaPolicy, Strategy
from agent.model.cpu.topology import Topology
from agent.model.nrt.node_annotations import (
    AGENT_SETTINGS,
    AMPLIFICATION_RATIO,
    CPU_MANAGER_POLICY,
    CPU_TOPOLOGY,
    NUMA_MEMORY_POLICY,
    POD_CPU_ALLOCS,
    SYSTEM_QOS,
    NodeConfiguration,
    NodeReservation,
    PodCpuAlloc,
    SystemQos,
    koordinator_annotations,
)
from agent.model.nrt.resource_topology import L3_CPUS, Amounts, NodeTopology, Zone, decode
from conformance import machines

MACHINE = machines.cpus((2, 1, 4, 2), "interleaved")
PLAIN = NodeConfiguration()
ALLOC = PodCpuAlloc("ns", "kubelets", "u", "6,14", managed_by_kubelet=True)


def reported(configured: NodeConfiguration = PLAIN, *allocs: PodCpuAlloc) -> Any:
    """The annotations that the agent writes."""
    topology = Topology(MACHINE, (), EMPTY, EMPTY, smt=True)
    return koordinator_annotations(topology, {}, allocs, configured)


def zone(node: int, cpu_milli: int, **more: int) -> Zone:
    amounts = {"cpu": cpu_milli, **more}
    return Zone(node, {name: Amounts(n, n, 0) for name, n in amounts.items()})


def test_options_are_read_from_the_report_of_the_agent() -> None:
    configured = NodeConfiguration(
        kubelet_policy="static",
        kubelet_options={"full-pcpus-only": "true"},
        kubelet_reserved=CpuSet.parse("0,8"),
        system_qos=SystemQos("1,9"),
        reservation=NodeReservation(reserved_cpus="2,8"),
    )
    topology = NodeTopology(
        "n", (zone(0, 8000, memory=1 << 30),), "restricted", annotations=reported(configured, ALLOC)
    )
    options, faults = topology_options({}, {}, topology, 16000)
    assert not faults
    assert options.layout == layout.of(MACHINE)
    assert options.numa_allocatable == {0: {"cpu": 8000, "memory": 1 << 30}}
    assert options.kept == CpuSet.parse("0-2,6,8-9,14")
    assert options.kubelet_reserved == CpuSet.parse("0,8")
    assert node_properties("n", {}, options).whole_cores == WholeCores(14, 2)
    assert (options.cpu_milli, options.cpu_ratio) == (16000, 1.0)
    assert options.policies.numa_kubelet is NumaPolicy.RESTRICTED
    assert options.policies.full_pcpus_only


RESERVED = NodeConfiguration(kubelet_reserved=CpuSet.parse("0,8"), system_qos=SystemQos("1"))


@pytest.mark.parametrize(
    ("annotations", "kept"),
    [
        (reported(RESERVED), "0-1,8"),
        (reported(replace(RESERVED, owners_on_reserved=True)), "1"),
        (reported(NodeConfiguration(system_qos=SystemQos("1", cpuset_exclusive=False))), ""),
        (reported(PLAIN, PodCpuAlloc("ns", "topolets", "u", "4,12"), ALLOC), "6,14"),
    ],
    ids=["the kubelet's", "not the kubelet's", "a shared system cpuset", "not Topolet's owners"],
)
def test_cpus_that_no_pod_may_own(annotations: Any, kept: str) -> None:
    """The agent reports whether pods may own the kubelet's reserved CPUs, and admits claims by the
    same setting; otherwise the scheduler would offer CPUs that the agent refuses."""
    options, faults = topology_options({}, {}, NodeTopology("n", annotations=annotations))
    assert not faults
    assert str(options.kept) == kept


@pytest.mark.parametrize(
    ("labels", "configured", "counts"),
    [
        ({}, False, False),
        ({}, True, True),
        ({NUMA_MEMORY_POLICY: ""}, False, True),
        ({NUMA_MEMORY_POLICY: "any"}, True, True),
    ],
)
def test_memory_counts_by_the_nodes_label_or_the_agents_setting(
    labels: dict[str, str], configured: bool, counts: bool
) -> None:
    notes = reported(NodeConfiguration(bind_memory=configured))
    options, faults = topology_options(labels, {}, NodeTopology("n", annotations=notes))
    assert not faults
    assert options.counts_memory is counts


def test_settings_of_the_agent_that_cannot_be_read_are_a_fault() -> None:
    notes = {**reported(), AGENT_SETTINGS: '{"ownersOnReserved": "yes"}'}
    options, faults = topology_options({}, {}, NodeTopology("n", annotations=notes))
    assert options.layout is None, "no CPU is bound"
    assert [AGENT_SETTINGS in each for each in faults] == [True]


def test_core_ids_may_repeat_in_each_socket() -> None:
    detail = [
        {"id": each.id, "core": each.core % 4, "socket": each.socket, "node": each.node}
        for each in MACHINE
    ]
    topology = NodeTopology("n", annotations={CPU_TOPOLOGY: json.dumps({"detail": detail})})
    assert topology_options({}, {}, topology)[0].layout == layout.of(MACHINE)


def test_caches_come_from_the_zones() -> None:
    zones = (
        Zone(0, attributes={L3_CPUS: "0-1,8-9;2-3,10-11"}),
        Zone(1, attributes={L3_CPUS: "4-5,12-13;x;6-7,14-15"}),
    )
    topology = NodeTopology("n", zones, annotations=reported())
    found = topology_options({}, {}, topology)[0].layout
    assert found == layout.of(machines.cpus((2, 1, 4, 2), "interleaved", 4))


def test_labels_and_ratios_of_the_node_are_read() -> None:
    labels = {
        "node.koordinator.sh/numa-topology-policy": "SingleNUMANode",
        "node.koordinator.sh/cpu-bind-policy": "SpreadByPCPUs",
        "node.koordinator.sh/numa-allocate-strategy": "MostAllocated",
    }
    notes = {AMPLIFICATION_RATIO: '{"cpu": 1.5, "memory": 1.25, "pods": 0.5}'}
    topology = NodeTopology("n", (zone(0, 2000, memory=10, pods=4),), annotations=reported())
    options, faults = topology_options(labels, notes, topology)
    assert not faults
    assert options.policies.numa_label is NumaPolicy.SINGLE_NUMA_NODE
    assert options.policies.bind_label is BindPolicy.SPREAD_BY_PCPUS
    assert options.policies.strategy_label is Strategy.MOST_ALLOCATED
    assert options.numa_allocatable == {0: {"cpu": 2000, "memory": 13, "pods": 4}}
    assert options.totals == {0: {"cpu": 3000, "memory": 13, "pods": 4}}


def test_options_are_ignored_under_another_policy() -> None:
    configured = NodeConfiguration(kubelet_options={"full-pcpus-only": "true"})
    options, _ = topology_options({}, {}, NodeTopology("n", annotations=reported(configured)))
    assert not options.policies.full_pcpus_only


def test_a_node_without_cpu_details_has_its_zones() -> None:
    options, faults = topology_options({}, {}, NodeTopology("n", (zone(3, 1000),)))
    assert (options.layout, options.numa_allocatable, faults) == (None, {3: {"cpu": 1000}}, ())


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (CPU_TOPOLOGY, "{", "is not JSON"),
        (CPU_MANAGER_POLICY, '{"policy":"static","reservedCPUs":"x"}', "reservedCPUs"),
        (
            POD_CPU_ALLOCS,
            '[{"uid":"u","name":"","namespace":"","cpuset":"z","managedByKubelet":true}]',
            "'u'",
        ),
        (SYSTEM_QOS, '{"cpuset":"?"}', "cpuset"),
    ],
)
def test_no_cpus_are_bound_when_their_owners_are_unknown(key: str, text: str, message: str) -> None:
    topology = NodeTopology("n", (zone(0, 1000),), annotations={**reported(), key: text})
    options, faults = topology_options({}, {}, topology)
    assert options.layout is None
    assert options.numa_allocatable == {0: {"cpu": 1000}}
    (fault,) = faults
    assert fault.startswith(f"NodeResourceTopology n: annotation {key}: ")
    assert message in fault


@pytest.mark.parametrize("ratio", ['{"cpu": 1e9}', '{"cpu": "x"}', "[]"])
def test_an_invalid_ratio_is_ignored(ratio: str) -> None:
    options, faults = topology_options({}, {AMPLIFICATION_RATIO: ratio}, NodeTopology("n"))
    assert options.cpu_ratio == 1.0
    (fault,) = faults
    assert fault.startswith(f"annotation {AMPLIFICATION_RATIO}: ")


def test_unknown_values_of_the_report_are_faults_that_name_it() -> None:
    notes = {**reported(), CPU_MANAGER_POLICY: '{"policy":"dynamic"}'}
    body = {
        "metadata": {"name": "n", "annotations": notes},
        "topologyPolicies": ["strict"],
        "zones": [],
    }
    options, faults = topology_options({}, {}, decode(body))
    assert options.layout is not None
    assert not options.kubelet_static
    assert options.policies.numa_kubelet is NumaPolicy.NONE
    assert faults == (
        "NodeResourceTopology n: topologyPolicies[0]: 'strict' is not one of none, best-effort, "
        "restricted, single-numa-node",
        f"NodeResourceTopology n: annotation {CPU_MANAGER_POLICY}: policy: 'dynamic' is not one of "
        "none, static",
    )


def test_invalid_labels_are_reported_too() -> None:
    labels = {"node.koordinator.sh/cpu-bind-policy": "Sideways"}
    _, faults = topology_options(labels, {}, NodeTopology("n"))
    assert "Sideways" in faults[0]
