"""The annotations resource-spec and numa-topology-spec."""

from __future__ import annotations

import pytest

from agent.model.cpu.policies import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy
from agent.model.pod.annotations import (
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    AnnotationError,
    NumaSpec,
    ResourceSpec,
    numa_spec,
    resource_spec,
)


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
