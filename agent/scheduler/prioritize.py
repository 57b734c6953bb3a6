"""Scores of kube-scheduler's scale for nodes that fit, as JSON.

Of a pod that needs something of us the best of all nodes, ties decided as for `filter`, alone has
the most, so that equal weights leave no draw; the others lie below it as their scores lie between
the least and the most of the call. Of other pods nodes with equal scores are alike: what is better
among them the scores of others say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agent.scheduler.filter import first_choice
from agent.scheduler.shapes import Answer, Fit

MOST: Final = 10
"""Of an extender's score."""


def prioritized(
    nodes: Sequence[str], answers: Sequence[Answer], *, decides: bool = True
) -> msgspec.Raw:
    """The list of HostPriority, in no order; nodes that do not fit have no entry, which is 0.
    `answers` in the order of `nodes`; `decides`: one node is to have the most."""
    fits = {each for each in set(answers) if isinstance(each, Fit)}
    levels = _levels(fits, MOST - 1 if decides else MOST)
    hosts: list[list[str]] = [[] for _ in range(MOST + 1)]
    into = {answer: hosts[level].append for answer, level in levels.items()}
    for node, answer in zip(nodes, answers, strict=True):
        if answer in into:
            into[answer](node)
    if decides and (best := first_choice(nodes, answers)) is not None:
        hosts[levels[answers[nodes.index(best)]]].remove(best)
        hosts[MOST].append(best)
    entries = (_entries(score, of) for score, of in enumerate(hosts) if of)
    return msgspec.Raw(f"[{','.join(entries)}]".encode())


def _levels(fits: set[Fit], highest: int) -> dict[Answer, int]:
    """The highest for all where they are alike."""
    scores = [each.score for each in fits] or [0]
    least, most = min(scores), max(scores)
    return {
        each: highest * (each.score - least) // (most - least) if most > least else highest
        for each in fits
    }


def _entries(score: int, nodes: Sequence[str]) -> str:
    """Names of nodes that fit are those of objects: JSON takes them as they are."""
    return '{"Host":"' + f'","Score":{score}}},{{"Host":"'.join(nodes) + f'","Score":{score}}}'
