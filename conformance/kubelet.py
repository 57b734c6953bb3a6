"""The kubelet: its choice of CPUs (kubelet-take-cpus), sequences of allocations, removals and hints
under one static policy (kubelet-static-policy), and its state files with their checksums
(kubelet-state-files)."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from agent.allocate.kubelet.cpu_assignment import take
from agent.allocate.kubelet.static_policy import (
    AllocationRefused,
    NotEnoughCpusError,
    PolicyStartError,
    RefusalReason,
    StaticOptions,
)
from agent.allocate.numa.hint import TopologyHint, ids
from agent.kubelet import cpu_manager_state, device_checkpoint, memory_manager_state
from agent.kubelet.statefile import Checked
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import Layout, of
from agent.model.cpu.policies import kubelet_numa_policy
from agent.model.pod_request import ContainerCpu, PodCpu, cpus_of
from agent.model.quantities import milli
from conformance.files import CaseVerdict, Difference, Judge
from conformance.machines import cpus
from conformance.static_cpu_manager import (
    EMPTY,
    StaticPolicy,
    StaticState,
    allocate,
    container_hints,
    container_of,
    ends_before_others,
    make,
    make_with_count,
    pod_hints,
    remove,
    start,
)

_SHARED_SLICE: Final = Difference(
    "shared-slice",
    "distribution over four or more NUMA nodes: a later combination, which is not more even,"
    " overwrites the best one found",
    listed=True,
)

HALF_CORES: Final = Difference(
    "half-cores",
    "full-pcpus-only assigns half a core if the reservation or an earlier assignment splits it",
    listed=True,
)

_REUSABLE_COUNTED_TWICE: Final = Difference(
    "reusable-counted-twice",
    "hints include NUMA nodes with too few CPUs: the CPUs of a removed init container count as"
    " reusable and as free",
    listed=True,
)

_REUSED_WHILE_HELD: Final = Difference(
    "reused-while-held",
    "an init container that is placed again makes CPUs reusable that an app container holds",
    listed=True,
)

_SHARED_POOL_EMPTIED: Final = Difference(
    "shared-pool-emptied",
    "an allocation takes the last shared CPUs, so that other containers have none",
    listed=True,
)

_FEWEST_NODES: Final = 4


def judge_take_cpus(case: dict[str, Any]) -> CaseVerdict:
    layout = of(cpus(case["shape"], case["numbering"], case["l3"]))
    options = StaticOptions(**{name.replace("-", "_"): True for name in case["options"]})
    free = CpuSet.parse(case["available"]).mask
    expect = case["expect"]
    try:
        taken = take(layout, free, case["need"], options)
    except NotEnoughCpusError as error:
        refused = "error" in expect or "hang" in expect or "panic" in expect
        return CaseVerdict(refused, {"error": str(error)})
    actual = {"cpuset": str(CpuSet.from_int(taken))}
    if "hang" in expect or "panic" in expect:
        return CaseVerdict(taken.bit_count() == case["need"] and not taken & ~free, actual)
    if actual == expect:
        return CaseVerdict(True, actual)
    theirs = CpuSet.parse(expect.get("cpuset", "")).mask
    quirk = case.get("quirk") == _SHARED_SLICE.name and options.distribute_cpus_across_numa
    declared = quirk and _overwritten(layout, free, taken, theirs)
    return CaseVerdict(False, actual, _SHARED_SLICE.name if declared else None)


def judge_static_policy(case: dict[str, Any]) -> CaseVerdict:
    """A sequence is judged up to the first step that differs, because later steps start from
    another state."""
    expect = case["expect"]
    started: dict[str, Any] = {}
    try:
        policy = _policy(case)
        started["reserved"] = _text(policy.reserved)
        state = start(policy, _found(case.get("state")))
    except PolicyStartError as error:
        agrees = "error" in expect["start"] and started.items() <= expect["start"].items()
        return CaseVerdict(agrees, {"start": {**started, "error": str(error)}})
    started["default"] = _text(state.default)
    if started != expect["start"]:
        return CaseVerdict(False, {"start": started})
    pods = {each["name"]: _pod(each) for each in case["pods"]}
    run = _Run(policy, state)
    answers: list[dict[str, Any]] = []
    for step, theirs in zip(case["steps"], expect["steps"], strict=True):
        pod = pods[step["pod"]]
        after, answer = _answer(policy, run.state, pod, step)
        answers.append(answer)
        if "hang" in theirs or "panic" in theirs:
            break
        if not _same(answer, theirs):
            declared = run.difference(pod, step, answer, theirs)
            name = None if declared is None else declared.name
            return CaseVerdict(False, {"start": started, "steps": answers}, name)
        run.advance(pod, step, after, answer)
    return CaseVerdict(True, {"start": started, "steps": answers})


class _Run:
    """The state of a sequence of steps."""

    def __init__(self, policy: StaticPolicy, state: StaticState) -> None:
        self._policy = policy
        self.state = state
        self._doubtful = 0
        """CPUs that the kubelet treats as reusable by the pod that placed a container last,
        although another container of the pod runs on them."""

    def advance(
        self, pod: PodCpu, step: dict[str, Any], after: StaticState, answer: dict[str, Any]
    ) -> None:
        before, self.state = self.state, after
        if step["op"] != "allocate" or "error" in answer:
            return
        container = container_of(pod, step["container"])
        if cpus_of(pod, container):
            held = after.held(pod.uid, container.name)
            kept = self._doubtful if before.reusable_of == pod.uid else 0
            if ends_before_others(pod, container.name):
                self._doubtful = (kept | held) & ~after.reusable
            else:
                self._doubtful = kept & ~held

    def difference(
        self,
        pod: PodCpu,
        step: dict[str, Any],
        actual: dict[str, Any],
        theirs: dict[str, Any],
    ) -> Difference | None:
        """The declared difference that explains the kubelet's answer to this step, None if there is
        none."""
        before = self.state
        if self._doubtful and before.reusable_of == pod.uid:
            reusable = before.reusable | self._doubtful
            doubtful = msgspec.structs.replace(before, reusable=reusable)
            if _same(_answer(self._policy, doubtful, pod, step)[1], theirs):
                return _REUSED_WHILE_HELD
        if "hints" in theirs:
            twice = before.reusable_by(pod.uid) & self._policy.available(before)
            return _REUSABLE_COUNTED_TWICE if twice and _offers_more(actual, theirs) else None
        if "error" in theirs or not theirs.get("cpuset"):
            return None
        given = CpuSet.parse(theirs["cpuset"]).mask
        layout, options = self._policy.layout, self._policy.options
        refused = actual.get("error")
        if refused == RefusalReason.DEFAULT_EMPTIED.value and not theirs["default"]:
            return _SHARED_POOL_EMPTIED
        halves = options.full_pcpus_only and layout.expand(layout.whole(given)) != given
        if halves and refused in (None, RefusalReason.NOT_ENOUGH_CORES.value):
            return HALF_CORES
        mine = CpuSet.parse(actual["cpuset"] or "").mask
        free = self._policy.available(before) | before.reusable_by(pod.uid)
        if options.distribute_cpus_across_numa and _overwritten(layout, free, mine, given):
            return _SHARED_SLICE
        return None


def _offers_more(actual: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether the kubelet has all of Topolet's hints, and possibly more."""
    return bool(theirs["hints"]) and all(hint in theirs["hints"] for hint in actual["hints"])


