from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.allocate.refusal import Refusal
from agent.kube.objects import ChangeKind
from agent.model.cpu.policies import Strategy
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESERVATION_ALLOCATED, RESOURCE_STATUS
from agent.model.settings.plugin_args import ZoneScoring
from agent.scheduler.state.cluster import SchedulerCache
from tests.scheduler import objects
from tests.scheduler.state.reservations import allocation, body, event

SINGLE = "single-numa-node"
GUARANTEED = "Guaranteed"
THREE = objects.pod_request({"cpu": "3"}, name="three", kube_class=GUARANTEED)
OTHER_PODS = "the report of its NUMA nodes counts other pods than the scheduler knows"


@pytest.fixture
def cluster() -> SchedulerCache:
    """A cluster of one node with two NUMA nodes of four CPUs, without a report yet."""
    cache = SchedulerCache(agents=False)
    cache.nodes_changed([objects.node_change(objects.node("n1"))])
    return cache


def report(
    cluster: SchedulerCache,
    pods: Iterable[str] | None = (),
    available_milli: int = 4000,
    policy: str = SINGLE,
) -> None:
    """Reports the free CPUs of each NUMA node, which count these pods."""
    names = None if pods is None else [("ns", each) for each in pods]
    body = objects.topology("n1", 2, available_milli, policy, names)
    cluster.topologies_changed([objects.topology_change(body)])


def report_pod(
    cluster: SchedulerCache, name: str, cpu: str, phase: str = "Running", **more: Any
) -> None:
    body = objects.pod(
        name, "n1", requests={"cpu": cpu}, phase=phase, kube_class=GUARANTEED, **more
    )
    cluster.pods_changed([objects.pod_change(body)])


def delete_pod(cluster: SchedulerCache, name: str, node: str = "n1") -> None:
    change = objects.pod_change(objects.pod(name, node, phase="Running"), ChangeKind.DELETED)
    cluster.pods_changed([change])


def fits(cluster: SchedulerCache, pod_request: Any = THREE) -> bool | str:
    """True, or the reason of the rejection."""
    if (ineligibility := cluster.ineligibility("n1", pod_request)) is not None:
        return ineligibility.text
    state = cluster.node("n1")
    assert state is not None
    found = state.allocator.offer(pod_request)
    return found.text if isinstance(found, Refusal) else True


def test_the_report_of_a_node_is_used(cluster: SchedulerCache) -> None:
    assert fits(cluster) is True
    report(cluster)
    assert fits(cluster) is True
    report(cluster, available_milli=2000)
    assert "NUMA nodes 0, 1 have at most 2 left each" in str(fits(cluster))


def test_a_pod_that_the_report_does_not_count_yet_is_subtracted(cluster: SchedulerCache) -> None:
    report(cluster)
    report_pod(cluster, "a", "2")
    assert fits(cluster) is not True
    report(cluster, ["a"], 4000)
    assert fits(cluster) is True


def test_a_pod_that_has_not_started_is_subtracted(cluster: SchedulerCache) -> None:
    report_pod(cluster, "a", "2", phase="Pending")
    report(cluster)
    assert fits(cluster) is not True
    report_pod(cluster, "a", "2")
    report(cluster, ["a"])
    assert fits(cluster) is True


def test_a_reservation_is_subtracted_until_the_report_counts_it(cluster: SchedulerCache) -> None:
    report(cluster)
    state = cluster.node("n1")
    assert state is not None
    for name in ("a", "b"):
        pod_request = objects.pod_request({"cpu": "2"}, name=name, kube_class=GUARANTEED)
        found = state.allocator.offer(pod_request)
        assert isinstance(found, NodeOffer)
        cluster.reserve("n1", found)
    # The NUMA nodes on which the kubelet will place them are unknown.
    assert fits(cluster) is not True
    report_pod(cluster, "a", "2", phase="Pending")
    assert fits(cluster) is not True
    report_pod(cluster, "b", "2")
    report_pod(cluster, "a", "2")
    report(cluster, ["a", "b"], 3000)
    assert fits(cluster) is True


