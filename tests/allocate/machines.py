"""Hypothesis strategies for machines and the CPUs that pods hold."""

from __future__ import annotations

from hypothesis import strategies as st

from agent.model.cpu.layout import NOTHING_HELD, CpuRefCounts
from agent.model.cpu.policies import ExclusivePolicy
from agent.model.cpu.topology import Cpu


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


@st.composite
def masks(draw: st.DrawFn, cpus: tuple[Cpu, ...]) -> int:
    """Any of these CPUs: all, single ones, or more of some NUMA nodes than of others."""
    random = draw(st.randoms(use_true_random=True))
    share = random.choice((0.3, 0.6, 0.9, 1.0))
    whole_cores = random.random() < 0.3
    of_node = {cpu.node: random.choice((share, share, 1.0, 0.2)) for cpu in cpus}
    mask = 0
    cores: dict[int, bool] = {}
    for cpu in cpus:
        chosen = random.random() < of_node[cpu.node]
        if cores.setdefault(cpu.core, chosen) if whole_cores else chosen:
            mask |= 1 << cpu.id
    return mask


@st.composite
def pods(draw: st.DrawFn, cpus: tuple[Cpu, ...]) -> list[tuple[int, ExclusivePolicy, int]]:
    """Arguments of `CpuRefCounts.adding`; no CPU is in two of them."""
    random = draw(st.randoms(use_true_random=True))
    owners = random.randint(0, 4)
    found = [0] * owners
    idle = random.choice((0, 1, 4, 12))
    for cpu in cpus:
        owner = random.randrange(owners + idle) if owners + idle else 0
        if owner < owners:
            found[owner] |= 1 << cpu.id
    return [(mask, random.choice(list(ExclusivePolicy)), random.randint(1, 3)) for mask in found]


def ref_counts(pods: list[tuple[int, ExclusivePolicy, int]]) -> CpuRefCounts:
    """The reference counts with all of these pods."""
    cpu_counts = NOTHING_HELD
    for cpus, exclusive, times in pods:
        cpu_counts = cpu_counts.adding(cpus, exclusive, times)
    return cpu_counts
