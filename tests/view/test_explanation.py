from __future__ import annotations

from agent.model.explanation import Cause, Explanation, NodeVerdict, ObjectField, OfferFacts
from agent.view import explanation

FEW = Cause(
    "not-enough-cpus",
    "cpu: not enough free CPUs (requested 4, available 2)",
    "cpu: not enough free CPUs",
    objects=(ObjectField("Node", "a", "its pods"), ObjectField("Pod", "ns/p", "requests")),
)


def test_a_node_without_room_names_what_to_change() -> None:
    found = Explanation("ns/p", nodes=(NodeVerdict("a", (FEW,)),))
    told = explanation.draw(found)
    assert told.startswith("Pod ns/p: none of 1 node has room.\n")
    assert "  cpu: not enough free CPUs (requested 4, available 2)\n" in told
    assert "    change Node a: its pods, or Pod ns/p: requests\n" in told


def test_the_winner_comes_first_and_no_line_is_wider() -> None:
    offer = OfferFacts(70, cpus=",".join(map(str, range(0, 99, 2))), steps=("preferred",))
    nodes = (NodeVerdict("a", (FEW,)), NodeVerdict("b", offer=offer))
    told = explanation.draw(Explanation("ns/p", nodes=nodes, winner="b"), width=60)
    lines = told.splitlines()
    assert lines[0] == "Pod ns/p: only node b has room, of 2."
    assert lines[2].startswith("b: best, score 70, CPUs")
    assert all(len(each) <= 60 for each in lines if "0,2,4" not in each)


def test_the_note_of_an_event_stays_the_same_while_amounts_change() -> None:
    def note(available: int) -> str:
        cause = Cause(FEW.code, f"available {available}", FEW.summary, objects=FEW.objects)
        nodes = tuple(NodeVerdict(name, (cause,)) for name in "abc")
        return explanation.note(Explanation("ns/p", nodes=nodes))

    assert note(1) == note(2)
    assert note(1).startswith("No room on 3 nodes. 3 nodes: cpu: not enough free CPUs; change ")
    assert note(1).endswith("; change Node: its pods, or Pod ns/p: requests.")
