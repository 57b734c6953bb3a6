"""NodeSLO: the spec that Koordinator's manager makes of its ConfigMap, and what the node makes of
that spec. The manager's part is only here: the agent reads what the manager wrote."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.model.objects import LabelSelector, Operator
from agent.model.quantities import QuantityError, whole
from agent.usage.node_slo import (
    CpuBurst,
    Fields,
    HostApplication,
    ResourceQos,
    ResourceThreshold,
    System,
    node_slo,
)
from conformance.files import CaseVerdict, Judge

Json = dict[str, Any]


def judge(case: Json) -> CaseVerdict:
    spec = _spec(case["config"], case["node"]["metadata"])
    slo, troubles = node_slo({"spec": spec})
    actual: Json = {"spec": spec, "node": msgspec.to_builtins(slo)}
    if troubles:
        actual["troubles"] = [str(each) for each in troubles]
    return CaseVerdict(_without_empty(actual) == _without_empty(case["expect"]), actual)


def _without_empty(value: Any) -> Any:
    """Empty lists and objects mean nothing in these cases."""
    if isinstance(value, dict):
        fields = ((name, _without_empty(field)) for name, field in value.items())
        return {name: field for name, field in fields if field not in _EMPTY}
    return [_without_empty(each) for each in value] if isinstance(value, list | tuple) else value


_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


class _Config(msgspec.Struct, frozen=True, rename="camel"):
    cluster_strategy: Json | None = None
    node_strategies: list[Json] | None = None


class _ApplicationConfig(msgspec.Struct, frozen=True, rename="camel"):
    applications: list[HostApplication] | None = None
    node_configs: list[_NodeApplications] | None = None


class _NodeApplications(msgspec.Struct, frozen=True, rename="camel"):
    applications: list[HostApplication] | None = None
    node_selector: Any = None


_STRATEGIES: Final[Mapping[str, tuple[str, type[Fields], Json]]] = {
    "resource-threshold-config": (
        "resourceUsedThresholdWithBE",
        ResourceThreshold,
        msgspec.to_builtins(ResourceThreshold()),
    ),
    "resource-qos-config": ("resourceQOSStrategy", ResourceQos, {}),
    "cpu-burst-config": ("cpuBurstStrategy", CpuBurst, msgspec.to_builtins(CpuBurst())),
    "system-config": ("systemStrategy", System, msgspec.to_builtins(System())),
}
"""By the key of the ConfigMap: the field of the spec, its type, and what lies under it."""
_BANDWIDTH: Final = "totalNetworkBandwidth"
_BANDWIDTH_ANNOTATION: Final = "node.koordinator.sh/network-bandwidth"


def _spec(configs: Sequence[Mapping[str, str]], metadata: Json) -> Json:
    labels = metadata.get("labels") or {}
    spec: Json = {}
    for key, (section, kind, base) in _STRATEGIES.items():
        config = _Config()
        for data in configs:
            try:
                config = _config(data.get(key, "{}"), kind)
            except msgspec.DecodeError:
                continue
        cluster = _blended(base, _known(config.cluster_strategy or {}, kind))
        nodes = config.node_strategies or []
        of_node = next((each for each in nodes if _matches(each.get("nodeSelector"), labels)), {})
        over = _known(of_node, kind)
        if kind is System and over:
            over = {_BANDWIDTH: "0"} | over
        spec[section] = _blended(cluster, over)
    spec["hostApplications"] = _applications(configs, labels)
    bandwidth = (metadata.get("annotations") or {}).get(_BANDWIDTH_ANNOTATION)
    if bandwidth is not None:
        try:
            whole(bandwidth)
        except QuantityError:
            del spec["systemStrategy"]
        else:
            spec["systemStrategy"][_BANDWIDTH] = bandwidth
    return spec


def _config(text: str, kind: type[Fields]) -> _Config:
    """Raises DecodeError, also for a field of another type."""
    config = msgspec.json.decode(text, type=_Config)
    msgspec.convert([config.cluster_strategy or {}, *(config.node_strategies or ())], list[kind])  # type: ignore[valid-type]
    return config


def _known(strategy: Json, kind: type[Fields]) -> Json:
    return {name: strategy[name] for name in kind.__struct_encode_fields__ if name in strategy}


def _blended(base: Any, over: Any) -> Any:
    """A list keeps fields of the elements that it replaces, by their index."""
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {name: _blended(base.get(name), value) for name, value in over.items()}
    if isinstance(base, list) and isinstance(over, list) and over:
        pairs = itertools.zip_longest(base[: len(over)], over)
        return [_blended(under, value) for under, value in pairs]
    return base if over is None or over == [] else over


def _applications(configs: Sequence[Mapping[str, str]], labels: Mapping[str, str]) -> Any:
    config = _ApplicationConfig()
    for data in configs:
        try:
            text = data.get("host-application-config", "{}")
            config = msgspec.json.decode(text, type=_ApplicationConfig)
        except msgspec.DecodeError:
            continue
    of_nodes = (
        each.applications
        for each in config.node_configs or ()
        if _matches(each.node_selector, labels)
    )
    return msgspec.to_builtins(next(of_nodes, config.applications) or [])


def _matches(selector: Any, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    try:
        converted = msgspec.convert(selector, LabelSelector)
    except msgspec.ValidationError:
        return False
    valid = all(
        bool(each.values) == (each.operator in (Operator.IN, Operator.NOT_IN))
        for each in converted.match_expressions or ()
    )
    return valid and converted.matches(labels)


JUDGES: Final = {"koordinator-nodeslo": Judge(judge)}
