"""A RebindResource in words: its phase, its moves, and the measures before and after."""

from __future__ import annotations

import msgspec

from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError, resource_status
from agent.model.rebind_resource import RebindRequest, StatusPlan
from agent.view import format

_MEASURES = ("NUMA crossings", "broken cores", "cores in use", "NUMA nodes in use")


def draw(request: RebindRequest, width: int) -> str:
    """Without a plan only the first line."""
    status = request.status
    lines = [f"RebindResource {request.name} of node {request.node}: {status.phase}"]
    if status.reason:
        lines[0] += f": {status.reason}"
    if status.plan is not None:
        lines += ["", *_moves(status.plan, width), "", *_measures(status.plan, width)]
    return "\n".join(lines) + "\n"


def _moves(plan: StatusPlan, width: int) -> list[str]:
    rows = [("POD", "FROM", "TO")]
    rows += [(each.pod, _place(each.source), _place(each.target)) for each in plan.moves]
    return format.table(rows, width)


def _measures(plan: StatusPlan, width: int) -> list[str]:
    before, after = map(msgspec.structs.astuple, (plan.before, plan.after))
    rows = [("MEASURE", "BEFORE", "AFTER")]
    rows += [
        (name, str(one), str(other))
        for name, one, other in zip(_MEASURES, before, after, strict=True)
    ]
    return format.table(rows, width)


def _place(text: str) -> str:
    """The CPUs of a resource-status, else the NUMA nodes."""
    try:
        status = resource_status({RESOURCE_STATUS: text})
        nodes = ",".join(map(str, sorted(status.amounts())))
        return str(status.cpus()) or f"NUMA nodes {nodes}"
    except AnnotationError:
        return text
