from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate import accumulator
from agent.allocate.accumulator import AllocationStep as Step
from agent.allocate.accumulator import (
    CpuRequest,
    Shortage,
    Taken,
    take,
    take_on_nodes,
)
from agent.allocate.refusal import Reason
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import NOTHING_HELD, Layout
from agent.model.cpu.policies import NUMA_STRATEGIES, BindPolicy, ExclusivePolicy, Strategy
from agent.model.cpu.topology import Cpu
from conformance import machines
from tests.allocate.kubelet.nodes import mask
from tests.allocate.machines import MACHINES, even_machines, masks, pods, ref_counts

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
MOST, LEAST = Strategy.MOST_ALLOCATED, Strategy.LEAST_ALLOCATED
EVENLY = Strategy.DISTRIBUTE_EVENLY
UNMET = Reason.BIND_POLICY_UNMET
CORE, NODE = ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL


def machine(*shape: int, caches: int | None = None) -> Layout:
    return layouts.of(machines.cpus(shape, "adjacent", caches))


def cpus(answer: Taken | Shortage) -> str:
    assert isinstance(answer, Taken), answer
    return str(CpuSet.from_int(answer.cpus))


FOUR_NODES = machine(2, 2, 4, 2)
"""Cores are 0-1, 2-3, ...; NUMA nodes 0-7, 8-15, 16-23, 24-31; sockets 0-15, 16-31."""


@pytest.mark.parametrize(
    ("free", "request_", "expected", "steps"),
    [
        ("0-31", CpuRequest(4, FULL), "0-3", (Step.CORES_IN_NODE,)),
        ("0-31", CpuRequest(12, FULL), "0-11", (Step.CORES_IN_SOCKET,)),
        ("2-31", CpuRequest(20, FULL), "2-5,16-31", (Step.CORES_OVER_SOCKETS,)),
        (
            "0,2,4-5,8,17",
            CpuRequest(4, FULL),
            "0,2,4-5",
            (Step.CORES_OVER_SOCKETS, Step.SINGLE_CPUS),
        ),
        ("0-31", CpuRequest(4), "0,2,4,6", (Step.THREADS_IN_NODE,)),
        ("0-31", CpuRequest(6), "0-4,6", (Step.CPUS_IN_NODE,)),
        (
            "0,2,4,8,10,12,16-19",
            CpuRequest(6, strategy=MOST),
            "0,2,4,8,10,12",
            (Step.THREADS_IN_SOCKET,),
        ),
        ("0-5,8-9", CpuRequest(8), "0-5,8-9", (Step.CPUS_IN_SOCKET,)),
        ("0-9,12,16-24", CpuRequest(18), "0-9,12,16-20,22,24", (Step.SINGLE_CPUS,)),
    ],
)
def test_steps(free: str, request_: CpuRequest, expected: str, steps: tuple[Step, ...]) -> None:
    answer = take(FOUR_NODES, mask(free), NOTHING_HELD, request_)
    assert cpus(answer) == expected
    assert isinstance(answer, Taken)
    assert answer.steps == steps


ONE_SOCKET, TWO_SOCKETS = (1, 2, 4, 2), (2, 1, 4, 2)


@pytest.mark.parametrize(
    ("shape", "request_", "plain", "downgraded"),
    [
        pytest.param(ONE_SOCKET, CpuRequest(3), "1,3-4", "10,12,14", id="other cores"),
        pytest.param(ONE_SOCKET, CpuRequest(4), "1,3-4,6", "1,3-4,6", id="too few of them"),
        pytest.param(
            ONE_SOCKET, CpuRequest(4, FULL), "10-13", "10-13", id="whole cores are exclusive anyway"
        ),
        pytest.param(
            ONE_SOCKET, CpuRequest(2, strategy=EVENLY), "1,3", "10,12", id="distributed evenly"
        ),
        pytest.param(TWO_SOCKETS, CpuRequest(7), "1,3-4,6,10,12,14", "4,6,10-14", id="single CPUs"),
    ],
)
def test_numa_node_level_becomes_pcpu_level(
    shape: tuple[int, ...], request_: CpuRequest, plain: str, downgraded: str
) -> None:
    """Both NUMA nodes have pods of that policy; CPU 2 is exclusive by core."""
    small = machine(*shape)
    held = NOTHING_HELD.adding(mask("0,8-9"), NODE).adding(mask("2"), CORE)
    for downgrade, expected in ((False, plain), (True, downgraded)):
        request = msgspec.structs.replace(request_, exclusive=NODE, downgrade=downgrade)
        assert cpus(take(small, small.cpus, held, request)) == expected


