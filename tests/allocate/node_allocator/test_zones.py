from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator, StaleOfferError
from agent.allocate.node_allocator.answer import Granted, Refused
from agent.allocate.node_allocator.assigned_pods import holding_of
from agent.allocate.node_allocator.pod_request import request_of
from agent.allocate.node_allocator.properties import AllocatorRules, NodeProperties
from agent.allocate.nrt.node import ZonedNode, ZoneReport
from agent.allocate.policies_in_force import NodePolicies
from agent.model.apiobjects import ApiPod
from agent.model.cpu.policies import NumaPolicy, Strategy
from agent.model.nrt.node_annotations import AGENT_SETTINGS, CPU_MANAGER_POLICY
from agent.model.settings.plugin_args import ZoneScoring
from tests.allocate.node_allocator.builders import facts, pod
from tests.allocate.nrt.values import NIC, node

GIB = 1 << 30
TWO = {0: {"cpu": 8000, "memory": 8 * GIB}, 1: {"cpu": 4000, "memory": 8 * GIB}}


def report(reported: ZonedNode) -> ZoneReport:
    return ZoneReport(reported, node(TWO))


def place(reported: ZonedNode | None = None, rules: AllocatorRules | None = None) -> NodeAllocator:
    """A node whose kubelet aligns containers."""
    zones = report(reported or node(TWO))
    return NodeAllocator(
        msgspec.structs.replace(facts(), zones=zones, rules=rules or AllocatorRules())
    )


