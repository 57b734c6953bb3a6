"""The verbs, with an eye on the pods that find no node: who waits is known to those who retry and
who evict, and what is made free for one pod is kept from lesser ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.allocate.place.wish import Needs, WishError
from agent.model.apipods import ApiPod
from agent.scheduler.asked import Asked, Recent
from agent.scheduler.changelog import Changes
from agent.scheduler.cluster import Cluster
from agent.scheduler.evict import Evictor
from agent.scheduler.extender import Verbs
from agent.scheduler.groupname import Group, GroupError
from agent.scheduler.questions import RoomFor, demand
from agent.scheduler.shapes import Answer, Question, Shapes
from agent.scheduler.waiter import Waiter
from agent.scheduler.waiting import Waiting
from agent.scheduler.wire import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
)

CANDIDATES: Final = 128
"""Nodes kept of a refusal for evictions; kube-scheduler names them in another order each time."""


class Attending:
    """Verbs around others' verbs."""

    def __init__(
        self,
        verbs: Verbs,
        recent: Recent,
        cluster: Cluster,
        waiting: Waiting,
        evictor: Evictor | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verbs = verbs
        self._recent = recent
        self._cluster = cluster
        self._waiting = waiting
        self._evictor = evictor
        self._clock = clock

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        kept = self._kept(args)
        if not kept:
            result = self._verbs.filter(args)
        else:
            others = tuple(each for each in args.node_names if each not in kept)
            result = self._verbs.filter(msgspec.structs.replace(args, node_names=others))
        if _none(result.node_names):
            if not result.error:
                self._refused(args, result)
        else:
            self._waiting.settled(args.pod.uid)
        return _without(result, [each for each in args.node_names if each in kept])

    def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority] | msgspec.Raw:
        return self._verbs.prioritize(args)

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        result = self._verbs.preempt(args)
        if result.victims and self._evictor is not None:
            self._evictor.rest(args.pod.uid, self._group(args.pod))
        return result

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        return self._verbs.bind(args)

    def _group(self, pod: ApiPod) -> Group | None:
        try:
            return self._recent.of(pod).group
        except (WishError, GroupError):
            return None

    def _kept(self, args: ExtenderArgs) -> frozenset[str]:
        """Nodes that others have room made on."""
        if not self._waiting.keeps:
            return frozenset()
        try:
            asked = self._recent.of(args.pod)
        except (WishError, GroupError):
            return frozenset()
        # Who needs nothing of us takes nothing of what is made free.
        if asked.wish.needs is Needs.NOTHING:
            return frozenset()
        return self._waiting.kept_from(
            args.pod.uid, asked.wish.priority, self._clock(), asked.group
        )

    def _refused(self, args: ExtenderArgs, result: ExtenderFilterResult) -> None:
        try:
            asked = self._recent.of(args.pod)
        except (WishError, GroupError):
            return  # no node's change helps, and the pod's own kube-scheduler sees
        failed = result.failed_nodes
        if isinstance(failed, msgspec.Raw):
            failed = msgspec.json.decode(failed, type=dict[str, str])
        home = self._cluster.home(asked.group) if asked.group is not None else None
        candidates = failed if home is None else failed.keys() & {home}
        found = waiter(
            asked,
            self._cluster,
            self._clock(),
            tuple(itertools.islice(candidates, CANDIDATES)),
            args.pod.nominated,
        )
        self._waiting.refused(found, args.node_names if home is None else (home,))


class Views:
    """What a cluster's nodes say, as who waits asks."""

    def __init__(self, cluster: Cluster, shapes: Shapes) -> None:
        self._cluster = cluster
        self._shapes = shapes

    def changed_since(self, serial: int) -> Changes:
        return self._cluster.changed_since(serial)

    def known(self) -> list[str]:
        return [each.name for each in self._cluster.nodes()]

    def answers(self, question: Question, nodes: Sequence[str]) -> list[Answer]:
        return self._shapes.answers(question, nodes)


def waiter(
    asked: Asked,
    cluster: Cluster,
    now: float,
    candidates: tuple[str, ...] = (),
    nominated: str = "",
) -> Waiter:
    """A pod that found no node now."""
    needed = demand(asked, cluster)
    return Waiter(
        asked.pod.uid,
        asked.pod.namespace,
        asked.pod.name,
        RoomFor(cluster, needed),
        now,
        now,
        asked.wish.priority,
        None,
        candidates,
        needed,
        nominated,
        asked.group,
    )


def _none(names: Sequence[str] | msgspec.Raw) -> bool:
    return bytes(names).strip() in (b"[]", b"null") if isinstance(names, msgspec.Raw) else not names


def _without(result: ExtenderFilterResult, kept: Sequence[str]) -> ExtenderFilterResult:
    """The result, which says of the nodes that were kept why they are missing."""
    if not kept:
        return result
    reasons = result.failed_and_unresolvable_nodes
    if isinstance(reasons, msgspec.Raw):
        reasons = msgspec.json.decode(reasons, type=dict[str, str])
    told = dict.fromkeys(kept, "room is being made here for a more important pod")
    return msgspec.structs.replace(result, failed_and_unresolvable_nodes={**reasons, **told})
