from __future__ import annotations

import json

import msgspec
import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator, StaleOfferError
from agent.allocate.node_allocator.assigned_pods import assigned_pod_of
from agent.allocate.node_allocator.properties import AllocatorRules, Imported, NodeProperties
from agent.allocate.policies_in_force import PROFILES, NodePolicies
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy, NumaPolicy, Strategy
from agent.model.devices.device_object import Device
from agent.model.pod_request import request_of
from tests.allocate.devices.builders import CARDS, CORE, GPU, HINT, RATIO, RDMA, gpu, nic
from tests.allocate.node_allocator.builders import (
    ALLOCATED,
    NUMA_SPEC,
    SPEC,
    STATUS,
    annotated,
    bind,
    make_properties,
    minors,
    offered,
    pod,
    refusal,
)
from tests.fixtures.overlaps import DeviceOverlap, overlaps

ONE = NumaPolicy.SINGLE_NUMA_NODE
CARDS_ON_BOTH = [gpu(each, each // 2, f"p{each}") for each in range(4)]


def test_shares_of_cards_are_packed_so_that_whole_cards_stay_free() -> None:
    """If small pods were spread, no whole card would stay free."""
    allocator = NodeAllocator(make_properties(devices=CARDS_ON_BOTH))
    for name, percent in (("a", 30), ("b", 60), ("c", 20), ("d", 10), ("e", 70)):
        bind(allocator, pod(name, {"cpu": 100, "memory": 1, GPU: percent}))
    assert len(minors(offered(allocator, pod("whole", {"cpu": 100, "memory": 1, CARDS: 2})))) == 2
    rules = AllocatorRules(shares=Strategy.LEAST_ALLOCATED)
    spread = NodeAllocator(make_properties(devices=CARDS_ON_BOTH, rules=rules))
    for name in "abcd":
        bind(spread, pod(name, {"cpu": 100, "memory": 1, GPU: 10}))
    assert refusal(spread, pod("whole", {"cpu": 100, "memory": 1, CARDS: 1}))


@pytest.mark.parametrize(("sockets", "nodes", "socket"), [(2, 1, 1), (1, 2, 0)])
def test_a_pod_on_the_pool_of_a_numa_node_names_the_pool_by_socket_and_node(
    sockets: int, nodes: int, socket: int
) -> None:
    """As the proposal's ResourceStatus has it, beside the amounts that Koordinator reads."""
    allocator = NodeAllocator(make_properties((sockets, nodes, 4, 2), policy=ONE))
    first = bind(allocator, pod("first", {"cpu": 8}, "LSR"))
    assert "cpuSharedPools" not in first.annotations[STATUS]
    status = json.loads(bind(allocator, pod("ls", {"cpu": 2}, "LS")).annotations[STATUS])
    assert status == {
        "numaNodeResources": [{"node": 1, "resources": {"cpu": "2"}}],
        "cpuSharedPools": [{"node": 1, "socket": socket}],
    }


def test_the_kubelets_policy_does_not_apply_to_pods_without_koordinator_keys() -> None:
    """The kubelet places these pods. Koordinator's labels on a node apply to every pod."""
    unlabelled = pod("a", {"cpu": "500m"})
    kubelet = NodePolicies(numa_kubelet=ONE, full_pcpus_only=True)
    assert offered(NodeAllocator(make_properties(policies=kubelet)), unlabelled).annotations() == {}
    assert STATUS in offered(NodeAllocator(make_properties(policy=ONE)), unlabelled).annotations()
    bound = NodeAllocator(make_properties(policies=NodePolicies(bind_label=BindPolicy.FULL_PCPUS)))
    assert refusal(bound, unlabelled).reasons == (Refusal(Reason.CPU_NOT_INTEGER, "cpu", 500),)


WHOLE_CORES = [
    NodePolicies(bind_label=BindPolicy.FULL_PCPUS),
    NodePolicies(full_pcpus_only=True),
]
STRICT = PROFILES["proposal"]


@pytest.mark.parametrize("policies", WHOLE_CORES)
def test_full_pcpus_only_nodes_allocate_cores_to_guaranteed_lse_and_lsr_pods(
    policies: NodePolicies,
) -> None:
    equal = {"cpu": 2, "memory": 1}
    burstable, guaranteed = pod("a", equal, "LS"), pod("a", equal, "LS", limits=equal)
    strict = NodeAllocator(make_properties(policies=policies, profile=STRICT))
    refused = refusal(strict, burstable)
    assert refused.text.startswith(
        "the node allocates cores to Guaranteed, LSE and LSR pods only (pod: "
    )
    assert refused.unresolvable
    lenient = NodeAllocator(make_properties(policies=policies))
    for offer in (offered(strict, guaranteed), offered(lenient, burstable)):
        assert len(offer.assigned_pod().allocation.cpus) == 2


@pytest.mark.parametrize("policies", WHOLE_CORES)
def test_pods_of_the_shared_pool_pass_full_pcpus_only_nodes(policies: NodePolicies) -> None:
    strict = NodeAllocator(make_properties(policies=policies, profile=STRICT))
    for api_pod in (pod("a", {"cpu": 2}, "BE"), pod("a", {"memory": 1}, "LS"), pod("a", {})):
        assert not offered(strict, api_pod).annotations().get(STATUS, "{}").count("cpuset")
    if policies.full_pcpus_only:
        unlabelled = pod("a", {"cpu": "500m"})
        assert offered(strict, unlabelled).annotations() == {}, "the shared pool of the kubelet"


@pytest.mark.parametrize("policies", WHOLE_CORES)
@pytest.mark.parametrize("devices", [None, CARDS_ON_BOTH])
def test_a_pod_that_prefers_spread_avoids_full_pcpus_only_nodes(
    policies: NodePolicies, devices: list[Device] | None
) -> None:
    """Such a node scores lowest, although MostAllocated would prefer it."""
    wanted = {"cpu": 2} if devices is None else {"cpu": 2, CARDS: 1}
    api_pod = pod("a", wanted, "LSR", {SPEC: {"preferredCPUBindPolicy": "SpreadByPCPUs"}})
    whole = make_properties(policies=policies, profile=STRICT, devices=devices)
    other = make_properties(profile=STRICT, policies=NodePolicies(), devices=devices)
    used = [assigned_pod_of(pod("b", {"cpu": 12}, notes={STATUS: {"cpuset": "0-11"}}))]
    avoided = offered(NodeAllocator(whole, used), api_pod)
    chosen = offered(NodeAllocator(other), api_pod)
    assert (avoided.score, chosen.score > 0) == (0, True)
    assert avoided.order > chosen.order
    assert avoided.assigned_pod().allocation.cpus == CpuSet.parse("12-13")
    lenient = msgspec.structs.replace(STRICT, strict_full_pcpus_only=False)
    whole = make_properties(policies=policies, profile=lenient, devices=devices)
    assert offered(NodeAllocator(whole, used), api_pod).score > chosen.score


def test_cpus_need_a_node_resource_topology() -> None:
    without_cpus = NodeAllocator(NodeProperties("n"))
    for api_pod in (
        pod("a", {"cpu": 1}, "LSR"),
        pod("a", {"cpu": 1}, notes={NUMA_SPEC: {"numaTopologyPolicy": "Restricted"}}),
    ):
        found = refusal(without_cpus, api_pod)
        assert found.text == "node n has no usable NodeResourceTopology"
        assert found.unresolvable
    found_without = offered(without_cpus, pod("a", {"cpu": 1}, "LS"))
    assert (found_without.annotations(), found_without.score) == ({}, 0)


def test_devices_need_a_device_object() -> None:
    found = refusal(NodeAllocator(make_properties()), pod("a", {"cpu": 1, CARDS: 1}))
    assert found.text == "node n has no Device object"
    assert found.unresolvable


def test_devices_without_cpus_need_no_node_resource_topology() -> None:
    allocator = NodeAllocator(make_properties(devices=CARDS_ON_BOTH, cpus=None))
    found = offered(allocator, pod("a", {CARDS: 1}))
    assert (minors(found), found.cpus) == ([0], None)
    allocator.commit(found)
    assert minors(offered(allocator, pod("b", {CARDS: 1}))) == [1]


def test_exclusive_cpus_are_written_with_the_policy_in_force() -> None:
    allocator = NodeAllocator(make_properties())
    bound = bind(allocator, pod("a", {"cpu": 2}, "LSR"))
    assert bound.annotations == {
        STATUS: '{"cpuset":"0-1"}',
        SPEC: '{"preferredCPUBindPolicy":"FullPCPUs"}',
    }
    assert assigned_pod_of(bound) == allocator.assigned_pods["a"]


def test_stale_allocation_annotations_are_emptied() -> None:
    notes = {STATUS: {"cpuset": "0-3"}, ALLOCATED: {"gpu": [{"minor": 0, "resources": {CORE: 9}}]}}
    pod_with_stale_annotations = pod("a", {"cpu": 1}, notes=notes)
    bound = annotated(
        pod_with_stale_annotations,
        offered(NodeAllocator(make_properties()), pod_with_stale_annotations).annotations(),
    )
    held = assigned_pod_of(bound)
    assert (held.allocation.cpus, held.devices, held.faults) == (CpuSet(), {}, ())


@pytest.mark.parametrize("policy", [ONE, NumaPolicy.RESTRICTED])
def test_cpus_a_card_and_a_nic_are_on_one_numa_node(policy: NumaPolicy) -> None:
    """The first NUMA node has no free CPUs, the second no free card, the third no free NIC."""
    devices = [each for zone in range(4) for each in (gpu(zone, zone, "p"), nic(zone, zone, "p"))]
    allocator = NodeAllocator(make_properties((4, 1, 4, 2), policy, devices))
    gpus = {"gpu": [{"minor": 1, "resources": {CORE: 100, RATIO: 100}}]}
    nics = {"rdma": [{"minor": 2, "resources": {RDMA: 100}}]}
    for uid, qos, notes in (
        ("cpus", "LSR", {STATUS: {"cpuset": "0-7"}}),
        ("gpu", None, {ALLOCATED: gpus}),
        ("nic", None, {ALLOCATED: nics}),
    ):
        allocator.record(assigned_pod_of(pod(uid, qos=qos, notes=notes)))
    found = offered(allocator, pod("a", {"cpu": 4, CARDS: 1, RDMA: 100}, "LSR"))
    assert found.device_allocation is not None
    allocated = found.device_allocation.devices
    assert {kind: [each.minor for each in held] for kind, held in allocated.items()} == {
        "gpu": [3],
        "rdma": [3],
    }
    assert found.assigned_pod().allocation.cpus == CpuSet.parse("24-27")


def test_devices_without_cpus_are_aligned_too() -> None:
    allocator = NodeAllocator(
        make_properties(policy=ONE, devices=[gpu(0, 0), *CARDS_ON_BOTH[2:], nic(0, 1)])
    )
    found = offered(allocator, pod("a", {CARDS: 1, RDMA: 1}))
    assert minors(found) == [2]
    assert STATUS not in found.annotations()
    assert refusal(allocator, pod("b", {CARDS: 3})).reasons


def test_devices_that_zones_count_too_are_not_counted_twice() -> None:
    """The zones report fewer cards than the Device object."""
    zones = {node: {"cpu": 8000, "memory": 100, CARDS: 1, CORE: 100} for node in (0, 1)}
    allocator = NodeAllocator(
        make_properties(policy=ONE, devices=CARDS_ON_BOTH, numa_allocatable=zones)
    )
    bound = bind(allocator, pod("a", {"cpu": 1, "memory": 10, CARDS: 2}, "LS"))
    assert bound.annotations[STATUS] == (
        '{"numaNodeResources":[{"node":0,"resources":{"cpu":"1","memory":"10"}}],'
        '"cpuSharedPools":[{"node":0,"socket":0}]}'
    )
    assert minors(offered(allocator, pod("b", {"cpu": 1, CORE: 200, RATIO: 200}, "LS"))) == [2, 3]


def test_a_refusal_for_devices_has_the_reason_of_the_device_allocation() -> None:
    allocator = NodeAllocator(make_properties(policy=ONE, devices=CARDS_ON_BOTH))
    found = refusal(allocator, pod("a", {"cpu": 1, CARDS: 5}))
    assert found.reasons == (Refusal(Reason.DEVICE_INSUFFICIENT, "gpu"),)
    assert found.text == "gpu: not enough devices are free"
    assert not found.unresolvable
    assert refusal(allocator, pod("a", {RDMA: 1})).unresolvable


def test_devices_of_pods_in_the_device_object_are_in_use() -> None:
    node = make_properties(devices=[*CARDS_ON_BOTH, nic(0, functions=["v1", "v2"])])
    imported = {
        "other": Imported({("gpu", 0): {CORE: 100, RATIO: 100}}, {}),
        "more": Imported({}, {("rdma", 0): frozenset({"v1"})}),
    }
    allocator = NodeAllocator(msgspec.structs.replace(node, imported=imported))
    assert minors(offered(allocator, pod("a", {CARDS: 1}))) == [1]
    vf = {HINT: {"rdma": {"vfSelector": {}}}}
    found = offered(allocator, pod("b", {RDMA: 1}, notes=vf))
    assert found.device_allocation is not None
    assert found.device_allocation.devices["rdma"][0].functions[0].bus == "v2"


def test_an_allocation_that_an_agent_reports_too_counts_once() -> None:
    imported = {"a": Imported({("gpu", 3): {CORE: 100, RATIO: 100}, ("rdma", 0): {RDMA: 100}}, {})}
    node = make_properties(devices=[*CARDS_ON_BOTH, nic(0)])
    allocator = NodeAllocator(msgspec.structs.replace(node, imported=imported))
    notes = {ALLOCATED: {"gpu": [{"minor": 3, "resources": {CORE: 50, RATIO: 50}}]}}
    allocator.record(assigned_pod_of(pod("a", {GPU: 50}, notes=notes)))
    assert minors(offered(allocator, pod("b", {GPU: 50}))) == [3]
    assert refusal(allocator, pod("b", {RDMA: 1})).reasons


@pytest.mark.parametrize("amounts", [None, {}, {CORE: 0, RATIO: 0}])
def test_a_pod_without_an_amount_of_its_device_holds_the_whole_device(
    amounts: dict[str, int] | None,
) -> None:
    """As on the node, where the device is exclusive in this case."""
    allocator = NodeAllocator(
        make_properties(devices=[*CARDS_ON_BOTH, nic(0, functions=["v1", "v2"])])
    )
    notes = {ALLOCATED: {"gpu": [{"minor": 3, "resources": amounts}]}}
    allocator.record(assigned_pod_of(pod("a", {CARDS: 1}, notes=notes)))
    assert minors(offered(allocator, pod("b", {CARDS: 3}))) == [0, 1, 2]
    assert refusal(allocator, pod("b", {CARDS: 4})).reasons
    function = {"minor": 0, "extension": {"vfs": [{"busID": "v1"}]}}
    allocator.record(assigned_pod_of(pod("c", {RDMA: 1}, notes={ALLOCATED: {"rdma": [function]}})))
    assert offered(allocator, pod("d", {RDMA: 1}, notes={HINT: {"rdma": {"vfSelector": {}}}}))


def test_a_pod_holds_its_card_by_uuid_when_its_minor_has_changed() -> None:
    """A driver numbers its cards at its start. If one is missing, the minors of later cards
    change."""
    whole = {CORE: 100, RATIO: 100}
    notes = {
        name: {ALLOCATED: {"gpu": [{"minor": minor, "id": f"GPU-{minor}", "resources": whole}]}}
        for name, minor in (("a", 2), ("b", 1))
    }
    after = [
        msgspec.structs.replace(each, minor=index) for index, each in enumerate(CARDS_ON_BOTH[1:])
    ]
    allocator = NodeAllocator(make_properties(devices=CARDS_ON_BOTH))
    for uid, pod_notes in notes.items():
        allocator.record(assigned_pod_of(pod(uid, {CARDS: 1}, notes=pod_notes)))
    assert minors(offered(allocator, pod("c", {CARDS: 2}))) == [0, 3]
    allocator = allocator.with_properties(make_properties(devices=after))
    assert minors(offered(allocator, pod("c", {CARDS: 1}))) == [2]
    assert refusal(allocator, pod("c", {CARDS: 2})).reasons
    assert overlaps(allocator) == ()
    allocator.record(assigned_pod_of(pod("d", {CARDS: 1}, notes=notes["a"])))
    assert [(each.minor, each.uids) for each in overlaps(allocator)] == [(1, ("a", "d"))] * 2


def test_shares_of_gpus_need_the_isolation_provider_of_the_pod() -> None:
    node = make_properties(devices=CARDS_ON_BOTH)
    label = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    part = pod("a", {GPU: 50}, labels=label)
    found = refusal(NodeAllocator(node), part)
    assert found.text == "GPU isolation provider: requested HAMi-core, available none"
    assert found.unresolvable
    allocator = NodeAllocator(msgspec.structs.replace(node, isolation="HAMi-core"))
    assert minors(offered(allocator, part)) == [0]
    assert minors(offered(allocator, pod("a", {GPU: 50}))) == [0]
    assert minors(offered(NodeAllocator(node), pod("a", {GPU: 100}, labels=label))) == [0]


def test_shares_of_an_unshared_model_are_refused() -> None:
    allocator = NodeAllocator(make_properties(devices=CARDS_ON_BOTH, shares_gpus=False))
    assert refusal(allocator, pod("a", {GPU: 50})).unresolvable
    assert minors(offered(allocator, pod("a", {GPU: 100}))) == [0]


def test_a_stale_offer_names_missing_devices_and_leaves_its_cpus_free() -> None:
    allocator = NodeAllocator(make_properties(devices=CARDS_ON_BOTH))
    one, two = (offered(allocator, pod(uid, {"cpu": 2, CARDS: 1}, "LSR")) for uid in "ab")
    allocator.commit(one)
    allocator.release("a")
    allocator.record(
        assigned_pod_of(annotated(pod("c"), {ALLOCATED: two.annotations()[ALLOCATED]}))
    )
    with pytest.raises(StaleOfferError, match=r"pod ns/b on node n: gpu 0 has 0 of 100 "):
        allocator.commit(two)
    assert offered(allocator, pod("d", {"cpu": 16}, "LSR"))


def test_a_stale_offer_names_missing_objects() -> None:
    allocator = make_properties(policy=ONE, devices=CARDS_ON_BOTH)
    found = offered(NodeAllocator(allocator), pod("a", {"cpu": 1, CARDS: 1}))
    without_cpus = msgspec.structs.replace(allocator, cpus=None)
    with pytest.raises(StaleOfferError, match="no longer has a usable NodeResourceTopology"):
        NodeAllocator(without_cpus).commit(found)
    with pytest.raises(StaleOfferError, match="no longer has a Device object"):
        NodeAllocator(msgspec.structs.replace(allocator, inventory=None)).commit(found)


def test_an_offer_applies_to_every_pod_of_its_equivalence_class() -> None:
    allocator = NodeAllocator(make_properties(policy=ONE, devices=CARDS_ON_BOTH))
    first, second = (pod(uid, {"cpu": 2, CARDS: 1}, "LSR") for uid in "ab")
    found = offered(allocator, first)
    assert found.to(request_of(second)) == offered(allocator, second)


def test_a_node_that_has_changed_keeps_its_holdings() -> None:
    allocator = NodeAllocator(make_properties(devices=CARDS_ON_BOTH))
    bind(allocator, pod("a", {"cpu": 2, CARDS: 2}, "LSR"))
    other = allocator.with_properties(make_properties(policy=ONE, devices=CARDS_ON_BOTH[:3]))
    assert minors(offered(other, pod("b", {CARDS: 1}))) == [2]
    without_cpus = other.with_properties(NodeProperties("n"))
    assert without_cpus.assigned_pods == allocator.assigned_pods
    restored = without_cpus.with_properties(make_properties(devices=CARDS_ON_BOTH))
    assert minors(offered(restored, pod("b", {CARDS: 2}))) == [2, 3]
    found = offered(restored, pod("c", {"cpu": 14}, "LSR"))
    assert found.assigned_pod().allocation.cpus == CpuSet.parse("2-15")


def test_overlaps_are_reported_with_their_holders() -> None:
    allocator = NodeAllocator(make_properties(devices=[gpu(0), nic(0, functions=["v"])]))
    vf = {"minor": 0, "resources": {RDMA: 1}, "extension": {"vfs": [{"minor": -1, "busID": "v"}]}}
    notes = {
        STATUS: {"cpuset": "1-2"},
        ALLOCATED: {"gpu": [{"minor": 0, "resources": {CORE: 60, RATIO: 40}}], "rdma": [vf]},
    }
    for uid in "ba":
        allocator.record(assigned_pod_of(pod(uid, notes=notes)))
    cpus, *devices = overlaps(allocator)
    assert not isinstance(cpus, DeviceOverlap)
    assert (cpus.cpus, cpus.uids) == (CpuSet.parse("1-2"), ("a", "b"))
    assert devices == [
        DeviceOverlap("gpu", 0, CORE, ("a", "b")),
        DeviceOverlap("rdma", 0, "v", ("a", "b")),
    ]


def test_the_best_offer_is_first_regardless_of_the_score() -> None:
    whole = offered(NodeAllocator(make_properties((1, 1, 4, 2))), pod("a", {"cpu": 2}, "LSR"))
    half_core = offered(NodeAllocator(make_properties((1, 1, 4, 2))), pod("a", {"cpu": 1}, "LSR"))
    assert whole.order < half_core.order


def test_the_strategy_for_devices_is_configured() -> None:
    properties = make_properties(devices=[nic(0), nic(1)])
    for strategy, minor in (("LeastAllocated", 1), ("MostAllocated", 0)):
        rules = msgspec.convert({"strategy": strategy}, AllocatorRules)
        allocator = NodeAllocator(msgspec.structs.replace(properties, rules=rules))
        bind(allocator, pod("a", {RDMA: 50}))
        found = offered(allocator, pod("b", {RDMA: 50})).device_allocation
        assert found is not None
        assert [each.minor for each in found.devices["rdma"]] == [minor]


def test_amplified_cpu_is_charged_to_pods_that_the_kubelet_aligns() -> None:
    """The policy of the kubelet is not applied again."""
    kubelet = NodePolicies(numa_kubelet=ONE, full_pcpus_only=True)
    allocator = NodeAllocator(make_properties(policies=kubelet, cpu_ratio=2.0, cpu_milli=32_000))
    found = offered(allocator, pod("a", {"cpu": "1500m"}))
    assert found.annotations() == {}
    allocator.commit(found)
    assert refusal(allocator, pod("b", {"cpu": 31})).text == (
        "cpu: not enough amplified CPU (requested 31, available 30500m)"
    )


def test_a_limit_that_no_longer_fits_the_pools_is_reported_at_commit() -> None:
    allocator = NodeAllocator(make_properties())
    burst = {SPEC: {"preferredCPUBindPolicy": "ConstrainedBurst"}}
    found = offered(allocator, pod("a", {"cpu": 1}, notes=burst, limits={"cpu": 8}))
    assert list(found.assigned_pod().allocation.amounts) == [0]
    allocator.record(assigned_pod_of(pod("c", {"cpu": 1}, notes={STATUS: {"cpuset": "0"}})))
    with pytest.raises(StaleOfferError, match="NUMA nodes 0 have 7000 of 8000 milli-CPU left"):
        allocator.commit(found)
    assert allocator.assigned_pods.keys() == {"c"}


def test_a_kubelet_that_binds_cpus_chooses_them_for_pods_with_devices() -> None:
    """The devices are still aligned with its NUMA nodes, because the kubelet does not know them."""
    kubelet = NodePolicies(numa_kubelet=ONE, full_pcpus_only=True)
    allocator = NodeAllocator(make_properties(policies=kubelet, devices=CARDS_ON_BOTH))
    found = offered(allocator, pod("a", {"cpu": "500m", CARDS: 2}))
    assert minors(found) == [0, 1]
    assert (found.assigned_pod().allocation.cpus, found.assigned_pod().allocation.amounts) == (
        CpuSet(),
        {0: {"cpu": 500}},
    )
    bound = offered(allocator, pod("a", {"cpu": 2, CARDS: 2}, "LS"))
    assert len(bound.assigned_pod().allocation.cpus) == 2


def test_an_allocator_with_new_properties_is_independent() -> None:
    """With changed and with unchanged CPUs."""
    allocator = NodeAllocator(make_properties(devices=CARDS_ON_BOTH))
    bind(allocator, pod("a", {"cpu": 2, CARDS: 2}, "LSR"))
    for new in (
        make_properties(devices=CARDS_ON_BOTH[2:]),
        make_properties(policy=ONE, devices=CARDS_ON_BOTH[2:]),
    ):
        other = allocator.with_properties(new)
        assert minors(offered(other, pod("b", {CARDS: 2}))) == [2, 3]
        bind(other, pod("b", {"cpu": 8}, "LSR"))
        assert other.assigned_pods.keys() == {"a", "b"}
        assert allocator.assigned_pods.keys() == {"a"}
        assert offered(allocator, pod("c", {"cpu": 14}, "LSR"))
        assert overlaps(other) == ()


@pytest.mark.parametrize(
    ("policy", "chosen"), [(NumaPolicy.BEST_EFFORT, [2, 3]), (NumaPolicy.NONE, [0, 1])]
)
def test_best_effort_prefers_cards_on_the_numa_node_that_has_the_cpus(
    policy: NumaPolicy, chosen: list[int]
) -> None:
    allocator = NodeAllocator(make_properties(policy=policy, devices=CARDS_ON_BOTH))
    bind(allocator, pod("cpus", {"cpu": 8}, "LSR"))
    found = offered(allocator, pod("a", {"cpu": 4, CARDS: 2}, "LSR"))
    assert minors(found) == chosen
    assert found.assigned_pod().allocation.cpus == CpuSet.parse("8-11")


@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, ONE])
def test_only_best_effort_allows_cpus_and_cards_on_different_numa_nodes(policy: NumaPolicy) -> None:
    allocator = NodeAllocator(make_properties(policy=policy, devices=CARDS_ON_BOTH))
    bind(allocator, pod("cpus", {"cpu": 8}, "LSR"))
    held = {ALLOCATED: {"gpu": [{"minor": 3, "resources": {CORE: 100}}]}}
    allocator.record(assigned_pod_of(pod("gpu", notes=held)))
    both = pod("a", {"cpu": 4, CARDS: 2}, "LSR")
    if policy is NumaPolicy.BEST_EFFORT:
        offer = offered(allocator, both)
        assert minors(offer) == [0, 1]
        assert offer.assigned_pod().allocation.cpus == CpuSet.parse("8-11")
    else:
        refused = refusal(allocator, both)
        assert "no NUMA nodes that the policy admits" in refused.text
        assert not refused.unresolvable


def test_a_pod_whose_cpu_limit_differs_gets_no_exclusive_cpus() -> None:
    allocator = NodeAllocator(make_properties())
    refused = refusal(allocator, pod("a", {"cpu": 2}, "LSR", limits={"cpu": 4}))
    text = "container c: requests.cpu is 2, limits.cpu is 4: LSR pods need equal amounts"
    assert (refused.text, refused.summary, refused.unresolvable) == (text, text, True)
    # Its priority class excludes exclusive CPUs.
    assert offered(allocator, pod("a", {"cpu": 2}, "LSR", limits={"cpu": 4}, priority=5000))
