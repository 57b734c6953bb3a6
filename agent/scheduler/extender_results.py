"""Extender results from the feasibility of nodes: the filter result, and the priorities as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from agent.scheduler.equivalence_cache import Feasibility, Feasible, Infeasible
from agent.scheduler.extender_types import ExtenderFilterResult

MAX_DETAILED_REASONS: Final = 5
"""With more reasons than that, the reasons lose their amounts."""


def filter_result(
    nodes: Sequence[str], answers: Sequence[Feasibility], *, best_alone: bool
) -> ExtenderFilterResult:
    """`answers` are in the order of `nodes`. `best_alone`: only the best feasible node is returned,
    so that no other plugin's score and no tie-break decides; the other nodes have no reasons
    then."""
    if best_alone and (best := best_node(nodes, answers)) is not None:
        return ExtenderFilterResult((best,))
    if all(isinstance(each, Feasible) for each in set(answers)):
        return ExtenderFilterResult(nodes)
    fits: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    reasons = _reasons({each for each in set(answers) if isinstance(each, Infeasible)})
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, Feasible):
            fits.append(node)
        elif answer.unresolvable:
            unresolvable[node] = reasons[answer]
        else:
            failed[node] = reasons[answer]
    return ExtenderFilterResult(fits, failed, unresolvable)


def _reasons(misfits: set[Infeasible]) -> dict[Infeasible, str]:
    """kube-scheduler counts the nodes of each reason and truncates long messages: where there are
    many reasons, they lose their amounts."""
    many = len({each.reason for each in misfits}) > MAX_DETAILED_REASONS
    return {each: (many and each.words) or each.reason for each in misfits}


def best_node(nodes: Sequence[str], answers: Sequence[Feasibility]) -> str | None:
    """The best node by score, order and name, an order without ties; None where no node is
    feasible."""
    fits = [each for each in set(answers) if isinstance(each, Feasible)]
    if not fits:
        return None
    least = min(each.key for each in fits)
    first, *more = (each for each in fits if each.key == least)
    pairs = zip(nodes, answers, strict=True)
    if not more:
        return min(node for node, answer in pairs if answer is first)
    return min(node for node, answer in pairs if answer is first or answer in more)


def only_node(nodes: Sequence[str], node: str, reason: str) -> ExtenderFilterResult:
    """Returns the one node, if it is among `nodes`. `reason` is why the others fail."""
    if node not in nodes:
        return no_nodes(nodes, reason)
    others = dict.fromkeys(nodes, reason)
    del others[node]
    return ExtenderFilterResult((node,), {}, others)


def no_nodes(nodes: Iterable[str], reason: str, but: str = "") -> ExtenderFilterResult:
    """Returns none of the nodes, all for one reason. Eviction may help on node `but` alone."""
    unresolvable = dict.fromkeys(nodes, reason)
    failed = {but: unresolvable.pop(but)} if but in unresolvable else {}
    return ExtenderFilterResult((), failed, unresolvable)


MAX_PRIORITY: Final = 10
"""Of an extender's score."""


def priorities(
    nodes: Sequence[str], answers: Sequence[Feasibility], *, decides: bool = True
) -> msgspec.Raw:
    """The list of HostPriority as JSON, in no order; infeasible nodes have no entry, which means 0.
    `answers` are in the order of `nodes`.

    `decides`: the best node alone, with the tie-break of `filter`, has the highest priority, so
    that the tie-break of kube-scheduler does not decide; the priorities of the others are scaled
    between the least and the highest score of the call. Otherwise nodes of equal score have equal
    priority, and other plugins decide among them.
    """
    fits = {each for each in set(answers) if isinstance(each, Feasible)}
    levels = _levels(fits, MAX_PRIORITY - 1 if decides else MAX_PRIORITY)
    hosts: list[list[str]] = [[] for _ in range(MAX_PRIORITY + 1)]
    into = {answer: hosts[level].append for answer, level in levels.items()}
    for node, answer in zip(nodes, answers, strict=True):
        if answer in into:
            into[answer](node)
    if decides and (best := best_node(nodes, answers)) is not None:
        hosts[levels[answers[nodes.index(best)]]].remove(best)
        hosts[MAX_PRIORITY].append(best)
    entries = (_entries(score, of) for score, of in enumerate(hosts) if of)
    return msgspec.Raw(f"[{','.join(entries)}]".encode())


def _levels(fits: set[Feasible], highest: int) -> dict[Feasibility, int]:
    """The highest level for all nodes where their scores are equal."""
    scores = [each.score for each in fits] or [0]
    least, most = min(scores), max(scores)
    return {
        each: highest * (each.score - least) // (most - least) if most > least else highest
        for each in fits
    }


def _entries(score: int, nodes: Sequence[str]) -> str:
    """The names of feasible nodes need no JSON escapes, since they are names of API objects."""
    return '{"Host":"' + f'","Score":{score}}},{{"Host":"'.join(nodes) + f'","Score":{score}}}'
