from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.discover.sysfs import partition
from agent.model.cpu.cpuset import CpuSet, union

cpu_sets = st.sets(st.integers(0, 40)).map(CpuSet)


@given(cpu_sets, st.dictionaries(st.integers(0, 40), st.none() | cpu_sets))
def test_partition_has_each_cpu_once_for_any_files(
    cpus: CpuSet, files: dict[int, CpuSet | None]
) -> None:
    groups = list(partition(cpus, files.get))
    assert union(members for _, members in groups) == cpus
    assert sum(len(members) for _, members in groups) == len(cpus)
    assert all(members.first() == first for first, members in groups)


def test_partition_reads_once_per_group() -> None:
    read = []

    def sharers(cpu: int) -> CpuSet:
        read.append(cpu)
        return CpuSet((cpu, cpu ^ 8, 99))

    assert dict(partition(CpuSet(range(16)), sharers)) == {
        cpu: CpuSet((cpu, cpu + 8)) for cpu in range(8)
    }
    assert read == list(range(8))
