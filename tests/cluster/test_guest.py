"""A node with four NUMA nodes of four CPUs, and cgroup v2."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.pod.annotations import REBIND, REBIND_NEVER, RESOURCE_STATUS, status_text
from tests.cluster.cluster import GUEST, ON_GUEST, Cluster
from tests.cluster.pods import manifest
from tests.vm.guest import NODES

pytestmark = [pytest.mark.timeout(2700), pytest.mark.usefixtures("no_pods")]


@pytest.mark.long
def test_owner_gets_a_numa_node_and_releases_it(with_guest: Cluster) -> None:
    cluster = with_guest
    cluster.create(
        manifest("ls", qos="LS", cpu="100m", **ON_GUEST), manifest("be", qos="BE", **ON_GUEST)
    )
    cluster.wait_running("ls", "be")
    assert cluster.cpus("ls", "be") == {"ls": "0-15", "be": "0-15"}

    cluster.create(
        manifest("lse", qos="LSE", cpu=4, **ON_GUEST), manifest("lsr", qos="LSR", cpu=2, **ON_GUEST)
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


@pytest.mark.long
def test_pods_exchange_cpus_and_no_cpu_has_two_owners(with_guest: Cluster) -> None:
    """Two pods cross NUMA nodes by one CPU each. The only better places are those of each other,
    and two CPUs are free: one pod goes to a free CPU first."""
    cluster = with_guest
    stays = {"annotations": {REBIND: REBIND_NEVER}}
    cluster.create(
        manifest("a", qos="LSR", cpu=4, **ON_GUEST),
        manifest("b", qos="LSR", cpu=4, **ON_GUEST),
        manifest("c", qos="LSR", cpu=4, **ON_GUEST, **stays),
        manifest("d", qos="LSR", cpu=2, **ON_GUEST, **stays),
        manifest("ls", qos="LS", cpu="100m", **ON_GUEST),
    )
    owners = ("a", "b", "c", "d")
    cluster.wait_running(*owners, "ls")
    allocated = {name: cluster.allocated(name) for name in owners}
    assert all(str(allocated[name]) in NODES for name in ("a", "b", "c"))
    spare = _first(CpuSet.parse("0-15") - union(allocated.values()))
    a_cpu, b_cpu = _first(allocated["a"]), _first(allocated["b"])
    crossing = {"a": allocated["a"] - a_cpu | b_cpu, "b": allocated["b"] - b_cpu | a_cpu}
    with cluster.moments(*owners, "ls") as fragmenting:
        _allocate(cluster, "a", allocated["a"] - a_cpu | spare)
        _allocate(cluster, "b", crossing["b"])
        _allocate(cluster, "a", crossing["a"])

    with cluster.moments(*owners, "ls") as rebinding:
        cluster.create(
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "RebindResource",
                "metadata": {"name": "exchange"},
                "spec": {"nodeName": GUEST, "rebindAction": "RebindCPU"},
            }
        )
        cluster.eventually(
            "the rebind has ended",
            lambda: _exchange(cluster)["phase"] not in ("Unknown", "Pending"),
        )
        assert _exchange(cluster)["phase"] == "Succeed"
        moved = {name: cluster.allocated(name) for name in owners}
        cluster.eventually(
            "the containers have moved",
            lambda: all(cluster.cpus_of(name) == moved[name] for name in owners),
        )
    assert {str(moved["a"]), str(moved["b"])} == {str(allocated["a"]), str(allocated["b"])}
    assert {name: moved[name] for name in ("c", "d")} == {
        name: allocated[name] for name in ("c", "d")
    }
    plan = _exchange(cluster)["plan"]
    assert [each["pod"] for each in plan["moves"]] in (
        ["default/a", "default/b", "default/a"],
        ["default/b", "default/a", "default/b"],
    )
    assert {name: rebinding[0][name] for name in ("a", "b")} == crossing
    assert {name: rebinding[-1][name] for name in owners} == moved
    assert len(fragmenting) > 3
    for moment in (*fragmenting, *rebinding):
        for one, other in combinations(moment, 2):
            assert not moment[one] & moment[other], (moment, one, other)
    assert cluster.agent_metric(GUEST, "topolet_cpu_overlaps_total") == 0


def _first(cpus: CpuSet) -> CpuSet:
    return CpuSet(sorted(cpus)[:1])


def _allocate(cluster: Cluster, name: str, cpus: CpuSet) -> None:
    """As the scheduler does, whose account alone may do it; returns when the pod has the CPUs."""
    account = "--as=system:serviceaccount:topolet-system:topolet-scheduler"
    text = f"{RESOURCE_STATUS}={status_text(cpus, {})}"
    cluster.kubectl("annotate", "pod", name, "--overwrite", account, text)
    cluster.eventually(f"{name} has {cpus}", lambda: cluster.cpus_of(name) == cpus)


def _exchange(cluster: Cluster) -> dict[str, Any]:
    """The status of the RebindResource."""
    found = cluster.get("rebindresources.scheduling.koordinator.sh", "exchange")
    assert found is not None
    status: dict[str, Any] = found["status"]
    return status
