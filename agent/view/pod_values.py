"""Why the files of a pod's cgroups have the values that Topolet gave them: the feature, what it
follows, and where that comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from agent.allocate.colocation.resctrl import POD_PREFIX
from agent.cgroup import limits
from agent.cgroup.hierarchy import OOM_SCORE_ADJ
from agent.cgroup.lines import file_of
from agent.model.node_slo import KIND
from agent.model.pod.annotations import BLKIO_QOS, OOM_SCORES, OOM_SCORES_SPEC
from agent.model.pod.qos import QoS
from agent.usage.pod_strategies import CLASS_FIELDS, OVERRIDDEN, PodStrategies, of_class
from agent.usage.strategies import Strategies
from agent.view.colocation import ShownColocation, be_lines
from agent.view.format import printable, printable_json

SCHEMA_VERSION: Final = 1
"""The version of the JSON output."""
CPUSET: Final = "cpuset.cpus"
_THRESHOLD: Final = "resourceUsedThresholdWithBE"
_QOS: Final = "resourceQOSStrategy"


class _Follows(NamedTuple):
    """What decides about a file."""

    feature: str
    strategy: str
    """The field of PodStrategies."""
    terms: tuple[str, ...]
    """The fields of the strategy, in JSON."""


_OF_FILES: Final[Mapping[str, _Follows]] = {
    limits.IDLE: _Follows("cpu-priority", "cpu_qos", ("groupIdentity", "schedIdle")),
    limits.BVT: _Follows("cpu-priority", "cpu_qos", ("groupIdentity",)),
    limits.BURST: _Follows("cpu-burst", "cpu_burst", ("policy", "cpuBurstPercent")),
    limits.MAX_BURST: _Follows("cpu-burst", "cpu_burst", ("policy", "cpuBurstPercent")),
    limits.MEMORY_MIN: _Follows("memory-qos", "memory_qos", ("minLimitPercent",)),
    limits.MEMORY_LOW: _Follows("memory-qos", "memory_qos", ("lowLimitPercent",)),
    limits.MEMORY_HIGH: _Follows("memory-qos", "memory_qos", ("throttlingPercent",)),
    limits.OOM_GROUP: _Follows("memory-qos", "memory_qos", ("oomKillGroup",)),
    limits.RESCTRL_GROUP: _Follows(
        "resctrl", "resctrl_qos", ("catRangeStartPercent", "catRangeEndPercent", "mbaPercent")
    ),
    limits.CORE_GROUP: _Follows("core-scheduling", "cpu_qos", ("coreExpeller",)),
}
_OWN_GROUP: Final = _Follows("resctrl", "resctrl", ("llc", "mb"))
_QUOTA: Final = _Follows(
    "cpu-burst", "cpu_burst", ("policy", "cfsQuotaBurstPercent", "cfsQuotaBurstPeriodSeconds")
)
_SECTIONS: Final = {
    "cpu_qos": "cpuQOS",
    "memory_qos": "memoryQOS",
    "resctrl_qos": "resctrlQOS",
}
"""The strategies of classes in JSON."""
_SUPPRESSION: Final = ("cpuSuppressPolicy", "cpuSuppressThresholdPercent", "cpuSuppressMinPercent")
_DISKS: Final = "disk-qos"
_OF_POD: Final = "the class of the pod, its CPUs, NUMA nodes and batch resources"
_OF_AUTHOR: Final = "annotation of the pod"
_RESET: Final = f"the kernel resets it with {limits.IDLE}"


class FileValue(msgspec.Struct, frozen=True):
    """A file whose value Topolet has set."""

    container: str
    """It is "" for the group of the pod."""
    file: str
    value: str | None
    """None if it can't be read."""
    original: str
    """What it gets back."""


class ExplainedValue(msgspec.Struct, frozen=True):
    """The reason of a value."""

    value: FileValue
    feature: str
    """The feature of colocation; "" for what each pass decides by the pod itself."""
    follows: str
    """The strategy in JSON, or what else decides."""
    origin: str
    """Where the strategy comes from; "" without one."""
    terms: Mapping[str, Any]
    """What the strategy says."""


class PodValues(msgspec.Struct, frozen=True):
    """The files of a pod's cgroups."""

    pod: str
    qos: QoS
    values: tuple[ExplainedValue, ...]
    suppression: ShownColocation | None = None
    """What all BE pods of the node get, without the features; None for pods that are not BE."""
    evictions: str = ""
    """Whether the agent may evict the pod, as a sentence; "" if it evicts none."""
    schema_version: int = SCHEMA_VERSION