def test_a_numa_node_without_exclusive_pods_satisfies_the_policy_with_fewer_cores() -> None:
    small = machine(1, 2, 2, 2)
    request = CpuRequest(3, exclusive=NODE, strategy=MOST, downgrade=True)
    answer = take(small, small.cpus, NOTHING_HELD.adding(mask("0"), NODE), request)
    assert isinstance(answer, Taken)
    assert (cpus(answer), answer.steps) == ("4-6", (Step.CPUS_IN_NODE,))


@pytest.mark.parametrize(
    ("request_", "preferred", "expected"),
    [
        pytest.param(CpuRequest(2, FULL, strategy=MOST), "5", "0,5", id="half a core"),
        pytest.param(CpuRequest(2, FULL, required=True), "5", "0-1", id="not against the policy"),
        pytest.param(
            CpuRequest(3, SPREAD, strategy=MOST), "7,99", "0,2,7", id="not on the machine"
        ),
        pytest.param(CpuRequest(6, FULL, strategy=EVENLY), "2-3,10-11", "0-3,10-11", id="evenly"),
    ],
)
def test_preferred(request_: CpuRequest, preferred: str, expected: str) -> None:
    small = machine(1, 2, 4, 2)
    answer = take(small, small.cpus, NOTHING_HELD, request_, preferred=mask(preferred))
    assert cpus(answer) == expected
    assert isinstance(answer, Taken)
    assert (Step.PREFERRED in answer.steps) == (bool(mask(expected) & mask(preferred)))


@pytest.mark.parametrize(
    ("request_", "shortage"),
    [
        pytest.param(CpuRequest(7), (Reason.NOT_ENOUGH_CPUS, 7, 6, 6), id="too many"),
        pytest.param(
            CpuRequest(6, FULL, required=True), (UNMET, 6, 6, 4), id="too few whole cores"
        ),
        pytest.param(CpuRequest(3, FULL, required=True), (UNMET, 3, 6, 4), id="half a core"),
        pytest.param(CpuRequest(5, SPREAD, required=True), (UNMET, 5, 6, 4), id="too few cores"),
        pytest.param(CpuRequest(5, nodes=0b10), (Reason.NOT_ENOUGH_CPUS, 5, 2, 2), id="that node"),
        pytest.param(
            CpuRequest(1, nodes=0b100), (Reason.NOT_ENOUGH_CPUS, 1, 0, 0), id="no such node"
        ),
    ],
)
def test_shortage(request_: CpuRequest, shortage: tuple[Reason, int, int, int]) -> None:
    answer = take(machine(1, 2, 4, 2), mask("0-2,5,8-9"), NOTHING_HELD, request_)
    assert answer == Shortage(*shortage)


def test_a_negative_count() -> None:
    with pytest.raises(ValueError, match="count: -1"):
        CpuRequest(-1)


@pytest.mark.parametrize(
    ("shares", "request_", "expected"),
    [
        pytest.param({0: 2, 1: 2}, CpuRequest(4, FULL), "0-1,8-9", id="cores"),
        pytest.param({1: 3, 0: 1}, CpuRequest(4), "0,8,10,12", id="threads"),
        pytest.param({0: 0, 1: 2}, CpuRequest(2), "8,10", id="none from one"),
        pytest.param({0: 2, 1: 2}, CpuRequest(4, SPREAD, required=True), "0,2,8,10", id="required"),
    ],
)
def test_given_nodes(shares: dict[int, int], request_: CpuRequest, expected: str) -> None:
    small = machine(1, 2, 4, 2)
    answer = take_on_nodes(small, small.cpus, NOTHING_HELD, request_, shares)
    assert cpus(answer) == expected
    assert isinstance(answer, Taken)
    assert answer.steps[0] is Step.GIVEN_NODES


def test_given_nodes_without_enough_cpus() -> None:
    small = machine(1, 2, 4, 2)
    request = CpuRequest(6, FULL, required=True)
    assert take_on_nodes(
        small, mask("0-7,8-12,14"), NOTHING_HELD, request, {0: 0, 1: 6}
    ) == Shortage(UNMET, 6, 6, 4, node=1)
    assert take_on_nodes(small, small.cpus, NOTHING_HELD, request, {0: 3, 1: 3}) == Shortage(
        Reason.BIND_POLICY_UNMET, 3, 8, 8, node=0
    )
    for shares in ({0: 2}, {0: 8, 1: -2}):
        with pytest.raises(ValueError, match="do not add up to 6 CPUs"):
            take_on_nodes(small, small.cpus, NOTHING_HELD, request, shares)