def test_a_report_of_other_pods_is_not_used(cluster: SchedulerCache) -> None:
    report(cluster, ["other"])
    assert fits(cluster) == OTHER_PODS
    small = objects.pod_request({}, kube_class="BestEffort")
    assert fits(cluster, small) is True
    assert fits(cluster, objects.pod_request({"cpu": "2"}, qos="LSR")) is True
    report_pod(cluster, "other", "1")
    assert fits(cluster) is True


def test_a_report_may_count_a_running_pod_before_the_watch_reports_it(
    cluster: SchedulerCache,
) -> None:
    for name in ("slow", "fast"):
        report_pod(cluster, name, "1", phase="Pending")
    report(cluster, ["fast"])
    assert fits(cluster) == OTHER_PODS
    report_pod(cluster, "fast", "1")
    assert fits(cluster) is True
    four = objects.pod_request({"cpu": "4"}, name="four", kube_class=GUARANTEED)
    assert fits(cluster, four) is not True, "the report does not count the slow pod"


@pytest.mark.parametrize("last_node", ["n1", ""])
def test_the_report_may_count_a_deleted_pod(cluster: SchedulerCache, last_node: str) -> None:
    report(cluster, ["old"])
    report_pod(cluster, "old", "4")
    delete_pod(cluster, "old", last_node)
    assert fits(cluster) is True
    report(cluster, ["old"], 2000)
    assert "NUMA nodes 0, 1 have at most 2 left each" in str(fits(cluster))


def test_a_terminated_pod_is_in_reports_until_it_is_deleted(cluster: SchedulerCache) -> None:
    for name in ("older", "old"):
        report_pod(cluster, name, "4", phase="Succeeded")
    report_pod(cluster, "p", "1")
    report(cluster, ["older", "old", "p"])
    assert fits(cluster) is True
    report(cluster, ["old", "p"])
    assert fits(cluster) == OTHER_PODS
    delete_pod(cluster, "older")
    assert fits(cluster) is True


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_without_a_restrictive_policy_the_report_is_not_used(
    cluster: SchedulerCache, policy: str
) -> None:
    report(cluster, ["other"], 0, policy)
    assert fits(cluster) is True


def test_a_report_without_a_fingerprint_is_used(cluster: SchedulerCache) -> None:
    report(cluster, None)
    report_pod(cluster, "a", "2")
    assert fits(cluster) is True


def test_allocations_of_koordinator_are_subtracted_on_their_numa_nodes(
    cluster: SchedulerCache,
) -> None:
    report(cluster)
    report_pod(
        cluster, "a", "2", phase="Pending", cpus="0-1", labels={"koordinator.sh/qosClass": "LSR"}
    )
    # All four CPUs of node 1 are free.
    assert fits(cluster, objects.pod_request({"cpu": "4"}, kube_class=GUARANTEED)) is True
    report_pod(
        cluster, "b", "2", phase="Pending", cpus="4-5", labels={"koordinator.sh/qosClass": "LSR"}
    )
    assert fits(cluster) is not True


def changed(cluster: SchedulerCache, action: Any) -> tuple[bool, bool]:
    """Whether the node's feasibility changed, and whether also for pods that need CPUs or
    devices."""
    all_pods = cluster.changed_since(0).serial
    with_claims = cluster.placement_changed_since(0).serial
    action()
    return (
        bool(cluster.changed_since(all_pods).names),
        bool(cluster.placement_changed_since(with_claims).names),
    )


def test_a_report_does_not_change_the_feasibility_of_pods_with_claims(
    cluster: SchedulerCache,
) -> None:
    report(cluster)
    state = cluster.node("n1")
    assert state is not None
    allocator = state.allocator
    report_pod(cluster, "a", "2", phase="Pending")
    assert changed(cluster, lambda: report(cluster, ["b"], 2000)) == (True, False)
    assert changed(cluster, lambda: report_pod(cluster, "a", "2")) == (True, False)
    assert changed(cluster, lambda: report(cluster, ["a"], 2000, "none")) == (True, True)
    assert fits(cluster) is True
    assert changed(cluster, lambda: report(cluster, ["a", "b"], 1000, "none")) == (False, False)
    assert changed(
        cluster, lambda: report_pod(cluster, "a", "2", started="2026-02-02T02:02:02Z")
    ) == (
        False,
        False,
    )
    assert state.allocator is not allocator


