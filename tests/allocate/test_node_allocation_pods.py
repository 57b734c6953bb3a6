from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocation import PodAllocation, pod_allocation
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import ExclusivePolicy
from agent.model.pod.annotations import RESOURCE_SPEC, RESOURCE_STATUS, AnnotationError
from tests.allocate.nodes import allocated, node_options


def test_a_pod_of_cpus_and_amounts() -> None:
    status = (
        '{"cpuset": "0-1", "numaNodeResources": ['
        '{"node": 1, "resources": {"cpu": "2", "memory": "1Gi", "batch.io/x": 3}}]}'
    )
    spec = '{"preferredCPUExclusivePolicy": "PCPULevel"}'
    claim = pod_allocation("u", "ns/p", {RESOURCE_STATUS: status, RESOURCE_SPEC: spec}, 2000)
    assert claim == PodAllocation(
        "u",
        "ns/p",
        CpuSet((0, 1)),
        ExclusivePolicy.PCPU_LEVEL,
        {1: {"cpu": 2000, "memory": 1 << 30, "batch.io/x": 3}},
        2000,
    )


def test_an_exclusive_policy_counts_with_cpus_only() -> None:
    spec = {RESOURCE_SPEC: '{"preferredCPUExclusivePolicy": "NUMANodeLevel"}'}
    assert pod_allocation("u", "ns/p", spec) == PodAllocation("u", "ns/p")


def test_amounts_of_a_repeated_numa_node_are_added() -> None:
    one = '{"node": 0, "resources": {"cpu": "1"}}'
    status = f'{{"numaNodeResources": [{one}, {one}]}}'
    assert pod_allocation("u", "ns/p", {RESOURCE_STATUS: status}).amounts == {0: {"cpu": 2000}}


def test_a_pod_on_the_pools_of_an_older_koordinator_holds_its_cpu_there() -> None:
    """cpuSharedPools has no amounts (fine-grained CPU orchestration proposal, Resource status)."""
    notes = {RESOURCE_STATUS: '{"cpuSharedPools": [{"socket": 0, "node": 1}]}'}
    held = pod_allocation("u", "ns/p", notes, 5000)
    assert held == PodAllocation("u", "ns/p", amounts={1: {"cpu": 5000}}, cpu_milli=5000)
    left = allocated(node_options(), [held]).available()
    assert (left[0]["cpu"], left[1]["cpu"]) == (8000, 3000)


@pytest.mark.parametrize(
    ("more", "amounts"),
    [
        ('"cpuset": "0-3"', {}),
        ('"numaNodeResources": [{"node": 0, "resources": {"cpu": "1"}}]', {0: {"cpu": 1000}}),
        (
            '"numaNodeResources": [{"node": 1, "resources": {"memory": "1"}}]',
            {1: {"memory": 1, "cpu": 4000}},
        ),
    ],
)
def test_own_cpus_and_amounts_have_precedence_over_pools(more: str, amounts: object) -> None:
    notes = {RESOURCE_STATUS: f'{{"cpuSharedPools": [{{"socket": 0, "node": 1}}], {more}}}'}
    assert pod_allocation("u", "ns/p", notes, 4000).amounts == amounts


def test_negative_amounts_are_ignored() -> None:
    parts = '{"node": 0, "resources": {"cpu": "-4"}}, {"node": 0, "resources": {"cpu": "1"}}'
    held = pod_allocation("u", "ns/p", {RESOURCE_STATUS: f'{{"numaNodeResources": [{parts}]}}'})
    assert held.amounts == {0: {"cpu": 1000}}
    assert allocated(node_options(), [held]).available()[0]["cpu"] == 7000


def test_cpus_count_with_any_spec_of_the_pod() -> None:
    notes = {RESOURCE_STATUS: '{"cpuset": "0-3"}', RESOURCE_SPEC: "{"}
    assert pod_allocation("u", "ns/p", notes) == PodAllocation("u", "ns/p", CpuSet(range(4)))


def test_cpus_count_with_invalid_amounts() -> None:
    part = '{"node": 0, "resources": {"cpu": "four"}}'
    notes = {RESOURCE_STATUS: f'{{"cpuset": "0-3", "numaNodeResources": [{part}]}}'}
    assert pod_allocation("u", "ns/p", notes) == PodAllocation("u", "ns/p", CpuSet(range(4)))


@pytest.mark.parametrize("amount", ['"1Zi"', '""', "true", "null"])
def test_an_invalid_amount_is_named(amount: str) -> None:
    status = f'{{"numaNodeResources": [{{"node": 3, "resources": {{"memory": {amount}}}}}]}}'
    with pytest.raises(AnnotationError, match=r"node 3, 'memory'|numaNodeResources.0..resources"):
        pod_allocation("u", "ns/p", {RESOURCE_STATUS: status})


amounts = st.dictionaries(
    st.integers(0, 70),
    st.dictionaries(
        st.sampled_from(["cpu", "memory", "hugepages-2Mi"]), st.integers(1, 1 << 40), min_size=1
    ),
    max_size=4,
)
cpusets = st.frozensets(st.integers(0, 40)).map(CpuSet)


@given(cpusets, amounts)
def test_annotations_of_an_allocation_are_decoded_to_the_same_allocation(
    cpus: CpuSet, node_amounts: dict[int, dict[str, int]]
) -> None:
    claim = PodAllocation("u", "ns/p", cpus, amounts=node_amounts)
    assert pod_allocation("u", "ns/p", claim.annotations()) == claim
    assert bool(claim.annotations()) == bool(cpus != EMPTY or node_amounts)
