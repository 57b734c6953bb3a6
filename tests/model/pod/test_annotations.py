from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy
from agent.model.pod.annotations import (
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    RESOURCE_STATUS,
    AnnotationError,
    NumaSpec,
    ResourceSpec,
    ResourceStatus,
    SharedPool,
    numa_spec,
    resource_spec,
    resource_status,
    with_allocation,
    with_cpus,
)


@pytest.mark.parametrize(
    ("text", "cpus", "nodes"),
    [
        (None, "", ()),
        ("", "", ()),
        ("null", "", ()),
        ("{}", "", ()),
        ('{"cpuset": "0-3,8"}', "0-3,8", ()),
        ('{"cpuset": " 2 , 1 "}', "1-2", ()),
        ('{"cpuset": "1", "later": [{"a": 1}]}', "1", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "2"}}]}', "", (1,)),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": 2}}]}', "", (1,)),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "100m"}}]}', "", (1,)),
        (
            '{"numaNodeResources": [{"node": 3, "resources": {"kubernetes.io/batch-cpu": "500"}},'
            ' {"node": 0, "resources": {"cpu": "1"}}]}',
            "",
            (3, 0),
        ),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "0"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "0.0"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "-1"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"cpu": "0e3"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1, "resources": {"memory": "1Gi"}}]}', "", ()),
        ('{"numaNodeResources": [{"node": 1}]}', "", ()),
        (
            '{"numaNodeResources": [{"node": 2, "resources": {"memory": "1Gi"}},'
            ' {"node": 1, "resources": {"cpu": "2"}}, {"node": 0}]}',
            "",
            (2, 1, 0),
        ),
        ('{"cpuSharedPools": [{"socket": 0, "node": 2}, {"node": 1}]}', "", (2, 1)),
        (
            '{"cpuSharedPools": [{"socket": 0, "node": 0, "cpuset": "0-3"}],'
            ' "numaNodeResources": [{"node": 1, "resources": {"cpu": "2"}}]}',
            "",
            (1,),
        ),
        (
            '{"cpuSharedPools": [{"socket": 0, "node": 0}],'
            ' "numaNodeResources": [{"node": 1, "resources": {"memory": "1Gi"}}]}',
            "",
            (0,),
        ),
    ],
)
def test_resource_status(text: str | None, cpus: str, nodes: tuple[int, ...]) -> None:
    status = resource_status({} if text is None else {RESOURCE_STATUS: text})
    assert status.cpus() == CpuSet.parse(cpus)
    assert status.shared_numa_nodes() == nodes


POOLS = '"cpuSharedPools": [{"socket": 0, "node": 2}, {"node": 1}, {"node": 2}]'


@pytest.mark.parametrize(
    ("text", "cpu_milli", "shares"),
    [
        ("{}", 3000, {}),
        (f"{{{POOLS}}}", 3001, {2: 1501, 1: 1500}),
        (f"{{{POOLS}}}", 1, {2: 1}),
        (f"{{{POOLS}}}", 0, {}),
        (f'{{{POOLS}, "numaNodeResources": [{{"node": 1, "resources": {{"cpu": 2}}}}]}}', 3000, {}),
        (
            f'{{{POOLS}, "numaNodeResources": [{{"node": 1, "resources": {{"memory": 2}}}}]}}',
            3000,
            {2: 1500, 1: 1500},
        ),
    ],
)
def test_the_request_of_a_pod_on_pools_is_split_over_them(
    text: str, cpu_milli: int, shares: dict[int, int]
) -> None:
    assert resource_status({RESOURCE_STATUS: text}).pool_shares(cpu_milli) == shares


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 99_999))
def test_the_shares_of_pools_are_the_whole_request(nodes: list[int], cpu_milli: int) -> None:
    status = ResourceStatus(cpu_shared_pools=tuple(map(SharedPool, nodes)))
    shares = status.pool_shares(cpu_milli)
    assert sum(shares.values()) == (cpu_milli if nodes else 0)
    assert shares.keys() <= set(nodes)
    assert max(shares.values(), default=0) - min(shares.values(), default=0) <= 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("cpuset", "is not JSON"),
        ("\ud800", "is not JSON"),
        ('{"more": ' + "[" * 16_000, "is not JSON"),
        ("[]", "Expected `object | null`"),
        ('{"cpuset": 3}', "`$.cpuset`"),
        ('{"cpuset": "3-1"}', "cpuset: CPU list '3-1'"),
        ('{"cpuset": "0-4294967295"}', "beyond CPU"),
        ('{"numaNodeResources": {}}', "`$.numaNodeResources`"),
        ('{"cpuSharedPools": [{"socket": 0}]}', "missing required field `node`"),
        ('{"numaNodeResources": [{"resources": {}}]}', "missing required field `node`"),
    ],
)
def test_error_names_annotation_and_field(text: str, reason: str) -> None:
    with pytest.raises(AnnotationError) as raised:
        resource_status({RESOURCE_STATUS: text}).cpus()
    assert raised.value.key == RESOURCE_STATUS
    assert reason in raised.value.reason
    assert str(raised.value) == f"annotation {RESOURCE_STATUS}: {raised.value.reason}"


