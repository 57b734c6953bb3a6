from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from agent.allocate.node_allocator.answer import Granted, Refused
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.kube.objects import ChangeKind
from agent.model.cpu.policies import Strategy
from agent.model.settings.plugin_args import ZoneScoring
from agent.scheduler.state.cluster import SchedulerCache
from tests.scheduler import objects

SINGLE = "single-numa-node"
GUARANTEED = "Guaranteed"
THREE = objects.pod_request({"cpu": "3"}, name="three", kube_class=GUARANTEED)
FOREIGN = "the report of its NUMA nodes counts other pods than the scheduler knows"


@pytest.fixture
def cluster() -> SchedulerCache:
    """A cluster of one node with two NUMA nodes of four CPUs, without a report yet."""
    it = SchedulerCache(agents=False)
    it.nodes_changed([objects.of_node(objects.node("n1"))])
    return it


def tell(
    cluster: SchedulerCache,
    pods: Iterable[str] | None = (),
    available_milli: int = 4000,
    policy: str = SINGLE,
) -> None:
    """The node reports the free CPUs of each NUMA node with these pods."""
    names = None if pods is None else [("ns", each) for each in pods]
    body = objects.topology("n1", 2, available_milli, policy, names)
    cluster.topologies_changed([objects.of_topology(body)])


def see(cluster: SchedulerCache, name: str, cpu: str, phase: str = "Running", **more: Any) -> None:
    body = objects.pod(
        name, "n1", requests={"cpu": cpu}, phase=phase, kube_class=GUARANTEED, **more
    )
    cluster.pods_changed([objects.of_pod(body)])


def fits(cluster: SchedulerCache, pod_request: Any = THREE) -> bool | str:
    """True, or the reason."""
    if (ineligibility := cluster.eligible("n1", pod_request)) is not None:
        return ineligibility
    state = cluster.node("n1")
    assert state is not None
    found = state.allocator.offer(pod_request)
    return found.text() if isinstance(found, Refused) else True


def test_the_nodes_report_decides(cluster: SchedulerCache) -> None:
    assert fits(cluster) is True
    tell(cluster)
    assert fits(cluster) is True
    tell(cluster, available_milli=2000)
    assert "NUMA nodes 0, 1 have at most 2 left each" in str(fits(cluster))


def test_a_pod_that_the_report_does_not_count_yet_is_subtracted(cluster: SchedulerCache) -> None:
    tell(cluster)
    see(cluster, "a", "2")
    assert fits(cluster) is not True
    tell(cluster, ["a"], 4000)
    assert fits(cluster) is True


def test_a_pod_that_has_not_started_is_in_no_report(cluster: SchedulerCache) -> None:
    see(cluster, "a", "2", phase="Pending")
    tell(cluster)
    assert fits(cluster) is not True
    see(cluster, "a", "2")
    tell(cluster, ["a"])
    assert fits(cluster) is True


def test_a_reservation_is_subtracted_until_the_report_counts_it(cluster: SchedulerCache) -> None:
    tell(cluster)
    state = cluster.node("n1")
    assert state is not None
    for name in ("a", "b"):
        pod_request = objects.pod_request({"cpu": "2"}, name=name, kube_class=GUARANTEED)
        found = state.allocator.offer(pod_request)
        assert isinstance(found, Granted)
        cluster.reserve("n1", found)
    # It is unknown where the kubelet places them.
    assert fits(cluster) is not True
    see(cluster, "a", "2", phase="Pending")
    assert fits(cluster) is not True
    see(cluster, "b", "2")
    see(cluster, "a", "2")
    tell(cluster, ["a", "b"], 3000)
    assert fits(cluster) is True


def test_a_released_reservation_is_free_again(cluster: SchedulerCache) -> None:
    tell(cluster)
    state = cluster.node("n1")
    assert state is not None
    four = objects.pod_request({"cpu": "4"}, name="four", kube_class=GUARANTEED)
    for number in range(2):
        pod_request = objects.pod_request({"cpu": "2"}, name=f"p{number}", kube_class=GUARANTEED)
        found = state.allocator.offer(pod_request)
        assert isinstance(found, Granted)
        cluster.reserve("n1", found)
        cluster.release(found.uid)
    assert fits(cluster, four) is True