def _answer(
    policy: StaticPolicy, state: StaticState, pod: PodCpu, step: dict[str, Any]
) -> tuple[StaticState, dict[str, Any]]:
    answer: dict[str, Any] = {}
    match step["op"]:
        case "allocate":
            name = step["container"]
            state, placement = allocate(policy, state, pod, name, step.get("mask"))
            if isinstance(placement, AllocationRefused):
                answer["error"] = placement.reason.value
            held = state.held(pod.uid, name)
            answer["cpuset"] = _text(held) if held else None
        case "remove":
            state = remove(state, pod.uid, step["container"])
        case "hints":
            answer["hints"] = _hints(container_hints(policy, state, pod, step["container"]))
        case "podHints":
            answer["hints"] = _hints(pod_hints(policy, state, pod))
        case other:
            raise ValueError(f"op {other!r} is not known")
    return state, {**answer, "default": _text(state.default)}


def _same(actual: dict[str, Any], theirs: dict[str, Any]) -> bool:
    if "error" in theirs:
        same_cpus = actual.get("cpuset") == theirs.get("cpuset")
        return "error" in actual and same_cpus and actual["default"] == theirs["default"]
    return actual == theirs


def _policy(case: dict[str, Any]) -> StaticPolicy:
    layout = of(cpus(case["shape"], case["numbering"], case["l3"]))
    options = StaticOptions(**{name.replace("-", "_"): True for name in case["options"]})
    topology_policy = kubelet_numa_policy(case["topologyPolicy"])
    if topology_policy is None:
        raise ValueError(f"topologyPolicy {case['topologyPolicy']!r} is not known")
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
    """The pod. A container with a CPU limit of 0 counts as unlimited, so its pod is not
    Guaranteed."""
    containers = tuple(_container(container) for container in pod["containers"])
    init = tuple(_container(container) for container in pod["init"])
    limited = all(container.cpu_milli for container in (*init, *containers))
    guaranteed = pod["qos"] == "Guaranteed" and limited
    return PodCpu(pod["name"], "guaranteed" if guaranteed else "burstable", containers, init)


