from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import CpuSet
from agent.model.nrt.node_annotations import (
    CPU_SHARED_POOLS,
    POD_CPU_ALLOCS,
    RESERVATION,
    SYSTEM_QOS,
    NodeConfiguration,
    PodCpuAlloc,
    koordinator_annotations,
    kubelet_allocated,
    label_faults,
    node_reservation,
    only_kubelet_allocated,
    shared_pools,
    system_qos,
)
from agent.model.nrt.node_status import node_labels
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.qos import Pool
from tests.builders import machine


@pytest.mark.parametrize(
    ("text", "cpus", "exclusive"),
    [
        (None, "", True),
        ("", "", True),
        ("null", "", True),
        ("{}", "", True),
        ('{"cpuset": "0-1"}', "0-1", True),
        ('{"cpuset": "0-1", "cpusetExclusive": false, "later": 1}', "0-1", False),
    ],
)
def test_system_qos(text: str | None, cpus: str, exclusive: bool) -> None:
    value = system_qos({} if text is None else {SYSTEM_QOS: text})
    assert (str(value.cpus()), value.cpuset_exclusive) == (cpus, exclusive)


@pytest.mark.parametrize(
    ("text", "cpus", "cpu_milli"),
    [
        (None, "", 0),
        ("null", "", 0),
        ('{"reservedCPUs": "0-3", "applyPolicy": "ReservedCPUsOnly"}', "0-3", 0),
        ('{"resources": {"cpu": "1500m", "memory": "1Gi"}}', "", 1500),
        ('{"resources": {"cpu": 2}, "applyPolicy": "Default"}', "", 2000),
    ],
)
def test_node_reservation(text: str | None, cpus: str, cpu_milli: int) -> None:
    value = node_reservation({} if text is None else {RESERVATION: text})
    assert (value.cpus(), value.cpu_milli()) == (CpuSet.parse(cpus), cpu_milli)


def read_all(key: str, text: str) -> None:
    if key == SYSTEM_QOS:
        system_qos({key: text}).cpus()
    else:
        reservation = node_reservation({key: text})
        reservation.cpus()
        reservation.cpu_milli()


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        (SYSTEM_QOS, '"bad"', "Expected `object | null`"),
        (SYSTEM_QOS, "{", "is not JSON"),
        (SYSTEM_QOS, '{"cpuset": "x"}', "cpuset: CPU list 'x'"),
        (SYSTEM_QOS, '{"cpusetExclusive": "no"}', "`$.cpusetExclusive`"),
        (RESERVATION, '{"reservedCPUs": "3-1"}', "reservedCPUs: CPU list '3-1'"),
        (RESERVATION, '{"resources": {"cpu": "two"}}', "resources.cpu: 'two' is not a quantity"),
        (RESERVATION, '{"resources": {"cpu": -1}}', "resources.cpu: -1000m is below zero"),
        (RESERVATION, '{"applyPolicy": "Sometimes"}', "`$.applyPolicy`"),
    ],
)
def test_fault_names_annotation_and_field(key: str, text: str, reason: str) -> None:
    with pytest.raises(AnnotationError) as raised:
        read_all(key, text)
    assert raised.value.key == key
    assert reason in raised.value.reason


def test_annotations_are_written_as_read() -> None:
    for text in (b"{}", b'{"cpuset":"1","cpusetExclusive":false}'):
        assert msgspec.json.encode(system_qos({SYSTEM_QOS: text.decode()})) == text
    text = b'{"resources":{"cpu":"1"},"reservedCPUs":"0","applyPolicy":"Default"}'
    assert msgspec.json.encode(node_reservation({RESERVATION: text.decode()})) == text


def test_node_labels_describe_the_machine() -> None:
    topology = machine(2, 2)
    kinds = ("core", "atom", "core", None)
    cpus = tuple(
        msgspec.structs.replace(cpu, core=cpu.id & 2, kind=kind)
        for cpu, kind in zip(topology.cpus, kinds, strict=True)
    )
    hybrid = msgspec.structs.replace(topology, cpus=cpus, smt=True, offline=CpuSet([9]))
    labels = node_labels(hybrid)
    assert {key.partition("/")[2]: value for key, value in labels.items()} == {
        "cpus": "4",
        "cores": "2",
        "sockets": "2",
        "numa-nodes": "2",
        "l3-caches": "0",
        "smt": "true",
        "core-kinds": "atom_core",
    }