def test_cores_that_differ() -> None:
    # Two cores of two threads, then four of one; each half is a NUMA node.
    hybrid = layouts.of(
        [
            *(Cpu(i, i - i % 2, None, None, 0, 0) for i in range(4)),
            *(Cpu(i, i, None, None, 0, 1) for i in range(4, 8)),
        ]
    )

    def taken(count: int, bind: BindPolicy) -> str:
        request = CpuRequest(count, bind, required=True, strategy=MOST)
        return cpus(take(hybrid, hybrid.cpus, NOTHING_HELD, request))

    assert taken(2, FULL) == "0-1"
    assert taken(3, FULL) == "0-1,4"
    assert taken(5, FULL) == "0-4"
    assert taken(6, SPREAD) == "0,2,4-7"


def test_a_part_of_the_smallest_core() -> None:
    layout = layouts.of(Cpu(i, 0 if i < 4 else 4, None, None, 0, 0) for i in range(6))
    assert cpus(take(layout, layout.cpus, NOTHING_HELD, CpuRequest(1, FULL))) == "4"


def test_prefer_l3_leaves_the_larger_cache_free() -> None:
    layout = machine(1, 1, 12, 2, caches=3)
    request = CpuRequest(4, FULL, prefer_l3=True)
    assert cpus(take(layout, mask("6-21"), NOTHING_HELD, request)) == "16-19"


def test_cores_that_do_not_add_up_by_caches() -> None:
    # Socket 0: cores 0-1 and 2 share a cache, core 3-4 has its own. Socket 1: three cores of two.
    hybrid = layouts.of(
        [
            *(Cpu(i, core, l3, None, 0, 0) for i, core, l3 in ((0, 0, 0), (1, 0, 0), (2, 2, 0))),
            *(Cpu(i, 3, 3, None, 0, 0) for i in (3, 4)),
            *(Cpu(i, i - i % 2, 6, None, 1, 1) for i in range(6, 12)),
        ]
    )
    request = CpuRequest(10, FULL, required=True, prefer_l3=True)
    assert cpus(take(hybrid, hybrid.cpus, NOTHING_HELD, request)) == "0-1,3-4,6-11"


POLICIES = st.sampled_from((BindPolicy.DEFAULT, FULL, SPREAD))


@st.composite
def requests(draw: st.DrawFn, layout: Layout) -> CpuRequest:
    nodes = draw(st.none() | st.integers(0, 2 ** len(layout.nodes) - 1))
    return CpuRequest(
        draw(st.integers(0, layout.cpus.bit_count())),
        draw(POLICIES),
        draw(st.sampled_from(ExclusivePolicy)),
        draw(st.sampled_from(NUMA_STRATEGIES)),
        draw(st.booleans()),
        draw(st.booleans()),
        nodes,
    )


@settings(max_examples=300)
@given(st.data())
def test_exactly_the_requested_number_of_free_cpus_or_a_shortage(data: st.DataObject) -> None:
    cpus = data.draw(MACHINES)
    layout = layouts.of(cpus)
    cpu_counts = ref_counts(data.draw(pods(cpus)))
    max_ref = data.draw(st.integers(1, 3))
    available, preferred = data.draw(masks(cpus)), data.draw(masks(cpus))
    request = data.draw(requests(layout))
    free = available & ~cpu_counts.full(max_ref)
    if request.nodes is not None:
        free &= sum(area.cpus for area in layout.nodes if request.nodes >> area.id & 1)

    answer = take(layout, available, cpu_counts, request, max_ref, preferred)

    assert answer == take(layout, available, cpu_counts, request, max_ref, preferred)
    whole = layout.expand(layout.whole(free))
    fits = {FULL: whole, SPREAD: layout.touched(free)}.get(request.bind, free)
    enough = request.count <= (fits if request.required else free).bit_count()
    even = len(layout.sizes) == 1 and request.count % layout.threads == 0
    if isinstance(answer, Shortage):
        assert (answer.requested, answer.free) == (request.count, free.bit_count())
        assert (answer.reason is Reason.NOT_ENOUGH_CPUS) == (answer.requested > answer.free)
        assert not enough or (request.required and request.bind is FULL and not even)
        return
    assert enough
    assert answer.cpus.bit_count() == request.count
    assert not answer.cpus & ~free
    if request.required and request.bind is FULL:
        assert layout.expand(layout.whole(answer.cpus)) == answer.cpus
    elif request.required and request.bind is SPREAD:
        assert layout.touched(answer.cpus).bit_count() == request.count
    if not request.required:
        assert (answer.cpus & preferred).bit_count() == min(
            request.count, (free & preferred).bit_count()
        )


