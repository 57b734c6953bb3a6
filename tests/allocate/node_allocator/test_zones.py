from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator, StaleOfferError
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import assigned_pod_of
from agent.allocate.node_allocator.node_states import NodeStates
from agent.allocate.node_allocator.properties import AllocatorRules, NodeProperties
from agent.allocate.nrt.node import ZonedNode, ZoneReport
from agent.allocate.policies_in_force import NodePolicies
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import DeviceLocality, NumaPolicy, Strategy
from agent.model.nrt.node_annotations import AGENT_SETTINGS, CPU_MANAGER_POLICY
from agent.model.pod.annotations import DEVICE_ALLOCATED, DEVICE_LOCALITY
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import request_of
from agent.model.settings.plugin_args import ZoneScoring
from tests.allocate.devices.builders import CARDS, gpu, nic
from tests.allocate.node_allocator.builders import make_properties, minors, offered, pod, refusal
from tests.allocate.nrt.values import NIC, node

GIB = 1 << 30
TWO = {0: {"cpu": 8000, "memory": 8 * GIB}, 1: {"cpu": 4000, "memory": 8 * GIB}}


def report(reported: ZonedNode) -> ZoneReport:
    return ZoneReport(reported, node(TWO))


def new_allocator(
    reported: ZonedNode | None = None, rules: AllocatorRules | None = None
) -> NodeAllocator:
    """A node whose kubelet aligns containers."""
    zones = report(reported or node(TWO))
    return NodeAllocator(make_properties(zones=zones, rules=rules or AllocatorRules()))


