"""Koordinator's validation and translation of what a pod asks of devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from agent.allocate.devices.request import (
    FULL,
    NPU_CORE,
    RequestError,
    RequestFault,
    TypeRequest,
    asks,
    filled,
    hinted,
)
from agent.allocate.resource_request import InitRequests, pod_total
from agent.conformance.devices import (
    CORE_OF_SEVERAL,
    HEALTHY_ALONE,
    UNEVEN_SHARES,
    amounts,
    devices,
    pod_wishes,
)
from agent.conformance.files import CaseVerdict
from agent.model.device_allocation import DeviceAllocateStrategy, DeviceHint
from agent.model.deviceobject import Device, DeviceType
from agent.model.nodestatus import GPU_CORE, GPU_MEMORY_RATIO, GPU_SHARED

GPU_TYPE: Final = DeviceType.GPU.value

DIFFERENCES: Final = (UNEVEN_SHARES, CORE_OF_SEVERAL, HEALTHY_ALONE)


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Compares every field; errors by their kind."""
    ours = _answer(case)
    if ours == case["expect"]:
        return CaseVerdict(True, ours)
    return CaseVerdict(False, ours, _declared(case, ours))


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    total = _total(case["pod"])
    try:
        asked = asks(total)
    except RequestError as error:
        return {"error": error.reason.value}
    if not asked:
        return {"skip": True}
    hints = pod_wishes(case["pod"]).hints
    there = devices(case["devices"])
    return {
        kind: _described(kind, ask, hints.get(kind), [each for each in there if each.type == kind])
        for kind, ask in asked.items()
    }


def _described(
    kind: str, ask: TypeRequest, hint: DeviceHint | None, there: list[Device]
) -> dict[str, Any]:
    told: dict[str, Any] = {"total": ask.total}
    if kind == GPU_TYPE:
        told |= {"count": ask.count, "per": ask.per, "shared": ask.shared}
        if all(each.healthy for each in there):
            told["filled"] = [
                {"minor": each.minor, "resources": filled(ask.per, each.resources)}
                for each in there
            ]
        else:
            told["filled"] = None
    else:
        ask = hinted(ask, hint, sum(map(_selected(hint), there)))
        told |= {"count": ask.count, "per": ask.per}
    return told if there and ask.count else {"total": ask.total, "insufficient": True}


def _selected(hint: DeviceHint | None) -> Any:
    selector = hint.selector if hint else None
    return lambda each: each.healthy and (selector is None or selector.matches(each.labels))


def _total(pod: dict[str, Any]) -> dict[str, int]:
    return pod_total(
        [amounts(each.get("requests")) for each in pod["containers"]],
        [
            InitRequests(amounts(each.get("requests")), each.get("always", False))
            for each in pod.get("initContainers", ())
        ],
    )


def _declared(case: dict[str, Any], ours: dict[str, Any]) -> str | None:
    """All that differs has to be for one of the reasons."""
    theirs: dict[str, Any] = case["expect"]
    if ours.get("error") == RequestFault.UNEVEN:
        total = theirs.get(GPU_TYPE, {}).get("total", {})
        return UNEVEN_SHARES.name if _uneven(total) else None
    if theirs.keys() != ours.keys() or "error" in theirs:
        return None
    differing = [kind for kind in theirs if theirs[kind] != ours[kind]]
    reasons = [_reason(case, kind, theirs[kind], ours[kind]) for kind in differing]
    return next(iter(reasons)) if all(reasons) else None


def _reason(
    case: dict[str, Any], kind: str, theirs: dict[str, Any], ours: dict[str, Any]
) -> str | None:
    if theirs["total"] != ours["total"]:
        return None
    if kind == GPU_TYPE:
        several = theirs.get("per", {}).get(GPU_CORE, 0) > FULL
        return CORE_OF_SEVERAL.name if several else None
    hint = pod_wishes(case["pod"]).hints.get(kind)
    there = [each for each in devices(case["devices"]) if each.type == kind]
    ill = not all(each.healthy for each in _matching(hint, there))
    for_all = hint is not None and hint.strategy is DeviceAllocateStrategy.APPLY_FOR_ALL
    return HEALTHY_ALONE.name if for_all and ill else None


def _matching(hint: DeviceHint | None, there: Iterable[Device]) -> list[Device]:
    selector = hint.selector if hint else None
    return [each for each in there if selector is None or selector.matches(each.labels)]


def _uneven(total: dict[str, int]) -> bool:
    """No whole share for each of the cards that the greatest percentage is for."""
    cards = max(1, *(total.get(name, 0) // FULL for name in (GPU_CORE, GPU_MEMORY_RATIO)))
    parts = (total.get(name, 0) for name in (GPU_CORE, GPU_MEMORY_RATIO, NPU_CORE))
    return GPU_SHARED not in total and any(part % cards for part in parts)