def _container(container: dict[str, Any]) -> ContainerCpu:
    return ContainerCpu(container["name"], milli(container["cpu"]), container.get("sidecar", False))


def _hints(hints: tuple[TopologyHint, ...] | None) -> list[dict[str, Any]] | None:
    if hints is None:
        return None
    return [
        {"mask": None if hint.mask is None else [*ids(hint.mask)], "preferred": hint.preferred}
        for hint in hints
    ]


def _overwritten(layout: Layout, free: int, actual: int, theirs: int) -> bool:
    """Whether both take the same number of free CPUs from the same number of NUMA nodes, at least
    four, and Topolet's choice leaves the nodes at least as even."""
    nodes = len(layout.node_ids(actual))
    return (
        nodes >= _FEWEST_NODES
        and nodes == len(layout.node_ids(theirs))
        and actual.bit_count() == theirs.bit_count()
        and not theirs & ~free
        and _squares(layout, free & ~actual) <= _squares(layout, free & ~theirs)
    )


def _squares(layout: Layout, left: int) -> int:
    """The sum of squares of the free CPUs per node; a smaller sum is more even."""
    return sum((node.cpus & left).bit_count() ** 2 for node in layout.nodes)


def _text(mask: int) -> str:
    return str(CpuSet.from_int(mask))


def judge_state_file(case: dict[str, Any]) -> CaseVerdict:
    """Agrees if the computed checksum is the recorded one, and the whole file could be read.
    `content`: the text of the file. A case with `policy` and `checksum` instead is an empty file of
    the memory manager."""
    raw = _content(case).encode()
    state: Any = None
    match case["file"]:
        case "cpu_manager_state":
            state = cpu_manager_state.decode(raw)
        case "memory_manager_state":
            state = memory_manager_state.decode(raw)
        case "kubelet_internal_checkpoint":
            state = device_checkpoint.decode(raw)
        case name:
            raise ValueError(f"file {name!r} is not known")
    actual = {"checksum": state.checked.value, "problems": list(state.problems)}
    return CaseVerdict(state.checked is Checked.VERIFIED and not state.problems, actual)


def _content(case: dict[str, Any]) -> str:
    if "content" in case:
        text: str = case["content"]
        return text
    empty = {"policyName": case["policy"], "machineState": {}, "checksum": case["checksum"]}
    return json.dumps(empty)


JUDGES: Final = {
    "kubelet-take-cpus": Judge(judge_take_cpus, (_SHARED_SLICE,)),
    "kubelet-static-policy": Judge(
        judge_static_policy,
        (
            HALF_CORES,
            _REUSABLE_COUNTED_TWICE,
            _REUSED_WHILE_HELD,
            _SHARED_POOL_EMPTIED,
            _SHARED_SLICE,
        ),
    ),
    "kubelet-state-files": Judge(judge_state_file),
}
