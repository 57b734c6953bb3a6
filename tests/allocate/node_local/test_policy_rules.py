"""Invariants of every node-local decision."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_local.claim import (
    LocalDecision,
    LocalPolicy,
    LocalRequest,
    LocalRules,
    MoveReason,
    Sharing,
)
from agent.allocate.node_local.policy import CpuFit, decide, device_areas
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.layout import Layout, of
from agent.model.cpu.topology import HugePages
from tests.allocate.kubelet.nodes import options
from tests.allocate.machines import even_machines
from tests.allocate.node_local.cases import applied, decide_until_stable

OPTIONS = [
    options(*names)
    for names in (
        (),
        ("full-pcpus-only",),
        ("distribute-cpus-across-numa",),
        ("full-pcpus-only", "distribute-cpus-across-numa"),
        ("distribute-cpus-across-cores",),
        ("align-by-socket",),
        ("strict-cpu-reservation",),
        ("prefer-align-cpus-by-uncorecache", "full-pcpus-only"),
    )
]


MEBI = 1 << 20


@st.composite
def rules_of(draw: st.DrawFn) -> LocalRules:
    layout = of(draw(even_machines()))
    return LocalRules(
        draw(st.sampled_from([LocalPolicy.STATIC, LocalPolicy.DYNAMIC])),
        layout,
        draw(st.sampled_from(OPTIONS)),
        draw(some_of(layout, most=2)),
        draw(st.integers(0, 3)),
    )


@st.composite
def some_of(draw: st.DrawFn, layout: Layout, most: int | None = None) -> CpuSet:
    ids = sorted(CpuSet.from_int(layout.cpus))
    return CpuSet(draw(st.lists(st.sampled_from(ids), max_size=len(ids) if most is None else most)))


@st.composite
def sharing_of(draw: st.DrawFn, layout: Layout) -> Sharing:
    pools = {
        node.id: tuple(
            HugePages(size, total, draw(st.integers(0, total)))
            for size in (2 * MEBI, 1024 * MEBI)
            for total in [draw(st.integers(0, 4))]
        )
        for node in layout.nodes
        if draw(st.booleans())
    }
    return Sharing(draw(some_of(layout, most=3)), draw(st.booleans()), hugepages=pools)


@st.composite
def claims_of(draw: st.DrawFn, layout: Layout, *, inconsistent: bool = False) -> list[LocalRequest]:
    """`inconsistent`: with contradictory cpusets and stored state; otherwise all are new."""
    sets = st.one_of(st.none(), some_of(layout))
    nodes = [*(node.id for node in layout.nodes), 99]
    devices = st.dictionaries(st.sampled_from(nodes), st.integers(1, 3), max_size=3)
    sizes = st.sampled_from([2 * MEBI, 1024 * MEBI])
    hugepages = st.dictionaries(sizes, st.integers(1, 4096 * MEBI), max_size=1)
    keys = draw(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), unique=True))
    return [
        LocalRequest(
            uid,
            name,
            draw(st.integers(0, 2)),
            draw(st.integers(1, 6)),
            draw(sets) if inconsistent else None,
            draw(sets) if inconsistent else None,
            draw(some_of(layout)) if inconsistent else EMPTY,
            draw(st.booleans()) if inconsistent else False,
            draw(devices),
            draw(hugepages),
        )
        for uid, name in keys
    ]


def check(
    node: LocalRules, claims: list[LocalRequest], others: Sharing, decision: LocalDecision
) -> None:
    online = CpuSet.from_int(node.layout.cpus)
    assert set(decision.answers) == {each.key for each in claims}
    for index, one in enumerate(claims):
        answer = decision.answers[one.key]
        assert not answer.cpus & (others.unavailable | node.reserved)
        assert answer.cpus <= online
        assert answer.original <= answer.cpus
        if not one.ended:
            assert (answer.refused is None) == (len(answer.cpus) == one.cpus)
        for other in claims[:index]:
            if one.uid != other.uid or not (one.ended or other.ended):
                assert not answer.cpus & decision.answers[other.key].cpus
    owned = union(each.cpus for each in decision.answers.values())
    kept = node.reserved if node.options.strict_cpu_reservation else EMPTY
    assert decision.pool == online - others.unavailable - kept - owned
    if others.users and online - others.unavailable - kept:
        assert decision.pool
    for move in decision.moves:
        assert decision.answers[move.uid, move.name].cpus == move.target
        before = next(each for each in claims if each.key == (move.uid, move.name))
        of_pod = union(each.owned or EMPTY for each in claims if each.uid == move.uid)
        for each in claims:
            if each.uid != move.uid and each.owned and before.owned:
                gained = move.target - before.owned
                # Two containers cannot both own one stored CPU.
                assert not gained & each.owned or each.owned & of_pod
    made = [each for each in decision.moves if each.reason in _CHOSEN]
    assert len(made) <= (node.max_moves if node.policy is LocalPolicy.DYNAMIC else 0)


_CHOSEN = (MoveReason.DEFRAGMENT, MoveReason.MAKE_ROOM)


@given(st.data())
def test_any_input_gets_a_valid_decision(data: st.DataObject) -> None:
    node = data.draw(rules_of())
    others = msgspec.structs.replace(
        data.draw(sharing_of(node.layout)), held=data.draw(some_of(node.layout))
    )
    claims = data.draw(claims_of(node.layout, inconsistent=True))
    decision = decide(node, claims, others)
    check(node, claims, others, decision)
    assert decide(node, data.draw(st.permutations(claims)), others) == decision


@given(st.data())
def test_an_applied_decision_is_stable(data: st.DataObject) -> None:
    node = msgspec.structs.replace(data.draw(rules_of()), policy=LocalPolicy.STATIC)
    others = data.draw(sharing_of(node.layout))
    claims = data.draw(claims_of(node.layout))
    decision = decide(node, claims, others)
    for known in (True, False):
        held = decision.pool if others.users else EMPTY
        after = msgspec.structs.replace(others, held=held)
        again = decide(node, applied(claims, decision, known=known), after)
        assert {key: each.cpus for key, each in again.answers.items()} == {
            key: each.cpus for key, each in decision.answers.items()
        }
        assert again.moves == ()


@given(st.data())
def test_decisions_during_the_lifecycle_of_pods(data: st.DataObject) -> None:
    """Containers are created, removed, terminated, restarted and resized; the agent loses its
    state; moves come to an end."""
    node = data.draw(rules_of())
    others = data.draw(sharing_of(node.layout))
    claims: list[LocalRequest] = []
    for _ in range(data.draw(st.integers(1, 5))):
        known = {each.key for each in claims}
        claims = [each for each in claims if data.draw(st.integers(0, 4))]
        new_claims = data.draw(claims_of(node.layout))
        claims += [each for each in new_claims if each.key not in known]
        claims = [
            msgspec.structs.replace(
                each,
                cpus=data.draw(st.sampled_from([each.cpus, each.cpus, 1, 2, 4])),
                ended=data.draw(st.integers(0, 5)) == 0,
            )
            for each in claims
        ]
        decision = decide(node, claims, others)
        check(node, claims, others, decision)
        _resized_in_place(claims, decision)
        claims = applied(claims, decision, known=True)
        for made_from, made in decide_until_stable(node, claims, others):
            check(node, made_from, others, made)
        claims, last = made_from, made
        if data.draw(st.booleans()):
            held = last.pool if others.users else EMPTY
            after = msgspec.structs.replace(others, held=held)
            # Terminated containers keep their CPUs only in the stored state, so those are free now,
            # also for moves.
            forgotten = applied(claims, last, known=False)
            again = decide(node, forgotten, after)
            check(node, forgotten, others, again)
            moved = {(each.uid, each.name) for each in again.moves}
            for each in claims:
                cpus = last.answers[each.key].cpus
                if len(cpus) == each.cpus and each.key not in moved:
                    assert again.answers[each.key].cpus == cpus


def _resized_in_place(claims: list[LocalRequest], decision: LocalDecision) -> None:
    for move in decision.moves:
        if move.reason is MoveReason.WIDEN:
            assert move.source < move.target
        elif move.reason is MoveReason.SHRINK:
            assert move.target < move.source


@given(st.data())
def test_each_move_to_better_cpus_lowers_the_cost(data: st.DataObject) -> None:
    node = msgspec.structs.replace(
        data.draw(rules_of()), policy=LocalPolicy.DYNAMIC, max_moves=data.draw(st.integers(1, 3))
    )
    others = data.draw(sharing_of(node.layout))
    fit = CpuFit(node.layout, node.options)
    ids = data.draw(st.permutations(sorted(CpuSet.from_int(node.layout.cpus))))
    nodes = st.sampled_from([each.id for each in node.layout.nodes])
    claims: list[LocalRequest] = []
    while ids and len(claims) < 8:
        count = data.draw(st.integers(1, 4))
        cpus, ids = CpuSet(ids[:count]), ids[count + data.draw(st.integers(0, 2)) :]
        devices = data.draw(st.dictionaries(nodes, st.integers(1, 3), max_size=2))
        hugepages = data.draw(st.sampled_from([{}, {2 * MEBI: 2 * MEBI}]))
        claims.append(
            LocalRequest(
                f"p{len(claims)}",
                "c",
                0,
                len(cpus),
                cpus,
                cpus,
                devices=devices,
                hugepages=hugepages,
            )
        )
    by_key = {each.key: each for each in claims}
    for _, decision in decide_until_stable(node, claims, others):
        for move in decision.moves:
            claim = by_key[move.uid, move.name]
            source, target = (
                (_distance(node.layout, claim, each), fit.cost(each.mask))
                for each in (move.source, move.target)
            )
            if claim.hugepages and move.reason in (MoveReason.DEFRAGMENT, MoveReason.MAKE_ROOM):
                before, after = (
                    set(node.layout.node_ids(each.mask)) for each in (move.source, move.target)
                )
                assert after <= before, "its huge pages are not moved"
            if move.reason is MoveReason.DEFRAGMENT:
                assert target < source
            elif move.reason is MoveReason.MAKE_ROOM:
                assert target <= source


@given(st.data())
def test_requested_cpus_are_at_least_as_good_as_those_of_any_one_area(data: st.DataObject) -> None:
    layout = of(data.draw(even_machines()))
    fit = CpuFit(layout, options())
    free = data.draw(some_of(layout)).mask
    count = data.draw(st.integers(1, max(1, free.bit_count())))
    if count > free.bit_count():
        return
    nodes, sockets, *_ = fit.cost(fit.best(free, count))
    for area in (*layout.nodes, *layout.sockets):
        inside = area.cpus & free
        if inside.bit_count() >= count:
            # Two NUMA nodes of two sockets are better than three of one.
            assert (nodes, sockets) <= fit.cost(fit.best(inside, count))[:2]


def _plain(claims: list[LocalRequest]) -> list[LocalRequest]:
    return [msgspec.structs.replace(each, devices={}, hugepages={}) for each in claims]


@given(st.data())
def test_devices_and_huge_pages_do_not_reduce_the_assigned_cpus(data: st.DataObject) -> None:
    node = data.draw(rules_of())
    others = data.draw(sharing_of(node.layout))
    claims = data.draw(claims_of(node.layout))
    found, without = (decide(node, each, others) for each in (claims, _plain(claims)))
    counts = {key: len(each.cpus) for key, each in found.answers.items()}
    assert counts == {key: len(each.cpus) for key, each in without.answers.items()}


@given(st.data())
def test_a_container_is_on_a_numa_node_of_its_devices_if_one_has_enough(
    data: st.DataObject,
) -> None:
    node = data.draw(rules_of())
    others = data.draw(sharing_of(node.layout))
    layout, fit = node.layout, CpuFit(node.layout, node.options)
    nodes = st.sampled_from([each.id for each in layout.nodes])
    devices = data.draw(st.dictionaries(nodes, st.integers(1, 3), min_size=1, max_size=3))
    one = LocalRequest("a", "c", 0, data.draw(st.integers(1, 6)), devices=devices)
    free = layout.cpus & ~others.unavailable.mask & ~node.reserved.mask
    answer = decide(node, [one], others).answers[one.key]
    for count in sorted(set(devices.values()), reverse=True):
        area = layout.of_nodes(
            each for each, count_there in devices.items() if count_there >= count
        )
        if answer.cpus and fit.usable(free & area).bit_count() >= one.cpus:
            assert not answer.cpus.mask & ~area
            break


@given(st.data())
def test_a_container_without_devices_is_on_a_numa_node_with_its_huge_pages(
    data: st.DataObject,
) -> None:
    node = data.draw(rules_of())
    layout, fit = node.layout, CpuFit(node.layout, node.options)
    others = data.draw(sharing_of(layout))
    wanted = data.draw(st.integers(1, 4)) * 2 * MEBI
    one = LocalRequest("a", "c", 0, data.draw(st.integers(1, 6)), hugepages={2 * MEBI: wanted})
    free = layout.cpus & ~others.unavailable.mask & ~node.reserved.mask
    with_pages = layout.of_nodes(
        each for each, (small, _) in others.hugepages.items() if small.free * 2 * MEBI >= wanted
    )
    answer = decide(node, [one], others).answers[one.key]
    if answer.cpus and with_pages and fit.usable(free & with_pages).bit_count() >= one.cpus:
        assert not answer.cpus.mask & ~with_pages


def _distance(layout: Layout, claim: LocalRequest, cpus: CpuSet) -> int:
    areas = device_areas(layout, claim)
    return next(index for index, area in enumerate(areas) if not cpus.mask & ~area)
