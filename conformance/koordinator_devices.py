"""Koordinator's device allocation: the validation and conversion of a pod's request, and the choice
of devices on one node with the node's score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from agent.allocate.devices.allocation import Allocation, allocate, node_score
from agent.allocate.devices.inventory import (
    NodeDevices,
    inventory,
    node_devices,
)
from agent.allocate.devices.need import filled, hinted
from agent.allocate.devices.partitions import partitions
from agent.allocate.numa.hint import of_nodes
from agent.allocate.refusal import Refusal
from agent.model.cpu.policies import Strategy
from agent.model.devices import device_object
from agent.model.devices.device_allocation import (
    DEVICE_ALLOCATE_HINT,
    DEVICE_JOINT_ALLOCATE,
    GPU_PARTITION_SPEC,
    DeviceAllocateStrategy,
    DeviceHint,
    DevicePreferences,
    allocated,
    device_preferences,
    sum_amounts,
    sum_functions,
    virtual_functions,
)
from agent.model.devices.device_object import (
    GPU_CORE,
    GPU_MEMORY_RATIO,
    GPU_PARTITIONS,
    GPU_SHARED,
    Device,
)
from agent.model.devices.device_request import (
    FULL,
    NPU_CORE,
    DeviceRequest,
    RequestError,
    RequestFault,
    TypeRequest,
    type_requests,
)
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.resource_request import InitRequests, pod_total
from agent.model.quantities import Quantity, milli, whole
from conformance.device_differences import (
    CORE_OF_SEVERAL,
    DIFFERENCES,
    FRACTIONS_ADD_UP,
    GPU,
    HEALTHY_ALONE,
    UNEVEN_SHARES,
    DeviceCase,
    declared,
)
from conformance.files import CaseVerdict, Judge


def judge_request(case: dict[str, Any]) -> CaseVerdict:
    """Compares every field; errors are compared by their kind."""
    actual = _requested(case, _total(case["pod"]))
    if actual == case["expect"]:
        return CaseVerdict(True, actual)
    return CaseVerdict(False, actual, _declared_request(case, actual))


def _requested(case: dict[str, Any], total: Mapping[str, int]) -> dict[str, Any]:
    try:
        requested = type_requests(total)
    except RequestError as error:
        return {"error": error.reason.value}
    if not requested:
        return {"skip": True}
    hints = _preferences(case["pod"]).hints
    there = _devices(case["devices"])
    return {
        kind: _described(kind, one, hints.get(kind), [each for each in there if each.type == kind])
        for kind, one in requested.items()
    }


def _described(
    kind: str, request: TypeRequest, hint: DeviceHint | None, there: list[Device]
) -> dict[str, Any]:
    described: dict[str, Any] = {"total": request.total}
    if kind == GPU:
        described |= {"count": request.count, "per": request.per, "shared": request.shared}
        if all(each.healthy for each in there):
            described["filled"] = [
                {"minor": each.minor, "resources": filled(request.per, each.resources)}
                for each in there
            ]
        else:
            described["filled"] = None
    else:
        request = hinted(request, hint, sum(map(_selected(hint), there)))
        described |= {"count": request.count, "per": request.per}
    return described if there and request.count else {"total": request.total, "insufficient": True}


def _selected(hint: DeviceHint | None) -> Any:
    selector = hint.selector if hint else None
    return lambda each: each.healthy and (selector is None or selector.matches(each.labels))


def _total(pod: dict[str, Any], scaled: Callable[[Quantity], int] = whole) -> dict[str, int]:
    """The pod's request, with quantities as `scaled` returns them."""
    return pod_total(
        [_amounts(container.get("requests"), scaled) for container in pod["containers"]],
        [
            InitRequests(
                _amounts(container.get("requests"), scaled), container.get("always", False)
            )
            for container in pod.get("initContainers", ())
        ],
    )


