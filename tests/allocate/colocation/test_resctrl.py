from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.colocation.resctrl import (
    CacheWays,
    MemoryBandwidth,
    ResctrlError,
    ResctrlGroups,
    ResctrlMachine,
    ResctrlParts,
    ResctrlPod,
    bandwidth_limit,
    cache_mask,
    of_koordlet,
    text,
    wanted,
)
from agent.model.node_slo import ResctrlQos
from agent.model.pod.qos import QoS

L3: Final = CacheWays((0, 1), 0x7FF, least_ways=2)
MACHINE: Final = ResctrlMachine({"L3": L3}, MemoryBandwidth((0, 1)), groups=4)
BATCH: Final = ResctrlQos(enable=True, cat_range_end_percent=30, mba_percent=35)


def pod(uid: str, qos: QoS = QoS.BE, own: ResctrlParts | None = None) -> ResctrlPod:
    return ResctrlPod(uid, f"default/{uid}", qos, own)


def test_a_class_has_its_parts_of_every_cache() -> None:
    classes = {"BE": BATCH, "LS": ResctrlQos()}
    pods = [pod("b"), pod("l", QoS.LS), pod("s", QoS.SYSTEM)]
    assert wanted(MACHINE, classes, pods) == ResctrlGroups(
        {"BE": "L3:0=f;1=f MB:0=40;1=40"}, {"b": "BE"}
    )


def test_a_part_at_the_end_of_the_cache_has_the_fewest_ways() -> None:
    assert cache_mask(L3, 93, 100) == 0b11000000000
    assert cache_mask(CacheWays((0,), 0x7FF), 93, 100) == 0b10000000000


@pytest.mark.parametrize(
    ("mask", "begin", "end", "reason"),
    [
        (0x7FF, 50, 50, "50 to 50 percent of the L3 cache"),
        (0x7FF, 0, 101, "0 to 101 percent of the L3 cache"),
        (0b1010, 0, 50, "mask a of the machine"),
        (0, 0, 50, "mask 0 of the machine"),
    ],
)
def test_a_part_that_can_not_be_is_named(mask: int, begin: int, end: int, reason: str) -> None:
    with pytest.raises(ResctrlError, match=reason):
        cache_mask(CacheWays((0,), mask), begin, end)


@given(st.integers(1, 32), st.integers(1, 4), st.tuples(st.integers(0, 100), st.integers(0, 100)))
def test_masks_are_rows_of_enough_ways(number: int, least: int, percents: tuple[int, int]) -> None:
    begin, end = sorted(percents)
    if begin == end:
        return
    ways = CacheWays((0,), (1 << number) - 1, least)
    mask = cache_mask(ways, begin, end)
    row = bin(mask)[2:].rstrip("0")
    assert mask | ways.mask == ways.mask
    assert set(row) == {"1"}
    assert len(row) >= min(least, number)
    assert len(row) * 100 > number * (end - begin) - 100, "a part is at most one way too small"


@pytest.mark.parametrize(
    ("bandwidth", "percent", "value"),
    [
        (MemoryBandwidth((0,)), 100, 100),
        (MemoryBandwidth((0,)), 11, 20),
        (MemoryBandwidth((0,), least=20, step=5), 3, 20),
        (MemoryBandwidth((0,), least=20, step=5), 33, 35),
        (MemoryBandwidth((0,), unlimited=2048, least=1, step=1, whole=160), 50, 80),
        (MemoryBandwidth((0,), unlimited=4096, least=1, step=1, whole=480), 100, 4096),
        (MemoryBandwidth((0,), unlimited=1 << 32, whole=None), 50, None),
        (MemoryBandwidth((0,)), 0, None),
        (MemoryBandwidth((0,)), None, None),
    ],
)
def test_bandwidth_is_in_the_steps_of_the_machine(
    bandwidth: MemoryBandwidth, percent: int | None, value: int | None
) -> None:
    assert bandwidth_limit(bandwidth, percent) == value


def test_single_caches_have_parts_of_their_own_and_the_rest_everything() -> None:
    parts = ResctrlParts(caches={1: (0, 50)}, bandwidths={0: 50})
    assert text(MACHINE, parts) == "L3:0=7ff;1=3f MB:0=50;1=100"


def test_code_and_data_have_the_same_part() -> None:
    machine = ResctrlMachine({"L3CODE": L3, "L3DATA": L3})
    assert text(machine, ResctrlParts((0, 30))) == "L3CODE:0=f;1=f L3DATA:0=f;1=f"


def test_pods_have_groups_of_their_own_while_there_is_room() -> None:
    own = ResctrlParts((0, 50))
    pods = [pod(uid, own=own) for uid in ("a", "b", "c")]
    groups = wanted(MACHINE, {"BE": BATCH}, pods, present=["koordlet-c"])
    assert groups.members == {"c": "koordlet-c", "a": "koordlet-a", "b": "BE"}
    assert groups.faults == ("Pod default/b gets no group of resctrl: the machine has room for 3.",)
    assert not wanted(MACHINE, {"BE": BATCH}, pods, others=3).schemata


def test_koordlet_makes_the_groups_of_all_classes() -> None:
    assert of_koordlet(["BE", "gold", "koordlet-a"]) == {"koordlet-a"}
    assert of_koordlet(["BE", "LS", "LSR", "gold"]) == {"BE", "LS", "LSR"}


def test_a_class_with_an_empty_range_has_no_group_and_others_do() -> None:
    empty = ResctrlQos(enable=True, cat_range_start_percent=30, cat_range_end_percent=30)
    groups = wanted(MACHINE, {"BE": empty, "LS": BATCH}, [pod("b"), pod("l", QoS.LS)])
    assert groups.members == {"l": "LS"}
    assert [each.partition(":")[0] for each in groups.faults] == [
        "Class BE gets no group of resctrl"
    ]


@pytest.mark.parametrize(
    ("machine", "parts", "lack"),
    [
        (MACHINE, ResctrlParts(caches={7: (0, 50)}), "part of the L3 cache 7"),
        (MACHINE, ResctrlParts(bandwidths={7: 50, 1: 100}), "memory bandwidth of the cache 7"),
        (ResctrlMachine(bandwidth=MACHINE.bandwidth, groups=4), ResctrlParts((0, 50)), "divide"),
        (ResctrlMachine({"L3": L3}, groups=4), ResctrlParts(bandwidth=50), "in percent"),
        (MACHINE, ResctrlParts((0, 50), {0: (50, 100)}, 100, {1: 50}), ""),
        (ResctrlMachine(groups=4), ResctrlParts((0, 100), bandwidth=100), ""),
    ],
)
def test_what_the_machine_does_not_have_is_said(
    machine: ResctrlMachine, parts: ResctrlParts, lack: str
) -> None:
    groups = wanted(machine, {}, [pod("a", own=parts)])
    assert groups.members == {"a": "koordlet-a"}
    assert len(groups.faults) == bool(lack)
    assert lack in "".join(groups.faults)
