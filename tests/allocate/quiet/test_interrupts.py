"""The affinities of interrupts, for all owners and machines."""

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.quiet.interrupts import (
    InterruptRules,
    housekeeping_cpus,
    interrupt_rules,
    wanted_affinity,
)
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Cpu, Topology
from tests.builders import machine

TOPOLOGY: Final = machine(2, 4, offline="7")
ALL: Final = CpuSet(range(8))
CPUS: Final = st.integers(0, ALL.mask).map(CpuSet.from_int)
SOME: Final = CPUS.filter(bool)


@st.composite
def owners(draw: st.DrawFn) -> list[tuple[CpuSet, bool]]:
    """Owners share no CPU, but two pods may own the same ones."""
    owned = [CpuSet(), CpuSet(), CpuSet()]
    for cpu in TOPOLOGY.online:
        owner = draw(st.integers(0, 4))
        if owner < len(owned):
            owned[owner] |= CpuSet([cpu])
    pairs = [(cpus, draw(st.booleans())) for cpus in owned if cpus]
    return pairs + draw(st.lists(st.sampled_from(pairs), max_size=1) if pairs else st.just([]))


@given(owners(), SOME, CPUS)
def test_interrupts_use_cpus_of_owners_only_if_there_are_no_others(
    asking: list[tuple[CpuSet, bool]], original: CpuSet, near: CpuSet
) -> None:
    left = TOPOLOGY.online - union(cpus for cpus, _ in asking)
    rules = interrupt_rules(TOPOLOGY, asking, left)
    wanted = wanted_affinity(original, rules, near)
    assert wanted
    if wanted != original:
        assert wanted & TOPOLOGY.online, "the kernel accepts it"
        assert not wanted & rules.quiet
    elif original & rules.quiet:
        kept = union(first for cpus, first in rules.housekeeping if cpus & original)
        assert not left
        assert not kept
        assert not (original - rules.quiet) & TOPOLOGY.online
    for cpus, housekeeping in asking:
        assert not wanted & cpus or housekeeping or wanted == original


@given(SOME, CPUS)
def test_nothing_changes_without_owners(original: CpuSet, near: CpuSet) -> None:
    rules = interrupt_rules(TOPOLOGY, (), TOPOLOGY.online)
    assert wanted_affinity(original, rules, near) == original


def test_an_interrupt_of_an_owner_s_cpu_stays_near_its_device() -> None:
    rules = InterruptRules(ALL, CpuSet([4, 5]), CpuSet([0, 1, 6, 7]))
    near = CpuSet([4, 5, 6, 7])
    assert wanted_affinity(CpuSet([4]), rules, near) == CpuSet([6, 7])
    assert wanted_affinity(CpuSet([4]), rules, CpuSet([2])) == rules.left
    assert wanted_affinity(CpuSet([1, 4]), rules, near) == CpuSet([1])


def test_the_first_core_of_a_pod_keeps_interrupts_of_its_cpus() -> None:
    cpus = tuple(Cpu(id=cpu, core=cpu % 4, l3=None, die=None, socket=0, node=0) for cpu in range(8))
    topology = Topology(cpus, (), EMPTY, EMPTY, True)
    own = CpuSet([1, 2, 5, 6])
    assert housekeeping_cpus(topology, own) == CpuSet([1, 5])
    assert housekeeping_cpus(topology, CpuSet([2, 3, 7])) == CpuSet([2])
    assert housekeeping_cpus(topology, EMPTY) == EMPTY
    rules = interrupt_rules(topology, [(own, True)], CpuSet([0]))
    assert rules.quiet == CpuSet([2, 6])
    assert wanted_affinity(CpuSet([2]), rules) == CpuSet([1, 5])
    assert wanted_affinity(CpuSet([3]), rules) == CpuSet([3])
    assert wanted_affinity(ALL, rules) == ALL - CpuSet([2, 6])


def test_a_core_that_another_owner_wants_silent_keeps_no_interrupts() -> None:
    pair = CpuSet([0, 1])
    rules = interrupt_rules(TOPOLOGY, [(pair, True), (pair, False)], CpuSet([2]))
    assert rules.quiet == pair
    assert rules.housekeeping == ()