def unlabelled(cpu: int, uid: str = "a") -> ApiPod:
    """A Guaranteed pod without Koordinator labels, which the kubelet places."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return pod(uid, amounts, limits=amounts)


def fits(allocator: NodeAllocator, api_pod: ApiPod) -> bool:
    return isinstance(allocator.offer(request_of(api_pod)), NodeOffer)


def commit(allocator: NodeAllocator, api_pod: ApiPod) -> None:
    allocator.commit(offered(allocator, api_pod))


WITH_AGENT = {AGENT_SETTINGS: '{"deviceLocality": "prefer"}'}


TWO_WITH_CARDS = node(
    {zone: {**of_zone, CARDS: 2} for zone, of_zone in TWO.items()}, "none", annotations=WITH_AGENT
)


def with_cards(*nodes: int, near: dict[int, int] | None = None, **more: Any) -> NodeAllocator:
    """A node whose Device object has a card on each of these NUMA nodes. `near`: milli-CPU that are
    requested near to devices, by the mask of NUMA nodes."""
    zones = node(TWO, "none", annotations=WITH_AGENT)
    reported = msgspec.structs.replace(zones, near=near or {})
    devices = [gpu(minor, node) for minor, node in enumerate(nodes)]
    rules = AllocatorRules(strategy=Strategy.MOST_ALLOCATED)
    return NodeAllocator(
        make_properties(devices=devices, zones=ZoneReport(reported, zones), rules=rules, **more)
    )


def of_cards(count: int, cpu: int = 1, locality: str = "", uid: str = "a") -> ApiPod:
    notes = {DEVICE_LOCALITY: locality} if locality else {}
    return pod(uid, {"cpu": cpu, CARDS: count}, notes=notes)


@pytest.mark.parametrize(
    ("held", "near", "count", "cpu", "text"),
    [
        ((), {}, 2, 1, ""),
        ((0, 2), {}, 2, 1, "gpu: the free ones are on more NUMA nodes than on an empty machine"),
        ((0, 2), {}, 3, 1, None),
        ((), {1: 4000}, 1, 4, ""),
        ((), {1: 5000, 2: 1000}, 1, 4, "requests 4 cpu: NUMA nodes 0 of its devices have 3 left"),
    ],
)
def test_where_a_pod_would_be_far_from_cards_the_node_counts_half(
    held: tuple[int, ...], near: dict[int, int], count: int, cpu: int, text: str | None
) -> None:
    """`held`: the cards of other pods. `text`: None for a pod that gets no cards."""
    allocator = with_cards(0, 0, 1, 1, near=near)
    for minor in held:
        notes = {DEVICE_ALLOCATED: {"gpu": [{"minor": minor}]}}
        allocator.record(assigned_pod_of(pod(f"of-{minor}", {CARDS: 1}, notes=notes)))
    requiring = allocator.offer(request_of(of_cards(count, cpu, "require")))
    if text is None:
        assert isinstance(requiring, Refusal)
        assert requiring.reason is Reason.DEVICE_INSUFFICIENT
        return
    indifferent = offered(allocator, of_cards(count, cpu, "off"))
    preferring = offered(allocator, of_cards(count, cpu))
    assert preferring.device_allocation == indifferent.device_allocation
    assert (preferring.score < indifferent.score) == bool(text)
    assert isinstance(requiring, Refusal) == bool(text)
    if isinstance(requiring, Refusal):
        assert text in requiring.text
        assert not requiring.unresolvable


def test_pods_with_cards_count_on_the_numa_nodes_of_these_until_a_report_counts_them() -> None:
    """Each NUMA node has CPUs for the pods of its own cards alone."""
    allocator = with_cards(0, 0, 1)
    for uid in "abc":
        commit(allocator, of_cards(1, 4, "require", uid))


def test_cards_on_a_numa_node_without_a_zone_are_near_to_no_cpus() -> None:
    allocator = with_cards(7)
    assert minors(offered(allocator, of_cards(1))) == [0]
    found = refusal(allocator, of_cards(1, 1, "require"))
    assert found.text.endswith("NUMA nodes 7 of its devices have 0 left")


def test_a_pod_that_requires_it_gets_other_cards_to_which_it_is_near() -> None:
    """The strategy alone chooses card 0."""
    allocator = with_cards(0, 0, 1, near={1: 5000})
    assert minors(offered(allocator, of_cards(1, 4, "prefer"))) == [0]
    chosen = offered(allocator, of_cards(1, 4, "require"))
    assert minors(chosen) == [2]
    other = offered(with_cards(0, 0, 1), of_cards(1, 4, "require", "b"))
    allocator.commit(chosen)
    with pytest.raises(StaleOfferError, match="requests 4 cpu: NUMA nodes 0 of its devices have"):
        allocator.commit(other)


def test_the_kubelet_gives_whole_cards_where_the_device_object_has_none() -> None:
    zones = node({zone: {**of_zone, CARDS: 2} for zone, of_zone in TWO.items()}, "best-effort")
    of_agent = msgspec.structs.replace(zones, device_locality=DeviceLocality.PREFER)
    for devices in (None, [nic(0)]):
        properties = make_properties(devices=devices, zones=ZoneReport(of_agent, of_agent))
        allocator = NodeAllocator(properties)
        offer = offered(allocator, of_cards(2))
        assert (offer.device_allocation, offer.annotations()) == (None, {})
        assert offer.score >= 50
        allocator.commit(offer)
        apart = refusal(allocator, of_cards(2, 1, "require", "b"))
        assert apart.reason is Reason.DEVICES_APART
    without_agent = make_properties(zones=ZoneReport(zones, zones))
    assert "no Device object" in refusal(NodeAllocator(without_agent), of_cards(2)).text


@pytest.mark.parametrize(
    "differs",
    [
        {"available": {**TWO_WITH_CARDS.available, CARDS: {0: 1, 1: 1}}},
        {"near": {1: 8000, 2: 4000}},
        {"device_locality": DeviceLocality.OFF},
    ],
)
@pytest.mark.parametrize("qos", [None, "LS"])
def test_nodes_in_one_state_have_equal_offers_to_pods_whose_cards_the_kubelet_gives(
    differs: dict[str, Any], qos: str | None
) -> None:
    """Their Device objects list only network devices."""
    states, answers = NodeStates(), {}
    for reported in (TWO_WITH_CARDS, msgspec.structs.replace(TWO_WITH_CARDS, **differs)):
        zones = ZoneReport(reported, TWO_WITH_CARDS)
        allocator = NodeAllocator(make_properties(devices=[nic(0)], zones=zones))
        request = request_of(pod("a", {"cpu": 2, CARDS: 2}, qos))
        reads = request.reads(allocator.properties)
        of_properties = states.of_properties(allocator.properties, reads)
        assert of_properties is not None
        number = states.of(of_properties, allocator.state(reads), reads)
        offer = allocator.offer(request)
        assert isinstance(offer, NodeOffer)
        assert answers.setdefault(number, offer.score) == offer.score


def test_the_cpus_of_a_guaranteed_pod_count_once_until_a_report_counts_them() -> None:
    amounts = {"cpu": 2, "memory": "1Gi", CARDS: 1}
    zones = node({zone: {"cpu": 4000, CARDS: 2} for zone in (0, 1)}, "none", annotations=WITH_AGENT)
    allocator = NodeAllocator(make_properties(zones=ZoneReport(zones, zones)))
    for uid in "ab":
        commit(allocator, pod(uid, amounts, limits=amounts, notes={DEVICE_LOCALITY: "require"}))


def test_an_unlabelled_pod_must_fit_the_reported_zones() -> None:
    allocator = new_allocator()
    assert fits(allocator, unlabelled(8))
    found = refusal(allocator, unlabelled(9))
    assert found.text == ("container c requests 9 cpu: NUMA nodes 0, 1 have at most 8 left each")
    assert found.unresolvable
    unlisted = refusal(allocator, pod("a", {"cpu": 1, "example.com/x": 1}))
    assert unlisted.unresolvable


def test_a_node_without_a_zone_report_passes_all_pods() -> None:
    assert fits(NodeAllocator(NodeProperties("n")), unlabelled(99))
    assert fits(NodeAllocator(make_properties()), unlabelled(99))


def test_a_pod_with_koordinator_labels_is_placed_by_koordinators_rules() -> None:
    """The reported zones are older; the allocator counts owned CPUs."""
    allocator = new_allocator(node({0: {"cpu": 0}, 1: {"cpu": 0}}))
    assert fits(allocator, pod("a", {"cpu": 2}, "LSR"))
    assert fits(allocator, pod("a", {"cpu": 2}, "LS"))


def test_koordinator_labels_take_precedence_over_the_zone_report() -> None:
    labelled = make_properties(policy=NumaPolicy.SINGLE_NUMA_NODE)
    allocator = NodeAllocator(
        msgspec.structs.replace(labelled, zones=report(node({0: {"cpu": 0}, 1: {"cpu": 0}})))
    )
    assert fits(allocator, unlabelled(8))


def test_pods_assigned_since_the_report_count() -> None:
    allocator = new_allocator()
    commit(allocator, unlabelled(6, "a"))
    assert not fits(allocator, unlabelled(6, "b"))
    assert fits(allocator, unlabelled(6, "a"))
    commit(allocator, unlabelled(1, "b"))
    assert fits(allocator, unlabelled(1, "c"))
    assert not fits(allocator, unlabelled(2, "c")), "the kubelet may place both on either NUMA node"
    allocator.release("a")
    assert fits(allocator, unlabelled(7, "c"))


def test_an_offer_is_stale_after_another_commit() -> None:
    allocator = new_allocator()
    late = offered(allocator, unlabelled(4, "late"))
    commit(allocator, unlabelled(6, "early"))
    with pytest.raises(StaleOfferError, match="at most 2 left each"):
        allocator.commit(late)
    assert set(allocator.assigned_pods) == {"early"}


def test_a_node_with_unknown_pods_is_refused_to_pods_that_use_zones() -> None:
    allocator = new_allocator()
    allocator.update_report(allocator.properties.zones, None)
    refused = refusal(allocator, unlabelled(1))
    assert refused.unresolvable
    assert "other pods than the scheduler knows" in refused.text
    assert fits(allocator, pod("b", {"cpu": 1, "memory": 1}))
    unresolvable = refusal(allocator, unlabelled(9))
    assert "container c requests 9 cpu" in unresolvable.text


def test_a_shortage_that_preemption_can_end_is_resolvable() -> None:
    allocator = new_allocator(
        node({0: {"cpu": 1000, "memory": 8 * GIB}, 1: {"cpu": 0, "memory": 8 * GIB}})
    )
    for cpus, unresolvable in ((8, False), (9, True)):
        assert refusal(allocator, unlabelled(cpus)).unresolvable is unresolvable


def test_owned_cpus_are_subtracted_from_their_numa_node() -> None:
    allocator = new_allocator()
    commit(allocator, pod("a", {"cpu": 8}, "LSR"))
    assert fits(allocator, unlabelled(4, "b"))
    assert not fits(allocator, unlabelled(5, "b"))


def test_cpus_that_the_kubelet_assigns_to_a_koordinator_pod_count_on_each_numa_node() -> None:
    """A Guaranteed LS pod on a node with a static kubelet."""
    allocator = new_allocator()
    amounts = {"cpu": 3, "memory": "1Gi"}
    commit(allocator, pod("a", amounts, "LS", limits=amounts))
    assert fits(allocator, unlabelled(5, "b"))
    assert not fits(allocator, unlabelled(6, "b"))


def test_devices_that_the_kubelet_assigns_are_subtracted_from_each_numa_node() -> None:
    """Exclusive CPUs are those of the allocation; the kubelet chooses the device's NUMA node."""
    allocator = new_allocator(node({zone: {**amounts, NIC: 1} for zone, amounts in TWO.items()}))
    with_card = {"cpu": 2, "memory": "1Gi", NIC: 1}
    commit(allocator, pod("a", with_card, "LSR"))
    assert fits(allocator, unlabelled(6, "b"))
    assert not fits(allocator, unlabelled(7, "b"))
    assert not fits(allocator, pod("b", with_card, limits=with_card))


