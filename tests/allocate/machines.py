"""Machines and what pods hold of them, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from agent.allocate.holdings import NOTHING_HELD, Holdings
from agent.model.policies import ExclusivePolicy
from agent.model.topology import Cpu


@st.composite
def even_machines(draw: st.DrawFn) -> tuple[Cpu, ...]:
    """Areas of equal size; CPU ids in any order, with gaps."""
    sockets, nodes, cores, threads = draw(
        st.tuples(*(st.integers(1, top) for top in (4, 3, 4, 4))).filter(
            lambda shape: shape[0] * shape[1] * shape[2] * shape[3] <= 48
        )
    )
    total = sockets * nodes * cores * threads
    ids = draw(
        st.one_of(
            st.just(list(range(total))),
            st.permutations(range(total)),
            st.lists(st.integers(0, 2 * total), min_size=total, max_size=total, unique=True),
        )
    )
    per_cache = draw(st.sampled_from([each for each in (1, 2, 4) if cores % each == 0]))
    made = []
    for core in range(sockets * nodes * cores):
        threads_of = ids[core * threads : (core + 1) * threads]
        node = core // cores
        made += [
            Cpu(cpu, min(threads_of), core // per_cache, None, node // nodes, node)
            for cpu in threads_of
        ]
    return tuple(sorted(made, key=lambda cpu: cpu.id))


@st.composite
def uneven_machines(draw: st.DrawFn) -> tuple[Cpu, ...]:
    """Some CPUs of an even machine are missing: offline threads, hybrid cores."""
    cpus = draw(even_machines())
    kept = draw(st.lists(st.sampled_from(cpus), min_size=1, unique=True))
    leads: dict[int, int] = {}
    for cpu in kept:
        leads[cpu.core] = min(leads.get(cpu.core, cpu.id), cpu.id)
    made = (Cpu(cpu.id, leads[cpu.core], cpu.l3, None, cpu.socket, cpu.node) for cpu in kept)
    return tuple(sorted(made, key=lambda cpu: cpu.id))


MACHINES = even_machines() | uneven_machines()


def masks(cpus: tuple[Cpu, ...]) -> st.SearchStrategy[int]:
    """Any of these CPUs."""
    whole = sum(1 << cpu.id for cpu in cpus)
    return st.integers(0, whole).map(lambda mask: mask & whole) | st.just(whole)


PODS_POLICIES = st.sampled_from(ExclusivePolicy)


@st.composite
def pods(draw: st.DrawFn, cpus: tuple[Cpu, ...]) -> list[tuple[int, ExclusivePolicy, int]]:
    """Arguments of `Holdings.adding`; no CPU in two of them."""
    left = sum(1 << cpu.id for cpu in cpus)
    found = []
    for _ in range(draw(st.integers(0, 4))):
        mask = draw(masks(cpus)) & left
        left &= ~mask
        found.append((mask, draw(PODS_POLICIES), draw(st.integers(1, 3))))
    return found


def held(pods: list[tuple[int, ExclusivePolicy, int]]) -> Holdings:
    """All of them."""
    holdings = NOTHING_HELD
    for cpus, exclusive, times in pods:
        holdings = holdings.adding(cpus, exclusive, times)
    return holdings
