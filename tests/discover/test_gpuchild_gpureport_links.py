"""NVLinks between two cards, as both ends report them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discover.gpuchild import pairs
from agent.model.devices.gpus import Ancestor, Gpu, LinkEnd, NvLink, pci_address


def gpu(index: int, *links: tuple[LinkEnd, str, int | None]) -> Gpu:
    found = tuple(
        NvLink(place, version, end, bus) for place, (end, bus, version) in enumerate(links)
    )
    return Gpu(f"GPU-{index}", index, _bus(index), links=found)


def _bus(index: int) -> str:
    return f"0000:{index:02x}:00.0"


def to_gpu(index: int, version: int | None = 3) -> tuple[LinkEnd, str, int | None]:
    return LinkEnd.GPU, _bus(index), version


def to_switch(number: int, version: int | None = 3) -> tuple[LinkEnd, str, int | None]:
    return LinkEnd.SWITCH, f"0000:c{number}:00.0", version


@pytest.mark.parametrize(
    ("one", "two", "links", "speed"),
    [
        ((), (), 0, 0),
        ((to_gpu(1), to_gpu(1)), (to_gpu(0), to_gpu(0)), 2, 50_000),
        ((to_gpu(1, 1),), (to_gpu(0, 1),), 1, 20_000),
        ((to_gpu(1, 5),), (to_gpu(0, 5),), 1, 50_000),
        # A version that was not reported, and one newer than the known ones.
        ((to_gpu(1, None),), (to_gpu(0, None),), 1, 25_000),
        ((to_gpu(1, 9),), (to_gpu(0, 9),), 1, 50_000),
        # One end is down: a link that only one side reports does not count (HAMi issue 2217).
        ((to_gpu(1), to_gpu(1)), (to_gpu(0),), 1, 25_000),
        ((to_gpu(1), to_gpu(1)), (), 0, 0),
        # Through switches, the card with fewer links limits the number.
        ((to_switch(0), to_switch(1)), (to_switch(0),), 1, 25_000),
        ((to_switch(0),), (), 0, 0),
        # A direct link that is down at one end does not count as a link to a switch.
        ((to_gpu(1), to_switch(0)), (to_switch(0),), 0, 0),
        # Links to other devices.
        ((to_gpu(2),), (to_gpu(3),), 0, 0),
        (((LinkEnd.NPU, "", 2),), ((LinkEnd.NPU, "", 2),), 0, 0),
        (((LinkEnd.UNKNOWN, "", 2),), ((LinkEnd.UNKNOWN, "", 2),), 0, 0),
    ],
)
def test_links_of_a_pair(one: tuple, two: tuple, links: int, speed: int) -> None:
    (pair,) = pairs([gpu(0, *one), gpu(1, *two)], {})
    assert (pair.links, pair.mb_per_second) == (links, speed)


def test_links_through_switches_differ_from_direct_links() -> None:
    ends = {
        "direct": (to_gpu(1), to_gpu(0)),
        "switched": (to_switch(0),) * 2,
        "one end switched": (to_switch(0), to_gpu(0)),
    }
    found = {name: pairs([gpu(0, one), gpu(1, two)], {}) for name, (one, two) in ends.items()}
    assert {name: pair.switched for name, (pair,) in found.items()} == {
        "direct": False,
        "switched": True,
        "one end switched": False,
    }


def test_the_common_ancestor_of_a_pair_is_found_in_either_order() -> None:
    ancestors = {frozenset(("GPU-1", "GPU-0")): (Ancestor.SWITCH, True)}
    (pair,) = pairs([gpu(1), gpu(0)], ancestors)
    assert (pair.one, pair.two) == ("GPU-0", "GPU-1")
    assert (pair.ancestor, pair.peer) == (Ancestor.SWITCH, True)


@given(
    st.lists(
        st.lists(
            st.one_of(st.integers(0, 5).map(to_gpu), st.integers(0, 3).map(to_switch)), max_size=8
        ),
        min_size=2,
        max_size=6,
    )
)
def test_no_pair_has_more_links_than_either_card(ends: list) -> None:
    gpus = [gpu(index, *links) for index, links in enumerate(ends)]
    found = pairs(gpus, {})
    counts = {each.uuid: len(each.links) for each in gpus}
    assert len(found) == len(gpus) * (len(gpus) - 1) // 2
    assert all(0 <= pair.links <= min(counts[pair.one], counts[pair.two]) for pair in found)
    assert all((pair.links == 0) == (pair.mb_per_second == 0) for pair in found)
    assert found == pairs(list(reversed(gpus)), {})


@pytest.mark.parametrize(
    ("reported", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000000A:03:00.0", "000a:03:00.0"),
        ("00000000:3B:00.0\0\0", "0000:3b:00.0"),
        ("FFFFFFFF:FF:FF.0", ""),
        ("", ""),
        ("3B:00.0", ""),
    ],
)
def test_addresses_are_converted_to_sysfs_format(reported: str, address: str) -> None:
    assert pci_address(reported) == address
