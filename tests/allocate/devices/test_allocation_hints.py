from __future__ import annotations

from agent.allocate.devices.allocation import SAME_CARDS, device_hints
from agent.allocate.numa.hint import TopologyHint
from agent.allocate.refusal import Reason, Refusal
from agent.model.devices.device_request import device_request
from tests.allocate.devices.builders import CARDS, RDMA, gpu, nic, node

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
