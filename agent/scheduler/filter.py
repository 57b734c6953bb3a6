"""Which of the nodes that kube-scheduler offers a pod may have, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from agent.scheduler.shapes import Answer, Fit, Misfit
from agent.scheduler.wire import ExtenderFilterResult

MOST_REASONS: Final = 5
"""That people read one by one."""


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
    reasons = _reasons({each for each in set(answers) if isinstance(each, Misfit)})
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, Fit):
            fits.append(node)
        elif answer.unresolvable:
            unresolvable[node] = reasons[answer]
        else:
            failed[node] = reasons[answer]
    return ExtenderFilterResult(fits, failed, unresolvable)


def _reasons(misfits: set[Misfit]) -> dict[Misfit, str]:
    """kube-scheduler counts the nodes of each reason and cuts off what gets long: of more reasons
    than people read, those go without amounts."""
    many = len({each.reason for each in misfits}) > MOST_REASONS
    return {each: (many and each.words) or each.reason for each in misfits}


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


def refused(nodes: Iterable[str], reason: str, but: str = "") -> ExtenderFilterResult:
    """None of the nodes, all for one reason, that an eviction changes on node `but` alone."""
    unresolvable = dict.fromkeys(nodes, reason)
    failed = {but: unresolvable.pop(but)} if but in unresolvable else {}
    return ExtenderFilterResult((), failed, unresolvable)
