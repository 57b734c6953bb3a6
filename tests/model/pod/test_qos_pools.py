from __future__ import annotations

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.qos import Pool, pool_cpus


def test_pool_cpus_of_all_or_of_some_nodes() -> None:
    pools = (Pool(0, 0, "0-1"), Pool(0, 1, "2"), Pool(1, 2, "7"))
    assert pool_cpus(pools) == CpuSet([0, 1, 2, 7])
    assert pool_cpus(pools, (2, 0, 5)) == CpuSet([0, 1, 7])
    assert pool_cpus(pools, (5,)) == CpuSet()
