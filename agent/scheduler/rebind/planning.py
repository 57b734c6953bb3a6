"""Makes the first status of a rebind: its plan, or the reasons why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import msgspec

from agent.allocate.node_allocation import PodAllocation, TopologyOptions
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import AssignedPod, holding_of
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.rebind.arrangement import Measures
from agent.allocate.rebind.planner import NoPlan, PodMove, plan
from agent.allocate.rebind.planner_input import moved_allocation, placed_node
from agent.model import bounds
from agent.model.pod.annotations import REBIND, REBIND_NEVER, status_text
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.resource_request import ResourceRequest
from agent.model.pod_request import PodRequestError, request_of
from agent.model.rebind_resource import (
    RebindPhase,
    RebindRequest,
    RebindStatus,
    StatusMeasures,
    StatusMove,
    StatusPlan,
    time_text,
)
from agent.scheduler.rebind.progress import PodNow


def pod_now(pod: ApiPod) -> PodNow:
    """The pod with its allocation."""
    held = holding_of(pod).allocation
    return PodNow(pod.uid, pod.title, status_of(held), held.cpus, pod.resource_version)


def first_status(
    request: RebindRequest,
    properties: NodeProperties,
    pods: Sequence[ApiPod],
    reservations: Iterable[AssignedPod],
    now: float,
) -> RebindStatus:
    """The status with the plan, or with the reason why there is none.

    `pods`: the pods of the node that are not terminal.
    `reservations`: the amounts that Reservations hold on the node.
    `now`: seconds since 1970."""
    allocator = NodeAllocator(properties, [*map(holding_of, pods), *reservations])
    node = placed_node(allocator, requests_of(pods), fixed_pods(pods, request.excluded_namespaces))
    if isinstance(node, NoPlan):
        return RebindStatus(RebindPhase.FAILED, _text(node))
    planned = plan(node, request.max_pods)
    if isinstance(planned, NoPlan):
        return RebindStatus(RebindPhase.SUCCEED, _text(planned))
    moves = _moves(properties.cpus, allocator, planned.moves)
    before, after = status_measures(planned.before), status_measures(planned.after)
    written = StatusPlan(time_text(now), before=before, after=after, moves=moves)
    if request.dry_run:
        reason = f"dry run; pods to move: {len(planned.uids)}"
        return RebindStatus(RebindPhase.SUCCEED, reason, plan=written)
    return RebindStatus(RebindPhase.PENDING, f"pods to move: {len(planned.uids)}", plan=written)


def requests_of(pods: Iterable[ApiPod]) -> dict[str, ResourceRequest]:
    """The requests by uid, without pods whose request can't be read: they are not moved."""
    found = {}
    for pod in pods:
        try:
            found[pod.uid] = request_of(pod).resources
        except PodRequestError:
            continue
    return found


def fixed_pods(pods: Iterable[ApiPod], excluded_namespaces: Set[str]) -> dict[str, str]:
    """Why pods are not moved, by uid."""
    return {pod.uid: why for pod in pods if (why := _why_fixed(pod, excluded_namespaces))}


def _why_fixed(pod: ApiPod, excluded_namespaces: Set[str]) -> str:
    if pod.mirror:
        return "it is a static pod"
    if pod.deleted:
        return "it is being deleted"
    if pod.annotations.get(REBIND) == REBIND_NEVER:
        return f"its annotation {REBIND} is {REBIND_NEVER}"
    if pod.namespace in excluded_namespaces:
        return f"namespace {pod.namespace} is in excludedNamespaces"
    return ""


def _moves(
    options: TopologyOptions | None, allocator: NodeAllocator, moves: Iterable[PodMove]
) -> tuple[StatusMove, ...]:
    now = {uid: each.allocation for uid, each in allocator.holdings.items()}
    found = []
    for move in moves:
        before = now[move.uid]
        after = moved_allocation(options or TopologyOptions(None), before, move.target)
        found.append(StatusMove(move.uid, move.title, status_of(before), status_of(after)))
        now[move.uid] = after
    return tuple(found)


def status_of(allocation: PodAllocation) -> str:
    """The allocation as the text of resource-status, as in the moves of a plan."""
    return status_text(allocation.cpus, allocation.amounts)


def status_measures(measures: Measures) -> StatusMeasures:
    """The measures as plans have them."""
    return StatusMeasures(*msgspec.structs.astuple(measures))


def _text(found: NoPlan) -> str:
    return bounds.reason("; ".join(found.reasons))