def test_a_pod_on_a_shared_pool_uses_no_exclusive_cpu() -> None:
    allocator = new_allocator()
    numa = {"scheduling.koordinator.sh/numa-topology-spec": {"numaTopologyPolicy": "Restricted"}}
    commit(allocator, pod("a", {"cpu": 3, "memory": "7Gi"}, "LS", numa))
    assert allocator.assigned_pods["a"].allocation.amounts
    assert fits(allocator, unlabelled(8, "b"))
    big = pod("c", {"cpu": 1, "memory": "2Gi"}, limits={"cpu": 1, "memory": "2Gi"})
    commit(allocator, big)
    assert fits(allocator, big)


def test_a_new_report_counts_all_pods_that_are_not_listed_as_uncounted() -> None:
    allocator = new_allocator()
    commit(allocator, unlabelled(5, "a"))
    commit(allocator, unlabelled(2, "b"))
    left = node({0: {"cpu": 3000, "memory": 8 * GIB}, 1: {"cpu": 4000, "memory": 8 * GIB}})
    new = msgspec.structs.replace(allocator.properties, zones=report(left))
    assert fits(allocator.with_properties(new), unlabelled(3, "c"))
    with_uncounted = allocator.with_properties(new, uncounted={"b"})
    assert fits(with_uncounted, unlabelled(2, "c"))
    assert not fits(with_uncounted, unlabelled(3, "c"))