def test_a_report_of_other_pods_is_not_used(cluster: SchedulerCache) -> None:
    tell(cluster, ["stranger"])
    assert fits(cluster) == FOREIGN
    small = objects.pod_request({}, kube_class="BestEffort")
    assert fits(cluster, small) is True
    assert fits(cluster, objects.pod_request({"cpu": "2"}, qos="LSR")) is True
    see(cluster, "stranger", "1")
    assert fits(cluster) is True


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_without_a_policy_no_report_counts(cluster: SchedulerCache, policy: str) -> None:
    tell(cluster, ["stranger"], 0, policy)
    assert fits(cluster) is True


def test_a_report_without_a_fingerprint_is_used(cluster: SchedulerCache) -> None:
    tell(cluster, None)
    see(cluster, "a", "2")
    assert fits(cluster) is True


def test_allocations_of_koordinator_are_subtracted_on_their_numa_nodes(
    cluster: SchedulerCache,
) -> None:
    tell(cluster)
    see(cluster, "a", "2", phase="Pending", cpus="0-1", labels={"koordinator.sh/qosClass": "LSR"})
    # All four CPUs of node 1 are free.
    assert fits(cluster, objects.pod_request({"cpu": "4"}, kube_class=GUARANTEED)) is True
    see(cluster, "b", "2", phase="Pending", cpus="4-5", labels={"koordinator.sh/qosClass": "LSR"})
    assert fits(cluster) is not True


def changed(cluster: SchedulerCache, act: Any) -> tuple[bool, bool]:
    """Whether the node's feasibility changed, and whether also for pods that need CPUs or
    devices."""
    everyone = cluster.changed_since(0).serial
    ours = cluster.placement_changed_since(0).serial
    act()
    return (
        bool(cluster.changed_since(everyone).names),
        bool(cluster.placement_changed_since(ours).names),
    )


def test_a_report_changes_nothing_for_pods_with_claims(cluster: SchedulerCache) -> None:
    tell(cluster)
    state = cluster.node("n1")
    assert state is not None
    allocator = state.allocator
    see(cluster, "a", "2", phase="Pending")
    assert changed(cluster, lambda: tell(cluster, ["b"], 2000)) == (True, False)
    assert changed(cluster, lambda: see(cluster, "a", "2")) == (True, False)
    assert changed(cluster, lambda: tell(cluster, ["a"], 2000, "none")) == (True, True)
    assert fits(cluster) is True
    assert changed(cluster, lambda: tell(cluster, ["a", "b"], 1000, "none")) == (False, False)
    assert changed(cluster, lambda: see(cluster, "a", "2", started="2026-02-02T02:02:02Z")) == (
        False,
        False,
    )
    assert state.allocator is not allocator


def test_with_least_numa_nodes_every_report_counts() -> None:
    rules = AllocatorRules(zones=ZoneScoring(Strategy.LEAST_NUMA_NODES))
    it = SchedulerCache(agents=False, rules=rules)
    it.nodes_changed([objects.of_node(objects.node("n1"))])
    tell(it, available_milli=2000, policy="none")
    state = it.node("n1")
    assert state is not None
    assert state.allocator.properties.rules == rules
    before = state.allocator.offer(THREE)
    assert changed(it, lambda: tell(it, available_milli=4000, policy="none")) == (True, False)
    after = state.allocator.offer(THREE)
    assert isinstance(before, Granted)
    assert isinstance(after, Granted)
    assert before.score < after.score


def test_a_deleted_topology_is_not_used_any_more(cluster: SchedulerCache) -> None:
    tell(cluster, ["stranger"])
    assert fits(cluster) == FOREIGN
    gone = objects.of_topology(objects.topology("n1"), ChangeKind.DELETED)
    cluster.topologies_changed([gone])
    assert fits(cluster) is True
