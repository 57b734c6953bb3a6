from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.policies import (
    BindPolicy,
    ExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    NumaSpec,
    ResourceSpec,
    kubelet_numa_policy,
    label_faults,
    numa_spec,
    reported_numa_policy,
    resource_spec,
    topology_manager_scope,
)
from agent.model.pod.annotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC, AnnotationError


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("none", NumaPolicy.NONE),
        ("None", NumaPolicy.NONE),
        ("best-effort", NumaPolicy.BEST_EFFORT),
        ("BestEffortContainerLevel", NumaPolicy.BEST_EFFORT),
        ("BestEffort", NumaPolicy.BEST_EFFORT),
        ("restricted", NumaPolicy.RESTRICTED),
        ("RestrictedPodLevel", NumaPolicy.RESTRICTED),
        ("RestrictedContainerLevel", NumaPolicy.RESTRICTED),
        ("single-numa-node", NumaPolicy.SINGLE_NUMA_NODE),
        ("SingleNUMANodePodLevel", NumaPolicy.SINGLE_NUMA_NODE),
        ("SingleNUMANodeContainerLevel", NumaPolicy.SINGLE_NUMA_NODE),
        ("", None),
        ("PodLevel", None),
        ("strict", None),
    ],
)
def test_every_spelling_of_a_topology_manager_policy(text: str, policy: NumaPolicy | None) -> None:
    assert kubelet_numa_policy(text) is policy


@given(
    st.sampled_from(["single-numa-node", "best-effort", "restricted", "none"]),
    st.sampled_from(["", "-", "_"]),
    st.sampled_from(["", "PodLevel", "ContainerLevel", "-pod-level", "_container_level"]),
    st.sampled_from([str.lower, str.upper, str.title]),
)
def test_case_and_separators_of_a_policy_do_not_matter(
    policy: str, separator: str, level: str, write: Callable[[str], str]
) -> None:
    text = write(policy.replace("-", separator)) + level
    assert kubelet_numa_policy(text) is kubelet_numa_policy(policy)
    scope = topology_manager_scope(text)
    assert (scope is None) == (not level)
    assert scope is None or scope in level.lower()


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


@pytest.mark.parametrize("scope", ["pod", "container"])
@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_reported_policy_contains_policy_and_scope(policy: str, scope: str) -> None:
    word = reported_numa_policy(policy, scope)
    assert kubelet_numa_policy(word) is kubelet_numa_policy(policy)
    assert word.endswith(f"{scope.title()}Level")


@pytest.mark.parametrize("policy", ["none", "", "strict"])
def test_no_policy_has_no_scope(policy: str) -> None:
    assert reported_numa_policy(policy, "pod") == "None"


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


@given(st.text() | st.sampled_from(["[]", '{"preferredCPUBindPolicy": 1}', "{" * 99_999]))
def test_no_text_raises_another_error(text: str) -> None:
    for read, key in ((resource_spec, RESOURCE_SPEC), (numa_spec, NUMA_TOPOLOGY_SPEC)):
        with contextlib.suppress(AnnotationError):
            read({key: text})
