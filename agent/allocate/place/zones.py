"""NUMA nodes by the node's own word, and the pods that came since it was said.

Pods that need nothing of us are placed by Kubernetes' rules (see `zoned`). The node's agent tells
what is left, but some time after a pod was placed: until then what is known of it is taken off. Of
a plain pod that is all that it may take, of each NUMA node: the kubelet chooses one, by what has
ended and who came first when it looks. The claim of any other names its NUMA nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from agent.allocate.claims import Claim
from agent.allocate.node import NodeFacts
from agent.allocate.place.answer import Granted, Missing, Refused, refused
from agent.allocate.place.facts import PlaceRules
from agent.allocate.place.wish import Wish
from agent.allocate.zoned.assumed import Assumed, without
from agent.allocate.zoned.filter import filter as by_zones
from agent.allocate.zoned.misfit import Misfit
from agent.allocate.zoned.node import ZonedNode, ZoneFacts
from agent.allocate.zoned.score import score


class Zones:
    """Of one node; None: its word is not heard, and every pod passes. One thread at a time."""

    def __init__(self, word: ZoneFacts | None) -> None:
        self._word = word
        self._told = word.told if word else None
        self._since: dict[str, Assumed] = {}
        self._left: ZonedNode | None = None

    def with_word(self, word: ZoneFacts | None, untold: Container[str]) -> Zones:
        """A new word, which counts all pods but those (uids) of `untold`."""
        other = Zones(word)
        if word is not None:
            other._since = {uid: each for uid, each in self._since.items() if uid in untold}
        return other

    def hear(
        self, word: ZoneFacts | None, left: ZonedNode | None, untold: Container[str] = ()
    ) -> None:
        """`left`: what the NUMA nodes have beside all pods but those of `untold`; None: nobody
        knows."""
        self._word, self._told, self._left = word, left, None
        self._since = {uid: each for uid, each in self._since.items() if uid in untold}

    def without(self, uids: Collection[str]) -> Zones:
        """A copy. Pods that the node counts already stay in its word."""
        other = Zones(self._word)
        other._told = self._told
        other._since = {uid: each for uid, each in self._since.items() if uid not in uids}
        return other

    def offer(self, wish: Wish, rules: PlaceRules) -> Granted | Refused:
        """For a pod that needs nothing of us. What it asks for of NUMA nodes may be no amount: then
        it matters what they tell of, and not what is left."""
        pod, word = wish.zoned, self._word
        if pod is None:
            return Granted(wish)
        left = None
        if word is not None:
            left = self._beside(wish.uid) if pod.whole.taken else word.told
            fit = by_zones(left or word.empty, pod)
            if isinstance(fit, Misfit):
                lasting = left is None or isinstance(by_zones(word.empty, pod), Misfit)
                return Refused((fit,), lasting)
            if left is None and word.declines:
                return refused(Missing(_FOREIGN))
        return Granted(wish, score=score(left, pod, rules.zones.type, rules.zones.weights))

    def place(self, granted: Granted, cpus: NodeFacts | None) -> None:
        """A pod is there from now on. `cpus`: which NUMA nodes they are of."""
        if self._word is None:
            return
        wish, claim = granted.wish, granted.offer.claim if granted.offer else None
        if assumed := assumed_of(claim, wish.taken, cpus):
            self._since[wish.uid] = assumed
        self._left = None

    def leave(self, uid: str) -> None:
        """What a pod took counts no more, if the node does not tell of it."""
        if self._since.pop(uid, None) is not None:
            self._left = None

    def _beside(self, uid: str) -> ZonedNode | None:
        """What is left beside all pods but this one; None: nobody knows."""
        told = self._told
        if told is None or not self._since:
            return told
        if uid in self._since:
            return without(told, [each for key, each in self._since.items() if key != uid])
        if self._left is None:
            self._left = without(told, self._since.values())
        return self._left


def assumed_of(
    claim: Claim | None, taken: Mapping[str, int], cpus: NodeFacts | None
) -> Assumed | None:
    """CPUs of its own, and amounts, where the claim says; a share of a pool is no CPU that is gone.
    `taken`: what the kubelet takes for the pod, of any NUMA node where the claim names none."""
    if claim is None or not (claim.cpus or claim.amounts):
        return Assumed(anywhere=taken) if taken else None
    zones: dict[int, dict[str, int]] = {}
    for area in cpus.layout.nodes if cpus and cpus.layout else ():
        if own := (area.cpus & claim.cpus.mask).bit_count():
            zones[area.id] = {"cpu": 1000 * own}
    for node, amounts in claim.amounts.items():
        there = {name: amount for name, amount in amounts.items() if name != "cpu"}
        zones[node] = {**zones.get(node, {}), **there}
    named = {name for amounts in zones.values() for name in amounts}
    anywhere = {name: amount for name, amount in taken.items() if name not in named}
    return Assumed(zones, anywhere)


_FOREIGN = "what is left of its NUMA nodes is told beside other pods than those known here"
