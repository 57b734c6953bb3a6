"""Owners and their CPUs, on concrete machines."""

from __future__ import annotations

import msgspec
import pytest

from agent.allocate.node_local.claim import LocalInput, LocalPolicy, LocalRequest, Occupancy
from agent.allocate.node_local.policy import decide, outcome_by_pod
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import Layout
from agent.model.cpu.topology import HugePages
from tests.allocate.kubelet.nodes import machine, options
from tests.allocate.node_local.cases import (
    BIG,
    FULL,
    SMALL,
    answers,
    applied,
    claim,
    decide_until_stable,
    moves,
    rules,
    sharing,
)

ONE_THREAD = machine(2, 1, 4, 1)
OWNED: dict[str, tuple[Layout, list[LocalRequest], dict[str, str]]] = {
    "two siblings": (BIG, [claim("a", 2)], {"a": "0,16"}),
    "one container, one NUMA node": (BIG, [claim("a", 8)], {"a": "0-3,16-19"}),
    "one NUMA node although another one is larger": (
        BIG,
        [claim("a", 6), claim("b", 4)],
        {"a": "0-2,16-18", "b": "4-5,20-21"},
    ),
    "without hyper-threading, two cores of one socket": (
        ONE_THREAD,
        [claim("a", 3), claim("b", 2)],
        {"a": "0-2", "b": "4-5"},
    ),
    "the rest of a split core before another core": (
        BIG,
        [claim("a", 3), claim("b", 1)],
        {"a": "0-1,16", "b": "17"},
    ),
    "two NUMA nodes of one socket, the fuller one first": (
        BIG,
        [claim("a", 2), claim("b", 12)],
        {"a": "0,16", "b": "1-2,4-7,17-18,20-23"},
    ),
    "stored CPUs have precedence over cpusets": (
        SMALL,
        [claim("a", 2, held="0,4"), claim("b", 2, held="1,5", owned="0,4")],
        {"a": "2,6", "b": "0,4"},
    ),
    "a container alone on its CPUs owns them": (
        SMALL,
        [claim("a", 2, held="1,6"), claim("b", 2, held="3,7")],
        {"a": "1,6", "b": "3,7"},
    ),
    "two containers on the same CPUs: the older pod owns them": (
        SMALL,
        [claim("b", 2, held="1,5"), claim("a", 2, held="1,5")],
        {"a": "1,5", "b": "0,4"},
    ),
    "stored without CPUs": (SMALL, [claim("a", 2, held="1-2", owned="")], {"a": "0,4"}),
    "missing CPUs are replaced, the others are kept": (
        SMALL,
        [claim("a", 3, owned="3,7,9")],
        {"a": "0,3,7"},
    ),
}


@pytest.mark.parametrize("name", OWNED)
def test_owned_cpus(name: str) -> None:
    layout, claims, expected = OWNED[name]
    for ordered in (claims, claims[::-1]):
        assert answers(decide(rules(layout), ordered, sharing())) == expected


def test_policy_none_assigns_nothing() -> None:
    decision = decide(
        rules(SMALL, LocalPolicy.NONE), [claim("a", 2, owned="0,4")], sharing(unavailable="7")
    )
    assert (decision.answers, str(decision.pool)) == ({}, "0-6")


def test_reserved_cpus_are_shared_and_never_owned() -> None:
    node = rules(SMALL, reserved="0")
    decision = decide(node, [claim("a", 7), claim("b", 8)], sharing(unavailable="4"))
    assert answers(decision) == {"a": "(NOT_ENOUGH_CPUS)", "b": "(NOT_ENOUGH_CPUS)"}
    decision = decide(node, [claim("a", 6)], sharing(unavailable="4"))
    assert (answers(decision), str(decision.pool)) == ({"a": "1-3,5-7"}, "0")


