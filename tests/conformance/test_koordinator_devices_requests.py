from __future__ import annotations

from typing import Any

from conformance.device_differences import (
    CORE_OF_SEVERAL,
    FRACTIONS_ADD_UP,
    HEALTHY_ALONE,
    UNEVEN_SHARES,
)
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


def nic(minor: int, health: bool = True) -> dict[str, Any]:
    return {"type": "rdma", "minor": minor, "health": health, "resources": {RDMA: "100"}}


def case(
    requests: dict[str, Any], devices: list[dict[str, Any]], expect: dict[str, Any], **pod: Any
) -> dict[str, Any]:
    pod_ = {"containers": [{"requests": requests}], **pod}
    return {"pod": pod_, "devices": devices, "expect": expect}


def test_declared_differences() -> None:
    rounded_down = {"total": {CORE: 100, RATIO: 300}, "count": 3, "per": {CORE: 33, RATIO: 100}}
    uneven = judge_request(case({CORE: "100", RATIO: "300"}, [card(0)], {"gpu": rounded_down}))
    assert uneven.declared == UNEVEN_SHARES.name
    one = {"total": {CORE: 200, MEMORY: 8}, "count": 1, "per": {CORE: 200, MEMORY: 8}}
    several = judge_request(case({CORE: "200", MEMORY: "8"}, [card(0)], {"gpu": one}))
    assert several.declared == CORE_OF_SEVERAL.name
    every = {"rdma": {"total": {RDMA: 1}, "count": 2, "per": {RDMA: 1}}}
    hint = {"rdma": {"allocateStrategy": "ApplyForAll"}}
    with_unhealthy = judge_request(case({RDMA: "1"}, [nic(0), nic(1, False)], every, hint=hint))
    assert with_unhealthy.declared == HEALTHY_ALONE.name
    all_healthy = judge_request(case({RDMA: "1"}, [nic(0)], every, hint=hint))
    assert (all_healthy.agrees, all_healthy.declared) == (False, None)


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
