"""kube-scheduler's questions, answered from the cluster as it is known here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.allocate.place.wish import Needs, Wish, WishError
from agent.scheduler.asked import Asked, Recent
from agent.scheduler.bind import Binder, BindError
from agent.scheduler.bindings import PodName
from agent.scheduler.cluster import Cluster
from agent.scheduler.demands import OfGroup, OfPod
from agent.scheduler.filter import alone, filtered, first_choice, refused
from agent.scheduler.groupname import Group, GroupError
from agent.scheduler.groups import Groups
from agent.scheduler.prioritize import prioritized
from agent.scheduler.questions import RoomFor
from agent.scheduler.shapes import UNKNOWN, Answer, Fit, Shapes
from agent.scheduler.wire import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
)

Preempt = Callable[[ExtenderPreemptionArgs], ExtenderPreemptionResult]

# A node that was taken between the answer and the hold is asked about again so often.
_TRIES: Final = 3
_GROUP_AT_ONCE: Final = 128


class Deciding:
    """The verbs of an extender. Any thread may ask."""

    def __init__(
        self,
        cluster: Cluster,
        groups: Groups,
        binder: Binder,
        recent: Recent,
        shapes: Shapes,
        preempt: Preempt,
        *,
        best_alone: bool = True,
    ) -> None:
        """`best_alone`: a pod that needs CPUs or devices is offered its best node and no other."""
        self._cluster = cluster
        self._groups = groups
        self._binder = binder
        self._recent = recent
        self._preempt = preempt
        self._best_alone = Needs.CPUS | Needs.DEVICES if best_alone else Needs.NOTHING
        self._shapes = shapes

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        nodes = args.node_names
        try:
            asked = self._recent.of(args.pod)
        except (WishError, GroupError) as error:
            return refused(nodes, str(error))
        sent = self._cluster.reservation(asked.pod.uid)
        if sent is not None and sent.sent:
            return alone(nodes, sent.node, f"an earlier Binding to {sent.node} may still come true")
        if asked.group is not None:
            return self._group(asked, asked.group, nodes)
        if self._indifferent(asked.wish):
            return ExtenderFilterResult(nodes)
        answers = self._answers(asked.wish, nodes)
        return filtered(nodes, answers, best_alone=bool(asked.wish.needs & self._best_alone))

    def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority] | msgspec.Raw:
        nodes = args.node_names
        try:
            asked = self._recent.of(args.pod)
        except (WishError, GroupError):
            return ()
        if asked.group is not None:
            with self._cluster.lock:
                node = self._groups.node(asked.group)
            return prioritized(nodes, [Fit(0) if each == node else UNKNOWN for each in nodes])
        if self._indifferent(asked.wish):
            return ()
        answers = self._answers(asked.wish, nodes)
        return prioritized(nodes, answers, decides=bool(asked.wish.needs))

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        return self._preempt(args)

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        pod = PodName(args.pod_namespace, args.pod_name, args.pod_uid)
        try:
            self._binder.bind(pod, args.node)
        except BindError as error:
            return ExtenderBindingResult(str(error))
        return ExtenderBindingResult()

    def _indifferent(self, wish: Wish) -> bool:
        """To a pod that needs nothing of us all nodes are alike: then nobody looks at their names,
        and others' scores decide."""
        if wish.needs:
            return False
        if not wish.requests:
            return True
        return isinstance(self._shapes.same(RoomFor(self._cluster, OfPod(wish))), Fit)

    def _answers(self, wish: Wish, nodes: Sequence[str]) -> list[Answer]:
        with self._cluster.lock:
            self._groups.expire()
        return self._shapes.answers(RoomFor(self._cluster, OfPod(wish)), nodes)

    def _group(self, asked: Asked, group: Group, nodes: Sequence[str]) -> ExtenderFilterResult:
        """The one node of the group, found and held for it where it has none yet."""
        for _ in range(_TRIES):
            with self._cluster.lock:
                self._groups.expire()
                node = self._groups.node(group)
                if node is not None:
                    return self._member(asked.wish, group, node, nodes)
            answers = self._group_answers(asked.wish, group.size, nodes)
            best = first_choice(list(answers), list(answers.values()))
            if best is None:
                return filtered(list(answers), list(answers.values()), best_alone=True)
            with self._cluster.lock:
                if self._groups.node(group) is None:
                    self._groups.hold(group, asked.wish, best)
        return refused(nodes, f"{group.title}: its nodes are taken faster than they can be held")

    def _group_answers(self, wish: Wish, size: int, nodes: Sequence[str]) -> dict[str, Answer]:
        """Room for all takes long to find: nodes are asked for it that have room for one, those
        that suit one best first, some at a time until there is such a node."""
        of_one = dict(zip(nodes, self._answers(wish, nodes), strict=True))
        fits = {node: answer for node, answer in of_one.items() if isinstance(answer, Fit)}
        found = {node: answer for node, answer in of_one.items() if node not in fits}
        ranked = sorted(fits, key=lambda node: (fits[node].key, node))
        question = RoomFor(self._cluster, OfGroup(wish, size))
        for first in range(0, len(ranked), _GROUP_AT_ONCE):
            some = ranked[first : first + _GROUP_AT_ONCE]
            answers = self._shapes.answers(question, some)
            found.update(zip(some, answers, strict=True))
            if any(isinstance(each, Fit) for each in set(answers)):
                break
        return found

    def _member(
        self, wish: Wish, group: Group, node: str, nodes: Sequence[str]
    ) -> ExtenderFilterResult:
        """Under the lock."""
        hindrance = self._cluster.eligible(node, wish)
        if hindrance is not None:
            return refused(nodes, hindrance)
        lack = self._groups.lacks(group, wish)
        if lack is not None:
            return refused(nodes, lack.reason, but="" if lack.unresolvable else node)
        return alone(nodes, node, f"{group.title} is on node {node}")
