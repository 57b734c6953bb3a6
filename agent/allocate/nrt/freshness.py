"""Whether the zones of a node count the pods that are known on it. The node's agent reports a
fingerprint of the counted pods (scheduler-plugins: pkg/noderesourcetopology/cache/store.go,
checkPodFingerprintForNode)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from agent.model import fingerprint
from agent.model.nodetopology import FINGERPRINT_METHOD, NodeTopology

MOST_MISSING: Final = 16
"""How many of the pods that began last may be missing in a report."""


class Method(enum.StrEnum):
    """Of which pods the fingerprint is: all that have begun, or those of them that hold what no
    other pod can use."""

    ALL = "all"
    EXCLUSIVE = "with-exclusive-resources"


class NrtFreshness(enum.StrEnum):
    CURRENT = "current"
    """The zones are of the pods that are known."""
    BEHIND = "behind"
    """The zones do not know the last of them yet, or still those that are gone."""
    OTHER = "other"
    """The zones count other pods, and some of these are not known."""
    UNTOLD = "untold"
    """The node reports no fingerprint."""


class Freshness(msgspec.Struct, frozen=True):
    """`missing`: how many of the pods that began last the zones do not know yet."""

    state: NrtFreshness
    missing: int = 0


def method_of(topology: NodeTopology) -> Method:
    """All pods, when the node reports no method or an unknown one."""
    told = topology.attributes.get(FINGERPRINT_METHOD)
    return Method.EXCLUSIVE if told == Method.EXCLUSIVE else Method.ALL


def freshness(told: str | None, known: Sequence[int], gone: Sequence[int] = ()) -> Freshness:
    """`told`: the node's fingerprint; `known`: the hashes of the pods on it (those of the
    fingerprint's method), in the order in which they began; `gone`: the pods that ended, the last
    one last."""
    if told is None:
        return Freshness(NrtFreshness.UNTOLD)
    most = min(len(known), MOST_MISSING)
    for past in range(len(gone) + 1):
        before = gone[len(gone) - past :]
        for missing in range(most + 1):
            there = (*known[: len(known) - missing], *before)
            if fingerprint.together(there) == told:
                return Freshness(
                    NrtFreshness.BEHIND if missing or past else NrtFreshness.CURRENT, missing
                )
    return Freshness(NrtFreshness.OTHER)
