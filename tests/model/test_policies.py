from __future__ import annotations

import pytest

from agent.model.policies import NumaPolicy, kubelet_numa_policy, reported_numa_policy


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


@pytest.mark.parametrize("scope", ["pod", "container"])
@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_reported_word_tells_policy_and_scope(policy: str, scope: str) -> None:
    word = reported_numa_policy(policy, scope)
    assert kubelet_numa_policy(word) is kubelet_numa_policy(policy)
    assert word.endswith(f"{scope.title()}Level")


@pytest.mark.parametrize("policy", ["none", "", "strict"])
def test_no_policy_has_no_scope(policy: str) -> None:
    assert reported_numa_policy(policy, "pod") == "None"
