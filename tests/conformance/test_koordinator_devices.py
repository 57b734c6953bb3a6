from __future__ import annotations

from typing import Any

import pytest

from conformance.device_differences import FRACTIONS_ADD_UP
from conformance.koordinator_devices import judge_allocation, judge_request

CORE = "koordinator.sh/gpu-core"
RATIO = "koordinator.sh/gpu-memory-ratio"
MEMORY = "koordinator.sh/gpu-memory"
GPU = "koordinator.sh/gpu"
RDMA = "koordinator.sh/rdma"
CARDS = "nvidia.com/gpu"


def device(kind: str, minor: int, pcie: str, **other: Any) -> dict[str, Any]:
    resources = {CORE: "100", RATIO: "100", MEMORY: "1000"} if kind == "gpu" else {RDMA: "100"}
    topology = {"socketID": -1, "nodeID": 0, "pcieID": pcie}
    whole = {"type": kind, "minor": minor, "health": True, "resources": resources}
    return {**whole, "topology": topology, **other}


def gpu_entries(percent: int, *minors: int) -> list[dict[str, Any]]:
    return [{"minor": each, "resources": parts(percent)} for each in minors]


def parts(percent: int) -> dict[str, int]:
    return {CORE: percent, RATIO: percent, MEMORY: 10 * percent}


def nics(*minors: int, amount: int = 100) -> list[dict[str, Any]]:
    return [{"minor": each, "resources": {RDMA: amount}} for each in minors]


def case(
    requests: dict[str, Any],
    devices: list[dict[str, Any]],
    used: dict[int, int] | None,
    strategy: str,
    expect: dict[str, Any],
    **other: Any,
) -> dict[str, Any]:
    pod = {"requests": requests, **other.pop("pod", {})}
    allocated = [{"gpu": gpu_entries(percent, minor)} for minor, percent in (used or {}).items()]
    return {
        "pod": pod,
        "devices": devices,
        "allocated": allocated,
        "numa": None,
        "strategy": strategy,
        "expect": expect,
        **other,
    }


SAME_SWITCH = [device("gpu", 0, "p0"), device("gpu", 1, "p0")]
TWO_SWITCHES = [device("gpu", 0, "p0"), device("gpu", 1, "p1")]
JOINT = {"joint": {"deviceTypes": ["gpu", "rdma"]}}
FAILS = {"error": "Insufficient GPU Devices", "code": "Unschedulable"}


def allocation(
    cards: list[dict[str, Any]], nic: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {"allocation": {"gpu": cards} | ({"rdma": nic} if nic else {})}


def test_another_score_is_declared_only_if_it_is_that_of_one_device() -> None:
    def scored(score: int) -> str | None:
        expect = {**allocation(gpu_entries(100, 0)), "score": score}
        return judge_allocation(
            case({CARDS: "1"}, SAME_SWITCH, None, "LeastAllocated", expect)
        ).declared

    assert scored(75) == "score-of-what-is-held"
    assert scored(74) is None


FOUR = [device("gpu", each, f"p{each // 2}") for each in range(4)]


@pytest.mark.parametrize(
    ("case_", "name"),
    [
        (
            case(
                {RATIO: "10"},
                [device("gpu", 0, "p0", resources={CORE: "100"})],
                None,
                "",
                allocation([{"minor": 0, "resources": {RATIO: 10}}]),
            ),
            "resource-not-listed",
        ),
        (
            case(
                {CARDS: "2", RDMA: "200"},
                [
                    *TWO_SWITCHES,
                    *(device("rdma", each, "p0") for each in range(2)),
                    device("rdma", 2, "p1", health=False),
                    device("rdma", 3, "p1"),
                ],
                None,
                "",
                allocation(gpu_entries(100, 0, 1), nics(0, 1)),
                pod=JOINT,
            ),
            "unfit-take-turns",
        ),
        (
            case({CORE: "100", RATIO: "300"}, SAME_SWITCH, None, "", FAILS | {"error": "x"}),
            None,
        ),
        (
            case(
                {CORE: "100", RATIO: "300"}, FOUR, None, "", allocation(gpu_entries(100, 0, 1, 2))
            ),
            "uneven-shares",
        ),
    ],
    ids=str,
)
def test_declared_differences(case_: dict[str, Any], name: str | None) -> None:
    verdict = judge_allocation(case_)
    assert (verdict.agrees, verdict.declared) == (name is None, name)


def test_virtual_functions_in_string_order() -> None:
    vfs = [{"minor": -1, "busID": bus} for bus in ("0000:40:00.10", "0000:40:00.2")]
    one = device("rdma", 0, "p0", vfGroups=[{"labels": {"type": "fast"}, "vfs": vfs}])
    hint = {"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}}
    koordinators = {"allocation": {"rdma": [{**nics(0, amount=1)[0], "vfs": ["0000:40:00.10"]}]}}
    verdict = judge_allocation(case({RDMA: "1"}, [one], None, "", koordinators, pod={"hint": hint}))
    assert verdict.declared == "functions-by-number"
    topolets = {"allocation": {"rdma": [{**nics(0, amount=1)[0], "vfs": ["0000:40:00.2"]}]}}
    assert judge_allocation(case({RDMA: "1"}, [one], None, "", topolets, pod={"hint": hint})).agrees


FPGA = "koordinator.sh/fpga"


def card(minor: int, health: bool = True) -> dict[str, Any]:
    return {
        "type": "gpu",
        "minor": minor,
        "health": health,
        "resources": {CORE: "100", RATIO: "100", MEMORY: "8Ki"},
    }


def request_case(
    requests: dict[str, Any], devices: list[dict[str, Any]], expect: dict[str, Any], **pod: Any
) -> dict[str, Any]:
    pod_ = {"containers": [{"requests": requests}], **pod}
    return {"pod": pod_, "devices": devices, "expect": expect}


def test_fractions_that_are_added_before_they_are_rounded_are_declared() -> None:
    """199.5 + 199.5 is 399, which is not a multiple of 100; rounded up first it is 400."""
    half = {CORE: "199.5", RATIO: "800", FPGA: "100"}
    sidecar = {"requests": half, "always": True}
    both = request_case(half, [card(0)], {"error": "combination"}, initContainers=[sidecar])
    verdict = judge_request(both)
    assert verdict.declared == FRACTIONS_ADD_UP.name
    assert (verdict.actual["gpu"]["count"], verdict.actual["gpu"]["per"]) == (
        16,
        {CORE: 25, RATIO: 100},
    )
    other = request_case(half, [card(0)], {"error": "unit"}, initContainers=[sidecar])
    assert judge_request(other).declared is None
    whole = {CORE: "200", RATIO: "800", FPGA: "100"}
    plain = {"requests": whole, "always": True}
    even = request_case(whole, [card(0)], {"error": "combination"}, initContainers=[plain])
    assert judge_request(even).declared is None, "without fractions the sums are the same"
