"""koordlet's evictions: the pods that one round of its CPU or memory evictor takes, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from agent.allocate.colocation import eviction
from agent.allocate.colocation.eviction import (
    BatchCpu,
    EvictionFeature,
    EvictionMoment,
)
from agent.allocate.colocation.eviction_pod import USED_MEMORY, eviction_pod
from agent.model.node_slo import ResourceThreshold
from agent.model.pod.apiobjects import from_object
from agent.model.quantities import milli, whole
from agent.usage.node_metric import priority_class_of_pod
from conformance.files import CaseVerdict, Difference, Judge

Json = dict[str, Any]

THOUSANDFOLD: Final = Difference(
    "bytes-times-1000",
    "MemoryEvict and MemoryAllocatableEvict count the memory that a victim uses a thousandfold, so "
    "that the first one seems to free enough; Topolet counts bytes",
    listed=True,
)
UNUSED: Final = Difference(
    "idle-below-one-core",
    "where BE pods may use less than one core, BECPUEvict evicts them whether they use it or not; "
    "Topolet evicts pods that want more than they get",
    listed=True,
)
IN_VAIN: Final = Difference(
    "victims-in-vain",
    "pods are evicted that free nothing of what is wanted: those of another class, without a "
    "request or use, or that have ended, and every candidate where Kubernetes' own cpu or memory "
    "is over its limit; the requests of ended pods count, too. Topolet passes over them",
    listed=True,
)
DIFFERENCES: Final = (THOUSANDFOLD, UNUSED, IN_VAIN)
_OF_BATCH: Final = (EvictionFeature.BE_CPU, EvictionFeature.BE_MEMORY)
_THOUSANDFOLD: Final = (EvictionFeature.MEMORY, EvictionFeature.MEMORY_ALLOCATABLE)


def judge(case: Json) -> CaseVerdict:
    moment, features = _moment(case), _features(case)
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in case["pods"]}
    wanting = eviction.tasks(moment, features)
    chosen = eviction.victims(wanting, moment.pods, case["cannotEvict"])
    actual = _answer([(each.uid, each.feature) for each in chosen], names)
    if actual == case["expect"]:
        return CaseVerdict(True, actual)
    faults = [each.name for each in DIFFERENCES]

    def answers(assumed: Collection[str]) -> bool:
        answer = _answer(_koordlets(case, moment, features, assumed), names)
        return bool(answer == case["expect"])

    if not answers(faults):
        return CaseVerdict(False, actual)
    # Of the faults that make this answer, the first one without which it would be another.
    needed = faults
    for name in faults:
        without = [each for each in needed if each != name]
        if answers(without):
            needed = without
    return CaseVerdict(False, actual, needed[0] if needed else None)


def _koordlets(
    case: Json,
    moment: EvictionMoment,
    features: Collection[EvictionFeature],
    faults: Collection[str],
) -> list[tuple[str, EvictionFeature]]:
    """koordlet's victims, if it has these faults."""
    replace = msgspec.structs.replace
    ended = {pod.uid for pod in moment.pods if not pod.running}
    in_vain = IN_VAIN.name in faults
    if in_vain:
        pods = tuple(replace(pod, running=True) for pod in moment.pods)
        moment = replace(moment, pods=pods)
    if UNUSED.name in faults:
        batch = (
            replace(each, used_milli=each.limit_milli) if each.limit_milli < 1000 else each
            for each in moment.batch
        )
        moment = replace(moment, batch=tuple(batch))
    freed: Counter[str] = Counter()
    chosen: list[tuple[str, EvictionFeature]] = []
    gone: set[str] = set()
    for task in eviction.tasks(moment, features):
        for pod in task.candidates:
            left = {name for name, amount in task.wanted.items() if freed[name] < amount}
            if not left:
                break
            frees = Counter(pod.frees)
            if pod.uid in ended and task.feature not in _OF_BATCH:
                continue
            if not in_vain and not any(frees[name] > 0 for name in left):
                continue
            if pod.uid in gone or (pod.uid in case["cannotEvict"] and not pod.asked):
                continue
            if not pod.asked:
                chosen.append((pod.uid, task.feature))
            gone.add(pod.uid)
            if in_vain:
                del frees["cpu"], frees["memory"]
            if THOUSANDFOLD.name in faults and task.feature in _THOUSANDFOLD:
                frees[USED_MEMORY] *= 1000
            freed.update(frees)
    return chosen


def _answer(chosen: Sequence[tuple[str, EvictionFeature]], names: dict[str, str]) -> Json:
    return {
        "evicted": [
            [uid, f"trigger by koordlet feature {feature}, kill pod: {names[uid]}"]
            for uid, feature in chosen
        ],
        "cooling": bool(chosen),
    }


def _features(case: Json) -> list[EvictionFeature]:
    features = {EvictionFeature(name) for name in case["features"]}
    threshold = case["threshold"]
    if "memoryEvictThresholdPercent" not in threshold:  # a node has a default
        features -= {EvictionFeature.BE_MEMORY, EvictionFeature.MEMORY}
    if threshold.get("allocatableEvictPriorityThreshold", 0) > 7999:  # no NodeSLO has it
        features -= {EvictionFeature.CPU_ALLOCATABLE, EvictionFeature.MEMORY_ALLOCATABLE}
    return sorted(features)


def _moment(case: Json) -> EvictionMoment:
    threshold = ResourceThreshold(
        **{
            field.name: case["threshold"][field.encode_name]
            for field in msgspec.structs.fields(ResourceThreshold)
            if field.encode_name in case["threshold"]
        }
    )
    metrics = case["metrics"]
    window = max(1, threshold.cpu_evict_time_window_seconds or 1)

    def last(name: str) -> float | None:
        return metrics[name][-1] if metrics.get(name) else None

    def average(name: str) -> float | None:
        samples = (metrics.get(name) or [])[-window:]
        return sum(samples) / len(samples) if samples else None

    pods = []
    for body in case["pods"]:
        pod = from_object(body)
        cores, used_bytes = last(f"pod_cpu_usage/{pod.uid}"), last(f"pod_memory_usage/{pod.uid}")
        pods.append(
            eviction_pod(
                pod,
                priority_class_of_pod(pod),
                None if cores is None else int(cores * 1000),
                None if used_bytes is None else int(used_bytes),
                asked=pod.uid in case["evictedBefore"],
            )
        )
    node_cores, node_bytes = average("node_cpu_usage"), last("node_memory_usage")
    batch = []
    if len(metrics.get("node_be/cpu/request") or []) >= window // 3:
        for value in (average, last):
            amounts = [value(f"node_be/cpu/{name}") for name in ("request", "real-limit", "usage")]
            if None not in amounts:
                batch.append(BatchCpu(*amounts))  # type: ignore[arg-type]
    status = case["node"]["status"]
    return EvictionMoment(
        threshold,
        tuple(pods),
        _amounts(status["capacity"]),
        _amounts(status["allocatable"]),
        None if node_cores is None else int(node_cores * 1000),
        None if node_bytes is None else int(node_bytes),
        tuple(batch),
    )


def _amounts(written: Json) -> dict[str, int]:
    return {name: (milli if name == "cpu" else whole)(each) for name, each in written.items()}


JUDGES: Final = {"koordinator-evict": Judge(judge, DIFFERENCES)}
