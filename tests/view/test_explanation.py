from __future__ import annotations

from agent.model.explanation import Cause, Explanation, NodeVerdict, ObjectField, OfferFacts
from agent.view import explanation

TOO_FEW_CPUS = Cause(
    "not-enough-cpus",
    "cpu: not enough free CPUs (requested 4, available 2)",
    "cpu: not enough free CPUs",
    objects=(ObjectField("Node", "a", "its pods"), ObjectField("Pod", "ns/p", "requests")),
)


def test_the_explanation_names_the_objects_to_change() -> None:
    found = Explanation("ns/p", nodes=(NodeVerdict("a", (TOO_FEW_CPUS,)),))
    text = explanation.draw(found)
    assert text.startswith("Pod ns/p: none of 1 node has room.\n")
    assert "  cpu: not enough free CPUs (requested 4, available 2)\n" in text
    assert "    change Node a: its pods, or Pod ns/p: requests\n" in text


def test_the_chosen_node_comes_first_and_no_line_is_wider() -> None:
    offer = OfferFacts(70, cpus=",".join(map(str, range(0, 99, 2))), steps=("preferred",))
    nodes = (NodeVerdict("a", (TOO_FEW_CPUS,)), NodeVerdict("b", offer=offer))
    text = explanation.draw(Explanation("ns/p", nodes=nodes, winner="b"), width=60)
    lines = text.splitlines()
    assert lines[0] == "Pod ns/p: only node b has room, of 2."
    assert lines[2].startswith("b: best, score 70, CPUs")
    assert all(len(each) <= 60 for each in lines if "0,2,4" not in each)


def test_the_note_of_an_event_stays_the_same_while_amounts_change() -> None:
    def note(available: int) -> str:
        cause = Cause(
            TOO_FEW_CPUS.code,
            f"available {available}",
            TOO_FEW_CPUS.summary,
            objects=TOO_FEW_CPUS.objects,
        )
        nodes = tuple(NodeVerdict(name, (cause,)) for name in "abc")
        return explanation.note(Explanation("ns/p", nodes=nodes))

    assert note(1) == note(2)
    assert note(1).startswith("No room on 3 nodes. 3 nodes: cpu: not enough free CPUs; change ")
    assert note(1).endswith("; change Node: its pods, or Pod ns/p: requests.")
