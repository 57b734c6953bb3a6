"""Who on this node owns which CPUs, without a scheduler that chose them and without a state file."""

from __future__ import annotations

from collections.abc import Iterable

from agent.allocate.local.claim import Claim, LocalRules, Sharing
from agent.allocate.local.decision import Decision
from agent.model.cpuset import CpuSet


def decide(rules: LocalRules, claims: Iterable[Claim], sharing: Sharing) -> Decision:
    """One decision; the same whatever the order of the claims, whose keys differ."""
    shared = rules.layout.cpus & ~sharing.unavailable.mask
    return Decision({}, CpuSet.from_int(shared))