def explained(
    title: str,
    qos: QoS,
    strategies: Strategies,
    values: Iterable[FileValue],
    last: ShownColocation | None = None,
) -> PodValues:
    """The reasons of these values.

    `qos`: as koordlet reports it.
    `last`: what the agent has told last."""
    if last is not None:
        last = msgspec.structs.replace(last, features=(), failed=()) if qos is QoS.BE else None
    in_force = strategies.pods.get(title) or of_class(strategies.slo, qos)
    values = tuple(values)
    idle = {value.container for value in values if value.file == limits.IDLE}
    return PodValues(
        title,
        qos,
        tuple(
            ExplainedValue(value, _OF_FILES[limits.IDLE].feature, _RESET, "", {})
            if value.file in (limits.SHARES, limits.WEIGHT) and value.container in idle
            else _explained(value, qos, strategies, in_force)
            for value in values
        ),
        last,
    )


def _explained(
    value: FileValue, qos: QoS, strategies: Strategies, in_force: PodStrategies
) -> ExplainedValue:
    if value.file == OOM_SCORE_ADJ:
        key = OOM_SCORES_SPEC if value.container in in_force.oom_scores else OOM_SCORES
        return ExplainedValue(value, "oom-score", key, _OF_AUTHOR, {})
    threshold = strategies.slo.resource_used_threshold_with_be
    by_quota = value.file in (limits.QUOTA, limits.MAX)
    suppressed = {CPUSET: "cpuset", limits.QUOTA: "cfsQuota", limits.MAX: "cfsQuota"}
    if (
        qos is QoS.BE
        and threshold.enable
        and suppressed.get(value.file) == threshold.cpu_suppress_policy
    ):
        origin = _origin(strategies, _THRESHOLD)
        terms = _terms(threshold, _SUPPRESSION)
        return ExplainedValue(value, "cpu-suppression", _THRESHOLD, origin, terms)
    if file_of(value.file) != value.file:  # only disks have values of their own in files
        if in_force.blocks:
            return ExplainedValue(value, _DISKS, BLKIO_QOS, _OF_AUTHOR, {})
        path, origin = f"{_QOS}.beClass.blkioQOS", _origin(strategies, _QOS)
        return ExplainedValue(value, _DISKS, path, origin, {})
    follows = _OF_FILES.get(value.file)
    if by_quota and qos is not QoS.BE and in_force.cpu_burst.policy != "none":
        follows = _QUOTA
    if value.file == limits.RESCTRL_GROUP and f"/{POD_PREFIX}" in (value.value or ""):
        follows = _OWN_GROUP
    if follows is None:
        return ExplainedValue(value, "", _OF_POD, "", {})
    strategy = getattr(in_force, follows.strategy)
    terms = _terms(strategy, follows.terms) if strategy is not None else {}
    for key in in_force.own:
        if OVERRIDDEN[key] == follows.strategy:
            return ExplainedValue(value, follows.feature, key, _OF_AUTHOR, terms)
    if follows.strategy in _SECTIONS:
        class_ = CLASS_FIELDS[qos].replace("_class", "Class")
        path = f"{_QOS}.{class_}.{_SECTIONS[follows.strategy]}"
        return ExplainedValue(value, follows.feature, path, _origin(strategies, _QOS), terms)
    section = "cpuBurstStrategy"
    return ExplainedValue(value, follows.feature, section, _origin(strategies, section), terms)


def _origin(strategies: Strategies, section: str) -> str:
    origin = strategies.origins.get(section, "default")
    return origin if origin in (KIND, "default") else f"{origin} of --slo-config"


def _terms(strategy: msgspec.Struct, names: Iterable[str]) -> dict[str, Any]:
    written = msgspec.to_builtins(strategy)
    return {name: written[name] for name in names if written.get(name) is not None}


def as_text(pod: PodValues) -> str:
    """Two lines for each file: its value, and the reason."""
    lines = [f"Pod {pod.pod} ({pod.qos}) has of Topolet:"]
    if not pod.values:
        lines = [f"Pod {pod.pod} ({pod.qos}) has no value of Topolet in its cgroups."]
    for reason in pod.values:
        value = reason.value
        who = f"container {value.container}: " if value.container else ""
        now = "unreadable" if value.value is None else value.value or "empty"
        before = f", and gets {value.original or 'nothing'} back"
        lines.append(f"  {who}{value.file} {now}{before if value.original != now else ''}")
        terms = ", ".join(f"{name} {term}" for name, term in reason.terms.items())
        by = f"{reason.feature}: " if reason.feature else ""
        source = f" ({reason.origin})" if reason.origin else ""
        lines.append(f"    {by}{reason.follows}{source}{f': {terms}' if terms else ''}")
    if pod.suppression is not None:
        lines += be_lines(pod.suppression)
    if pod.evictions:
        lines.append(pod.evictions)
    return "\n".join(map(printable, lines)) + "\n"


def as_json(pod: PodValues) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(pod)).decode()) + "\n"
