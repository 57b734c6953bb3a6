"""An explanation as text: whether the pod gets a node, why, and what to change if it gets none."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from agent.model.explanation import (
    BoundFacts,
    Cause,
    EvictionFacts,
    Explanation,
    NodeVerdict,
    ObjectField,
    OfferFacts,
)
from agent.view.format import count, table

_MAX_OBJECTS: Final = 3
_MAX_SUMMARIES: Final = 4
BEYOND: Final = (
    "Checked: Topolet's rules, and the amounts of each Node. kube-scheduler's other plugins "
    "(taints, affinity, volumes, ...) may also reject a node."
)


def draw(explanation: Explanation, width: int = 100) -> str:
    """The whole explanation: the result, the pod's own causes, the winning offer and a paragraph
    for each other node."""
    lines = _wrapped(_headline(explanation), width)
    for cause in explanation.causes:
        lines += _cause_lines(cause, width)
    if explanation.bound is not None:
        lines += _wrapped(_bound(explanation.bound), width, "  ")
    for sentence in explanation.claims:
        lines += _wrapped(sentence, width, "  ")
    verdicts = sorted(
        explanation.nodes, key=lambda each: (each.node != explanation.winner, each.node)
    )
    for verdict in verdicts:
        lines += ["", *_verdict_lines(verdict, verdict.node == explanation.winner, width)]
    if explanation.nodes_left_out:
        lines += ["", *_wrapped(f"{count(explanation.nodes_left_out, 'node')} not checked.", width)]
    lines += ["", *_wrapped(BEYOND, width)]
    return "\n".join(lines) + "\n"


def overview(explanations: Sequence[Explanation], width: int = 100) -> str:
    """One line for each pod: the node that it gets, with its CPUs there, or the most frequent
    reason why it gets none."""
    rows = [("POD", "NODE", "CPUS", "REASON"), *map(_row, explanations)]
    return "\n".join(table(rows, width)) + "\n"


def _row(explanation: Explanation) -> tuple[str, str, str, str]:
    for verdict in explanation.nodes:
        if verdict.node == explanation.winner and verdict.offer is not None:
            return explanation.pod, explanation.winner, verdict.offer.cpus or "-", ""
    reasons = [each.causes[0].summary for each in explanation.nodes if each.causes]
    own = [each.summary for each in explanation.causes]
    (reason, _), *_ = Counter([*own, *reasons]).most_common(1) or [("no node", 0)]
    return explanation.pod, "-", "-", reason


def note(explanation: Explanation) -> str:
    """The text of an Event: a sentence for each cause, with the number of its nodes. It has no
    amounts, so that it stays the same while amounts change."""
    texts = [_with_change(each.summary, each.objects) for each in explanation.causes]
    firsts = [each.causes[0] for each in explanation.nodes if each.causes]
    by_summary = Counter(each.summary for each in firsts)
    objects = {each.summary: each.objects for each in reversed(firsts)}
    for summary, number in by_summary.most_common(_MAX_SUMMARIES):
        several = number > 1
        named = tuple(_without_name(each) if several else each for each in objects[summary])
        texts.append(f"{count(number, 'node')}: {_with_change(summary, named)}")
    if (left := len(by_summary) - _MAX_SUMMARIES) > 0:
        texts.append(count(left, "further reason"))
    nodes = len(explanation.nodes) + explanation.nodes_left_out
    return f"No room on {count(nodes, 'node')}. " + " ".join(f"{each}." for each in texts)


def _headline(explanation: Explanation) -> str:
    nodes = len(explanation.nodes) + explanation.nodes_left_out
    with_room = sum(each.offer is not None for each in explanation.nodes)
    text = f"Pod {explanation.pod}"
    if explanation.drained:
        text = f"{text}, with {', '.join(explanation.drained)} drained"
    if explanation.winner and with_room == 1:
        others = f", of {nodes}" if nodes > 1 else ""
        return f"{text}: only node {explanation.winner} has room{others}."
    if explanation.winner:
        return (
            f"{text}: node {explanation.winner} is the best of {with_room} with room, of {nodes}."
        )
    if any(each.objects for each in explanation.causes) and not explanation.nodes:
        return f"{text}: no node was checked."
    return f"{text}: none of {count(nodes, 'node')} has room."


def _bound(bound: BoundFacts) -> str:
    parts = [f"CPUs {bound.cpus}"] if bound.cpus else []
    if bound.numa_nodes:
        parts.append(f"NUMA nodes {_ids(bound.numa_nodes)}")
    parts += [f"{kind} {_ids(minors)}" for kind, minors in sorted(bound.devices.items())]
    held = f" with {', '.join(parts)}" if parts else ""
    return (
        f"It is on node {bound.node}{held} (--place says where its containers run there). The "
        "following is as if it were scheduled again now."
    )


def _verdict_lines(verdict: NodeVerdict, wins: bool, width: int) -> list[str]:
    if verdict.offer is not None:
        return offer_lines(verdict.node, verdict.offer, wins, width)
    lines = _wrapped(f"{verdict.node}: no room", width)
    for cause in verdict.causes:
        lines += _cause_lines(cause, width)
    if verdict.eviction is not None:
        lines += _wrapped(_eviction(verdict.eviction), width, "  ")
    return lines


def offer_lines(node: str, offer: OfferFacts, wins: bool, width: int) -> list[str]:
    """The lines about a node that has room. If the pod gets this node (`wins`), they also say how
    its CPUs and NUMA nodes were chosen."""
    parts = [f"score {offer.score}"]
    if offer.cpus:
        parts.append(f"CPUs {offer.cpus}")
    if offer.amounts:
        parts.append(f"NUMA nodes {_ids(sorted(offer.amounts))}")
    parts += [f"{kind} {_ids(minors)}" for kind, minors in sorted(offer.devices.items())]
    lines = _wrapped(f"{node}: {'best' if wins else 'room'}, {', '.join(parts)}", width)
    if not wins:
        return lines
    if offer.policies:
        policies = (
            f"{policy.policy} {policy.value} ({policy.source})" for policy in offer.policies
        )
        lines += _wrapped(f"policies in force: {', '.join(policies)}", width, "  ")
    for trial in offer.tried:
        result = f"lacks {trial.rejected}" if trial.rejected else f"score {trial.score}"
        cores = f", {count(trial.whole_cores, 'whole core')}" if trial.whole_cores else ""
        tried = f"tried NUMA nodes {_ids(trial.numa_nodes)}: {result}{cores}"
        lines += _wrapped(tried, width, "  ")
    if offer.merged is not None:
        causes = f" (not preferred: {', '.join(offer.merge_causes)})" if offer.merge_causes else ""
        lines += _wrapped(f"merged hints: NUMA nodes {_ids(offer.merged)}{causes}", width, "  ")
    if offer.steps:
        lines += _wrapped(f"CPUs chosen by: {', '.join(offer.steps)}", width, "  ")
    return lines


def _eviction(eviction: EvictionFacts) -> str:
    text = f"The eviction of {count(eviction.pods, 'pod')} of lower priority would make room"
    if eviction.victims:
        others = eviction.pods - len(eviction.victims)
        listed = (*eviction.victims, *([count(others, "other")] if others else []))
        text = f"{text}: {', '.join(listed)}"
    return f"{text}."


def _cause_lines(cause: Cause, width: int) -> list[str]:
    lines = _wrapped(cause.message, width, "  ")
    if cause.objects:
        lines += _wrapped(f"change {_field_list(cause.objects)}", width, "    ")
    return lines


def _with_change(summary: str, objects: Sequence[ObjectField]) -> str:
    return f"{summary}; change {_field_list(objects)}" if objects else summary


def _field_list(objects: Iterable[ObjectField]) -> str:
    return ", or ".join(map(_field, list(objects)[:_MAX_OBJECTS]))


def _field(where: ObjectField) -> str:
    return f"{f'{where.kind} {where.name}'.rstrip()}: {where.field}"


def _without_name(where: ObjectField) -> ObjectField:
    """The field without the name of its object, unless the object is the pod."""
    return where if where.kind == "Pod" else ObjectField(where.kind, "", where.field)


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
