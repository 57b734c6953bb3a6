"""Koordinator's choice of devices on one node, and what it scores the node."""

from __future__ import annotations

from typing import Any

import msgspec

from agent.allocate.bits import of_nodes
from agent.allocate.devices.allocation import Allocation, allocate, node_score
from agent.allocate.devices.inventory import NodeDevices, inventory, node_devices
from agent.allocate.devices.partitions import partitions
from agent.allocate.devices.request import (
    DeviceRefusal,
    DeviceRequest,
    RequestError,
    RequestFault,
    asks,
)
from agent.conformance.device_differences import DIFFERENCES, DeviceCase, declared
from agent.conformance.devices import amounts, devices, pod_wishes
from agent.conformance.files import CaseVerdict
from agent.model.annotations import DEVICE_ALLOCATED
from agent.model.device_allocation import allocated, functions_together, together, virtual_functions
from agent.model.deviceobject import GPU_PARTITIONS
from agent.model.policies import Strategy

__all__ = ["DIFFERENCES", "judge"]


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Errors agree with errors of any text; a choice agrees in every device, its amounts, its
    functions and the order, and in the score."""
    question = _question(case)
    ours = _answer(question)
    theirs: dict[str, Any] = case["expect"]
    both_fail = "error" in theirs and "error" in ours
    if both_fail or theirs == ours:
        return CaseVerdict(True, ours)
    return CaseVerdict(False, ours, declared(question, theirs, ours))


def _question(case: dict[str, Any]) -> DeviceCase:
    request: DeviceRequest | RequestFault
    try:
        asked = asks(amounts(case["pod"]["requests"]))
        request = DeviceRequest(asked, pod_wishes(case["pod"]))
    except RequestError as error:
        request = error.reason
    numa, strategy = case["numa"], case["strategy"]
    return DeviceCase(
        node(case),
        request,
        None if numa is None else of_nodes(numa),
        Strategy(strategy) if strategy else None,
    )


def _answer(question: DeviceCase) -> dict[str, Any]:
    if isinstance(question.request, RequestFault):
        return {"error": question.request.value}
    found = allocate(
        question.node, question.request, numa=question.numa, strategy=question.strategy
    )
    if isinstance(found, DeviceRefusal):
        return {"error": f"{found.type}: {found.cause}"}
    written: dict[str, Any] = {"allocation": _written(found)}
    if question.strategy is not None:
        written["score"] = node_score(
            question.node, question.request, found, question.strategy, numa=question.numa
        )
    return written


def node(case: dict[str, Any]) -> NodeDevices:
    table = case.get("partitions")
    annotations = {} if table is None else {GPU_PARTITIONS: _json(table)}
    known = partitions(case.get("deviceLabels", {}), annotations, case.get("nodeLabels", {}))
    pods = [{DEVICE_ALLOCATED: _json(_annotation(pod))} for pod in case["allocated"]]
    taken = functions_together(map(virtual_functions, pods))
    held = together(map(allocated, pods))
    return node_devices(inventory(devices(case["devices"]), known), held, taken)


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