def test_strictly_reserved_cpus_are_not_in_the_pool() -> None:
    node = rules(SMALL, LocalPolicy.STATIC, options("strict-cpu-reservation"), reserved="0")
    assert answers(decide(node, [claim("a", 7)], sharing())) == {"a": "(DEFAULT_EMPTIED)"}
    assert answers(decide(node, [claim("a", 7)], sharing(users=False))) == {"a": "1-7"}


def test_the_pool_is_not_assigned_while_a_refused_container_needs_it() -> None:
    decision = decide(rules(SMALL), [claim("a", 8), claim("b", 9)], sharing(users=False))
    assert answers(decision) == {"a": "(DEFAULT_EMPTIED)", "b": "(NOT_ENOUGH_CPUS)"}


def test_the_last_owner_loses_its_cpus_when_the_first_sharing_container_starts() -> None:
    claims = [claim("a", 4, owned="0-1,4-5"), claim("b", 4, owned="2-3,6-7")]
    decision = decide(rules(SMALL), claims, sharing())
    assert answers(decision) == {"a": "0-1,4-5", "b": "(NOT_ENOUGH_CPUS)"}
    again = decide(rules(SMALL), applied(claims, decision, known=True), sharing(held="2-3,6-7"))
    assert answers(again) == {"a": "0-1,4-5", "b": "(DEFAULT_EMPTIED)"}


def test_full_pcpus_only() -> None:
    node = rules(SMALL, LocalPolicy.STATIC, FULL, reserved="0")
    claims = [claim("a", 3), claim("b", 8), claim("c", 6), claim("d", 2)]
    decision = decide(node, claims, sharing())
    assert answers(decision) == {
        "a": "(NO_WHOLE_CORES)",
        "b": "(NOT_ENOUGH_CORES)",
        "c": "1-3,5-7",
        "d": "(NOT_ENOUGH_CORES)",
    }
    refused = decision.answers["b", "c"].refused
    assert refused is not None
    assert (refused.requested, refused.available, refused.threads) == (8, 6, 2)


def test_a_container_that_runs_on_the_pool_does_not_own_it() -> None:
    """The container requests the size of the pool, but other containers run there."""
    claims = [claim("a", 6, owned="0-2,4-6"), claim("b", 2, held="3,7")]
    decision = decide(rules(SMALL), claims, sharing(held="3,7"))
    assert answers(decision) == {"a": "0-2,4-6", "b": "(DEFAULT_EMPTIED)"}


def test_a_container_alone_on_a_pool_of_another_size_does_not_own_it() -> None:
    claims = [claim("a", 4, held="0-1,4-5"), claim("b", 6, held="2-3,6-7")]
    decision = decide(rules(SMALL), claims, sharing(users=False))
    assert answers(decision) == {"a": "0-1,4-5", "b": "(NOT_ENOUGH_CPUS)"}


GROWN = {
    "the other half of its core first": (3, "0,16,1", "0-1,16-17", 4),
    "the same NUMA node": (2, "3,19", "0,3,16,19", 4),
    "the same socket": (8, "4-7,20-23", "0-7,16-23", 16),
}


@pytest.mark.parametrize("name", GROWN)
def test_a_grown_container_keeps_its_cpus(name: str) -> None:
    _, owned, expected, wanted = GROWN[name]
    for known in (claim("a", wanted, owned=owned), claim("a", wanted, held=owned)):
        decision = decide(rules(BIG), [known], sharing())
        assert answers(decision) == {"a": expected}
        assert [each.reason.name for each in decision.moves] == ["WIDEN"]


def test_a_container_that_cannot_grow_keeps_its_cpus() -> None:
    claims = [claim("a", 5, owned="0,4"), claim("b", 4, owned="1-2,5-6")]
    decision = decide(rules(SMALL), claims, sharing())
    assert answers(decision) == {"a": "0,4(NOT_ENOUGH_CPUS)", "b": "1-2,5-6"}
    refused = decision.answers["a", "c"].refused
    assert refused is not None
    assert refused.held == 2


