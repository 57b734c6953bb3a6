from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from agent.allocate.devices.allocation import (
    SAME_CARDS,
    Allocation,
    allocate,
    device_allocated,
    device_hints,
    node_score,
    unavailable,
)
from agent.allocate.devices.inventory import NodeDevices, inventory, linked, node_devices
from agent.allocate.devices.partitions import partitions
from agent.allocate.numa.hint import TopologyHint
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import Strategy
from agent.model.devices.device_object import GPU_PARTITIONS, Device
from agent.model.devices.device_request import device_request
from tests.allocate.devices.builders import (
    BYTES,
    CARDS,
    CORE,
    GPU,
    HINT,
    JOINT,
    MEMORY,
    RATIO,
    RDMA,
    SHARED,
    allocation,
    gpu,
    minors,
    nic,
    node,
)
from tests.allocate.devices.links import symmetric

LEAST = Strategy.LEAST_ALLOCATED
MOST = Strategy.MOST_ALLOCATED
EIGHT = [gpu(each, each // 4, f"p{each // 2}") for each in range(8)]
PREFERRED = {"deviceTypes": ["gpu", "rdma"]}
SAME_PCIE = {**PREFERRED, "requiredScope": "SamePCIe"}


def test_a_request_is_converted_by_the_memory_of_each_card() -> None:
    """Half of both cards is in use: the larger one has more bytes left, and no higher share."""
    larger = msgspec.structs.replace(gpu(1), resources={**gpu(1).resources, MEMORY: 2 * BYTES})
    held = {("gpu", 0): {MEMORY: BYTES // 2, RATIO: 50}, ("gpu", 1): {MEMORY: BYTES, RATIO: 50}}
    both = node_devices(inventory([gpu(0), larger]), held)
    found = allocation(both, {MEMORY: 600})
    assert isinstance(found, Allocation)
    (card,) = found.devices["gpu"]
    assert (card.minor, card.resources) == (1, {MEMORY: 600, RATIO: 30})
    assert isinstance(allocation(both, {RATIO: 60}), Refusal)


@pytest.mark.parametrize(
    ("used", "cards", "expected"),
    [
        pytest.param({}, 2, [0, 1], id="one switch"),
        pytest.param({0: 100}, 2, [2, 3], id="an unused switch of the NUMA node in use"),
        pytest.param({0: 100}, 1, [1], id="the switch that is in use already"),
        pytest.param({4: 10, 0: 100}, 1, [1], id="the first of two switches in use"),
        pytest.param({0: 100, 2: 100, 4: 1}, 2, [6, 7], id="one switch before one NUMA node"),
        pytest.param({0: 100, 2: 100, 4: 1, 6: 1}, 2, [1, 3], id="one NUMA node"),
        pytest.param({0: 100, 5: 100}, 4, [1, 2, 3, 4], id="two NUMA nodes, lowest minors"),
    ],
)
def test_whole_cards_without_known_links(
    used: dict[int, int], cards: int, expected: list[int]
) -> None:
    assert minors(allocation(node(EIGHT, used), {CARDS: cards})) == expected


def test_the_strategy_chooses_the_card_of_a_share() -> None:
    """Koordinator confuses free amounts with capacity, and takes the other card."""
    both = [gpu(0), gpu(1)]
    assert minors(allocation(node(both, {0: 10, 1: 80}), {GPU: 10}, strategy=MOST)) == [1]
    assert minors(allocation(node(both, {0: 80, 1: 10}), {GPU: 10}, strategy=LEAST)) == [1]
    two_nodes = [gpu(0, 0, "p0"), gpu(1, 1, "p1")]
    assert minors(allocation(node(two_nodes, {0: 10}), {GPU: 10}, strategy=LEAST)) == [1]
    assert minors(allocation(node(two_nodes, {0: 10}), {GPU: 95}, strategy=MOST)) == [1]


def test_without_a_strategy_a_share_goes_to_the_most_used_switch() -> None:
    assert minors(allocation(node(EIGHT, {5: 10}), {GPU: 10})) == [4]


def test_shares_of_several_cards_within_a_scope() -> None:
    """Koordinator refuses these."""
    hint = {"gpu": {"requiredTopologyScope": "PCIe"}}
    found = allocation(node(EIGHT, {0: 80}), {SHARED: 2, MEMORY: BYTES}, {HINT: hint})
    assert minors(found) == [2, 3]
    two = node(EIGHT[:2], {0: 80})
    assert allocation(two, {SHARED: 2, MEMORY: BYTES}, {HINT: hint}) == Refusal(
        Reason.DEVICE_SCOPE, "gpu"
    )


def test_core_of_several_cards_is_divided_among_them() -> None:
    """Koordinator requests all of it from one card."""
    found = allocation(node(EIGHT), {CORE: 200, MEMORY: 400})
    assert isinstance(found, Allocation)
    assert [each.resources for each in found.devices["gpu"]] == [
        {CORE: 100, MEMORY: 200, RATIO: 20}
    ] * 2


@pytest.mark.parametrize(("cards", "least", "most"), [(1, 75, 25), (2, 50, 50), (4, 0, 100)])
def test_a_node_is_scored_by_its_use_after_the_allocation(
    cards: int, least: int, most: int
) -> None:
    """Koordinator's scores are 87 and 12 in every case."""
    four = node([gpu(each) for each in range(4)])
    request = device_request({CARDS: cards}, {})
    assert request is not None
    found = allocate(four, request)
    assert isinstance(found, Allocation)
    assert node_score(four, request, found, LEAST) == least
    assert node_score(four, request, found, MOST) == most


def test_a_score_counts_only_devices_that_the_pod_may_have() -> None:
    two = node([gpu(0, 0), gpu(1, 1)], {1: 100})
    request = device_request({GPU: 50}, {})
    assert request is not None
    found = allocate(two, request, numa=0b01)
    assert isinstance(found, Allocation)
    assert node_score(two, request, found, LEAST) == 25
    assert node_score(two, request, found, LEAST, numa=0b01) == 50


def test_unhealthy_devices_are_not_chosen_and_apply_for_all_skips_them() -> None:
    nics = [nic(each, healthy=each != 1) for each in range(4)]
    hint = {"rdma": {"allocateStrategy": "ApplyForAll"}}
    assert minors(allocation(node(nics), {RDMA: 10}, {HINT: hint}), "rdma") == [0, 2, 3]
    unhealthy = [nic(0, healthy=False)]
    assert allocation(node(unhealthy), {RDMA: 10}, {HINT: hint}) == Refusal(
        Reason.DEVICE_INSUFFICIENT, "rdma"
    )
    assert allocation(node(unhealthy), {RDMA: 10}) == Refusal(Reason.DEVICE_INSUFFICIENT, "rdma")


def test_a_device_with_numa_node_minus_one_is_on_every_node_and_one_without_topology_on_none() -> (
    None
):
    node_ = node([nic(0, None), nic(1, -1), nic(2, 1)])
    assert minors(allocation(node_, {RDMA: 200}, numa=0b10), "rdma") == [1, 2]
    assert minors(allocation(node_, {RDMA: 100}, numa=0b01), "rdma") == [1]


def test_exclusion_by_switch_avoids_switches_in_use() -> None:
    """Koordinator ignores this policy."""
    hint = {"gpu": {"exclusivePolicy": "PCIeLevel"}}
    node_ = node(EIGHT, {0: 10, 2: 10})
    assert minors(allocation(node_, {CARDS: 1}, {HINT: hint})) == [4]
    assert allocation(node_, {CARDS: 5}, {HINT: hint}) == Refusal(Reason.DEVICE_INSUFFICIENT, "gpu")


def test_virtual_functions_are_allocated_in_numeric_order() -> None:
    """Koordinator takes .10 before .2."""
    hint = {"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}}
    buses = ["0000:40:00.10", "0000:40:00.2", "0000:40:00.a"]
    one = [nic(0, functions=buses)]

    def taken(*held: str) -> Allocation | Refusal:
        node_ = node(one, taken={("rdma", 0): frozenset(held)})
        return allocation(node_, {RDMA: 1}, {HINT: hint})

    for held, expected in (((), buses[1]), (buses[1:2], buses[2]), (buses[1:], buses[0])):
        found = taken(*held)
        assert isinstance(found, Allocation)
        assert [each.bus for each in found.devices["rdma"][0].functions] == [expected]
    assert taken(*buses) == Refusal(Reason.DEVICE_INSUFFICIENT, "rdma")
    assert allocation(node([nic(0)]), {RDMA: 1}, {HINT: hint}) == Refusal(
        Reason.DEVICE_NO_VIRTUAL_FUNCTIONS, "rdma"
    )


def test_a_scope_is_refused_when_a_card_has_no_topology() -> None:
    node_ = node([gpu(0), gpu(1, None)])
    hint = {"gpu": {"requiredTopologyScope": "PCIe"}}
    assert allocation(node_, {CARDS: 1}, {HINT: hint}) == Refusal(Reason.DEVICE_NO_TOPOLOGY, "gpu")
    assert minors(allocation(node_, {CARDS: 2})) == [0, 1]


def test_the_requested_number_of_nics_near_the_gpus_is_allocated() -> None:
    """Koordinator allocates one for every switch."""
    node_ = node([gpu(0, 0, "p0"), gpu(1, 0, "p1"), nic(0, 0, "p2"), nic(1, 0, "p1")])
    found = allocation(node_, {CARDS: 2, RDMA: 100}, {JOINT: PREFERRED})
    assert minors(found) == [0, 1]
    assert minors(found, "rdma") == [1]


def test_cards_are_divided_among_switches_with_one_nic_each() -> None:
    node_ = node([*EIGHT[:4], nic(0, 0, "p0"), nic(1, 0, "p1")])
    found = allocation(node_, {CARDS: 2, RDMA: 200}, {JOINT: SAME_PCIE})
    assert minors(found) == [0, 2]
    assert minors(found, "rdma") == [0, 1]
    nic_first = {"deviceTypes": ["rdma", "gpu"], "requiredScope": "SamePCIe"}
    assert minors(allocation(node_, {CARDS: 2, RDMA: 200}, {JOINT: nic_first})) == [0, 2]
    links = symmetric(4, lambda i, j: 9 if (i, j) == (1, 3) else 1)
    with_links = node([*EIGHT[:4], nic(0, 0, "p0"), nic(1, 0, "p1")], links=linked(range(4), links))
    assert minors(allocation(with_links, {CARDS: 2, RDMA: 200}, {JOINT: SAME_PCIE})) == [1, 3]
    table = msgspec.json.encode({2: [{"minors": [0, 1]}, {"minors": [1, 2]}]}).decode()
    sets = partitions({}, {GPU_PARTITIONS: table}, {})
    with_partitions = node([*EIGHT[:4], nic(0, 0, "p0"), nic(1, 0, "p1")], partitions=sets)
    assert minors(allocation(with_partitions, {CARDS: 2, RDMA: 200}, {JOINT: SAME_PCIE})) == [1, 2]


def test_one_numa_node_may_be_required_instead_of_one_switch() -> None:
    """Two switches of one NUMA node. The first NUMA node does not have a free NIC."""
    joint = {**PREFERRED, "requiredScope": "SameNUMANode"}
    node_ = node([*EIGHT, nic(0, 0, "p9"), nic(1, 1, "p9")], nics={0: 100})
    found = allocation(node_, {CARDS: 2, RDMA: 50}, {JOINT: joint})
    assert minors(found) == [4, 5]
    assert minors(found, "rdma") == [1]
    assert isinstance(allocation(node_, {CARDS: 2, RDMA: 50}, {JOINT: SAME_PCIE}), Refusal)
    assert isinstance(allocation(node_, {CARDS: 5, RDMA: 50}, {JOINT: joint}), Refusal)


def test_gpus_near_a_leading_nic() -> None:
    """Koordinator chooses them without regard to the NIC."""
    node_ = node([*EIGHT, nic(0, 1, "p3")])
    nic_first = {"deviceTypes": ["rdma", "gpu"]}
    assert minors(allocation(node_, {CARDS: 2, RDMA: 1}, {JOINT: nic_first})) == [6, 7]
    assert minors(allocation(node_, {CARDS: 4, RDMA: 1}, {JOINT: nic_first})) == [0, 1, 2, 3]


def test_a_card_with_few_used_bytes_is_not_allocated_whole() -> None:
    """They are less than one percent, the unit of the amounts of cards."""
    held = {("gpu", 0): {CORE: 0, RATIO: 0, MEMORY: 9}}
    node_ = node_devices(inventory([gpu(0), gpu(1)]), held)
    assert minors(allocation(node_, {CARDS: 1})) == [1]
    assert allocation(node_, {CARDS: 2}) == Refusal(Reason.DEVICE_INSUFFICIENT, "gpu")
    assert minors(allocation(node_, {RATIO: 99})) == [0]


def test_a_card_that_lists_half_of_its_resources_is_allocated_by_half_at_most() -> None:
    """The amounts derived from the requested bytes must be available too."""
    half = msgspec.structs.replace(gpu(0), resources={CORE: 50, RATIO: 50, MEMORY: BYTES // 2})
    found = allocation(node([half]), {SHARED: 1, MEMORY: BYTES // 2})
    assert found == Refusal(Reason.DEVICE_INSUFFICIENT, "gpu")
    assert minors(allocation(node([half, gpu(1)]), {SHARED: 1, MEMORY: BYTES // 2})) == [1]


VF_HINT = {"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}}


def test_the_annotation_equals_koordinators() -> None:
    node_ = node([gpu(0), nic(0, functions=["0000:40:00.1"])])
    found = allocation(node_, {GPU: 50, RDMA: 1}, {HINT: VF_HINT})
    assert isinstance(found, Allocation)
    assert json.loads(device_allocated(found)) == {
        "gpu": [{"id": "GPU-0", "minor": 0, "resources": {CORE: "50", RATIO: "50", MEMORY: "500"}}],
        "rdma": [
            {
                "id": "0000:40:00.0",
                "minor": 0,
                "resources": {RDMA: "1"},
                "extension": {"vfs": [{"minor": -1, "busID": "0000:40:00.1"}]},
            }
        ],
    }


FOUR = [gpu(each, each // 2, f"p{each}") for each in range(4)]
NICS = [nic(each, each) for each in range(2)]


def hints(
    used: dict[int, int], amounts: dict[str, int], numa_nodes: int = 2
) -> dict[str, tuple[TopologyHint, ...]] | Refusal:
    request = device_request(amounts, {})
    assert request is not None
    return device_hints(node([*FOUR, *NICS], used), request, range(numa_nodes))


def test_hints_cover_numa_nodes_with_enough_cards_and_prefer_the_fewest() -> None:
    assert hints({0: 1}, {CARDS: 2}) == {
        "gpu": (TopologyHint(0b10, True, SAME_CARDS), TopologyHint(0b11, False, SAME_CARDS))
    }


def test_the_mask_with_the_best_cards_scores_highest() -> None:
    assert hints({2: 1}, {CARDS: 1}) == {
        "gpu": (
            TopologyHint(0b01, True),
            TopologyHint(0b10, True, SAME_CARDS),
            TopologyHint(0b11, False, SAME_CARDS),
        )
    }


def test_types_that_are_allocated_jointly_have_the_same_hints() -> None:
    both = hints({0: 1, 1: 1}, {CARDS: 1, RDMA: 100})
    assert both == dict.fromkeys(
        ("gpu", "rdma"),
        (TopologyHint(0b10, True, SAME_CARDS), TopologyHint(0b11, False, SAME_CARDS)),
    )


def test_masks_may_include_numa_nodes_without_devices() -> None:
    found = hints({0: 1, 1: 1, 2: 1}, {CARDS: 1}, numa_nodes=3)
    assert isinstance(found, dict)
    masks = [(hint.mask, hint.preferred) for hint in found["gpu"]]
    assert masks == [(0b010, True), (0b011, False), (0b110, False), (0b111, False)]


def test_hints_of_a_node_with_too_few_cards_are_refused() -> None:
    assert hints({0: 1}, {CARDS: 4}) == Refusal(Reason.DEVICE_INSUFFICIENT, "gpu")


def test_the_narrowest_hints_are_the_preferred_ones() -> None:
    request = device_request({CARDS: 1}, {})
    assert request is not None
    for used in ({}, {0: 1, 1: 1}, {0: 1, 2: 1}):
        node_ = node(FOUR, used)
        every = device_hints(node_, request, range(3))
        narrowest = device_hints(node_, request, range(3), narrowest=True)
        assert isinstance(every, dict)
        assert narrowest == {"gpu": tuple(hint for hint in every["gpu"] if hint.preferred)}


DEVICES = (gpu(0), gpu(1), nic(0, functions=["v1", "v2"]), nic(1))
ANY_FUNCTION = {"rdma": {"vfSelector": {}}}
EXCLUSIVE = {"rdma": {"exclusivePolicy": "PCIeLevel"}}


def missing(
    amounts: Mapping[str, int],
    now: NodeDevices,
    hints: Mapping[str, Any] | None = None,
    devices: Iterable[Device] = DEVICES,
) -> str:
    """Checks an allocation that was made while no device was in use."""
    request = device_request(amounts, {HINT: msgspec.json.encode(hints or {}).decode()})
    assert request is not None
    offered = allocate(node(devices), request)
    assert isinstance(offered, Allocation)
    assert not unavailable(node(devices), request, offered)
    return unavailable(now, request, offered)


@pytest.mark.parametrize(
    ("amounts", "hints", "now", "message"),
    [
        ({CARDS: 1}, {}, node(DEVICES, {1: 100}, {0: 100}), ""),
        ({CARDS: 1}, {}, node(DEVICES, {0: 1}), "gpu 0 has 99 of 100 koordinator.sh/gpu-core left"),
        ({GPU: 50}, {}, node(DEVICES, {0: 50}), ""),
        ({GPU: 50}, {}, node(DEVICES, {0: 51}), "gpu 0 has 49 of 50 koordinator.sh/gpu-core left"),
        ({CARDS: 1}, {}, node(DEVICES[1:]), "gpu 0 (GPU-0) no longer exists"),
        ({CARDS: 1}, {}, node([]), "gpu 0 (GPU-0) no longer exists"),
        ({CARDS: 1}, {}, node([gpu(0, healthy=False)]), "gpu 0 is unhealthy"),
        ({RDMA: 1}, {}, node(DEVICES, nics={0: 99}), ""),
        (
            {RDMA: 1},
            ANY_FUNCTION,
            node(DEVICES, taken={("rdma", 0): frozenset({"v1"})}),
            "virtual function v1 of rdma 0 is no longer free",
        ),
        ({RDMA: 1}, ANY_FUNCTION, node(DEVICES, taken={("rdma", 0): frozenset({"v2"})}), ""),
        (
            {RDMA: 1},
            ANY_FUNCTION,
            node([nic(0, functions=["v2"])]),
            "virtual function v1 of rdma 0 is no longer free",
        ),
        (
            {RDMA: 1},
            EXCLUSIVE,
            node(DEVICES, nics={1: 1}),
            "rdma 0 no longer matches the pod's hint",
        ),
    ],
)
def test_missing_devices_are_named(
    amounts: dict[str, int], hints: dict[str, Any], now: NodeDevices, message: str
) -> None:
    assert missing(amounts, now, hints) == message


def test_another_card_with_the_same_minor_does_not_count() -> None:
    other = msgspec.structs.replace(gpu(0), uuid="GPU-new")
    assert missing({CARDS: 1}, node([other])) == "gpu 0 (GPU-0) no longer exists"


def test_resources_that_a_card_does_not_list_are_not_missing() -> None:
    memory_only = msgspec.structs.replace(gpu(0), resources={MEMORY: 1000})
    assert missing({MEMORY: 10}, node([memory_only]), devices=[memory_only]) == ""
