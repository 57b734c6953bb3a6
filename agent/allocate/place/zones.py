"""NUMA nodes by the node's own word, and the pods that came since it was said.

Pods that need nothing of us are placed by Kubernetes' rules (see `zoned`). The node's agent tells
what is left, but some time after a pod was placed: until then what is known of it is taken off.
"""

from __future__ import annotations

from collections.abc import Collection, Container

from agent.allocate.claims import Claim
from agent.allocate.node import NodeFacts
from agent.allocate.place.answer import Granted, Refused, refused
from agent.allocate.place.facts import PlaceRules
from agent.allocate.place.wish import Wish
from agent.allocate.zoned.assumed import Assumed, assumed, without
from agent.allocate.zoned.filter import filter as by_zones
from agent.allocate.zoned.misfit import Misfit
from agent.allocate.zoned.node import ZonedNode
from agent.allocate.zoned.score import score


class Zones:
    """Of one node; None: its word is not heard, and every pod passes. One thread at a time."""

    def __init__(self, node: ZonedNode | None) -> None:
        self._node = node
        self._since: dict[str, Assumed] = {}
        self._left: ZonedNode | None = node

    def told(self, node: ZonedNode | None, untold: Container[str] | None = None) -> Zones:
        """What the node says now; it counts all pods but those (uids) of `untold`. None: a new word
        counts all pods, and the old one none that came since."""
        other = Zones(node)
        if node is not None:
            same = untold is None and node == self._node
            kept = untold or ()
            other._since = {uid: each for uid, each in self._since.items() if same or uid in kept}
        other._left = None
        return other

    def without(self, uids: Collection[str]) -> Zones:
        """A copy. Pods that the node counts already stay in its word."""
        other = Zones(self._node)
        other._since = {uid: each for uid, each in self._since.items() if uid not in uids}
        other._left = None
        return other

    def offer(self, wish: Wish, rules: PlaceRules) -> Granted | Refused:
        """For a pod that needs nothing of us."""
        if wish.zoned is None:
            return Granted(wish)
        node = self._beside(wish.uid)
        fit = by_zones(node, wish.zoned)
        if isinstance(fit, Misfit):
            return refused(fit)
        points = score(node, wish.zoned, rules.zones, rules.zone_weights)
        return Granted(wish, fit=fit, score=points)

    def place(self, granted: Granted, cpus: NodeFacts | None) -> None:
        """A pod is there from now on. `cpus`: which NUMA nodes they are of."""
        if self._node is None:
            return
        wish, claim = granted.wish, granted.offer.claim if granted.offer else None
        if claim is not None and (claim.cpus or claim.amounts):
            self._since[wish.uid] = of_claim(claim, cpus)
        elif wish.zoned is not None:
            fit = granted.fit or by_zones(self._beside(wish.uid), wish.zoned)
            known = None if isinstance(fit, Misfit) else fit
            self._since[wish.uid] = assumed(self._node, wish.zoned, known)
        self._left = None

    def leave(self, uid: str) -> None:
        """What a pod took counts no more, if the node does not tell of it."""
        if self._since.pop(uid, None) is not None:
            self._left = None

    def _beside(self, uid: str) -> ZonedNode | None:
        """What is left beside all pods but this one."""
        node = self._node
        if node is None or not self._since:
            return node
        if uid in self._since:
            return without(node, [each for key, each in self._since.items() if key != uid])
        if self._left is None:
            self._left = without(node, self._since.values())
        return self._left


def of_claim(claim: Claim, cpus: NodeFacts | None) -> Assumed:
    """CPUs of its own, and amounts; a share of a pool is no CPU that is gone."""
    zones: dict[int, dict[str, int]] = {}
    for area in cpus.layout.nodes if cpus and cpus.layout else ():
        if own := (area.cpus & claim.cpus.mask).bit_count():
            zones[area.id] = {"cpu": 1000 * own}
    for node, amounts in claim.amounts.items():
        there = {name: amount for name, amount in amounts.items() if name != "cpu"}
        zones[node] = {**zones.get(node, {}), **there}
    return Assumed(zones)