SHRUNK = {
    "on one NUMA node": (4, "0-2,4,16-18,20", "", "0-1,16-17"),
    "the original CPUs": (4, "0-3,16-19", "2-3,18-19", "2-3,18-19"),
    "some of the original CPUs": (2, "0-3,16-19", "2-3,18-19", "2,18"),
    "the original CPUs and others": (6, "0-3,16-19", "2-3,18-19", "0,2-3,16,18-19"),
}


@pytest.mark.parametrize("name", SHRUNK)
def test_a_shrunk_container(name: str) -> None:
    wanted, owned, original, expected = SHRUNK[name]
    shrunk = claim("a", wanted, owned, owned, original=original)
    decision = decide(rules(BIG), [shrunk], sharing())
    assert answers(decision) == {"a": expected}
    assert [each.reason.name for each in decision.moves] == ["SHRINK"]


def test_a_resize_and_its_reversal_restore_the_cpus() -> None:
    claims = [claim("a", 4), claim("b", 2), claim("d", 3)]
    first = decide(rules(BIG), claims, sharing())
    for wanted in (7, 10, 4):
        last = decide(rules(BIG), applied(claims, first, known=True), sharing())
        claims = [
            claim("a", wanted, str(each.held), str(each.owned), original=str(each.original))
            if each.uid == "a"
            else each
            for each in applied(claims, last, known=True)
        ]
        last = decide(rules(BIG), claims, sharing())
        claims = applied(claims, last, known=True)
    assert answers(last) == answers(first)


def test_cpus_that_a_container_releases_are_assigned_in_the_next_decision() -> None:
    claims = [claim("a", 2, owned="0-3,4-6"), claim("b", 4)]
    first = decide(rules(SMALL), claims, sharing())
    assert answers(first) == {"a": "0,4", "b": "(NOT_ENOUGH_CPUS)"}
    assert first.again
    second = decide(rules(SMALL), applied(claims, first, known=True), sharing())
    assert answers(second) == {"a": "0,4", "b": "1-2,5-6"}
    assert not second.again


def test_cpus_of_an_incomplete_write_are_not_assigned_to_others() -> None:
    claims = [claim("a", 2, held="0,4", owned="1,5"), claim("b", 4)]
    decision = decide(rules(SMALL), claims, sharing(held="2-3,6-7", users=False))
    assert answers(decision) == {"a": "1,5", "b": "2-3,6-7"}


def test_cpus_of_terminated_init_containers_are_reused_in_their_pod() -> None:
    init = claim("a/init", 4, owned="2-3,6-7", ended=True)
    claims = [init, claim("a/app", 2), claim("a/side", 3), claim("b", 2)]
    decision = decide(rules(SMALL), claims, sharing())
    assert answers(decision) == {
        "a/init": "2-3,6-7",
        "a/app": "2,6",
        "a/side": "0,3,7",
        "b": "1,5",
    }
    assert str(decision.pool) == "4"
    assert answers(decide(rules(SMALL), applied(claims, decision, known=False), sharing())) == (
        answers(decision)
    )


@pytest.mark.parametrize(
    ("app", "kept"), [("2,6", {"app"}), ("0,4", {"init", "app"})], ids=["taken over", "not"]
)
def test_an_ended_container_keeps_its_cpus_unless_another_of_its_pod_took_them_over(
    app: str, kept: set[str]
) -> None:
    """A container that returns to CPUs of another one needs a new decision."""
    claims = claim("a/init", 4, owned="2-3,6-7", ended=True), claim("a/app", 2, owned=app)
    outcome = outcome_by_pod(LocalInput(rules(SMALL), claims), CpuSet.parse("0-7"))
    assert set(outcome.by_uid["a"].cpus) == kept
    assert str(outcome.by_uid["a"].all) == ("2-3,6-7" if app == "2,6" else "0,2-4,6-7")


