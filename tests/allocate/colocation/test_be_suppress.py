"""Invariants of the strategy; koordlet's answers are in tests/conformance."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate.colocation.be_suppress import (
    LEAST_CPUS,
    LEAST_QUOTA_MICROSECONDS,
    BeAmount,
    BePool,
    NodeUse,
    Suppression,
    amount,
    quota,
    suppression,
    within,
)
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import BeOnOwned
from agent.model.cpu.topology import Cpu
from agent.model.linux_resources import NO_QUOTA, CpuQuota
from agent.model.node_slo import ResourceThreshold
from tests.allocate.machines import MACHINES

BY_CPUSET = ResourceThreshold(enable=True)
BY_QUOTA = replace(BY_CPUSET, cpu_suppress_policy="cfsQuota")
CORES = st.floats(0, 64, allow_nan=False)
QUOTAS = st.builds(
    CpuQuota, st.integers(LEAST_QUOTA_MICROSECONDS, 10**7), st.sampled_from((50_000, 100_000))
)


@st.composite
def pools(draw: st.DrawFn) -> BePool:
    machine = draw(MACHINES)
    subsets = st.sets(st.sampled_from([cpu.id for cpu in machine])).map(CpuSet)
    cpus = draw(subsets)
    return BePool(machine, cpus, draw(subsets) & cpus, draw(st.sampled_from(BeOnOwned)))


@st.composite
def uses(draw: st.DrawFn) -> NodeUse:
    pods, applications = draw(CORES), draw(CORES)
    capacity = draw(st.integers(0, 64_000))
    return NodeUse(
        capacity_milli=capacity,
        reserved_milli=draw(st.integers(0, 64_000)),
        node_cores=draw(CORES),
        pods_cores=pods,
        other_pods_cores=draw(st.floats(0, pods)),
        applications_cores=applications,
        other_applications_cores=draw(st.floats(0, applications)),
    )


def cpus_before() -> st.SearchStrategy[Suppression]:
    return st.builds(Suppression, cpus=st.none() | st.sets(st.integers(0, 95)).map(CpuSet))


@given(pools(), st.none() | uses(), cpus_before())
def test_be_pods_keep_cpus_of_their_pool_alone(
    pool: BePool, use: NodeUse | None, before: Suppression
) -> None:
    cpus = suppression(BY_CPUSET, use, pool, before).cpus
    if use is None and before.cpus is None:
        assert cpus is None
        return
    assert cpus is not None
    usable = pool.usable()
    assert cpus <= usable <= pool.cpus
    assert len(cpus) >= min(LEAST_CPUS, len(usable))
    had = len(usable if before.cpus is None else before.cpus)
    assert len(cpus) <= max(LEAST_CPUS, had + (len(pool.machine) + 9) // 10)
    if use is None:
        assert len(cpus) == min(max(LEAST_CPUS, had), len(usable))


@given(pools(), uses(), cpus_before())
def test_an_unchanged_load_ends_in_unchanged_cpus(
    pool: BePool, use: NodeUse, before: Suppression
) -> None:
    for _ in range(11):
        before = suppression(BY_CPUSET, use, pool, before)
    assert suppression(BY_CPUSET, use, pool, before) == before
    assert suppression(BY_CPUSET, None, pool, before) == before


@given(uses(), st.none() | QUOTAS)
def test_a_quota_has_a_floor_and_grows_in_steps(use: NodeUse, present: CpuQuota | None) -> None:
    milli = amount(BY_QUOTA, use).milli
    limit = quota(milli, use.capacity_milli, present)
    assert limit.microseconds >= LEAST_QUOTA_MICROSECONDS
    if present is None:
        assert limit.microseconds == max(milli * 100, LEAST_QUOTA_MICROSECONDS)
    else:
        assert limit.microseconds <= present.microseconds + use.capacity_milli * 10


@given(uses(), st.integers(0, 100))
def test_the_least_share_is_kept(use: NodeUse, percent: int) -> None:
    strategy = replace(BY_CPUSET, cpu_suppress_min_percent=percent)
    assert amount(strategy, use).milli >= use.capacity_milli * percent // 100


@given(QUOTAS | st.just(NO_QUOTA), QUOTAS)
def test_no_quota_below_is_larger(own: CpuQuota, of_all: CpuQuota) -> None:
    inner = within(own, of_all)
    assert inner in (own, of_all)
    if inner != NO_QUOTA:
        assert share(inner) <= share(of_all)


def share(limit: CpuQuota) -> Fraction:
    return Fraction(limit.microseconds, limit.period_microseconds)


IDLE = NodeUse(8000, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
MACHINE = tuple(
    Cpu(id=cpu, core=cpu % 4, l3=None, die=None, socket=0, node=cpu % 4 // 2) for cpu in range(8)
)
ALL = CpuSet(range(8))


def test_be_pods_lose_cpus_at_once_and_get_them_back_in_steps() -> None:
    pool, busy = BePool(MACHINE, ALL), replace(IDLE, node_cores=5.0, pods_cores=5.0)
    services = replace(busy, other_pods_cores=5.0)
    now = suppression(BY_CPUSET, services, pool, Suppression())
    assert now.cpus == CpuSet((0, 4))
    counts = []
    for _ in range(5):
        now = suppression(BY_CPUSET, IDLE, pool, now)
        counts.append(len(now.cpus or ()))
    assert counts == [3, 4, 5, 6, 6]


@pytest.mark.parametrize(
    ("on_owned", "of_owned", "others"),
    [(BeOnOwned.IN_PROPORTION, 3, 3), (BeOnOwned.LAST, 2, 4), (BeOnOwned.NEVER, 0, 4)],
)
def test_cpus_of_lsr_pods(on_owned: BeOnOwned, of_owned: int, others: int) -> None:
    owned = CpuSet((1, 3, 5, 7))
    pool = BePool(MACHINE, ALL, owned, on_owned)
    cpus = suppression(BY_CPUSET, IDLE, pool, Suppression()).cpus
    assert cpus is not None
    assert (len(cpus & owned), len(cpus - owned)) == (of_owned, others)


@pytest.mark.parametrize(
    ("suppressed", "at_minimum"),
    [
        (Suppression(), False),
        (Suppression(CpuSet.parse("0-1"), amount=BeAmount(6000, 4000, 0, 0, None)), True),
        (Suppression(CpuSet.parse("0-2"), amount=BeAmount(6000, 3999, 0, 0, None)), False),
        (Suppression(CpuSet.parse("0-2"), amount=BeAmount(6000, 3000, 0, 0, 3000)), True),
        (Suppression(quota=CpuQuota(2000), amount=BeAmount(6000, 7000, 0, 0, None)), True),
        (Suppression(quota=CpuQuota(2100), amount=BeAmount(6000, 5979, 0, 0, None)), False),
    ],
)
def test_be_pods_are_at_their_minimum(suppressed: Suppression, at_minimum: bool) -> None:
    assert suppressed.at_minimum is at_minimum


def test_a_pool_without_cpus_gives_none() -> None:
    for use in (IDLE, None):
        before = Suppression(cpus=CpuSet((0, 1)))
        assert suppression(BY_CPUSET, use, BePool(MACHINE, EMPTY), before).cpus == EMPTY


def test_another_policy_takes_the_other_value_back() -> None:
    pool = BePool(MACHINE, ALL)
    by_cpuset = suppression(BY_CPUSET, IDLE, pool, Suppression())
    by_quota = suppression(BY_QUOTA, IDLE, pool, by_cpuset)
    assert (by_quota.cpus, by_quota.quota) == (None, CpuQuota(520_000))
    assert suppression(BY_CPUSET, IDLE, pool, by_quota) == by_cpuset
    assert suppression(ResourceThreshold(), IDLE, pool, by_quota) == Suppression()


def test_a_small_change_leaves_the_quota() -> None:
    present = CpuQuota(100_000)
    assert quota(1079, 8000, present) is present
    assert quota(1080, 8000, present) == CpuQuota(108_000)
    assert quota(1900, 8000, present) == CpuQuota(180_000)
    assert quota(20, 8000, CpuQuota(2_500)) == CpuQuota(2_000)
