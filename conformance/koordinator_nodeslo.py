"""NodeSLO: the spec that Koordinator's manager makes of its ConfigMap, and what the node makes of
that spec. Each ConfigMap of a case replaces the one before it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.model.node_slo import node_slo
from agent.usage import slo_config
from agent.usage.slo_config import SloConfig
from conformance.files import CaseVerdict, Judge

Json = dict[str, Any]


def judge(case: Json) -> CaseVerdict:
    config, metadata = SloConfig(), case["node"]["metadata"]
    for contents in case["config"]:
        config, _ = slo_config.parsed(
            {key: text.encode() for key, text in contents.items()}, config
        )
    of_node = slo_config.spec(
        config, metadata.get("labels") or {}, metadata.get("annotations") or {}
    )
    slo, troubles = node_slo({"spec": of_node.spec})
    actual: Json = {"spec": of_node.spec, "node": msgspec.to_builtins(slo)}
    if troubles:
        actual["troubles"] = [str(trouble) for trouble in troubles.values()]
    return CaseVerdict(_without_empty(actual) == _without_empty(case["expect"]), actual)


def _without_empty(value: Any) -> Any:
    """Empty lists and objects mean nothing in these cases."""
    if isinstance(value, dict):
        fields = ((name, _without_empty(field)) for name, field in value.items())
        return {name: field for name, field in fields if field not in _EMPTY}
    return [_without_empty(each) for each in value] if isinstance(value, list | tuple) else value


_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
JUDGES: Final = {"koordinator-nodeslo": Judge(judge)}
