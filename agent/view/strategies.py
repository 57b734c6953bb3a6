"""Koordinator's strategies that a node follows, and where each section comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from agent.model.node_slo import NodeSlo
from agent.usage.pod_strategies import OVERRIDDEN, PodStrategies
from agent.usage.strategies import Strategies
from agent.view.format import printable, printable_json

SCHEMA_VERSION = 1
"""The version of the JSON output."""
_NOT_WRITTEN = "default"


class _Shown(msgspec.Struct, frozen=True):
    strategies: Strategies
    schema_version: int = SCHEMA_VERSION


def as_text(strategies: Strategies) -> str:
    """For each section its origin, and the fields that differ from the defaults; then the same for
    what pods override, and the troubles."""
    slo: dict[str, Any] = msgspec.to_builtins(strategies.slo)
    defaults: dict[str, Any] = msgspec.to_builtins(NodeSlo())
    width = max(map(len, slo))
    lines = ["Strategies of this node:"]
    for name, section in slo.items():
        lines.append(f"  {name:<{width}}  {strategies.origins.get(name, _NOT_WRITTEN)}")
        lines += [f"    {field}: {value}" for field, value in _fields(section, defaults[name])]
    if strategies.pods:
        lines.append("Overridden by annotations of pods:")
    neutral = msgspec.to_builtins(PodStrategies())
    for title, of_pod in strategies.pods.items():
        values = msgspec.to_builtins(of_pod)
        for key in of_pod.own:
            field = OVERRIDDEN[key]
            lines.append(f"  {title}  {key}")
            lines += [
                f"    {path or field}: {value}"
                for path, value in _fields(values[field], neutral[field])
            ]
    if troubles := (*strategies.troubles, *strategies.pod_troubles):
        lines += ["Bad values, which have no effect:"]
        lines += [f"  {trouble}" for trouble in troubles]
    if strategies.unread:
        lines += ["These are the last strategies that could be read:"]
        lines += [f"  {reason}" for reason in strategies.unread]
    return "\n".join(map(printable, lines)) + "\n"


def _fields(value: Any, default: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The paths and JSON values of the fields that differ from the default."""
    if isinstance(value, dict):
        before = default if isinstance(default, dict) else {}
        for name, field in value.items():
            yield from _fields(field, before.get(name), f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple):
        for at, element in enumerate(value):
            yield from _fields(element, None, f"{path}[{at}]")
    elif value != default:
        yield path, msgspec.json.encode(value).decode()


def as_json(strategies: Strategies) -> str:
    """All sections with their values, their origins and the troubles, as JSON."""
    return printable_json(msgspec.json.encode(_Shown(strategies)).decode()) + "\n"
