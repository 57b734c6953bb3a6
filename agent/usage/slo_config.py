"""The strategies of all nodes in the form of Koordinator's ConfigMap slo-controller-config, and the
spec of a NodeSLO that its manager makes of them for one node (Koordinator:
apis/configuration/slo_controller_config.go; pkg/slo-controller/nodeslo).

Each key has a strategy of the cluster, and strategies of pools of nodes with a label selector. The
first pool whose selector matches the node is laid over the strategy of the cluster, which is laid
over the defaults. A field that is null or absent changes nothing; lists are overlaid by index. The
applications of a pool replace those of the cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.node_slo import (
    CpuBurst,
    Fields,
    HostApplication,
    ResourceQos,
    ResourceThreshold,
    System,
)
from agent.model.objects import LabelSelector, Operator
from agent.model.quantities import QuantityError, whole

Object = dict[str, Any]
Strategy = TypeVar("Strategy", bound=Fields)

APPLICATIONS: Final = "host-application-config"
BANDWIDTH_ANNOTATION: Final = "node.koordinator.sh/network-bandwidth"
"""The annotation of a Node that overrides `totalNetworkBandwidth`."""


class _Section(NamedTuple):
    """What a key of the ConfigMap is about."""

    name: str
    """The field of the spec."""
    kind: type[Fields]
    base: Object
    """What lies under the strategy of the cluster. The node adds the defaults of the rest."""


SECTIONS: Final[Mapping[str, _Section]] = {
    "resource-threshold-config": _Section(
        "resourceUsedThresholdWithBE", ResourceThreshold, msgspec.to_builtins(ResourceThreshold())
    ),
    "resource-qos-config": _Section("resourceQOSStrategy", ResourceQos, {}),
    "cpu-burst-config": _Section("cpuBurstStrategy", CpuBurst, msgspec.to_builtins(CpuBurst())),
    "system-config": _Section("systemStrategy", System, msgspec.to_builtins(System())),
}
"""By the key of the ConfigMap."""
KEYS: Final = (*SECTIONS, APPLICATIONS)


class StrategyConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The content of a key, as it was written."""

    cluster_strategy: Object | None = None
    node_strategies: tuple[Object, ...] | None = None


class NodeApplications(msgspec.Struct, frozen=True, rename="camel"):
    """The applications of a pool of nodes."""

    name: str = ""
    applications: tuple[HostApplication, ...] | None = None
    node_selector: Any = None


class ApplicationConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The content of the key APPLICATIONS."""

    applications: tuple[HostApplication, ...] | None = None
    node_configs: tuple[NodeApplications, ...] | None = None


class SloConfig(msgspec.Struct, frozen=True):
    """The last valid content of each key."""

    strategies: Mapping[str, StrategyConfig] = {}
    applications: ApplicationConfig = ApplicationConfig()


class _Checked(msgspec.Struct, Generic[Strategy], frozen=True, rename="camel"):
    cluster_strategy: Strategy | None = None
    node_strategies: tuple[Strategy, ...] | None = None


def parsed(texts: Mapping[str, bytes], before: SloConfig) -> tuple[SloConfig, tuple[str, ...]]:
    """The configuration by the JSON of each key, and a sentence about each fault. A key with a bad
    value keeps what it had `before`, and one that is missing is empty."""
    troubles: list[str] = []
    strategies = {}
    for key, section in SECTIONS.items():
        try:
            strategies[key] = _strategies(texts.get(key, b"{}"), section.kind)
        except JsonError as error:
            troubles.append(f"{key}: {error}")
            strategies[key] = before.strategies.get(key, StrategyConfig())
        for at, pool in enumerate(strategies[key].node_strategies or ()):
            if fault := _selector_fault(pool.get("nodeSelector")):
                troubles.append(f"{key}: nodeStrategies[{at}].nodeSelector: {fault}")
    applications = before.applications
    try:
        applications = bounds.decode(_applications, texts.get(APPLICATIONS, b"{}"))
    except JsonError as error:
        troubles.append(f"{APPLICATIONS}: {error}")
    for at, of_pool in enumerate(applications.node_configs or ()):
        if fault := _selector_fault(of_pool.node_selector):
            troubles.append(f"{APPLICATIONS}: nodeConfigs[{at}].nodeSelector: {fault}")
    return SloConfig(strategies, applications), tuple(troubles)


_applications: Final = msgspec.json.Decoder(ApplicationConfig)
_object: Final = msgspec.json.Decoder(Object)


def _strategies(text: bytes, kind: type[Fields]) -> StrategyConfig:
    """Raises JsonError, which names the field."""
    try:
        written = _without_null(bounds.decode(_object, text))
        msgspec.convert(written, _Checked[kind])  # type: ignore[valid-type]
        return msgspec.convert(written, StrategyConfig)
    except msgspec.ValidationError as error:
        raise JsonError(bounds.reason(str(error))) from None
    except RecursionError:
        raise JsonError("is nested too deeply") from None


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(field) for name, field in value.items() if field is not None}
    return [_without_null(element) for element in value] if isinstance(value, list) else value


class NodeSpec(NamedTuple):
    """The spec of a NodeSLO for one node."""

    spec: Object
    origins: Mapping[str, str]
    """By the name of a section, which part of the configuration says the last word. A section
    without one has the defaults."""
    troubles: tuple[str, ...]


def spec(config: SloConfig, labels: Mapping[str, str], annotations: Mapping[str, str]) -> NodeSpec:
    """The spec of the Node with these labels and annotations. An annotation with the bandwidth that
    can't be read leaves the whole section out, as in Koordinator."""
    sections: Object = {}
    origins: dict[str, str] = {}
    troubles: list[str] = []
    for key, section in SECTIONS.items():
        written = config.strategies.get(key, StrategyConfig())
        of_cluster = _fields(written.cluster_strategy or {}, section.kind)
        of_pool: Object = {}
        if of_cluster:
            origins[section.name] = "cluster strategy"
        for at, pool in enumerate(written.node_strategies or ()):
            if _matches(pool.get("nodeSelector"), labels):
                of_pool = _fields(pool, section.kind)
                if of_pool:
                    origins[section.name] = _pool(pool.get("name"), at)
                break
        if section.kind is System and of_pool:
            of_pool = {_BANDWIDTH: "0"} | of_pool
        sections[section.name] = _blended(_blended(section.base, of_cluster), of_pool)
    applications = config.applications.applications
    if applications is not None:
        origins[_HOST_APPLICATIONS] = "cluster strategy"
    for at, node_config in enumerate(config.applications.node_configs or ()):
        if _matches(node_config.node_selector, labels):
            applications = node_config.applications
            origins[_HOST_APPLICATIONS] = _pool(node_config.name, at)
            break
    sections[_HOST_APPLICATIONS] = msgspec.to_builtins(applications or ())
    bandwidth = annotations.get(BANDWIDTH_ANNOTATION)
    if bandwidth is not None:
        try:
            whole(bandwidth)
        except QuantityError as error:
            troubles.append(f"annotation {BANDWIDTH_ANNOTATION}: {error}")
            del sections[_SYSTEM]
            origins.pop(_SYSTEM, None)
        else:
            sections[_SYSTEM][_BANDWIDTH] = bandwidth
            origins.setdefault(_SYSTEM, f"annotation {BANDWIDTH_ANNOTATION}")
    return NodeSpec(sections, origins, tuple(troubles))


_BANDWIDTH: Final = "totalNetworkBandwidth"
_SYSTEM: Final = SECTIONS["system-config"].name
_HOST_APPLICATIONS: Final = "hostApplications"
_NAME_CHARACTERS: Final = 63


def _pool(name: object, at: int) -> str:
    return f"pool {name[:_NAME_CHARACTERS]}" if isinstance(name, str) and name else f"pool [{at}]"


def _fields(strategy: Object, kind: type[Fields]) -> Object:
    return {name: strategy[name] for name in kind.__struct_encode_fields__ if name in strategy}


def _blended(base: Any, over: Any) -> Any:
    """A list keeps fields of the elements that it replaces, by their index."""
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {name: _blended(base.get(name), value) for name, value in over.items()}
    if isinstance(base, list) and isinstance(over, list) and over:
        pairs = itertools.zip_longest(base[: len(over)], over)
        return [_blended(under, value) for under, value in pairs]
    return base if over is None or over == [] else over


def _matches(selector: Any, labels: Mapping[str, str]) -> bool:
    """A selector that is missing or invalid matches no node, an empty one every node."""
    if selector is None or _selector_fault(selector):
        return False
    return msgspec.convert(selector, LabelSelector).matches(labels)


def _selector_fault(selector: Any) -> str:
    """Why a selector is invalid, "" if it is not."""
    if selector is None:
        return ""
    try:
        terms = msgspec.convert(selector, LabelSelector).match_expressions or ()
    except msgspec.ValidationError as error:
        return bounds.reason(str(error))
    return "".join(itertools.islice(_faults_of_values(terms), 1))


def _faults_of_values(terms: Any) -> Iterator[str]:
    for term in terms:
        if bool(term.values) != (term.operator in (Operator.IN, Operator.NOT_IN)):
            yield f"{term.operator} of {term.key[:_NAME_CHARACTERS]!r} has a wrong number of values"