@pytest.mark.parametrize("text", [None, "", "null", "[]"])
def test_absent_pools(text: str | None) -> None:
    assert shared_pools({} if text is None else {CPU_SHARED_POOLS: text}, CPU_SHARED_POOLS) == ()


def test_reported_pools_and_koordinators_empty_pools_are_read() -> None:
    pools = (Pool(0, 0, "1"), Pool(1, 1, "2-3"))
    notes = koordinator_annotations(machine(), {"ls": pools}, (), NodeConfiguration())
    assert shared_pools(notes, CPU_SHARED_POOLS) == pools
    text = '[{"socket": 0, "node": 0}]'
    assert shared_pools({CPU_SHARED_POOLS: text}, CPU_SHARED_POOLS) == (Pool(0, 0, ""),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bad", "is not JSON"),
        ("{}", "Expected `array"),
        ('[{"socket": 0}]', "missing required field `node`"),
        ('[{"socket": 0, "node": 0, "cpuset": "x"}]', "CPU list 'x'"),
    ],
)
def test_invalid_pools(text: str, reason: str) -> None:
    with pytest.raises(AnnotationError, match=CPU_SHARED_POOLS) as raised:
        shared_pools({CPU_SHARED_POOLS: text}, CPU_SHARED_POOLS)
    assert reason in raised.value.reason


allocs = st.builds(
    PodCpuAlloc,
    st.just("ns"),
    st.text("ab", max_size=2),
    st.sampled_from("uvw"),
    st.frozensets(st.integers(0, 9)).map(lambda cpus: str(CpuSet(cpus))),
    st.booleans(),
)


@given(st.lists(allocs, max_size=5))
def test_without_the_other_owners_the_kubelets_cpus_are_the_same(
    entries: list[PodCpuAlloc],
) -> None:
    text = msgspec.json.encode(entries).decode()
    short = only_kubelet_allocated(text)
    assert kubelet_allocated({POD_CPU_ALLOCS: short}) == kubelet_allocated({POD_CPU_ALLOCS: text})
    assert short.count("managedByKubelet") == short.count("uid")


def test_the_proposals_example_of_pod_cpu_allocs_is_read() -> None:
    """Its fields are not those of its definition."""
    uid = "32b14702-2efe-4be9-a9da-f3b779175846"
    text = f"""
      [
        {{
          "namespace": "default",
          "name": "static-guaranteed-pod",
          "uid": "{uid}",
          "cpu": "4-8",
          "managedByKubelet": "true"
        }}
      ]"""
    for each in (text, only_kubelet_allocated(text)):
        assert kubelet_allocated({POD_CPU_ALLOCS: each}) == {uid: CpuSet.parse("4-8")}
    other = text.replace("true", "false")
    assert kubelet_allocated({POD_CPU_ALLOCS: other}) == {}
    with pytest.raises(AnnotationError, match="managedByKubelet"):
        kubelet_allocated({POD_CPU_ALLOCS: text.replace("true", "maybe")})


@pytest.mark.parametrize("text", ["{", '[{"uid":1}]', "[" * 9999])
def test_allocs_that_cannot_be_read_are_not_changed(text: str) -> None:
    assert only_kubelet_allocated(text) == text


PREFIX = "node.koordinator.sh/"


@pytest.mark.parametrize(
    ("label", "known", "unknown"),
    [
        (
            "cpu-bind-policy",
            ["None", "FullPCPUsOnly", "SpreadByPCPUs", "PCPUOnly"],
            ["FullPCPUs", "none"],
        ),
        (
            "numa-allocate-strategy",
            ["MostAllocated", "LeastAllocated", "DistributeEvenly"],
            ["BalancedAllocation", "Most"],
        ),
        (
            "numa-topology-policy",
            ["None", "BestEffort", "Restricted", "SingleNUMANode"],
            ["single-numa-node"],
        ),
        (
            "numa-topology-alignment-policy",
            ["None", "BestEffort", "Restricted", "SingleNUMANode"],
            ["SingleNUMANodePodLevel"],
        ),
        ("gpu-partition-policy", ["Honor", "Prefer"], ["honor"]),
        ("numa-memory-policy", ["", "any"], []),
        ("gpu-model", ["x"], []),
    ],
)
def test_labels_with_unknown_values_are_faults(
    label: str, known: list[str], unknown: list[str]
) -> None:
    for value in ["", *known]:
        assert label_faults({PREFIX + label: value}) == ()
    for value in unknown:
        (fault,) = label_faults({PREFIX + label: value})
        assert fault == f"label {PREFIX}{label}: {value!r} is not one of {', '.join(known)}"