def test_a_new_report_updates_the_allocator_in_place() -> None:
    allocator = new_allocator()
    commit(allocator, unlabelled(5, "a"))
    commit(allocator, unlabelled(2, "b"))
    left = node({0: {"cpu": 3000, "memory": 8 * GIB}, 1: {"cpu": 4000, "memory": 8 * GIB}})
    allocator.update_report(report(left), left, uncounted={"b"})
    assert allocator.properties.zones == report(left)
    assert set(allocator.assigned_pods) == {"a", "b"}
    assert fits(allocator, unlabelled(2, "c"))
    assert not fits(allocator, unlabelled(3, "c"))
    allocator.update_report(report(left), left)
    assert fits(allocator, unlabelled(4, "c"))
    allocator.update_report(None, None)
    assert fits(allocator, unlabelled(99, "c"))


def test_an_offer_without_evicted_pods_that_the_report_does_not_count() -> None:
    allocator = new_allocator()
    commit(allocator, unlabelled(8, "a"))
    assert fits(allocator.without(["a"]), unlabelled(8, "b"))
    assert not fits(allocator, unlabelled(8, "b"))


def test_the_score_follows_the_configured_strategy() -> None:
    scores = []
    for strategy in (Strategy.LEAST_ALLOCATED, Strategy.MOST_ALLOCATED):
        found = new_allocator(rules=AllocatorRules(zones=ZoneScoring(strategy))).offer(
            request_of(unlabelled(2))
        )
        assert isinstance(found, NodeOffer)
        scores.append(found.score)
    least, most = scores
    assert least > most > 0


