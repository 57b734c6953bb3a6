"""Which of the nodes that kube-scheduler offers a pod may have, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.scheduler.shapes import Answer, Fit
from agent.scheduler.wire import ExtenderFilterResult


def filtered(
    nodes: Sequence[str], answers: Sequence[Answer], *, best_alone: bool
) -> ExtenderFilterResult:
    """`answers` in the order of `nodes`. `best_alone`: of the nodes that fit only the best, so that
    no other score and no draw decides; the reasons of the others are not told then, as nobody asks
    for them."""
    if best_alone and (best := first_choice(nodes, answers)) is not None:
        return ExtenderFilterResult((best,))
    if all(isinstance(each, Fit) for each in set(answers)):
        return ExtenderFilterResult(nodes)
    fits: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, Fit):
            fits.append(node)
        elif answer.unresolvable:
            unresolvable[node] = answer.reason
        else:
            failed[node] = answer.reason
    return ExtenderFilterResult(fits, failed, unresolvable)


def first_choice(nodes: Sequence[str], answers: Sequence[Answer]) -> str | None:
    """The best by score, order and name, which no two nodes have alike; None where none fits."""
    fits = [each for each in set(answers) if isinstance(each, Fit)]
    if not fits:
        return None
    least = min(each.key for each in fits)
    first, *more = (each for each in fits if each.key == least)
    pairs = zip(nodes, answers, strict=True)
    if not more:
        return min(node for node, answer in pairs if answer is first)
    return min(node for node, answer in pairs if answer is first or answer in more)


def alone(nodes: Sequence[str], node: str, reason: str) -> ExtenderFilterResult:
    """The one node, if it is among them; `reason`: why no other."""
    if node not in nodes:
        return refused(nodes, reason)
    others = dict.fromkeys(nodes, reason)
    del others[node]
    return ExtenderFilterResult((node,), {}, others)


def refused(nodes: Iterable[str], reason: str) -> ExtenderFilterResult:
    """None of the nodes, all for one reason that nobody's eviction changes."""
    return ExtenderFilterResult((), {}, dict.fromkeys(nodes, reason))
