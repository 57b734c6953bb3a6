"""Scores of kube-scheduler's scale for nodes that fit, as JSON.

The best of all nodes, ties decided as for `filter`, alone has the most, so that equal weights leave
no draw. The others lie below it as their scores lie between the least and the most of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agent.scheduler.filter import first_choice
from agent.scheduler.shapes import Answer, Fit

MOST: Final = 10
"""Of an extender's score."""


def prioritized(nodes: Sequence[str], answers: Sequence[Answer]) -> msgspec.Raw:
    """The list of HostPriority, in no order; nodes that do not fit have no entry, which is 0.
    `answers` in the order of `nodes`."""
    best = first_choice(nodes, answers)
    if best is None:
        return msgspec.Raw(b"[]")
    levels = _levels({each for each in set(answers) if isinstance(each, Fit)})
    hosts: list[list[str]] = [[] for _ in range(MOST + 1)]
    into = {answer: hosts[level].append for answer, level in levels.items()}
    for node, answer in zip(nodes, answers, strict=True):
        if answer in into:
            into[answer](node)
    hosts[levels[answers[nodes.index(best)]]].remove(best)
    hosts[MOST].append(best)
    entries = (_entries(score, of) for score, of in enumerate(hosts) if of)
    return msgspec.Raw(f"[{','.join(entries)}]".encode())


def _levels(fits: set[Fit]) -> dict[Answer, int]:
    """0 to one below the most."""
    least, most = min(each.score for each in fits), max(each.score for each in fits)
    below = MOST - 1
    return {
        each: below * (each.score - least) // (most - least) if most > least else below
        for each in fits
    }


def _entries(score: int, nodes: Sequence[str]) -> str:
    """Names of nodes that fit are those of objects: JSON takes them as they are."""
    return '{"Host":"' + f'","Score":{score}}},{{"Host":"'.join(nodes) + f'","Score":{score}}}'