def test_containers_of_other_pods_run_on_the_cpus_of_an_ended_container() -> None:
    init = claim("a/init", 2, held="0-1", ended=True)
    app, other = claim("a/app", 2, held="0-1"), claim("b", 2, held="2-3")
    ended = claim("c/init", 2, held="2-3", ended=True)
    occupancy = Occupancy([init, app, other, ended], 0)
    assert [occupancy.alone(each) for each in (init, app, other, ended)] == [True] * 3 + [False]


def test_incomplete_writes_after_a_restart() -> None:
    """The owner has its cpuset; sharing containers still run on it."""
    claims = [claim("a", 2, held="2,6"), claim("b", 2, held="0-7")]
    decision = decide(rules(SMALL), claims, sharing(held="0-7"))
    assert answers(decision) == {"a": "2,6", "b": "0,4"}


def test_an_owner_that_no_longer_requests_whole_cores_keeps_its_cpus_and_is_reported() -> None:
    node = rules(SMALL, LocalPolicy.STATIC, FULL)
    decision = decide(node, [claim("a", 3, owned="0-1,4-5")], sharing())
    assert answers(decision) == {"a": "0-1,4-5(NO_WHOLE_CORES)"}


def test_an_owner_whose_cpus_are_all_offline_gets_others() -> None:
    decision = decide(rules(SMALL), [claim("a", 2, owned="0,4")], sharing(unavailable="0,4"))
    assert moves(decision) == ["a 0,4 > 1,5 REPLACE"]


