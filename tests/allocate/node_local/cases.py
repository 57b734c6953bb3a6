"""Builders of machines and claims of the node-local policies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.allocate.kubelet.static_policy import StaticOptions
from agent.allocate.node_local.claim import (
    LocalDecision,
    LocalPolicy,
    LocalRequest,
    LocalRules,
    Sharing,
)
from agent.allocate.node_local.policy import decide
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.layout import Layout
from tests.allocate.kubelet.nodes import machine, options

BIG = machine(2, 2, 4, 2)
"""2 sockets, 2 NUMA nodes each, 4 cores each; CPU n and CPU n + 16 are siblings."""
SMALL = machine(1, 1, 4, 2)
"""CPU n and CPU n + 4 are siblings."""
FULL = options("full-pcpus-only")


def rules(
    layout: Layout,
    policy: LocalPolicy = LocalPolicy.STATIC,
    chosen: StaticOptions | None = None,
    *,
    reserved: str = "",
    max_moves: int = 1,
) -> LocalRules:
    return LocalRules(policy, layout, chosen or StaticOptions(), CpuSet.parse(reserved), max_moves)


def claim(
    name: str,
    cpus: int,
    held: str | None = None,
    owned: str | None = None,
    *,
    original: str = "",
    ended: bool = False,
    devices: Mapping[int, int] = MappingProxyType({}),
    gibibytes: int = 0,
) -> LocalRequest:
    """`pod/container`, or a pod with container `c`; pods with lower names are older. `gibibytes`:
    of huge pages of that size."""
    uid, _, container = name.partition("/")
    return LocalRequest(
        uid,
        container or "c",
        0,
        cpus,
        None if held is None else CpuSet.parse(held),
        None if owned is None else CpuSet.parse(owned),
        CpuSet.parse(original),
        ended,
        devices,
        {1 << 30: gibibytes << 30} if gibibytes else {},
    )


def sharing(*, unavailable: str = "", users: bool = True, held: str = "") -> Sharing:
    return Sharing(CpuSet.parse(unavailable), users, CpuSet.parse(held))


def answers(decision: LocalDecision) -> dict[str, str]:
    """The CPUs, and in brackets the reason of a refusal."""
    found = {}
    for (uid, name), answer in decision.answers.items():
        refused = f"({answer.refused.reason.name})" if answer.refused else ""
        title = uid if name == "c" else f"{uid}/{name}"
        found[title] = f"{answer.cpus}{refused}"
    return found


def moves(decision: LocalDecision) -> list[str]:
    return [f"{m.uid} {m.source} > {m.target} {m.reason.name}" for m in decision.moves]


def applied(
    claims: list[LocalRequest], decision: LocalDecision, *, known: bool
) -> list[LocalRequest]:
    """The claims after the decision was written: containers without CPUs run on the pool. `known`:
    whether the decision is stored."""
    after = []
    for each in claims:
        answer = decision.answers[each.key]
        after.append(
            msgspec.structs.replace(
                each,
                held=answer.cpus or decision.pool or None,
                owned=answer.cpus if known else None,
                original=answer.original if known else EMPTY,
            )
        )
    return after


def decide_until_stable(
    node: LocalRules, claims: list[LocalRequest], others: Sharing, limit: int = 200
) -> list[tuple[list[LocalRequest], LocalDecision]]:
    """Decides and applies until the decision is stable. Returns each decision with its input, the
    last one twice."""
    steps: list[tuple[list[LocalRequest], LocalDecision]] = []
    for _ in range(limit):
        decision = decide(node, claims, others)
        same = bool(steps) and decision.answers == steps[-1][1].answers
        steps.append((claims, decision))
        if same and not decision.moves and not decision.again:
            return steps
        claims = applied(claims, decision, known=True)
    raise AssertionError("no fixed point")
