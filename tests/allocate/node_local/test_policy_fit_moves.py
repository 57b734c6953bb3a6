"""Moves of owners to better CPUs."""

from __future__ import annotations

import msgspec
import pytest

from agent.allocate.node_local.claim import LocalPolicy, LocalRequest
from agent.allocate.node_local.policy import decide
from agent.model.cpu.layout import Layout
from tests.allocate.kubelet.nodes import machine
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
