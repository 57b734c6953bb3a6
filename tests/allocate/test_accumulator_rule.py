"""The accumulator gives the same CPUs as a literal version of Koordinator's rule, on every even
machine."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.accumulator import CpuRequest, Taken, take
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy, ExclusivePolicy, Strategy
from tests.allocate.koordinator_rule import Rule
from tests.allocate.machines import even_machines, masks, pods, ref_counts

STRATEGIES = (Strategy.MOST_ALLOCATED, Strategy.LEAST_ALLOCATED)
POLICIES = (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS, BindPolicy.DEFAULT)


@settings(max_examples=1000)
@given(st.data())
def test_the_cpus_equal_those_of_koordinators_rule(data: st.DataObject) -> None:
    cpus = data.draw(even_machines())
    max_ref = data.draw(st.integers(1, 3))
    others = data.draw(pods(cpus))
    holdings = ref_counts(others)
    refs = {cpu: times for mask, _, times in others for cpu in CpuSet.from_int(mask)}
    exclusive = {cpu: policy for mask, policy, _ in others for cpu in CpuSet.from_int(mask)}
    available = data.draw(masks(cpus))
    free = CpuSet.from_int(available & ~holdings.full(max_ref))
    need = data.draw(st.integers(0, len(free) + 1))
    request = CpuRequest(
        need,
        data.draw(st.sampled_from(POLICIES)),
        data.draw(st.sampled_from(ExclusivePolicy)),
        data.draw(st.sampled_from(STRATEGIES)),
    )

    answer = take(layouts.of(cpus), available, holdings, request, max_ref)

    rule = Rule(cpus, free, refs, exclusive, max_ref)
    expected = rule.take(need, request.bind, request.exclusive, request.strategy)
    actual = CpuSet.from_int(answer.cpus) if isinstance(answer, Taken) else None
    assert actual == (None if expected is None else CpuSet(expected))
