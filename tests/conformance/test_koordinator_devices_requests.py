from __future__ import annotations

from typing import Any

from conformance.device_differences import FRACTIONS_ADD_UP
from conformance.koordinator_devices import judge_request

CORE = "koordinator.sh/gpu-core"
RATIO = "koordinator.sh/gpu-memory-ratio"
MEMORY = "koordinator.sh/gpu-memory"
RDMA = "koordinator.sh/rdma"
FPGA = "koordinator.sh/fpga"


def card(minor: int, health: bool = True) -> dict[str, Any]:
    return {
        "type": "gpu",
        "minor": minor,
        "health": health,
        "resources": {CORE: "100", RATIO: "100", MEMORY: "8Ki"},
    }


def case(
    requests: dict[str, Any], devices: list[dict[str, Any]], expect: dict[str, Any], **pod: Any
) -> dict[str, Any]:
    pod_ = {"containers": [{"requests": requests}], **pod}
    return {"pod": pod_, "devices": devices, "expect": expect}


def test_fractions_that_are_added_before_they_are_rounded_are_declared() -> None:
    """199.5 + 199.5 is 399, which is not a multiple of 100; rounded up first it is 400."""
    half = {CORE: "199.5", RATIO: "800", FPGA: "100"}
    sidecar = {"requests": half, "always": True}
    both = case(half, [card(0)], {"error": "combination"}, initContainers=[sidecar])
    verdict = judge_request(both)
    assert verdict.declared == FRACTIONS_ADD_UP.name
    assert (verdict.actual["gpu"]["count"], verdict.actual["gpu"]["per"]) == (
        16,
        {CORE: 25, RATIO: 100},
    )
    other = case(half, [card(0)], {"error": "unit"}, initContainers=[sidecar])
    assert judge_request(other).declared is None
    whole = {CORE: "200", RATIO: "800", FPGA: "100"}
    plain = {"requests": whole, "always": True}
    even = case(whole, [card(0)], {"error": "combination"}, initContainers=[plain])
    assert judge_request(even).declared is None, "without fractions the sums are the same"
