"""kubelet-static-policy: sequences of allocations, removals and hints on one static policy."""

from __future__ import annotations

from typing import Any, Final

from agent.allocate.kubelet.demand import ContainerCpu, PodCpu
from agent.allocate.kubelet.hints import CpuHint, container_hints, pod_hints
from agent.allocate.kubelet.options import StartError, StaticOptions
from agent.allocate.kubelet.state import EMPTY, StaticState
from agent.allocate.kubelet.static import (
    Exclusive,
    Refused,
    StaticPolicy,
    allocate,
    make,
    make_with_count,
    remove,
    start,
)
from agent.allocate.layout import of
from agent.conformance.machines import cpus
from agent.conformance.verdict import Difference, Verdict
from agent.model.cpuset import CpuSet
from agent.model.policies import NumaPolicy

NAME: Final = "kubelet-static-policy"
KEYS: Final = frozenset({"topologyPolicy", "pods", "steps", "options"})
DIFFERENCES: Final[tuple[Difference, ...]] = ()

_POLICIES: Final = {
    "none": NumaPolicy.NONE,
    "best-effort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}


def judge(case: dict[str, Any]) -> Verdict:
    expect = case["expect"]
    try:
        policy = _policy(case)
        state = start(policy, _found(case.get("state")))
    except StartError as error:
        ours = {"start": {"error": str(error)}}
        return Verdict("error" in expect["start"], ours)
    begun = {"reserved": _text(policy.reserved), "default": _text(state.default)}
    if begun != expect["start"]:
        return Verdict(False, {"start": begun})
    pods = {each["name"]: _pod(each) for each in case["pods"]}
    answers: list[dict[str, Any]] = []
    for step, theirs in zip(case["steps"], expect["steps"], strict=True):
        state, answer = _answer(policy, state, pods[step["pod"]], step)
        answers.append(answer)
        if not _same(answer, theirs):
            return Verdict(False, {"start": begun, "steps": answers})
    return Verdict(True, {"start": begun, "steps": answers})


def _answer(
    policy: StaticPolicy, state: StaticState, pod: PodCpu, step: dict[str, Any]
) -> tuple[StaticState, dict[str, Any]]:
    answer: dict[str, Any] = {}
    match step["op"]:
        case "allocate":
            name, nodes = step["container"], step.get("mask")
            state, placement = allocate(policy, state, pod, name, nodes)
            if isinstance(placement, Refused):
                answer["error"] = str(placement)
            cpus = placement.cpus if isinstance(placement, Exclusive) else 0
            answer["cpuset"] = _text(cpus) if cpus else None
        case "remove":
            state = remove(state, pod.uid, step["container"])
        case "hints":
            answer["hints"] = _hints(container_hints(policy, state, pod, step["container"]))
        case "podHints":
            answer["hints"] = _hints(pod_hints(policy, state, pod))
        case other:
            raise ValueError(f"op {other!r} is not known")
    return state, {**answer, "default": _text(state.default)}


def _same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    if "error" in theirs:
        return "error" in ours and ours["default"] == theirs["default"]
    return ours == theirs


def _policy(case: dict[str, Any]) -> StaticPolicy:
    layout = of(cpus(case["shape"], case["numbering"], case["l3"]))
    options = StaticOptions(**{name.replace("-", "_"): True for name in case["options"]})
    topology_policy = _POLICIES[case["topologyPolicy"]]
    if "reserved" in case:
        return make(layout, options, topology_policy, CpuSet.parse(case["reserved"]).mask)
    return make_with_count(layout, options, topology_policy, case["numReserved"])


def _found(state: dict[str, Any] | None) -> StaticState:
    if state is None:
        return EMPTY
    return StaticState(
        CpuSet.parse(state["default"]).mask,
        {
            uid: {name: CpuSet.parse(text).mask for name, text in held.items()}
            for uid, held in state["assignments"].items()
        },
    )


def _pod(pod: dict[str, Any]) -> PodCpu:
    return PodCpu(
        pod["name"],
        "guaranteed" if pod["qos"] == "Guaranteed" else "burstable",
        tuple(_container(each) for each in pod["containers"]),
        tuple(_container(each) for each in pod["init"]),
    )


def _container(container: dict[str, Any]) -> ContainerCpu:
    cpu = container["cpu"]
    milli = int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000
    return ContainerCpu(container["name"], milli, container.get("sidecar", False))


def _hints(hints: tuple[CpuHint, ...] | None) -> list[dict[str, Any]] | None:
    if hints is None:
        return None
    return [
        {"mask": list(CpuSet.from_int(hint.nodes)), "preferred": hint.preferred} for hint in hints
    ]


def _text(mask: int) -> str:
    return str(CpuSet.from_int(mask))
