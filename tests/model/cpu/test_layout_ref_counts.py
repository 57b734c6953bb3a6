from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import NOTHING_HELD
from agent.model.cpu.policies import ExclusivePolicy
from tests.allocate.machines import ref_counts

PODS = st.lists(
    st.tuples(st.integers(0, 255), st.sampled_from(ExclusivePolicy), st.integers(1, 3)), max_size=6
)


@given(PODS)
def test_counts(pods: list[tuple[int, ExclusivePolicy, int]]) -> None:
    holdings = ref_counts(pods)
    counts = Counter(
        cpu for mask, _, times in pods for cpu in CpuSet.from_int(mask) for _ in range(times)
    )
    for number in range(1, 20):
        assert set(CpuSet.from_int(holdings.full(number))) == {
            cpu for cpu, count in counts.items() if count >= number
        }


@given(PODS, st.randoms(use_true_random=False))
def test_the_order_of_pods_does_not_matter(
    pods: list[tuple[int, ExclusivePolicy, int]], random: object
) -> None:
    shuffled = sorted(pods, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert ref_counts(shuffled) == ref_counts(pods)


@given(PODS, st.data())
def test_a_removed_pod_leaves_no_counts(
    pods: list[tuple[int, ExclusivePolicy, int]], data: st.DataObject
) -> None:
    removed = data.draw(st.lists(st.sampled_from(pods), unique_by=id) if pods else st.just([]))
    holdings = ref_counts(pods)
    for cpus, exclusive, times in removed:
        for _ in range(times):
            holdings = holdings.removing(cpus, exclusive)
    assert holdings == ref_counts([pod for pod in pods if not any(pod is each for each in removed)])


def test_cpus_are_exclusive_while_any_holder_is() -> None:
    core, none = ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NONE
    both = NOTHING_HELD.adding(0b11, core).adding(0b10, none).adding(0b10, core)
    assert both.core_exclusive == (0b11, 0b10)
    assert both.node_exclusive == ()
    assert both.removing(0b11, core).core_exclusive == (0b10,)


def test_removing_cpus_that_are_not_held() -> None:
    with pytest.raises(ValueError, match="0x4 is not held"):
        NOTHING_HELD.adding(0b11).removing(0b110)


def test_a_max_ref_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_ref: 0"):
        NOTHING_HELD.full(0)
