"""Whether the zones of a node are those of the pods that are known to be there.

The agent of a node tells by a fingerprint of which pods its zones are (peers.md §1.7, §2.3).
"""

from __future__ import annotations

import enum
from collections.abc import Container, Sequence
from typing import Final

import msgspec

from agent.allocate.zoned.pod import exclusive, zoned_pod
from agent.model import fingerprint
from agent.model.apipods import ApiPod, Phase
from agent.model.nodetopology import FINGERPRINT_METHOD, NodeTopology

MOST_MISSING: Final = 16
"""How many of the pods that began last may be missing in a report."""


class Method(enum.StrEnum):
    """Of which pods the fingerprint is: all that have begun, or those of them that hold what no
    other pod can use."""

    ALL = "all"
    EXCLUSIVE = "with-exclusive-resources"


class State(enum.StrEnum):
    CURRENT = "current"
    """The zones are of the pods that are known."""
    BEHIND = "behind"
    """The zones do not know the last of them yet."""
    OTHER = "other"
    """The zones are of other pods: some that are not known, or that are gone."""
    UNTOLD = "untold"
    """The node tells no fingerprint."""


class KnownPod(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    exclusive: bool


class Freshness(msgspec.Struct, frozen=True):
    """`missing`: the pods that the zones do not know yet."""

    state: State
    missing: tuple[KnownPod, ...] = ()


def known_pod(pod: ApiPod, told: Container[str]) -> KnownPod | None:
    """`told`: resources that the zones tell of. None: a pod that has not begun, which no
    fingerprint counts."""
    if pod.phase is Phase.PENDING:
        return None
    return KnownPod(pod.namespace, pod.name, exclusive(zoned_pod(pod), told))


def method_of(topology: NodeTopology) -> Method:
    """All pods, where the node does not tell or says a word that is not known."""
    told = topology.attributes.get(FINGERPRINT_METHOD)
    return Method.EXCLUSIVE if told == Method.EXCLUSIVE else Method.ALL


def freshness(
    topology: NodeTopology, known: Sequence[KnownPod], method: Method | None = None
) -> Freshness:
    """`known`: the pods on the node in the order in which they began; `method`: instead of the one
    that the node tells."""
    if topology.fingerprint is None:
        return Freshness(State.UNTOLD)
    if (method or method_of(topology)) is Method.EXCLUSIVE:
        known = [pod for pod in known if pod.exclusive]
    hashes = [fingerprint.pod_hash(pod.namespace, pod.name) for pod in known]
    for missing in range(min(len(hashes), MOST_MISSING) + 1):
        there = len(hashes) - missing
        if fingerprint.together(hashes[:there]) == topology.fingerprint:
            state = State.BEHIND if missing else State.CURRENT
            return Freshness(state, tuple(known[there:]))
    return Freshness(State.OTHER)