def test_equivalence_classes_distinguish_containers_when_zones_do() -> None:
    one = {"containers": [{"name": "c", "resources": {"requests": {"cpu": 4}}}]}
    half = {"resources": {"requests": {"cpu": 2}}}
    two = {"containers": [{"name": "c", **half}, {"name": "d", **half}]}
    assert request_of(pod(**one)).equivalence_key != request_of(pod(**two)).equivalence_key
    empty = [request_of(pod(containers=[{"name": name}])).equivalence_key for name in "cd"]
    assert empty[0] == empty[1]


def test_the_zone_report_applies_with_koordinator_labels_on_other_subjects() -> None:
    """Amplification does not concern NUMA nodes."""
    amplified = make_properties(cpu_ratio=1.5, cpu_milli=24_000)
    allocator = NodeAllocator(msgspec.structs.replace(amplified, zones=report(node(TWO))))
    assert not fits(allocator, unlabelled(9))
    commit(allocator, unlabelled(6))
    assert fits(allocator, unlabelled(2, "b"))
    assert not fits(allocator, unlabelled(3, "b"))


FOUR = {zone: {"cpu": 4000, "memory": 8 * GIB, NIC: 1} for zone in range(4)}
RESTRICTED = NodePolicies(numa_kubelet=NumaPolicy.RESTRICTED)
STATIC = {CPU_MANAGER_POLICY: '{"policy": "static"}'}


def restricted(
    free: dict[int, int], notes: dict[str, str] | None = None, scope: str = "pod"
) -> NodeAllocator:
    """A node with 4 NUMA nodes of 4 CPUs, of which `free` (milli-CPU) are left. Its kubelet has the
    policy restricted, and the CPU manager policy static unless `notes` has another."""
    notes = STATIC if notes is None else notes
    empty = node(FOUR, "restricted", scope, annotations=notes)
    left = msgspec.structs.replace(empty, available={**empty.available, "cpu": free})
    cpus = make_properties((1, 4, 2, 2), policies=RESTRICTED, kubelet_static=bool(notes)).cpus
    return NodeAllocator(NodeProperties("n", cpus, zones=ZoneReport(left, empty)))


def guaranteed(cpu: int, qos: str | None = "LSE", uid: str = "a", **more: Any) -> ApiPod:
    amounts = {"cpu": cpu, "memory": "1Gi", **more}
    return guaranteed_class(pod(uid, amounts, qos, limits=amounts))


def guaranteed_class(api_pod: ApiPod) -> ApiPod:
    return msgspec.structs.replace(api_pod, kube_class="guaranteed")


