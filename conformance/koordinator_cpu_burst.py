"""koordlet's CPU burst: the writes of one round over a node (`round`), and the tokens of the
limiter of one container (`limiter`).

A case has koordlet's writes, so they are made here of Topolet's values: once of these alone, and
once as koordlet makes them, which adds the changes of containers to the present quota of their pod,
and does not bound a burst."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from agent.allocate.colocation import cpu_burst
from agent.allocate.colocation.cpu_burst import BurstContainer, BurstPod, SharedUse, SharePool
from agent.model.node_slo import CpuBurst, NodeSlo
from agent.model.objects import converted
from agent.model.pod.apiobjects import ApiPod, from_object
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.pod.resource_request import pod_requests
from agent.usage import pod_strategies
from conformance.files import CaseVerdict, Difference, Judge

Json = dict[str, Any]
Write = list[str]

ABOVE_QUOTA: Final = Difference(
    "burst-above-quota",
    "koordlet writes a burst larger than the group's quota, which mainline kernels refuse, so that"
    " there is none; Topolet bounds it by the quota of the limit",
    listed=True,
)
ACCUMULATED: Final = Difference(
    "pod-quota-accumulated",
    "koordlet adds the changes of containers to whatever quota their pod has, so that one that is"
    " wrong stays wrong; Topolet makes it of the limits",
    listed=True,
)
WHOLE_SECONDS: Final = Difference(
    "whole-seconds",
    "koordlet's limiter cuts the time between two rounds to whole seconds, and counts nothing where"
    " a round comes after 0.98 s; Topolet counts all of it",
    listed=True,
)
_QUOTA, _BURST = "cpu.cfs_quota_us", "cpu.cfs_burst_us"
_OWN_OR_REST: Final = (QoS.LSE, QoS.LSR, QoS.BE)
_STATES: Final = {
    SharePool.IDLE: "nodeBurstIdle",
    SharePool.COOLING: "nodeBurstCooling",
    SharePool.OVERLOAD: "nodeBurstOverload",
    SharePool.UNKNOWN: "nodeBurstUnknown",
}
_SAMPLES: Final = 5
_MICROSECONDS_OF_MILLI: Final = 100


def judge(case: Json) -> CaseVerdict:
    return _round(case) if case["op"] == "round" else _limiter(case)


def _limiter(case: Json) -> CaseVerdict:
    strategy = CpuBurst(
        cfs_quota_burst_percent=case["percent"], cfs_quota_burst_period_seconds=case["period"]
    )
    capacity = cpu_burst.token_capacity(strategy)
    assert capacity is not None
    seconds = [step["seconds"] for step in case["steps"]]
    actual = _tokens(case, capacity, seconds)
    if actual == case["expect"]:
        return CaseVerdict(True, actual)
    theirs = _tokens(case, capacity, [int(passed) for passed in seconds])
    declared = WHOLE_SECONDS.name if theirs == case["expect"] else None
    return CaseVerdict(False, actual, declared)


def _tokens(case: Json, capacity: int, seconds: Sequence[float]) -> Json:
    tokens: float = int(capacity * case["start"])
    steps = []
    for step, passed in zip(case["steps"], seconds, strict=True):
        tokens = cpu_burst.tokens(capacity, tokens, step["usage"], passed)
        steps.append({"allowed": tokens > 0, "token": tokens})
    return {"capacity": capacity, "steps": steps}


def _round(case: Json) -> CaseVerdict:
    strategy = converted(case["strategy"], "cpuBurstStrategy", CpuBurst)
    pods = [(from_object(measured["pod"]), measured) for measured in case["pods"]]
    pool = _share_pool(strategy, case, pods)
    rounds = [
        _PodRound(strategy, pool, case["tokens"], pod, measured)
        for pod, measured in pods
        if _label(pod) not in _OWN_OR_REST and not pod.terminal
    ]
    writes = [write for of_pod in rounds for write in of_pod.writes()]
    actual = {"state": _STATES[pool], "writes": writes}
    theirs = [write for of_pod in rounds for write in of_pod.koordlets_writes()]
    if {**actual, "writes": theirs} != case["expect"]:
        return CaseVerdict(False, actual)
    files = {file for (_, file), _ in _last(writes).items() ^ _last(theirs).items()}
    declared = ABOVE_QUOTA if _BURST in files else ACCUMULATED
    return CaseVerdict(not files, actual, declared.name if files else None)


def _last(writes: Iterable[Write]) -> dict[tuple[str, str], str]:
    """The last text of each file, by group and file."""
    return {(group, file): text for group, file, text in writes}


def _label(pod: ApiPod) -> str:
    return pod.labels.get(QOS_LABEL, "")


def _share_pool(strategy: CpuBurst, case: Json, pods: Iterable[tuple[ApiPod, Json]]) -> SharePool:
    owned_milli, used = 0, _average(case["nodeUsed"])
    for pod, measured in pods:
        if _label(pod) in (QoS.LSE, QoS.LSR):
            owned_milli += pod_requests(pod).get("cpu", 0)
        if used is not None and _label(pod) in _OWN_OR_REST:
            used -= _average(measured["used"]) or 0.0
    return cpu_burst.share_pool(strategy, SharedUse(case["cpus"], owned_milli, used))


def _average(samples: Sequence[float]) -> float | None:
    """The average of the newest samples; None without any."""
    newest = samples[-_SAMPLES:]
    return sum(newest) / len(newest) if newest else None


class _PodRound:
    """The round of one pod."""

    def __init__(
        self, strategy: CpuBurst, pool: SharePool, tokens: Json, pod: ApiPod, measured: Json
    ) -> None:
        slo = NodeSlo(cpu_burst_strategy=strategy)
        self._strategy = pod_strategies.of_pod(slo, pod)[0].cpu_burst
        self._group = f"kubepods/{pod.uid}"
        self._quota: int = measured["quota"]
        limited = cpu_burst.token_capacity(self._strategy) is not None
        statuses = {
            status["name"]: status for status in measured["pod"]["status"]["containerStatuses"]
        }
        self._groups: dict[str, str] = {}
        containers: dict[str, BurstContainer] = {}
        for container in pod.containers:
            status = statuses.get(container.name, {})
            id_, limit_milli = status.get("containerID"), container.limits.get("cpu")
            if not id_:
                continue
            self._groups[container.name] = (
                f"{self._group}/cri-containerd-{id_.removeprefix('containerd://')}.scope"
            )
            now = measured["containers"][container.name]
            throttled = now["throttled"][-1:]
            containers[container.name] = BurstContainer(
                limit_milli * _MICROSECONDS_OF_MILLI if limit_milli else None,
                now["quota"] if "running" in status["state"] else None,
                bool(throttled and throttled[0] > 0),
                limited and tokens[id_] <= 0,
            )
        self._pod = BurstPod(
            sum(container.limit_microseconds or 0 for container in containers.values())
            if self._quota > 0
            else None,
            containers,
        )
        self._wanted = cpu_burst.pod_burst(self._strategy, pool, self._pod)

    def writes(self) -> Iterator[Write]:
        bursts = self._wanted
        for name, group in self._groups.items():
            yield [group, _BURST, str(bursts.containers[name].burst_microseconds)]
        yield [self._group, _BURST, str(bursts.pod.burst_microseconds)]
        quota = bursts.pod.quota
        whole = self._quota if quota is None else quota.microseconds
        of_pod = [self._group, _QUOTA, str(whole)]
        if whole > self._quota:
            yield of_pod
        for group, _, microseconds in self._changes():
            yield [group, _QUOTA, str(microseconds)]
        if whole < self._quota:
            yield of_pod

    def koordlets_writes(self) -> Iterator[Write]:
        """Yields koordlet's writes in its order, from the same quotas of the containers."""
        bursts = {
            name: cpu_burst.wanted_burst(self._strategy, container)
            for name, container in self._pod.containers.items()
        }
        for name, group in self._groups.items():
            yield [group, _BURST, str(bursts[name])]
        yield [self._group, _BURST, str(sum(bursts.values()))]
        whole = self._quota
        for group, quota_before, quota in self._changes():
            of_container = [group, _QUOTA, str(quota)]
            if whole > 0:
                whole += quota - quota_before
                of_pod = [self._group, _QUOTA, str(whole)]
                yield from (
                    (of_pod, of_container) if quota > quota_before else (of_container, of_pod)
                )
            else:
                yield of_container

    def _changes(self) -> Iterator[tuple[str, int, int]]:
        """The groups of containers whose quota changes, with the old and the new one."""
        for name, group in self._groups.items():
            present, bursts = self._pod.containers[name].quota_microseconds, self._wanted
            quota = bursts.containers[name].quota
            if quota is not None and present is not None and quota.microseconds != present:
                yield group, present, quota.microseconds


JUDGES: Final = {"koordinator-cpu-burst": Judge(judge, (ABOVE_QUOTA, ACCUMULATED, WHOLE_SECONDS))}