PAGES = {node: (HugePages(1 << 30, total, free),) for node, total, free in (
    (0, 4, 0), (1, 4, 2), (2, 4, 4), (3, 0, 0),
)}  # fmt: skip
PLACED: dict[str, tuple[list[LocalRequest], dict[str, str]]] = {
    "near its device": ([claim("a", 2, devices={2: 1})], {"a": "8,24"}),
    "near the most of its devices": ([claim("a", 2, devices={1: 1, 3: 2})], {"a": "12,28"}),
    "near any of its devices, if the NUMA node with most of them is too small": (
        [claim("a", 10, devices={2: 1, 3: 2})],
        {"a": "8-11,24-27,12,28"},
    ),
    "anywhere, if its device's NUMA node is full": (
        [claim("a", 6, devices={3: 1}), claim("b", 4, devices={3: 1})],
        {"a": "12-14,28-30", "b": "0-1,16-17"},
    ),
    "a device whose NUMA node is unknown here": ([claim("a", 2, devices={7: 1})], {"a": "0,16"}),
    "where its huge pages are free": ([claim("a", 2, gibibytes=2)], {"a": "4,20"}),
    "huge pages of an owner count before they are used": (
        [claim("a", 2, gibibytes=4), claim("b", 2, gibibytes=2), claim("d", 2, gibibytes=2)],
        {"a": "8,24", "b": "4,20", "d": "5,21"},
    ),
    "devices before huge pages": (
        [claim("a", 2, devices={3: 1}, gibibytes=1), claim("b", 2, devices={1: 1, 2: 1})],
        {"a": "12,28", "b": "4,20"},
    ),
    "of two NUMA nodes with its devices, the one with huge pages": (
        [claim("a", 2, devices={0: 1, 1: 1}, gibibytes=1)],
        {"a": "4,20"},
    ),
    "the CPUs of its init container first": (
        [claim("a/init", 2, owned="0,16", ended=True), claim("a/app", 2, devices={2: 1})],
        {"a/init": "0,16", "a/app": "0,16"},
    ),
    "an owner stays on one NUMA node when it grows": (
        [claim("a", 4, owned="0,16", devices={2: 1})],
        {"a": "0-1,16-17"},
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_devices_and_huge_pages_choose_numa_nodes(name: str) -> None:
    claims, expected = PLACED[name]
    others = msgspec.structs.replace(sharing(), hugepages=PAGES)
    decision = decide(rules(BIG), claims, others)
    assert answers(decision) == {key: str(CpuSet.parse(each)) for key, each in expected.items()}


def test_the_alignment_of_a_new_owner_is_reported_once() -> None:
    others = msgspec.structs.replace(sharing(), hugepages=PAGES)
    claims = [
        claim("a", 2, devices={2: 1}, gibibytes=1),
        claim("b", 2, gibibytes=9),
        claim("d", 2),
    ]
    decision = decide(rules(BIG), claims, others)
    assert [f"{each.uid}: {each.text}" for each in decision.alignments] == [
        "a: CPUs 8,24 on NUMA nodes 2: its devices are on 2, enough free huge pages are on 1-2",
        "b: CPUs 9,25 on NUMA nodes 2: enough free huge pages are on none",
    ]
    again = decide(rules(BIG), applied(claims, decision, known=True), others)
    assert again.alignments == ()


STEPS: dict[str, tuple[Layout, list[LocalRequest], list[list[str]]]] = {
    "from two cores to one": (
        SMALL,
        [claim("a", 2, owned="0-1")],
        [["a 0-1 > 0,4 DEFRAGMENT"], []],
    ),
    "from two NUMA nodes to one": (
        BIG,
        [claim("a", 4, owned="0,4,16,20")],
        [["a 0,4,16,20 > 0-1,16-17 DEFRAGMENT"], []],
    ),
    "to its devices": (
        BIG,
        [claim("a", 2, owned="0,16", devices={1: 1, 2: 2})],
        [["a 0,16 > 8,24 DEFRAGMENT"], []],
    ),
    "to its devices, although no single NUMA node suffices": (
        BIG,
        [claim("a", 10, owned="0-4,16-20", devices={2: 1, 3: 1})],
        [["a 0-4,16-20 > 8-12,24-28 DEFRAGMENT"], []],
    ),
    "not to another NUMA node than its huge pages": (
        BIG,
        [claim("a", 3, owned="0-1,4", devices={2: 1}, gibibytes=1)],
        [["a 0-1,4 > 0-1,16 DEFRAGMENT"], []],
    ),
    "not for CPUs that are not better": (SMALL, [claim("a", 3, owned="1-2,5")], [[]]),
    "the worst first, one at a time": (
        BIG,
        [claim("a", 2, owned="0-1"), claim("b", 2, owned="7-8")],
        [["b 7-8 > 2,18 DEFRAGMENT"], ["a 0-1 > 0,16 DEFRAGMENT"], []],
    ),
    "another container makes room": (
        SMALL,
        [
            claim("a", 2, owned="0-1"),
            claim("b", 1, owned="4"),
            claim("d", 1, owned="5"),
            claim("e", 3, owned="2-3,7"),
        ],
        [["b 4 > 6 MAKE_ROOM"], ["a 0-1 > 0,4 DEFRAGMENT"], []],
    ),
    "a swap through a free CPU": (
        SMALL,
        [
            claim("a", 2, owned="0-1"),
            claim("b", 2, owned="4-5"),
            claim("d", 3, owned="2,3,6"),
        ],
        [
            ["b 4-5 > 5,7 MAKE_ROOM"],
            ["a 0-1 > 0,4 DEFRAGMENT"],
            ["b 5,7 > 1,5 DEFRAGMENT"],
            [],
        ],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_moves(name: str) -> None:
    layout, claims, expected = STEPS[name]
    node = rules(layout, LocalPolicy.DYNAMIC)
    found = []
    for _ in expected:
        decision = decide(node, claims, sharing())
        found.append(moves(decision))
        claims = applied(claims, decision, known=True)
    assert found == expected
    static = decide(rules(layout), STEPS[name][1], sharing())
    assert moves(static) == []


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_moves_are_bounded(limit: int) -> None:
    claims = [claim("a", 2, owned="0-1"), claim("b", 2, owned="2-3"), claim("d", 2, owned="4-5")]
    node = rules(BIG, LocalPolicy.DYNAMIC, max_moves=limit)
    assert len(moves(decide(node, claims, sharing()))) == min(limit, 3)


def test_containers_move_for_a_request_of_whole_cores() -> None:
    """These CPUs were assigned before the option was set."""
    claims = [
        claim("a", 2, owned="3,7"),
        claim("b", 1, owned="0"),
        claim("d", 1, owned="5"),
        claim("e", 2),
    ]
    node = rules(SMALL, LocalPolicy.DYNAMIC, FULL, reserved="2")
    steps = decide_until_stable(node, claims, sharing())
    assert answers(steps[0][1])["e"] == "(NOT_ENOUGH_CORES)"
    assert steps[0][1].again
    assert [moves(decision) for _, decision in steps] == [["b 0 > 1 MAKE_ROOM"], [], []]
    assert answers(steps[-1][1]) == {"a": "3,7", "b": "1", "d": "5", "e": "0,4"}
    assert answers(decide(rules(SMALL, chosen=FULL, reserved="2"), claims, sharing()))["e"] == (
        "(NOT_ENOUGH_CORES)"
    )


def test_no_container_moves_for_cpus_that_another_pod_keeps() -> None:
    """A terminated container of pod c keeps CPUs 6 and 7. Without them b has no better CPUs,
    regardless of restarts of c's other container."""
    claims = [
        claim("a/z", 4, held="12-13,16-17", owned="12-13,16-17"),
        claim("b/y", 4, held="18-19,22-23", owned="18-19,22-23"),
        claim("b/z", 4, held="4-5,20-21", owned="4-5,20-21"),
        claim("c/x", 2, held="6-7", owned="6-7", original="6-7"),
        claim("c/y", 1, owned="6-7,10-11", original="6-7,10-11", ended=True),
    ]
    node = rules(machine(4, 3, 2, 1), LocalPolicy.DYNAMIC, reserved="2")
    steps = decide_until_stable(node, claims, sharing(unavailable="0", users=False))
    assert [moves(decision) for _, decision in steps] == [[], []]


def test_a_move_uses_no_cpus_that_another_move_frees_in_the_same_decision() -> None:
    claims = [claim("a", 2, owned="0-1"), claim("b", 2, owned="2,5")]
    node = rules(SMALL, LocalPolicy.DYNAMIC, max_moves=2)
    first = decide(node, claims, sharing())
    assert moves(first) == ["a 0-1 > 0,4 DEFRAGMENT", "b 2,5 > 2,6 DEFRAGMENT"]


def test_no_container_moves_to_the_last_shared_cpus() -> None:
    """The terminated container of the pod would keep the CPUs that the move frees."""
    claims = [
        claim("a/init", 2, owned="0-1", ended=True),
        claim("a", 2, owned="0-1"),
        claim("b", 5, owned="2-3,5-7"),
    ]
    node = rules(SMALL, LocalPolicy.DYNAMIC)
    assert moves(decide(node, claims, sharing())) == []


def test_no_containers_swap_without_a_free_cpu() -> None:
    claims = [claim("a", 2, owned="0-1"), claim("b", 2, owned="4-5")]
    node = rules(SMALL, LocalPolicy.DYNAMIC, reserved="2-3,6-7")
    assert moves(decide(node, claims, sharing())) == []


def test_the_original_cpus_of_a_moved_container_are_the_new_ones() -> None:
    node = rules(SMALL, LocalPolicy.DYNAMIC)
    moved = claim("a", 2, owned="0-1", original="0-1")
    resized = claim("b", 2, owned="2,7", original="2")
    decision = decide(msgspec.structs.replace(node, max_moves=2), [moved, resized], sharing())
    assert answers(decision) == {"a": "0,4", "b": "2,6"}
    assert {uid: str(each.original) for (uid, _), each in decision.answers.items()} == {
        "a": "0,4",
        "b": "2",
    }