@pytest.mark.parametrize("qos", ["LSE", "LSR", "LS", None])
def test_the_kubelets_restricted_policy_admits_only_the_fewest_numa_nodes_of_an_empty_machine(
    qos: str | None,
) -> None:
    """Koordinator's rule accepts any NUMA nodes that have enough."""
    allocator = restricted(dict.fromkeys(range(4), 3000))
    assert fits(allocator, guaranteed(3, qos))
    found = refusal(allocator, guaranteed(4, qos))
    assert found.text == (
        "pod requests 4 cpu: the kubelet's topology manager prefers 1 NUMA node: at most 3 left "
        "there"
    )
    assert not found.unresolvable
    assert fits(allocator, guaranteed(6, qos))
    found = refusal(allocator, guaranteed(8, qos))
    assert "prefers 2 NUMA nodes: at most 6 left there" in found.text
    assert "prefers 2 NUMA nodes: not that much is left there" in found.summary
    assert fits(restricted({0: 1000, 1: 1000, 2: 4000, 3: 4000}), guaranteed(8, qos))


@pytest.mark.parametrize("qos", ["LSE", None])
def test_resources_with_different_preferred_numbers_of_numa_nodes_are_unresolvable(
    qos: str | None,
) -> None:
    allocator = restricted(dict.fromkeys(range(4), 4000))
    assert fits(allocator, guaranteed(8, qos, **{NIC: 2}))
    found = refusal(allocator, guaranteed(8, qos, **{NIC: 1}))
    assert found.text == (
        f"pod requests 1 {NIC}: the kubelet's topology manager prefers 1 NUMA node for it, and "
        "more for the rest"
    )
    assert found.unresolvable
    full = restricted(dict.fromkeys(range(4), 1000))
    assert full.offer(request_of(guaranteed(8, qos, **{NIC: 1}))) == found


def test_restricted_ignores_cpu_that_the_kubelet_does_not_assign() -> None:
    """For example with the CPU manager policy none, or for pods that are not Guaranteed."""
    allocator = restricted(dict.fromkeys(range(4), 3000), {})
    assert fits(allocator, guaranteed(4))
    assert fits(allocator, guaranteed(4, None))
    allocator = restricted(dict.fromkeys(range(4), 3000))
    assert fits(allocator, pod("a", {"cpu": 4}, "LS"))
    half = {"cpu": "3500m", "memory": "1Gi"}
    assert fits(allocator, guaranteed_class(pod("a", half, limits=half)))
    align = {CPU_MANAGER_POLICY: '{"policy": "static", "options": {"align-by-socket": "true"}}'}
    assert fits(restricted(dict.fromkeys(range(4), 3000), align), guaranteed(4))


def test_under_a_static_kubelet_new_owners_count_on_each_numa_node() -> None:
    """The kubelet does not follow the allocation."""
    allocator = restricted(dict.fromkeys(range(4), 4000))
    early = offered(allocator, guaranteed(3, uid="b"))
    commit(allocator, guaranteed(2))
    with pytest.raises(StaleOfferError, match="at most 2 left there"):
        allocator.commit(early)
    assert fits(allocator, guaranteed(2, uid="b"))
    assert not fits(allocator, guaranteed(3, uid="b"))


def test_the_cpus_of_victims_count_as_free_under_the_kubelets_restricted_policy() -> None:
    allocator = restricted(dict.fromkeys(range(4), 1000))
    status = {"scheduling.koordinator.sh/resource-status": {"cpuset": "4-5"}}
    allocator.record(assigned_pod_of(pod("victim", {"cpu": 2}, "LSR", status)))
    assert not fits(allocator, guaranteed(3))
    assert fits(allocator.without(["victim"]), guaranteed(3))
    assert not fits(allocator.without(["victim"]), guaranteed(4))


def test_a_node_with_unknown_pods_is_refused_under_the_kubelets_restricted_policy() -> None:
    allocator = restricted(dict.fromkeys(range(4), 4000))
    allocator.update_report(allocator.properties.zones, None)
    assert not fits(allocator, guaranteed(2))
    assert fits(allocator, pod("a", {}, "LS"))
    allocator = restricted(dict.fromkeys(range(4), 4000), {})
    allocator.update_report(allocator.properties.zones, None)
    assert fits(allocator, guaranteed(2)), "the kubelet has no hints for it"
