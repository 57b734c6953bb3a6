from __future__ import annotations

import json

import msgspec
import pytest

from agent.allocate.devices.need import DeviceCause, DeviceRefusal
from agent.allocate.node_allocator.allocator import NodeAllocator, StaleOfferError
from agent.allocate.node_allocator.answer import Granted, Refused
from agent.allocate.node_allocator.assigned_pods import (
    AssignedPod,
    DeviceOverlap,
    Imported,
    holding_of,
)
from agent.allocate.node_allocator.pod_request import request_of
from agent.allocate.node_allocator.properties import AllocatorRules, NodeProperties
from agent.allocate.policies_in_force import PROFILES, NodePolicies
from agent.allocate.reasons import Reason, Rejection
from agent.model.apiobjects import ApiPod
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy, NumaPolicy, Strategy
from agent.model.devices.device_object import Device
from tests.allocate.devices.builders import CARDS, CORE, GPU, HINT, RATIO, RDMA, gpu, nic
from tests.allocate.node_allocator.builders import (
    ALLOCATED,
    NUMA_SPEC,
    SPEC,
    STATUS,
    annotated,
    facts,
    pod,
)

ONE = NumaPolicy.SINGLE_NUMA_NODE
CARDS_OF_BOTH = [gpu(each, each // 2, f"p{each}") for each in range(4)]


def granted(place: NodeAllocator, of: ApiPod) -> Granted:
    found = place.offer(request_of(of))
    assert isinstance(found, Granted), found.text()
    return found


def refusal(place: NodeAllocator, of: ApiPod) -> Refused:
    found = place.offer(request_of(of))
    assert isinstance(found, Refused)
    return found


def bind(place: NodeAllocator, of: ApiPod) -> ApiPod:
    """The pod as it is in the API server afterwards."""
    found = granted(place, of)
    place.commit(found)
    return annotated(of, found.annotations())


def cards(found: Granted) -> list[int]:
    assert found.device_allocation is not None
    return [each.minor for each in found.device_allocation.devices["gpu"]]


def test_parts_of_cards_are_packed_and_whole_ones_stay_whole() -> None:
    """Small pods that are spread would leave no whole card."""
    place = NodeAllocator(facts(devices=CARDS_OF_BOTH))
    for name, percent in (("a", 30), ("b", 60), ("c", 20), ("d", 10), ("e", 70)):
        bind(place, pod(name, {"cpu": 100, "memory": 1, GPU: percent}))
    assert len(cards(granted(place, pod("whole", {"cpu": 100, "memory": 1, CARDS: 2})))) == 2
    rules = AllocatorRules(shares=Strategy.LEAST_ALLOCATED)
    spread = NodeAllocator(msgspec.structs.replace(facts(devices=CARDS_OF_BOTH), rules=rules))
    for name in "abcd":
        bind(spread, pod(name, {"cpu": 100, "memory": 1, GPU: 10}))
    assert refusal(spread, pod("whole", {"cpu": 100, "memory": 1, CARDS: 1}))


def test_pods_that_an_older_koordinator_bound_to_pools_are_not_overcommitted() -> None:
    """A migration: the NUMA nodes of the old pods have only the rest of their 8 CPUs."""
    before = [
        pod("old", {"cpu": 6}, "LS", {STATUS: {"cpuSharedPools": [{"socket": 0, "node": 0}]}}),
        pod("wide", {"cpu": 2}, "LS", {STATUS: {"cpuSharedPools": [{"node": 1}, {"node": 0}]}}),
    ]
    place = NodeAllocator(facts(policy=ONE), map(holding_of, before))
    new = bind(place, pod("new", {"cpu": 6}, "LS"))
    assert [each["node"] for each in json.loads(new.annotations[STATUS])["numaNodeResources"]] == [
        1
    ]
    (reason,) = refusal(place, pod("more", {"cpu": 2}, "LS")).reasons
    assert isinstance(reason, Rejection)
    assert (reason.resource, reason.requested, reason.available) == ("cpu", 2000, 1000)
    assert granted(place, pod("last", {"cpu": 1}, "LS"))
    place.release("old")
    assert granted(place, pod("more", {"cpu": 6}, "LS"))


def test_a_pod_that_needs_nothing_gets_nothing_anywhere() -> None:
    plain = pod("a", {"cpu": 100, "memory": 1})
    for where in (NodeProperties("n"), facts(), facts(devices=[])):
        found = granted(NodeAllocator(where), plain)
        assert (found.offer, found.device_allocation, found.annotations()) == (None, None, {})


def test_the_kubelets_policy_does_not_apply_to_pods_without_koordinator_keys() -> None:
    """The kubelet places them itself. Koordinator's labels on a node apply to every pod."""
    plain = pod("a", {"cpu": "500m"})
    kubelet = NodePolicies(numa_kubelet=ONE, full_pcpus_only=True)
    assert granted(NodeAllocator(facts(policies=kubelet)), plain).annotations() == {}
    assert STATUS in granted(NodeAllocator(facts(policy=ONE)), plain).annotations()
    bound = NodeAllocator(facts(policies=NodePolicies(bind_label=BindPolicy.FULL_PCPUS)))
    assert refusal(bound, plain).reasons == (Rejection(Reason.CPU_NOT_INTEGER, "cpu", 500),)


WHOLE_CORES = [
    NodePolicies(bind_label=BindPolicy.FULL_PCPUS),
    NodePolicies(full_pcpus_only=True),
]
STRICT = PROFILES["proposal"]


@pytest.mark.parametrize("policies", WHOLE_CORES)
def test_nodes_of_whole_cores_allocate_them_to_guaranteed_lse_and_lsr_pods(
    policies: NodePolicies,
) -> None:
    equal = {"cpu": 2, "memory": 1}
    others = [
        pod("a", {"cpu": 2}, "LS"),
        pod("a", {"cpu": 2}, "LS", limits={"cpu": 2}),
        pod("a", {"cpu": 2}, "LSR", limits={"cpu": 4}, priority=5500),
        pod("a", {"cpu": "500m"}, "LS"),
    ]
    entitled = [
        pod("a", equal, "LS", limits=equal),
        pod("a", {"cpu": 2}, "LSR", limits={"cpu": 2}, priority=5500),
        pod("a", {"cpu": 2}, "LSE"),
    ]
    strict = NodeAllocator(facts(policies=policies, profile=STRICT))
    loose = NodeAllocator(facts(policies=policies))
    for of in others:
        found = refusal(strict, of)
        assert found.text().startswith(
            "the node allocates cores to Guaranteed, LSE and LSR pods only (pod: "
        )
        assert found.unresolvable
    for place in (strict, loose):
        for of in entitled:
            offer = granted(place, of).offer
            assert offer is not None
            assert len(offer.allocation.cpus) == 2
    for of in others[:3]:
        offer = granted(loose, of).offer
        assert offer is not None
        assert len(offer.allocation.cpus) == 2


@pytest.mark.parametrize("policies", WHOLE_CORES)
def test_pods_of_the_shared_pool_pass_nodes_of_whole_cores(policies: NodePolicies) -> None:
    strict = NodeAllocator(facts(policies=policies, profile=STRICT))
    for of in (pod("a", {"cpu": 2}, "BE"), pod("a", {"memory": 1}, "LS"), pod("a", {})):
        assert not granted(strict, of).annotations().get(STATUS, "{}").count("cpuset")
    if policies.full_pcpus_only:
        plain = pod("a", {"cpu": "500m"})
        assert granted(strict, plain).annotations() == {}, "the kubelet's own shared pool"


@pytest.mark.parametrize("policies", WHOLE_CORES)
@pytest.mark.parametrize("devices", [None, CARDS_OF_BOTH])
def test_a_pod_that_prefers_spread_avoids_nodes_of_whole_cores(
    policies: NodePolicies, devices: list[Device] | None
) -> None:
    """The emptiest of these is behind the fullest of the others: MostAllocated would choose it."""
    wanted = {"cpu": 2} if devices is None else {"cpu": 2, CARDS: 1}
    of = pod("a", wanted, "LSR", {SPEC: {"preferredCPUBindPolicy": "SpreadByPCPUs"}})
    whole = facts(policies=policies, profile=STRICT, devices=devices)
    other = facts(profile=STRICT, policies=NodePolicies(), devices=devices)
    used = [holding_of(pod("b", {"cpu": 12}, notes={STATUS: {"cpuset": "0-11"}}))]
    avoided = granted(NodeAllocator(whole, used), of)
    chosen = granted(NodeAllocator(other), of)
    assert (avoided.score, chosen.score > 0) == (0, True)
    assert avoided.order > chosen.order
    assert avoided.offer is not None
    assert avoided.offer.allocation.cpus == CpuSet.parse("12-13")
    loose = msgspec.structs.replace(STRICT, strict_full_pcpus_only=False)
    whole = facts(policies=policies, profile=loose, devices=devices)
    assert granted(NodeAllocator(whole, used), of).score > chosen.score


def test_amplified_cpu_is_counted_for_every_pod() -> None:
    place = NodeAllocator(facts(cpu_ratio=2.0, cpu_milli=32_000))
    bind(place, pod("a", {"cpu": 15}, "LSR"))
    assert isinstance(place.offer(request_of(pod("b", {"cpu": 2}))), Granted)
    assert refusal(place, pod("b", {"cpu": 3})).text() == (
        "cpu: not enough amplified CPU (requested 3, available 2)"
    )


def test_cpus_need_a_node_resource_topology() -> None:
    bare = NodeAllocator(NodeProperties("n"))
    for of in (
        pod("a", {"cpu": 1}, "LSR"),
        pod("a", {"cpu": 1}, notes={NUMA_SPEC: {"numaTopologyPolicy": "Restricted"}}),
    ):
        found = refusal(bare, of)
        assert found.text() == "node n has no usable NodeResourceTopology"
        assert found.unresolvable
    assert granted(bare, pod("a", {"cpu": 1}, "LS")).annotations() == {}


def test_devices_need_a_device_object() -> None:
    found = refusal(NodeAllocator(facts()), pod("a", {"cpu": 1, CARDS: 1}))
    assert found.text() == "node n has no Device object"
    assert found.unresolvable


def test_devices_alone_need_no_node_resource_topology() -> None:
    place = NodeAllocator(msgspec.structs.replace(facts(devices=CARDS_OF_BOTH), cpus=None))
    found = granted(place, pod("a", {CARDS: 1}))
    assert (cards(found), found.offer) == ([0], None)
    place.commit(found)
    assert cards(granted(place, pod("b", {CARDS: 1}))) == [1]


def test_exclusive_cpus_are_written_with_the_policy_in_force() -> None:
    place = NodeAllocator(facts())
    bound = bind(place, pod("a", {"cpu": 2}, "LSR"))
    assert bound.annotations == {
        STATUS: '{"cpuset":"0-1"}',
        SPEC: '{"preferredCPUBindPolicy":"FullPCPUs"}',
    }
    assert holding_of(bound) == place.holdings["a"]


def test_a_spec_with_the_policy_in_force_is_not_written_again() -> None:
    spec = '{ "requiredCPUBindPolicy": "SpreadByPCPUs" }'
    found = granted(NodeAllocator(facts()), pod("a", {"cpu": 2}, "LSR", {SPEC: spec}))
    assert found.annotations() == {STATUS: '{"cpuset":"0,2"}'}


def test_stale_allocation_annotations_are_emptied() -> None:
    notes = {STATUS: {"cpuset": "0-3"}, ALLOCATED: {"gpu": [{"minor": 0, "resources": {CORE: 9}}]}}
    forged = pod("a", {"cpu": 1}, notes=notes)
    bound = annotated(forged, granted(NodeAllocator(facts()), forged).annotations())
    held = holding_of(bound)
    assert (held.allocation.cpus, held.devices, held.faults) == (CpuSet(), {}, ())


def test_cards_are_on_the_numa_node_of_the_cpus() -> None:
    """Cards 0 and 1 are free, but their NUMA node does not have free CPUs."""
    place = NodeAllocator(facts(policy=ONE, devices=CARDS_OF_BOTH))
    bind(place, pod("cpus", {"cpu": 8}, "LSR"))
    found = granted(place, pod("a", {"cpu": 4, CARDS: 2}, "LSR"))
    assert cards(found) == [2, 3]
    assert found.offer is not None
    assert found.offer.allocation.cpus == CpuSet.parse("8-11")


def test_cpus_are_on_the_numa_node_of_the_cards() -> None:
    place = NodeAllocator(facts(policy=ONE, devices=CARDS_OF_BOTH))
    bind(place, pod("gpus", {CARDS: 2}))
    found = granted(place, pod("a", {"cpu": 4, CARDS: 2}, "LSR"))
    assert cards(found) == [2, 3]
    assert found.offer is not None
    assert found.offer.allocation.cpus == CpuSet.parse("8-11")


def test_a_pod_is_refused_when_no_numa_node_has_cpus_and_cards() -> None:
    place = NodeAllocator(facts(policy=ONE, devices=CARDS_OF_BOTH))
    bind(place, pod("cpus", {"cpu": 8}, "LSR"))
    bind(place, pod("gpus", {CARDS: 2}, notes={HINT: {"gpu": {"selector": {}}}}))
    assert cards(granted(place, pod("b", {CARDS: 2}))) == [2, 3]
    bind(place, pod("b", {CARDS: 1}))
    found = refusal(place, pod("a", {"cpu": 4, CARDS: 2}, "LSR"))
    assert not found.unresolvable


def test_devices_alone_are_aligned_too() -> None:
    place = NodeAllocator(facts(policy=ONE, devices=[gpu(0, 0), *CARDS_OF_BOTH[2:], nic(0, 1)]))
    found = granted(place, pod("a", {CARDS: 1, RDMA: 1}))
    assert cards(found) == [2]
    assert STATUS not in found.annotations()
    assert refusal(place, pod("b", {CARDS: 3})).reasons


def test_without_a_policy_devices_are_not_aligned() -> None:
    place = NodeAllocator(facts(devices=CARDS_OF_BOTH))
    found = granted(place, pod("a", {"cpu": 16, CARDS: 3}, "LSR"))
    assert cards(found) == [0, 1, 2]


def test_devices_that_zones_count_too_are_not_counted_twice() -> None:
    """The zones report the cards, but fewer than there are."""
    zones = {node: {"cpu": 8000, "memory": 100, CARDS: 1, CORE: 100} for node in (0, 1)}
    place = NodeAllocator(facts(policy=ONE, devices=CARDS_OF_BOTH, zones=zones))
    bound = bind(place, pod("a", {"cpu": 1, "memory": 10, CARDS: 2}, "LS"))
    assert bound.annotations[STATUS] == (
        '{"numaNodeResources":[{"node":0,"resources":{"cpu":"1","memory":"10"}}]}'
    )
    assert cards(granted(place, pod("b", {"cpu": 1, CORE: 200, RATIO: 200}, "LS"))) == [2, 3]


def test_a_refusal_for_devices_has_the_devices_reason() -> None:
    place = NodeAllocator(facts(policy=ONE, devices=CARDS_OF_BOTH))
    found = refusal(place, pod("a", {"cpu": 1, CARDS: 5}))
    assert found.reasons == (DeviceRefusal("gpu", DeviceCause.INSUFFICIENT),)
    assert found.text() == "gpu: not enough devices are free"
    assert not found.unresolvable
    assert refusal(place, pod("a", {RDMA: 1})).unresolvable


def test_holdings_from_the_device_object_count_as_held() -> None:
    node = facts(devices=[*CARDS_OF_BOTH, nic(0, functions=["v1", "v2"])])
    imported = {
        "other": Imported({("gpu", 0): {CORE: 100, RATIO: 100}}, {}),
        "more": Imported({}, {("rdma", 0): frozenset({"v1"})}),
    }
    place = NodeAllocator(msgspec.structs.replace(node, imported=imported))
    assert cards(granted(place, pod("a", {CARDS: 1}))) == [1]
    vf = {HINT: {"rdma": {"vfSelector": {}}}}
    found = granted(place, pod("b", {RDMA: 1}, notes=vf))
    assert found.device_allocation is not None
    assert found.device_allocation.devices["rdma"][0].functions[0].bus == "v2"


def test_an_allocation_that_an_agent_reports_too_counts_once() -> None:
    imported = {"a": Imported({("gpu", 3): {CORE: 100, RATIO: 100}, ("rdma", 0): {RDMA: 100}}, {})}
    node = facts(devices=[*CARDS_OF_BOTH, nic(0)])
    place = NodeAllocator(msgspec.structs.replace(node, imported=imported))
    given = {ALLOCATED: {"gpu": [{"minor": 3, "resources": {CORE: 50, RATIO: 50}}]}}
    place.record(holding_of(pod("a", {GPU: 50}, notes=given)))
    assert cards(granted(place, pod("b", {GPU: 50}))) == [3]
    assert refusal(place, pod("b", {RDMA: 1})).reasons


def test_devices_that_a_pod_uses_in_addition_to_its_allocation_are_held_too() -> None:
    """Agents report it when containers show another card than the annotation."""
    imported = {"a": Imported({("gpu", 0): {CORE: 100, RATIO: 100}}, {})}
    place = NodeAllocator(msgspec.structs.replace(facts(devices=CARDS_OF_BOTH), imported=imported))
    given = {ALLOCATED: {"gpu": [{"minor": 3, "resources": {CORE: 100, RATIO: 100}}]}}
    place.record(holding_of(pod("a", {CARDS: 1}, notes=given)))
    assert cards(granted(place, pod("b", {CARDS: 2}))) == [1, 2]
    assert refusal(place, pod("b", {CARDS: 3})).reasons


@pytest.mark.parametrize("amounts", [None, {}, {CORE: 0, RATIO: 0}])
def test_a_pod_without_an_amount_of_its_device_holds_all_of_it(
    amounts: dict[str, int] | None,
) -> None:
    """As on the node, where the device is exclusive then."""
    place = NodeAllocator(facts(devices=[*CARDS_OF_BOTH, nic(0, functions=["v1", "v2"])]))
    given = {ALLOCATED: {"gpu": [{"minor": 3, "resources": amounts}]}}
    place.record(holding_of(pod("a", {CARDS: 1}, notes=given)))
    assert cards(granted(place, pod("b", {CARDS: 3}))) == [0, 1, 2]
    assert refusal(place, pod("b", {CARDS: 4})).reasons
    function = {"minor": 0, "extension": {"vfs": [{"busID": "v1"}]}}
    place.record(holding_of(pod("c", {RDMA: 1}, notes={ALLOCATED: {"rdma": [function]}})))
    assert granted(place, pod("d", {RDMA: 1}, notes={HINT: {"rdma": {"vfSelector": {}}}}))


def test_a_pod_holds_its_card_by_uuid_when_its_minor_has_changed() -> None:
    """A driver numbers its cards at its start. If one is missing, the minors of later cards
    change."""
    whole = {CORE: 100, RATIO: 100}
    given = {
        name: {ALLOCATED: {"gpu": [{"minor": minor, "id": f"GPU-{minor}", "resources": whole}]}}
        for name, minor in (("a", 2), ("b", 1))
    }
    after = [
        msgspec.structs.replace(each, minor=place) for place, each in enumerate(CARDS_OF_BOTH[1:])
    ]
    place = NodeAllocator(facts(devices=CARDS_OF_BOTH))
    for uid, notes in given.items():
        place.record(holding_of(pod(uid, {CARDS: 1}, notes=notes)))
    assert cards(granted(place, pod("c", {CARDS: 2}))) == [0, 3]
    place = place.with_properties(facts(devices=after))
    assert cards(granted(place, pod("c", {CARDS: 1}))) == [2]
    assert refusal(place, pod("c", {CARDS: 2})).reasons
    assert place.overlaps() == ()
    place.record(holding_of(pod("d", {CARDS: 1}, notes=given["a"])))
    assert [(each.minor, each.uids) for each in place.overlaps()] == [(1, ("a", "d"))] * 2


def test_parts_of_gpus_need_the_isolation_that_the_pod_names() -> None:
    node = facts(devices=CARDS_OF_BOTH)
    label = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    part = pod("a", {GPU: 50}, labels=label)
    found = refusal(NodeAllocator(node), part)
    assert found.text() == "GPU isolation provider: requested HAMi-core, available none"
    assert found.unresolvable
    there = NodeAllocator(msgspec.structs.replace(node, isolation="HAMi-core"))
    assert cards(granted(there, part)) == [0]
    assert cards(granted(there, pod("a", {GPU: 50}))) == [0]
    assert cards(granted(NodeAllocator(node), pod("a", {GPU: 100}, labels=label))) == [0]


def test_models_that_are_not_shared() -> None:
    place = NodeAllocator(msgspec.structs.replace(facts(devices=CARDS_OF_BOTH), shares_gpus=False))
    assert refusal(place, pod("a", {GPU: 50})).unresolvable
    assert cards(granted(place, pod("a", {GPU: 100}))) == [0]


def test_an_offer_changes_nothing() -> None:
    place = NodeAllocator(facts(policy=ONE, devices=CARDS_OF_BOTH))
    bind(place, pod("held", {"cpu": 2, CARDS: 1}, "LSR"))
    pod_request = request_of(pod("a", {"cpu": 2, CARDS: 1}, "LSR"))
    assert place.offer(pod_request) == place.offer(pod_request)
    assert place.holdings.keys() == {"held"}


def test_an_offer_for_a_pod_ignores_its_own_holdings() -> None:
    place = NodeAllocator(facts((1, 1, 4, 2), policy=ONE, devices=[gpu(0)]))
    of = pod("a", {"cpu": 8, CARDS: 1}, "LSR")
    first = granted(place, of)
    held = place.commit(first)
    assert granted(place, of) == first
    assert place.commit(granted(place, of)) == held


def test_only_one_of_two_offers_of_the_same_cpus_can_be_committed() -> None:
    place = NodeAllocator(facts(devices=CARDS_OF_BOTH))
    one, two = (granted(place, pod(uid, {"cpu": 2}, "LSR")) for uid in "ab")
    place.commit(one)
    with pytest.raises(StaleOfferError, match="pod ns/b: CPUs 0-1 are no longer free"):
        place.commit(two)
    assert place.holdings.keys() == {"a"}


def test_a_stale_offer_names_missing_devices_and_leaves_its_cpus_free() -> None:
    place = NodeAllocator(facts(devices=CARDS_OF_BOTH))
    one, two = (granted(place, pod(uid, {"cpu": 2, CARDS: 1}, "LSR")) for uid in "ab")
    place.commit(one)
    place.release("a")
    place.record(holding_of(annotated(pod("c"), {ALLOCATED: two.annotations()[ALLOCATED]})))
    with pytest.raises(StaleOfferError, match=r"pod ns/b: gpu 0 has 0 of 100 "):
        place.commit(two)
    assert granted(place, pod("d", {"cpu": 16}, "LSR"))


def test_a_stale_offer_names_missing_objects() -> None:
    there = facts(policy=ONE, devices=CARDS_OF_BOTH)
    found = granted(NodeAllocator(there), pod("a", {"cpu": 1, CARDS: 1}))
    bare = msgspec.structs.replace(there, cpus=None)
    with pytest.raises(StaleOfferError, match="no longer has a usable NodeResourceTopology"):
        NodeAllocator(bare).commit(found)
    with pytest.raises(StaleOfferError, match="no longer has a Device object"):
        NodeAllocator(msgspec.structs.replace(there, inventory=None)).commit(found)


def test_an_offer_applies_to_every_pod_of_its_equivalence_class() -> None:
    place = NodeAllocator(facts(policy=ONE, devices=CARDS_OF_BOTH))
    first, second = (pod(uid, {"cpu": 2, CARDS: 1}, "LSR") for uid in "ab")
    found = granted(place, first)
    assert found.to(request_of(second)) == granted(place, second)


def test_an_offer_without_some_pods() -> None:
    place = NodeAllocator(facts((1, 1, 4, 2), policy=ONE, devices=[gpu(0), gpu(1)]))
    for uid in "abc":
        bind(place, pod(uid, {"cpu": 2, **({CARDS: 1} if uid != "c" else {})}, "LSR"))
    big = pod("big", {"cpu": 4, CARDS: 1}, "LSR")
    assert refusal(place, big)
    assert refusal(place.without(["c"]), big)
    other = place.without(["a"])
    assert cards(granted(other, big)) == [0]
    assert (other.holdings.keys(), place.holdings.keys()) == ({"b", "c"}, {"a", "b", "c"})
    bind(other, big)
    assert refusal(place, big)
    assert place.overlaps() == other.overlaps() == ()


def test_a_node_that_has_changed_keeps_its_holdings() -> None:
    place = NodeAllocator(facts(devices=CARDS_OF_BOTH))
    bind(place, pod("a", {"cpu": 2, CARDS: 2}, "LSR"))
    other = place.with_properties(facts(policy=ONE, devices=CARDS_OF_BOTH[:3]))
    assert cards(granted(other, pod("b", {CARDS: 1}))) == [2]
    bare = other.with_properties(NodeProperties("n"))
    assert bare.holdings == place.holdings
    back = bare.with_properties(facts(devices=CARDS_OF_BOTH))
    assert cards(granted(back, pod("b", {CARDS: 2}))) == [2, 3]
    found = granted(back, pod("c", {"cpu": 14}, "LSR"))
    assert found.offer is not None
    assert found.offer.allocation.cpus == CpuSet.parse("2-15")


def test_overlaps_are_reported_with_their_holders() -> None:
    place = NodeAllocator(facts(devices=[gpu(0), nic(0, functions=["v"])]))
    vf = {"minor": 0, "resources": {RDMA: 1}, "extension": {"vfs": [{"minor": -1, "busID": "v"}]}}
    notes = {
        STATUS: {"cpuset": "1-2"},
        ALLOCATED: {"gpu": [{"minor": 0, "resources": {CORE: 60, RATIO: 40}}], "rdma": [vf]},
    }
    for uid in "ba":
        place.record(holding_of(pod(uid, notes=notes)))
    cpus, *devices = place.overlaps()
    assert not isinstance(cpus, DeviceOverlap)
    assert (cpus.cpus, cpus.uids) == (CpuSet.parse("1-2"), ("a", "b"))
    assert devices == [
        DeviceOverlap("gpu", 0, CORE, ("a", "b")),
        DeviceOverlap("rdma", 0, "v", ("a", "b")),
    ]


def test_the_best_offer_is_first_whatever_the_score() -> None:
    whole = granted(NodeAllocator(facts((1, 1, 4, 2))), pod("a", {"cpu": 2}, "LSR"))
    torn = granted(NodeAllocator(facts((1, 1, 4, 2))), pod("a", {"cpu": 1}, "LSR"))
    assert whole.order < torn.order


def test_a_holding_equals_the_annotations_whoever_committed_it() -> None:
    place = NodeAllocator(facts(policy=ONE, devices=[*CARDS_OF_BOTH, nic(0, functions=["v"])]))
    vf = {HINT: {"rdma": {"vfSelector": {}}}}
    of = pod("a", {"cpu": 3, "memory": 7, GPU: 50, RDMA: 1}, "LSR", vf, priority=9500)
    bound = bind(place, of)
    held: AssignedPod = holding_of(bound)
    assert held == place.holdings["a"]
    assert held.functions == {("rdma", 0): frozenset("v")}


def test_the_strategy_for_devices_is_configured() -> None:
    place_facts = facts(devices=[nic(0), nic(1)])
    for strategy, minor in (("LeastAllocated", 1), ("MostAllocated", 0)):
        rules = msgspec.convert({"strategy": strategy}, AllocatorRules)
        place = NodeAllocator(msgspec.structs.replace(place_facts, rules=rules))
        bind(place, pod("a", {RDMA: 50}))
        found = granted(place, pod("b", {RDMA: 50})).device_allocation
        assert found is not None
        assert [each.minor for each in found.devices["rdma"]] == [minor]


def test_amplified_cpu_is_charged_to_pods_that_the_kubelet_aligns() -> None:
    """The policy is not applied twice."""
    kubelet = NodePolicies(numa_kubelet=ONE, full_pcpus_only=True)
    place = NodeAllocator(facts(policies=kubelet, cpu_ratio=2.0, cpu_milli=32_000))
    found = granted(place, pod("a", {"cpu": "1500m"}))
    assert found.annotations() == {}
    place.commit(found)
    assert refusal(place, pod("b", {"cpu": 31})).text() == (
        "cpu: not enough amplified CPU (requested 31, available 30500m)"
    )


def test_a_limit_that_no_longer_fits_the_pools_is_reported_at_commit() -> None:
    place = NodeAllocator(facts())
    burst = {SPEC: {"preferredCPUBindPolicy": "ConstrainedBurst"}}
    found = granted(place, pod("a", {"cpu": 1}, notes=burst, limits={"cpu": 8}))
    assert found.offer is not None
    assert list(found.offer.allocation.amounts) == [0]
    place.record(holding_of(pod("c", {"cpu": 1}, notes={STATUS: {"cpuset": "0"}})))
    with pytest.raises(StaleOfferError, match="NUMA nodes 0 have 7000 of 8000 milli-CPU left"):
        place.commit(found)
    assert place.holdings.keys() == {"c"}


def test_a_kubelet_that_binds_cpus_does_so_itself_for_pods_with_devices() -> None:
    """They are aligned with its NUMA nodes all the same: the kubelet does not know the devices."""
    kubelet = NodePolicies(numa_kubelet=ONE, full_pcpus_only=True)
    place = NodeAllocator(facts(policies=kubelet, devices=CARDS_OF_BOTH))
    found = granted(place, pod("a", {"cpu": "500m", CARDS: 2}))
    assert cards(found) == [0, 1]
    assert found.offer is not None
    assert (found.offer.allocation.cpus, found.offer.allocation.amounts) == (
        CpuSet(),
        {0: {"cpu": 500}},
    )
    bound = granted(place, pod("a", {"cpu": 2, CARDS: 2}, "LS"))
    assert bound.offer is not None
    assert len(bound.offer.allocation.cpus) == 2


def test_a_node_with_new_properties_has_its_own_account() -> None:
    """With new and with unchanged CPUs."""
    place = NodeAllocator(facts(devices=CARDS_OF_BOTH))
    bind(place, pod("a", {"cpu": 2, CARDS: 2}, "LSR"))
    for new in (facts(devices=CARDS_OF_BOTH[2:]), facts(policy=ONE, devices=CARDS_OF_BOTH[2:])):
        other = place.with_properties(new)
        assert cards(granted(other, pod("b", {CARDS: 2}))) == [2, 3]
        bind(other, pod("b", {"cpu": 8}, "LSR"))
        assert other.holdings.keys() == {"a", "b"}
        assert place.holdings.keys() == {"a"}
        assert granted(place, pod("c", {"cpu": 14}, "LSR"))
        assert other.overlaps() == ()


def test_best_effort_allows_cpus_and_cards_on_different_numa_nodes() -> None:
    """CPUs are on one NUMA node, the cards on the other."""
    place = NodeAllocator(facts(policy=NumaPolicy.BEST_EFFORT, devices=CARDS_OF_BOTH))
    bind(place, pod("cpus", {"cpu": 8}, "LSR"))
    held = {ALLOCATED: {"gpu": [{"minor": 3, "resources": {CORE: 100}}]}}
    place.record(holding_of(pod("gpu", notes=held)))
    found = granted(place, pod("a", {"cpu": 4, CARDS: 2}, "LSR"))
    assert cards(found) == [0, 1]
    assert found.offer is not None
    assert found.offer.allocation.cpus == CpuSet.parse("8-11")


@pytest.mark.parametrize("policy", [ONE, NumaPolicy.RESTRICTED])
def test_other_policies_refuse_cpus_and_cards_on_different_numa_nodes(policy: NumaPolicy) -> None:
    place = NodeAllocator(facts(policy=policy, devices=CARDS_OF_BOTH))
    bind(place, pod("cpus", {"cpu": 8}, "LSR"))
    place.record(
        holding_of(
            pod("third", notes={ALLOCATED: {"gpu": [{"minor": 3, "resources": {CORE: 100}}]}})
        )
    )
    found = refusal(place, pod("a", {"cpu": 4, CARDS: 2}, "LSR"))
    assert "no NUMA nodes that the policy admits" in found.text()
    assert not found.unresolvable


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
@pytest.mark.parametrize("limits", [{"cpu": 4}, {}])
@pytest.mark.parametrize("policy", [None, ONE])
def test_a_pod_whose_cpu_limit_differs_gets_no_cpus_of_its_own(
    qos: str, limits: dict[str, int], policy: NumaPolicy | None
) -> None:
    place = NodeAllocator(facts(policy=policy))
    found = refusal(place, pod("a", {"cpu": 2}, qos, limits=limits))
    said = limits.get("cpu", "not set")
    text = f"container c: requests.cpu is 2, limits.cpu is {said}: {qos} pods need equal amounts"
    assert (found.text(), found.summary(), found.unresolvable) == (text, text, True)
    assert granted(place, pod("a", {"cpu": 2}, qos, limits={"cpu": 2}))


@pytest.mark.parametrize(
    "of",
    [
        pod("a", {"cpu": 2}, "LS", limits={"cpu": 4}),
        pod("a", {"cpu": 2}, limits={"cpu": 4}),
        # Its priority makes it share.
        pod("a", {"cpu": 2}, "LSR", limits={"cpu": 4}, priority=5000),
    ],
)
def test_the_limit_of_a_pod_that_shares_cpus_is_free(of: ApiPod) -> None:
    assert granted(NodeAllocator(facts()), of)


def test_a_bound_pod_whose_cpu_limit_differs_keeps_its_cpus() -> None:
    place = NodeAllocator(facts())
    bound = bind(place, pod("a", {"cpu": 2}, "LSR"))
    held = holding_of(
        msgspec.structs.replace(
            bound, containers=pod("a", {"cpu": 2}, "LSR", limits={"cpu": 4}).containers
        )
    )
    assert held.allocation.cpus == place.holdings["a"].allocation.cpus
