"""A node with four NUMA nodes of four CPUs, and cgroup v2."""

from __future__ import annotations

from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.cluster.cluster import GUEST, Cluster
from tests.cluster.pods import manifest
from tests.vm.guest import NODES

pytestmark = [pytest.mark.timeout(2700), pytest.mark.usefixtures("pods_gone")]


THERE: dict[str, Any] = {"node": GUEST, "hostNetwork": True}
"""Plugins of a pod's network take seconds each there."""


def test_owner_gets_a_numa_node_and_releases_it(with_guest: Cluster) -> None:
    cluster = with_guest
    cluster.create(manifest("ls", qos="LS", cpu="100m", **THERE), manifest("be", qos="BE", **THERE))
    cluster.wait_running("ls", "be")
    assert cluster.cpus("ls", "be") == {"ls": "0-15", "be": "0-15"}

    cluster.create(
        manifest("lse", qos="LSE", cpu=4, **THERE), manifest("lsr", qos="LSR", cpu=2, **THERE)
    )
    cluster.wait_running("lse", "lsr")
    whole, half = cluster.cpus_of("lse"), cluster.cpus_of("lsr")
    assert whole == cluster.allocated("lse")
    assert half == cluster.allocated("lsr")
    assert str(whole) in NODES
    assert len(half) == 2
    assert not whole & half
    # BE pods share CPUs with LSR ones.
    rest = CpuSet.parse("0-15") - whole
    assert cluster.cpus("ls", "be") == {"ls": str(rest - half), "be": str(rest)}
    assert cluster.agent_metric(GUEST, "topolet_cpu_overlaps_total") == 0

    cluster.delete_pod("lse")
    shared = str(CpuSet.parse("0-15") - half)
    cluster.eventually(
        "the NUMA node is in the pool again", lambda: cluster.cpus("ls") == {"ls": shared}
    )