def test_with_least_numa_nodes_every_report_is_used() -> None:
    rules = AllocatorRules(zones=ZoneScoring(Strategy.LEAST_NUMA_NODES))
    cache = SchedulerCache(agents=False, rules=rules)
    cache.nodes_changed([objects.node_change(objects.node("n1"))])
    report(cache, available_milli=2000, policy="none")
    state = cache.node("n1")
    assert state is not None
    assert state.allocator.properties.rules == rules
    before = state.allocator.offer(THREE)
    assert changed(cache, lambda: report(cache, available_milli=4000, policy="none")) == (
        True,
        False,
    )
    after = state.allocator.offer(THREE)
    assert isinstance(before, NodeOffer)
    assert isinstance(after, NodeOffer)
    assert before.score < after.score


def test_the_report_of_a_deleted_topology_is_not_used(cluster: SchedulerCache) -> None:
    report(cluster, ["other"])
    assert fits(cluster) == OTHER_PODS
    deleted = objects.topology_change(objects.topology("n1"), ChangeKind.DELETED)
    cluster.topologies_changed([deleted])
    assert fits(cluster) is True


def test_nodes_of_one_model_share_what_no_pod_changes() -> None:
    cluster = SchedulerCache(agents=False)
    for name, available_milli in (("n1", 4000), ("n2", 2000)):
        cluster.nodes_changed([objects.node_change(objects.node(name))])
        body = objects.topology(name, 2, available_milli, SINGLE)
        cluster.topologies_changed([objects.topology_change(body)])
    first, second = (each.allocator.properties for each in cluster.nodes())
    assert first.cpus is second.cpus
    assert first.zones is not None
    assert second.zones is not None
    assert first.zones.empty is second.zones.empty
    assert first.zones.reported.distances is second.zones.reported.distances
    assert first.zones.reported.available != second.zones.reported.available


@pytest.mark.parametrize("number", [-1, 4096, 10**12])
def test_a_pod_with_impossible_devices_and_numa_nodes_takes_what_it_requests(
    cluster: SchedulerCache, number: int
) -> None:
    """Whoever creates a pod can give it these annotations."""
    report(cluster)
    cluster.devices_changed([objects.devices_change(objects.devices("n1"))])
    gpus = {"gpu": [{"minor": number, "resources": {"koordinator.sh/gpu-core": "1"}}]}
    status = {"numaNodeResources": [{"node": number, "resources": {"memory": "1Gi"}}]}
    annotations = {DEVICE_ALLOCATED: json.dumps(gpus), RESOURCE_STATUS: json.dumps(status)}
    report_pod(cluster, "hostile", "2", phase="Pending", annotations=annotations)
    assert "NUMA nodes 0, 1 have at most 2 left each" in str(fits(cluster))


def test_other_rules_keep_the_pods_that_the_report_does_not_count(cluster: SchedulerCache) -> None:
    report(cluster)
    report_pod(cluster, "a", "2", phase="Pending")
    refusal = fits(cluster)
    assert "at most 2 left each" in str(refusal)
    cluster.use_rules(AllocatorRules())
    assert fits(cluster) == refusal


@pytest.mark.parametrize("phase", ["", "Succeeded"])
def test_a_pod_in_a_reservation_may_end_before_the_last_report_is_read(
    cluster: SchedulerCache, phase: str
) -> None:
    cluster.koordinator_reservations_changed([event(body("r", allocation("0-3"), node="n1"))])
    reference = json.dumps({"name": "r", "uid": "uid-r"})
    annotations = {RESERVATION_ALLOCATED: reference, **allocation("0-1")}
    report_pod(cluster, "a", "2", annotations=annotations)
    report(cluster, ["a"], 2000)
    fits(cluster)
    report(cluster, ["a"], 3000)
    if phase:
        report_pod(cluster, "a", "2", phase=phase, annotations=annotations)
    else:
        delete_pod(cluster, "a")
    state = cluster.node("n1")
    assert state is not None
    assert [str(each.allocation.cpus) for each in state.allocator.assigned_pods.values()] == ["0-3"]