@given(st.data())
def test_an_even_distribution_cannot_be_improved(data: st.DataObject) -> None:
    """No CPU (FullPCPUs: core) could move to a smaller share between the NUMA nodes of the
    request."""
    cpus = data.draw(even_machines())
    layout = layouts.of(cpus)
    free = data.draw(masks(cpus))
    bind = data.draw(POLICIES)
    rooms = free
    unit = 1
    if bind is FULL:
        rooms, unit = layout.expand(layout.whole(free)), layout.threads
    need = data.draw(st.integers(0, rooms.bit_count() // unit)) * unit
    all_nodes = (1 << len(layout.nodes)) - 1
    request = CpuRequest(need, bind, strategy=EVENLY, nodes=all_nodes)
    answer = take(layout, free, NOTHING_HELD, request)
    assert isinstance(answer, Taken)
    if bind is FULL:
        assert layout.expand(layout.whole(answer.cpus)) == answer.cpus
    shares = [
        ((answer.cpus & area.cpus).bit_count(), (rooms & area.cpus).bit_count())
        for area in layout.nodes
    ]
    for low, low_room in shares:
        for high, _ in shares:
            assert high - low <= unit or low + unit > low_room


def test_evenly_without_named_nodes_takes_the_fewest() -> None:
    request = CpuRequest(12, FULL, strategy=EVENLY)
    answer = take(FOUR_NODES, FOUR_NODES.cpus, NOTHING_HELD, request)
    assert (cpus(answer), isinstance(answer, Taken) and answer.steps) == (
        "0-5,8-13",
        (Step.EVENLY, Step.CORES_IN_NODE),
    )


def test_an_even_distribution_without_exclusive_numa_nodes() -> None:
    cpu_counts = NOTHING_HELD.adding(mask("0"), NODE).adding(mask("24"))
    request = CpuRequest(12, SPREAD, NODE, EVENLY)
    answer = take(FOUR_NODES, FOUR_NODES.cpus, cpu_counts, request)
    assert cpus(answer) == "16-20,22,25-30"


L3 = machine(1, 2, 8, 2, caches=8)
"""L3 caches 0-3, 4-7, ...; NUMA nodes 0-15, 16-31."""


@pytest.mark.parametrize(
    ("free", "request_", "plain", "packed"),
    [
        pytest.param("2-15", CpuRequest(4, FULL), "2-5", "4-7", id="one cache"),
        pytest.param("2-3,6-15", CpuRequest(8, FULL), "2-3,6-11", "8-15", id="two of three"),
        pytest.param("2-15", CpuRequest(2), "2,4", "4,6", id="a thread per core"),
        pytest.param("2-31", CpuRequest(20, FULL), "2-21", "4-23", id="over NUMA nodes"),
    ],
)
def test_prefer_l3(free: str, request_: CpuRequest, plain: str, packed: str) -> None:
    assert cpus(take(L3, mask(free), NOTHING_HELD, request_)) == plain
    near = msgspec.structs.replace(request_, prefer_l3=True)
    assert cpus(take(L3, mask(free), NOTHING_HELD, near)) == packed


@settings(max_examples=300)
@given(st.data())
def test_prefer_l3_uses_no_more_numa_nodes_and_splits_no_more_cores(data: st.DataObject) -> None:
    cpus = data.draw(MACHINES)
    layout = layouts.of(cpus)
    cpu_counts = ref_counts(data.draw(pods(cpus)))
    max_ref = data.draw(st.integers(1, 3))
    available = data.draw(masks(cpus))
    request = msgspec.structs.replace(data.draw(requests(layout)), prefer_l3=False)
    near = msgspec.structs.replace(request, prefer_l3=True)

    plain = take(layout, available, cpu_counts, request, max_ref)
    packed = take(layout, available, cpu_counts, near, max_ref)

    if isinstance(plain, Shortage) or isinstance(packed, Shortage):
        assert plain == packed
        return
    assert set(layout.node_ids(packed.cpus)) <= set(layout.node_ids(plain.cpus))
    assert layout.whole(packed.cpus).bit_count() >= layout.whole(plain.cpus).bit_count()
    assert touched(layout, packed.cpus) <= touched(layout, plain.cpus)
    assert packed.steps == plain.steps
    if plain.steps == (Step.CORES_IN_NODE,):
        (node,) = (area.cpus for area in layout.nodes if area.cpus & plain.cpus)
        whole = layout.expand(layout.whole(available & ~cpu_counts.full(max_ref))) & node
        one = any((whole & each.cpus).bit_count() >= request.count for each in layout.caches)
        if one and len(layout.sizes) == 1:
            assert touched(layout, packed.cpus) == 1


def touched(layout: Layout, cpus: int) -> int:
    return sum(1 for each in layout.caches if each.cpus & cpus)


ROOMS = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("rooms", "need", "shares"),
    [
        pytest.param([8, 8, 8], 4, [2, 1, 1], id="the remainder to the first of equal rooms"),
        pytest.param([6, 8, 7], 4, [1, 2, 1], id="the remainder to the most room"),
    ],
)
def test_even(rooms: list[int], need: int, shares: list[int]) -> None:
    assert accumulator.even(rooms, need) == shares


@given(ROOMS, st.data())
def test_even_shares_cannot_be_improved(rooms: list[int], data: st.DataObject) -> None:
    need = data.draw(st.integers(0, sum(rooms)))
    shares = accumulator.even(rooms, need)
    assert sum(shares) == need
    assert all(0 <= share <= room for share, room in zip(shares, rooms, strict=True))
    for low, low_room in zip(shares, rooms, strict=True):
        for high, high_room in zip(shares, rooms, strict=True):
            if low < high and low < low_room:
                assert high == low + 1
                assert high_room >= low_room


@pytest.mark.parametrize(
    ("free", "need", "whole_cores", "all_nodes", "shares"),
    [
        # Two sockets of two NUMA nodes of four cores of two threads: node 0 is 0-7, 1 8-15, ...
        pytest.param("0-31", 8, True, False, {0: 8}, id="one node can hold it"),
        pytest.param("0-31", 8, True, True, {0: 2, 1: 2, 2: 2, 3: 2}, id="all nodes"),
        pytest.param("0-31", 12, True, False, {0: 6, 1: 6}, id="the fewest nodes"),
        pytest.param("0-31", 6, True, True, {0: 2, 1: 2, 2: 2}, id="no half cores"),
        pytest.param("0-31", 6, False, True, {0: 2, 1: 2, 2: 1, 3: 1}, id="CPUs, not cores"),
        pytest.param("0-31", 9, True, True, {0: 3, 1: 2, 2: 2, 3: 2}, id="an odd CPU"),
        pytest.param("2-31", 12, True, False, {2: 6, 3: 6}, id="most room, evenly"),
        pytest.param("0-5,8-13,16-23", 10, False, False, {0: 5, 1: 5}, id="one socket if possible"),
        pytest.param("0-3,8-9,16-23,24-29", 14, False, False, {2: 8, 3: 6}, id="fewest, uneven"),
        pytest.param("0-3,8,10,12,14", 6, True, False, {0: 3, 1: 3}, id="too few whole cores"),
        pytest.param("0-3,8-12", 6, True, True, {0: 4, 1: 2}, id="whole cores are enough"),
    ],
)
def test_shares(
    free: str, need: int, whole_cores: bool, all_nodes: bool, shares: dict[int, int]
) -> None:
    layout = machine(2, 2, 4, 2)
    assert accumulator.shares(layout, mask(free), need, whole_cores, all_nodes) == shares


@given(st.integers(0, 2**32 - 1), st.data())
def test_shares_are_on_the_fewest_nodes_and_even_on_them(free: int, data: st.DataObject) -> None:
    layout = machine(2, 2, 4, 2)
    need = data.draw(st.integers(0, free.bit_count()))
    rooms = {node.id: (free & node.cpus).bit_count() for node in layout.nodes}
    shares = accumulator.shares(layout, free, need, whole_cores=False, all_nodes=False)
    assert sum(shares.values()) == need
    largest = sorted(rooms.values(), reverse=True)
    assert len(shares) == next(n for n in range(5) if sum(largest[:n]) >= need)
    best = accumulator.even(largest[: len(shares)], need)
    amounts = list(shares.values())
    if shares:
        assert max(amounts) - min(amounts) == max(best) - min(best)


def test_shares_of_cores_that_differ() -> None:
    # One core of two threads per NUMA node, and one of one thread on the first two.
    layout = layouts.of(
        Cpu(node * 3 + i, node * 3 + i // 2 * 2, None, None, 0, node)
        for node, count in enumerate((3, 3, 2))
        for i in range(count)
    )
    assert accumulator.shares(layout, layout.cpus, 6, True, False) == {0: 2, 1: 2, 2: 2}
    assert accumulator.shares(layout, layout.cpus, 7, True, False) == {0: 3, 1: 2, 2: 2}
