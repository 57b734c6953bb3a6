"""koordlet's memory QoS: files of cgroup v2 by level. A file that one side leaves alone counts as
one with the kernel's value, which koordlet writes where it wants nothing.

Of the files that only Anolis' kernel has, Topolet writes none; where koordlet writes a strategy's
value unchanged, that is compared with the strategy that is in force for Topolet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from agent.allocate.colocation import memory_qos
from agent.allocate.colocation.memory_qos import MemoryProtection, MemoryValues
from agent.model.node_slo import MemoryQos, NodeSlo, ResourceQos
from agent.model.pod.apiobjects import ApiPod, NodeBody, from_object, node_value
from agent.usage.pod_strategies import of_pod
from conformance.files import CaseVerdict, Difference, Judge

BEYOND_NODE: Final = Difference(
    "protected-beyond-node",
    "memory.min or memory.low of all pods may exceed what is allocatable on the node, which leaves "
    "nothing to reclaim; Topolet cuts them to the node, those of batch pods first",
)
KILLED_TOGETHER: Final = Difference(
    "pods-killed-together",
    "oomKillGroup sets memory.oom.group on the groups of QoS classes, so that one kill ends every "
    "pod there; Topolet sets it on pods and containers alone",
    listed=True,
)

_Files = dict[tuple[str, str], str]
_ROOT: Final = "kubepods.slice"
_UNLIMITED: Final = str((1 << 63) - 1)
_NO_END: Final = 1 << 62
_ANOLIS: Final = {
    "memory.wmark_ratio": "wmark_ratio",
    "memory.wmark_scale_factor": "wmark_scale_permill",
    "memory.wmark_min_adj": "wmark_min_adj",
    "memory.priority": "priority",
    "memory.use_priority_oom": "priority_enable",
}
_OOM: Final = "memory.oom.group"
_PAGE_CACHE: Final = "memory.pagecache_limit"
_LEVELS: Final = ("qos", "pods", "containers")


def judge(case: dict[str, Any]) -> CaseVerdict:
    slo = NodeSlo(resource_qos_strategy=msgspec.convert(case["strategy"], ResourceQos))
    pods = []
    for body in case["pods"]:
        pod = from_object(body)
        pods.append((pod, of_pod(slo, pod)[0].memory_qos))
    allocatable = node_value(msgspec.convert(case["node"], NodeBody)).allocatable["memory"]
    started = _started(case)
    actual = _files(memory_qos.wanted(pods, allocatable), started)
    expected = _expected(case)
    strategies = _strategies(slo, pods)
    if _same(expected, actual, strategies):
        return CaseVerdict(True, _body(actual))
    without_end = _files(memory_qos.wanted(pods, allocatable, most_bytes=_NO_END), started)
    on_classes = {
        (group, _OOM): "1"
        for group, qos in strategies.items()
        if group.startswith(_ROOT) and qos.oom_kill_group and (group, _OOM) in expected
    }
    if not _same(expected, without_end | on_classes, strategies):
        return CaseVerdict(False, _body(actual))
    difference = KILLED_TOGETHER if without_end == actual else BEYOND_NODE
    return CaseVerdict(False, _body(actual), difference.name)


def _expected(case: dict[str, Any]) -> _Files:
    return {
        (group, file): value
        for level in _LEVELS
        for group, file, value in case["expect"][level]
        if not file.startswith(_PAGE_CACHE)
    }


def _strategies(slo: NodeSlo, pods: list[tuple[ApiPod, MemoryQos]]) -> dict[str, MemoryQos]:
    """The strategy that is in force for each group."""
    classes = slo.resource_qos_strategy
    strategies = {
        _ROOT: classes.lsr_class.memory_qos,
        _class_group("burstable"): classes.ls_class.memory_qos,
        _class_group("besteffort"): classes.be_class.memory_qos,
    }
    for pod, qos in pods:
        strategies[_pod_group(pod.uid)] = qos
        for container in (*pod.containers, *pod.init_containers):
            strategies[_container_group(pod.uid, container.name)] = qos
    return strategies


def _class_group(kube_class: str) -> str:
    return f"{_ROOT}/kubepods-{kube_class}.slice"


def _pod_group(uid: str) -> str:
    return f"pods/{uid}"


def _container_group(uid: str, name: str) -> str:
    return f"{_pod_group(uid)}/cri-containerd-{uid}-{name}.scope"


def _started(case: dict[str, Any]) -> set[str]:
    """The groups of containers with a status: koordlet writes no others."""
    return {
        _container_group(pod["metadata"]["uid"], status["name"])
        for pod in case["pods"]
        for status in pod["status"].get("containerStatuses", ())
    }


def _files(node: MemoryProtection, started: set[str]) -> _Files:
    files = dict(_of_group(_ROOT, node.root))
    for kube_class, values in node.classes.items():
        files |= _of_group(_class_group(kube_class), values)
    for uid, of_one in node.pods.items():
        files |= _of_group(_pod_group(uid), of_one.group)
        for name, values in of_one.containers.items():
            group = _container_group(uid, name)
            if group in started:
                files |= _of_group(group, values)
    return files


def _of_group(group: str, values: MemoryValues) -> Iterator[tuple[tuple[str, str], str]]:
    for file, value in (
        ("memory.min", values.min_bytes),
        ("memory.low", values.low_bytes),
        ("memory.high", values.high_bytes),
        (_OOM, int(values.oom_group) or None),
    ):
        if value is not None:
            yield (group, file), str(value)


def _same(expected: _Files, actual: _Files, strategies: dict[str, MemoryQos]) -> bool:
    for group, file in expected.keys() | actual.keys():
        if group not in strategies:
            return False
        neutral = _UNLIMITED if file == "memory.high" else "0"
        ours = actual.get((group, file), neutral)
        if file in _ANOLIS:
            ours = str(getattr(strategies[group], _ANOLIS[file]))
        if expected.get((group, file), neutral) != ours:
            return False
    return True


def _body(files: _Files) -> list[list[str]]:
    return [[group, file, value] for (group, file), value in sorted(files.items())]


JUDGES: Final = {"koordinator-memory-qos": Judge(judge, (BEYOND_NODE, KILLED_TOGETHER))}