def plain(cpu: int, uid: str = "a") -> ApiPod:
    """Guaranteed, and placed by the kubelet only."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return pod(uid, amounts, limits=amounts)


def fits(there: NodeAllocator, of: ApiPod) -> bool:
    return isinstance(there.offer(request_of(of)), Granted)


def put(there: NodeAllocator, of: ApiPod) -> None:
    found = there.offer(request_of(of))
    assert isinstance(found, Granted)
    there.commit(found)


def test_a_plain_pod_must_fit_the_reported_zones() -> None:
    there = place()
    assert fits(there, plain(8))
    found = there.offer(request_of(plain(9)))
    assert isinstance(found, Refused)
    assert found.text() == ("container c requests 9 cpu: NUMA nodes 0, 1 have at most 8 left each")
    assert found.unresolvable
    lacking = there.offer(request_of(pod("a", {"cpu": 1, "example.com/x": 1})))
    assert isinstance(lacking, Refused)
    assert lacking.unresolvable


def test_a_node_without_a_zone_report_passes_all_pods() -> None:
    assert fits(NodeAllocator(NodeProperties("n")), plain(99))
    assert fits(NodeAllocator(facts()), plain(99))


def test_a_koordinator_pod_is_placed_by_koordinators_rules() -> None:
    """The zones were reported earlier; owned CPUs are counted by the allocator."""
    there = place(node({0: {"cpu": 0}, 1: {"cpu": 0}}))
    assert fits(there, pod("a", {"cpu": 2}, "LSR"))
    assert fits(there, pod("a", {"cpu": 2}, "LS"))


def test_koordinator_labels_take_precedence_over_the_zone_report() -> None:
    labelled = facts(policy=NumaPolicy.SINGLE_NUMA_NODE)
    there = NodeAllocator(
        msgspec.structs.replace(labelled, zones=report(node({0: {"cpu": 0}, 1: {"cpu": 0}})))
    )
    assert fits(there, plain(8))


def test_pods_assigned_since_the_report_count() -> None:
    there = place()
    put(there, plain(6, "a"))
    assert not fits(there, plain(6, "b"))
    assert fits(there, plain(6, "a"))
    put(there, plain(1, "b"))
    assert fits(there, plain(1, "c"))
    assert not fits(there, plain(2, "c")), "the kubelet may put both on either NUMA node"
    there.release("a")
    assert fits(there, plain(7, "c"))


def test_an_offer_is_stale_after_another_commit() -> None:
    there = place()
    late = there.offer(request_of(plain(4, "late")))
    assert isinstance(late, Granted)
    put(there, plain(6, "early"))
    with pytest.raises(StaleOfferError, match="at most 2 left each"):
        there.commit(late)
    assert set(there.holdings) == {"early"}


def test_a_node_with_unknown_pods_is_refused_to_pods_that_use_zones() -> None:
    there = place()
    there.update_report(there.properties.zones, None)
    refused = there.offer(request_of(plain(1)))
    assert isinstance(refused, Refused)
    assert refused.unresolvable
    assert "other pods than the scheduler knows" in refused.text()
    assert fits(there, pod("b", {"cpu": 1, "memory": 1}))
    lasting = there.offer(request_of(plain(9)))
    assert isinstance(lasting, Refused)
    assert "container c requests 9 cpu" in lasting.text()


def test_a_shortage_that_eviction_can_end_is_resolvable() -> None:
    there = place(node({0: {"cpu": 1000, "memory": 8 * GIB}, 1: {"cpu": 0, "memory": 8 * GIB}}))
    for cpus, lasting in ((8, False), (9, True)):
        found = there.offer(request_of(plain(cpus)))
        assert isinstance(found, Refused)
        assert found.unresolvable is lasting


def test_owned_cpus_are_subtracted_from_their_numa_node() -> None:
    there = place()
    put(there, pod("a", {"cpu": 8}, "LSR"))
    assert fits(there, plain(4, "b"))
    assert not fits(there, plain(5, "b"))


def test_cpus_that_the_kubelet_gives_a_koordinator_pod_count_on_each_numa_node() -> None:
    """A Guaranteed LS pod on a node with a static kubelet."""
    there = place()
    amounts = {"cpu": 3, "memory": "1Gi"}
    put(there, pod("a", amounts, "LS", limits=amounts))
    assert fits(there, plain(5, "b"))
    assert not fits(there, plain(6, "b"))


def test_devices_that_the_kubelet_assigns_are_subtracted_from_each_numa_node() -> None:
    """Exclusive CPUs are those of the claim. The kubelet chooses the NUMA node of the device."""
    there = place(node({zone: {**amounts, NIC: 1} for zone, amounts in TWO.items()}))
    with_card = {"cpu": 2, "memory": "1Gi", NIC: 1}
    put(there, pod("a", with_card, "LSR"))
    assert fits(there, plain(6, "b"))
    assert not fits(there, plain(7, "b"))
    assert not fits(there, pod("b", with_card, limits=with_card))


def test_a_pod_on_a_shared_pool_takes_no_cpu() -> None:
    there = place()
    numa = {"scheduling.koordinator.sh/numa-topology-spec": {"numaTopologyPolicy": "Restricted"}}
    put(there, pod("a", {"cpu": 3, "memory": "7Gi"}, "LS", numa))
    assert there.holdings["a"].allocation.amounts
    assert fits(there, plain(8, "b"))
    big = pod("c", {"cpu": 1, "memory": "2Gi"}, limits={"cpu": 1, "memory": "2Gi"})
    put(there, big)
    assert fits(there, big)


def test_a_new_report_counts_all_pods_that_are_not_listed_as_uncounted() -> None:
    there = place()
    put(there, plain(5, "a"))
    put(there, plain(2, "b"))
    left = node({0: {"cpu": 3000, "memory": 8 * GIB}, 1: {"cpu": 4000, "memory": 8 * GIB}})
    new = msgspec.structs.replace(there.properties, zones=report(left))
    assert fits(there.with_properties(new), plain(3, "c"))
    beside = there.with_properties(new, uncounted={"b"})
    assert fits(beside, plain(2, "c"))
    assert not fits(beside, plain(3, "c"))


def test_a_new_report_alone_updates_the_allocator_in_place() -> None:
    there = place()
    put(there, plain(5, "a"))
    put(there, plain(2, "b"))
    left = node({0: {"cpu": 3000, "memory": 8 * GIB}, 1: {"cpu": 4000, "memory": 8 * GIB}})
    there.update_report(report(left), left, uncounted={"b"})
    assert there.properties.zones == report(left)
    assert set(there.holdings) == {"a", "b"}
    assert fits(there, plain(2, "c"))
    assert not fits(there, plain(3, "c"))
    there.update_report(report(left), left)
    assert fits(there, plain(4, "c"))
    there.update_report(None, None)
    assert fits(there, plain(99, "c"))


def test_an_offer_without_pods_that_the_report_does_not_count() -> None:
    there = place()
    put(there, plain(8, "a"))
    assert fits(there.without(["a"]), plain(8, "b"))
    assert not fits(there, plain(8, "b"))


def test_the_score_is_by_the_configured_strategy() -> None:
    scores = []
    for strategy in (Strategy.LEAST_ALLOCATED, Strategy.MOST_ALLOCATED):
        found = place(rules=AllocatorRules(zones=ZoneScoring(strategy))).offer(request_of(plain(2)))
        assert isinstance(found, Granted)
        scores.append(found.score)
    least, most = scores
    assert least > most > 0


def test_equivalence_classes_distinguish_containers_when_zones_do() -> None:
    one = {"containers": [{"name": "c", "resources": {"requests": {"cpu": 4}}}]}
    half = {"resources": {"requests": {"cpu": 2}}}
    two = {"containers": [{"name": "c", **half}, {"name": "d", **half}]}
    assert request_of(pod(**one)).shape != request_of(pod(**two)).shape
    empty = [request_of(pod(containers=[{"name": name}])).shape for name in "cd"]
    assert empty[0] == empty[1]


def test_the_zone_report_applies_with_koordinator_labels_on_other_subjects() -> None:
    """Amplification does not concern NUMA nodes."""
    amplified = facts(cpu_ratio=1.5, cpu_milli=24_000)
    there = NodeAllocator(msgspec.structs.replace(amplified, zones=report(node(TWO))))
    assert not fits(there, plain(9))
    put(there, plain(6))
    assert fits(there, plain(2, "b"))
    assert not fits(there, plain(3, "b"))


FOUR = {zone: {"cpu": 4000, "memory": 8 * GIB, NIC: 1} for zone in range(4)}
BY_KUBELET = NodePolicies(numa_kubelet=NumaPolicy.RESTRICTED)
STATIC = {CPU_MANAGER_POLICY: '{"policy": "static"}'}
STATIC_MEMORY = {**STATIC, AGENT_SETTINGS: '{"memoryManagerPolicy": "Static"}'}


def restricted(
    free: dict[int, int], notes: dict[str, str] | None = None, scope: str = "pod"
) -> NodeAllocator:
    """A node with 4 NUMA nodes of 4 CPUs, of which `free` (milli-CPU) are left, and whose kubelet
    has the policy restricted; static unless `notes` say otherwise."""
    notes = STATIC if notes is None else notes
    empty = node(FOUR, "restricted", scope, annotations=notes)
    left = msgspec.structs.replace(empty, available={**empty.available, "cpu": free})
    cpus = facts((1, 4, 2, 2), policies=BY_KUBELET, kubelet_static=bool(notes)).cpus
    return NodeAllocator(NodeProperties("n", cpus, zones=ZoneReport(left, empty)))


def guaranteed(cpu: int, qos: str | None = "LSE", uid: str = "a", **more: Any) -> ApiPod:
    amounts = {"cpu": cpu, "memory": "1Gi", **more}
    return guaranteed_class(pod(uid, amounts, qos, limits=amounts))


def guaranteed_class(of: ApiPod) -> ApiPod:
    return msgspec.structs.replace(of, kube_class="guaranteed")


@pytest.mark.parametrize("qos", ["LSE", "LSR", "LS", None])
def test_the_kubelets_restricted_admits_only_as_few_numa_nodes_as_an_empty_machine_needs(
    qos: str | None,
) -> None:
    """Koordinator's rule takes any NUMA nodes that have enough."""
    there = restricted(dict.fromkeys(range(4), 3000))
    assert fits(there, guaranteed(3, qos))
    found = there.offer(request_of(guaranteed(4, qos)))
    assert isinstance(found, Refused)
    assert found.text() == (
        "pod requests 4 cpu: the kubelet's policy restricted prefers 1 NUMA node: at most 3 left "
        "there"
    )
    assert not found.unresolvable
    assert fits(there, guaranteed(6, qos))
    found = there.offer(request_of(guaranteed(8, qos)))
    assert isinstance(found, Refused)
    assert "prefers 2 NUMA nodes: at most 6 left there" in found.text()
    assert "prefers 2 NUMA nodes: not that much is left there" in found.summary()
    assert fits(restricted({0: 1000, 1: 1000, 2: 4000, 3: 4000}), guaranteed(8, qos))


