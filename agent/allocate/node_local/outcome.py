"""A node-local decision as the pools need it: by pod, and what is left of the shared CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.kubelet.static_policy import AllocationRefused
from agent.allocate.node_local import policy
from agent.allocate.node_local.claim import LocalRequest, LocalRules, Move, Sharing
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.snapshot import LocalOwner


class Demand(msgspec.Struct, frozen=True):
    """`claims` on the node; `held`: CPUs in the cgroups of everybody else. `sharing`: pod uid and
    container name of those that might claim and can't have CPUs of their own."""

    rules: LocalRules
    claims: tuple[LocalRequest, ...]
    held: CpuSet = EMPTY
    sharing: frozenset[tuple[str, str]] = frozenset()


class Share(msgspec.Struct, frozen=True):
    """The result of a pod: `cpus` of its containers by name, `all` that no other pod may run on
    (also those that its ended containers keep for it), and by name why a container must not be
    created now (`blocked`, "" for one that only shares)."""

    cpus: Mapping[str, CpuSet] = {}
    blocked: Mapping[str, str] = {}
    all: CpuSet = EMPTY


class LocalOutcome(msgspec.Struct, frozen=True):
    """`by_uid`: pods with claims. `pool`: the shared CPUs. `owners`: for the next decision, also
    those without CPUs. `again`: after this is applied, another decision may be better."""

    by_uid: Mapping[str, Share]
    pool: CpuSet
    owners: tuple[LocalOwner, ...] = ()
    moves: tuple[Move, ...] = ()
    again: bool = False


def decide(demand: Demand, free: CpuSet) -> LocalOutcome:
    """`free`: CPUs that are shared before.

    The pool is never given away entirely: every pod has a sandbox, which shares it.
    """
    unavailable = CpuSet.from_int(demand.rules.layout.cpus) - free
    decision = policy.decide(
        demand.rules, demand.claims, Sharing(unavailable, users=True, held=demand.held)
    )
    by_uid: dict[str, list[LocalRequest]] = {}
    for claim in sorted(demand.claims, key=lambda each: each.key):
        by_uid.setdefault(claim.uid, []).append(claim)
    answers = decision.answers
    owners = tuple(
        LocalOwner(*claim.key, str(answers[claim.key].cpus), str(answers[claim.key].original))
        for claims in by_uid.values()
        for claim in claims
    )
    shares = {
        uid: Share(
            _known(claims, {each.name: answers[each.key].cpus for each in claims}),
            {
                each.name: _text(refused)
                for each in claims
                if (refused := answers[each.key].refused)
            },
            union(answers[each.key].cpus for each in claims),
        )
        for uid, claims in by_uid.items()
    }
    for uid, name in sorted(demand.sharing):
        share = shares.get(uid, Share())
        shares[uid] = msgspec.structs.replace(share, blocked={**share.blocked, name: ""})
    return LocalOutcome(shares, decision.pool, owners, decision.moves, decision.again)


def _known(claims: list[LocalRequest], cpus: Mapping[str, CpuSet]) -> dict[str, CpuSet]:
    """Ended containers whose CPUs no other container of the pod took over: a container that returns
    to such CPUs needs a new decision."""
    known = {}
    for claim in claims:
        own = cpus[claim.name]
        others = union(cpus[each.name] for each in claims if each is not claim)
        if own and not (claim.ended and own & others):
            known[claim.name] = own
    return known


def _text(refused: AllocationRefused) -> str:
    text = f"{refused.reason.value}: {refused.requested} requested"
    return f"{text}, {refused.available} can be had" + (
        f", {refused.held} owned already" if refused.held else ""
    )