def _rounded_total(pod: dict[str, Any]) -> dict[str, int]:
    """The pod's request, rounded up only after it is added up."""
    return {name: -(-amount // 1000) for name, amount in _total(pod, milli).items()}


def _declared_request(case: dict[str, Any], actual: dict[str, Any]) -> str | None:
    """The difference, None if one of the differing types has no declared reason."""
    theirs: dict[str, Any] = case["expect"]
    if _requested(case, _rounded_total(case["pod"])) == theirs:
        return FRACTIONS_ADD_UP.name
    if actual.get("error") == RequestFault.UNEVEN:
        total = theirs.get(GPU, {}).get("total", {})
        return UNEVEN_SHARES.name if _uneven(total) else None
    if theirs.keys() != actual.keys() or "error" in theirs:
        return None
    differing = [kind for kind in theirs if theirs[kind] != actual[kind]]
    reasons = [_reason(case, kind, theirs[kind], actual[kind]) for kind in differing]
    return next(iter(reasons)) if all(reasons) else None


def _reason(
    case: dict[str, Any], kind: str, theirs: dict[str, Any], actual: dict[str, Any]
) -> str | None:
    if theirs["total"] != actual["total"]:
        return None
    if kind == GPU:
        several = theirs.get("per", {}).get(GPU_CORE, 0) > FULL
        return CORE_OF_SEVERAL.name if several else None
    hint = _preferences(case["pod"]).hints.get(kind)
    there = [each for each in _devices(case["devices"]) if each.type == kind]
    unhealthy = not all(each.healthy for each in _matching(hint, there))
    for_all = hint is not None and hint.strategy is DeviceAllocateStrategy.APPLY_FOR_ALL
    return HEALTHY_ALONE.name if for_all and unhealthy else None


def _matching(hint: DeviceHint | None, there: Iterable[Device]) -> list[Device]:
    selector = hint.selector if hint else None
    return [each for each in there if selector is None or selector.matches(each.labels)]


def _uneven(total: dict[str, int]) -> bool:
    """Whether an amount can't be divided into equal whole shares for the number of cards that the
    greatest percentage needs."""
    cards = max(1, *(total.get(name, 0) // FULL for name in (GPU_CORE, GPU_MEMORY_RATIO)))
    parts = (total.get(name, 0) for name in (GPU_CORE, GPU_MEMORY_RATIO, NPU_CORE))
    return GPU_SHARED not in total and any(part % cards for part in parts)


def judge_allocation(case: dict[str, Any]) -> CaseVerdict:
    """Any error agrees with any error. Choices agree if all devices, their amounts, their
    functions, the order and the score are the same."""
    question = _question(case)
    actual = _allocation(question)
    theirs: dict[str, Any] = case["expect"]
    both_fail = "error" in theirs and "error" in actual
    if both_fail or theirs == actual:
        return CaseVerdict(True, actual)
    return CaseVerdict(False, actual, declared(question, theirs, actual))


def _question(case: dict[str, Any]) -> DeviceCase:
    request: DeviceRequest | RequestFault
    try:
        requested = type_requests(_amounts(case["pod"]["requests"]))
        request = DeviceRequest(requested, _preferences(case["pod"]))
    except RequestError as error:
        request = error.reason
    numa, strategy = case["numa"], case["strategy"]
    return DeviceCase(
        _node(case),
        request,
        None if numa is None else of_nodes(numa),
        Strategy(strategy) if strategy else None,
    )


def _allocation(question: DeviceCase) -> dict[str, Any]:
    if isinstance(question.request, RequestFault):
        return {"error": question.request.value}
    found = allocate(
        question.node, question.request, numa=question.numa, strategy=question.strategy
    )
    if isinstance(found, Refusal):
        return {"error": f"{found.resource}: {found.reason.removeprefix('device-')}"}
    written: dict[str, Any] = {"allocation": _written(found)}
    if question.strategy is not None:
        written["score"] = node_score(
            question.node, question.request, found, question.strategy, numa=question.numa
        )
    return written


def _node(case: dict[str, Any]) -> NodeDevices:
    table = case.get("partitions")
    annotations = {} if table is None else {GPU_PARTITIONS: _json(table)}
    known = partitions(case.get("deviceLabels", {}), annotations, case.get("nodeLabels", {}))
    pods = [{DEVICE_ALLOCATED: _json(_annotation(pod))} for pod in case["allocated"]]
    taken = sum_functions(map(virtual_functions, pods))
    held = sum_amounts(map(allocated, pods))
    return node_devices(inventory(_devices(case["devices"]), known), held, taken)


def _annotation(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: [
            {**each, "extension": {"vfs": [{"busID": bus} for bus in each.get("vfs") or ()]}}
            for each in held
        ]
        for kind, held in pod.items()
    }


def _written(found: Allocation) -> dict[str, Any]:
    return {
        kind: [
            {
                "minor": each.minor,
                "resources": each.resources,
                **({"vfs": [one.bus for one in each.functions]} if each.functions else {}),
            }
            for each in chosen
        ]
        for kind, chosen in found.devices.items()
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


_KEYS: Final = {
    "hint": DEVICE_ALLOCATE_HINT,
    "joint": DEVICE_JOINT_ALLOCATE,
    "partitionSpec": GPU_PARTITION_SPEC,
}


def _devices(written: list[dict[str, Any]]) -> tuple[Device, ...]:
    return device_object.decode({"metadata": {"name": "node"}, "spec": {"devices": written}})


def _preferences(pod: Mapping[str, Any]) -> DevicePreferences:
    return device_preferences(
        {key: msgspec.json.encode(pod[name]).decode() for name, key in _KEYS.items() if name in pod}
    )


def _amounts(
    written: Mapping[str, Any] | None, scaled: Callable[[Quantity], int] = whole
) -> dict[str, int]:
    return {name: scaled(quantity) for name, quantity in (written or {}).items()}


JUDGES: Final = {
    "koordinator-device-requests": Judge(
        judge_request, (UNEVEN_SHARES, CORE_OF_SEVERAL, HEALTHY_ALONE, FRACTIONS_ADD_UP)
    ),
    "koordinator-device-allocate": Judge(judge_allocation, DIFFERENCES),
}