@pytest.mark.parametrize("qos", ["LSE", None])
def test_resources_for_which_the_kubelet_prefers_different_numbers_are_declined_for_good(
    qos: str | None,
) -> None:
    there = restricted(dict.fromkeys(range(4), 4000))
    assert fits(there, guaranteed(8, qos, **{NIC: 2}))
    found = there.offer(request_of(guaranteed(8, qos, **{NIC: 1})))
    assert isinstance(found, Refused)
    assert found.text() == (
        f"pod requests 1 {NIC}: the kubelet's policy restricted prefers 1 NUMA node for it, and "
        "more for the rest"
    )
    assert found.unresolvable
    full = restricted(dict.fromkeys(range(4), 1000))
    assert full.offer(request_of(guaranteed(8, qos, **{NIC: 1}))) == found


def test_restricted_counts_memory_under_a_static_memory_manager_only() -> None:
    for notes, passes in ((STATIC, True), (STATIC_MEMORY, False)):
        there = restricted(dict.fromkeys(range(4), 4000), notes)
        assert fits(there, guaranteed(2, memory="10Gi")) is passes
        assert fits(there, guaranteed(8, memory="10Gi"))


def test_restricted_counts_no_cpu_that_the_kubelet_does_not_assign() -> None:
    """Under the CPU manager policy none, and for pods that are not Guaranteed."""
    there = restricted(dict.fromkeys(range(4), 3000), {})
    assert fits(there, guaranteed(4))
    assert fits(there, guaranteed(4, None))
    there = restricted(dict.fromkeys(range(4), 3000))
    assert fits(there, pod("a", {"cpu": 4}, "LS"))
    half = {"cpu": "3500m", "memory": "1Gi"}
    assert fits(there, guaranteed_class(pod("a", half, limits=half)))
    align = {CPU_MANAGER_POLICY: '{"policy": "static", "options": {"align-by-socket": "true"}}'}
    assert fits(restricted(dict.fromkeys(range(4), 3000), align), guaranteed(4))


