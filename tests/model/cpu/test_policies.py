from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.policies import (
    kubelet_numa_policy,
    reported_numa_policy,
    topology_manager_scope,
)


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


@pytest.mark.parametrize("scope", ["pod", "container"])
@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_reported_policy_contains_policy_and_scope(policy: str, scope: str) -> None:
    word = reported_numa_policy(policy, scope)
    assert kubelet_numa_policy(word) is kubelet_numa_policy(policy)
    assert word.endswith(f"{scope.title()}Level")


@pytest.mark.parametrize("policy", ["none", "", "strict"])
def test_no_policy_has_no_scope(policy: str) -> None:
    assert reported_numa_policy(policy, "pod") == "None"