NODES = {cpu: cpu // 4 for cpu in range(16)}


def part(node: int, **resources: str) -> dict[str, Any]:
    return {"node": node, "resources": resources}


@pytest.mark.parametrize(
    ("before", "cpus", "parts"),
    [
        pytest.param(None, "4-5", None, id="no NUMA nodes before"),
        pytest.param(
            [part(0, cpu="2", memory="8Gi")],
            "4-5",
            [part(1, cpu="2", memory="8Gi")],
            id="memory moves with the CPUs",
        ),
        pytest.param(
            [part(0, cpu="2", memory="8Gi")],
            "3-4",
            [part(0, cpu="1", memory="8Gi"), part(1, cpu="1")],
            id="memory stays if the CPUs are on two nodes",
        ),
        pytest.param(
            [part(0, cpu="1"), part(1, cpu="1", memory="1Gi")],
            "8-9",
            [part(1, memory="1Gi"), part(2, cpu="2")],
            id="memory on one of two nodes stays",
        ),
        pytest.param([part(0, memory="1Gi")], "4-5", None, id="bound memory"),
    ],
)
def test_numa_node_resources_move_with_the_cpus(
    before: list[dict[str, Any]] | None, cpus: str, parts: list[dict[str, Any]] | None
) -> None:
    status: dict[str, Any] = {"cpuset": "0-1", "later": {"field": 1}}
    if before is not None:
        status["numaNodeResources"] = before
    found = json.loads(with_cpus(json.dumps(status), CpuSet.parse(cpus), NODES))
    assert found["cpuset"] == cpus
    assert found["later"] == {"field": 1}
    assert found.get("numaNodeResources") == parts


def test_cpus_of_an_invalid_status_are_not_changed() -> None:
    with pytest.raises(AnnotationError, match="resource-status"):
        with_cpus("{", CpuSet([1]), NODES)


def test_a_new_allocation_replaces_the_old_one() -> None:
    before = {"cpuset": "0,8", "cpuSharedPools": [{"node": 0}], "other": {"field": 1}}
    amounts = {1: {"cpu": 1500, "memory": 7}}
    found = json.loads(with_allocation(json.dumps(before), CpuSet.parse("8-9"), amounts))
    assert found == {
        "other": {"field": 1},
        "cpuset": "8-9",
        "numaNodeResources": [{"node": 1, "resources": {"cpu": "1500m", "memory": "7"}}],
    }


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (None, ResourceSpec()),
        ("", ResourceSpec()),
        ("null", ResourceSpec()),
        ('{"preferredCPUBindPolicy": "", "requiredCPUBindPolicy": ""}', ResourceSpec()),
        ('{"preferredCPUExclusivePolicy": "Default"}', ResourceSpec()),
        (
            '{"preferredCPUBindPolicy": "SpreadByPCPUs",'
            ' "preferredCPUExclusivePolicy": "PCPULevel"}',
            ResourceSpec(BindPolicy.SPREAD_BY_PCPUS, None, ExclusivePolicy.PCPU_LEVEL),
        ),
        (
            '{"requiredCPUBindPolicy": "FullPCPUs", "unknown": 1}',
            ResourceSpec(required=BindPolicy.FULL_PCPUS),
        ),
    ],
)
def test_resource_spec(text: str | None, spec: ResourceSpec) -> None:
    assert resource_spec({} if text is None else {RESOURCE_SPEC: text}) == spec


def test_numa_spec() -> None:
    text = '{"numaTopologyPolicy": "SingleNUMANode", "singleNUMANodeExclusive": "Required"}'
    wanted = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE, NumaExclusive.REQUIRED)
    assert numa_spec({NUMA_TOPOLOGY_SPEC: text}) == wanted
    assert numa_spec({}) == NumaSpec()


def test_an_unknown_value_is_named_with_its_field() -> None:
    with pytest.raises(AnnotationError) as raised:
        resource_spec({RESOURCE_SPEC: '{"requiredCPUBindPolicy": "FullPCPU"}'})
    assert raised.value.key == RESOURCE_SPEC
    assert raised.value.reason.startswith(
        "requiredCPUBindPolicy: 'FullPCPU' is not one of Default, "
    )
    with pytest.raises(AnnotationError, match="numaTopologyPolicy: 'Strict' is not one of"):
        numa_spec({NUMA_TOPOLOGY_SPEC: '{"numaTopologyPolicy": "Strict"}'})