def test_under_a_static_kubelet_new_owners_count_on_each_numa_node() -> None:
    """The kubelet does not follow the allocation."""
    there = restricted(dict.fromkeys(range(4), 4000))
    early = there.offer(request_of(guaranteed(3, uid="b")))
    assert isinstance(early, Granted)
    put(there, guaranteed(2))
    with pytest.raises(StaleOfferError, match="at most 2 left there"):
        there.commit(early)
    assert fits(there, guaranteed(2, uid="b"))
    assert not fits(there, guaranteed(3, uid="b"))


def test_the_cpus_of_victims_count_as_free_for_the_kubelets_restricted() -> None:
    there = restricted(dict.fromkeys(range(4), 1000))
    status = {"scheduling.koordinator.sh/resource-status": {"cpuset": "4-5"}}
    there.record(holding_of(pod("victim", {"cpu": 2}, "LSR", status)))
    assert not fits(there, guaranteed(3))
    assert fits(there.without(["victim"]), guaranteed(3))
    assert not fits(there.without(["victim"]), guaranteed(4))


def test_a_report_with_unknown_pods_is_not_offered_under_the_kubelets_restricted() -> None:
    there = restricted(dict.fromkeys(range(4), 4000))
    there.update_report(there.properties.zones, None)
    assert not fits(there, guaranteed(2))
    assert fits(there, pod("a", {}, "LS"))
    there = restricted(dict.fromkeys(range(4), 4000), {})
    there.update_report(there.properties.zones, None)
    assert fits(there, guaranteed(2)), "the kubelet gives no hints for it"
