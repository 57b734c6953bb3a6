"""The strategies of a node that are in force, and where each section comes from: the node's
NodeSLO, or where there is none the agent's own configuration, else koordlet's defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from agent.host import files
from agent.model import bounds
from agent.model.node_slo import KIND, NodeSlo, node_slo
from agent.model.objects import decoded
from agent.model.pod.apiobjects import ApiPod
from agent.usage import slo_config
from agent.usage.pod_strategies import PodStrategies, of_pod
from agent.usage.slo_config import SloConfig

_MAX_BYTES: Final = 16 << 20


class Strategies(msgspec.Struct, frozen=True):
    """The strategies of a node and its pods."""

    slo: NodeSlo = NodeSlo()
    origins: Mapping[str, str] = {}
    """By the name of a section in JSON, where it comes from. A section without an origin has the
    defaults."""
    troubles: tuple[str, ...] = ()
    """Sentences about bad values, each with the object and the field."""
    unread: tuple[str, ...] = ()
    """Why these are the last strategies that could be read, and not the present ones."""
    pods: Mapping[str, PodStrategies] = {}
    """By namespace and name, the pods with annotations that override something."""
    pod_troubles: tuple[str, ...] = ()
    """Sentences about bad annotations of pods, at most MAX_POD_TROUBLES."""


def of_object(text: bytes) -> Strategies:
    """The strategies by the JSON of a NodeSLO. Raises ObjectError for a text that is not JSON."""
    body = decoded(text, KIND, _anything)
    slo, troubles = node_slo(body)
    spec = body.get("spec") if isinstance(body, dict) else None
    written = spec if isinstance(spec, dict) else {}
    origins = {
        field.encode_name: KIND
        for field in msgspec.structs.fields(NodeSlo)
        if written.get(field.encode_name) is not None and field.encode_name not in troubles
    }
    return Strategies(slo, origins, tuple(map(str, troubles.values())))


_anything: Final = msgspec.json.Decoder(Any)


def of_config(
    config: SloConfig, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Strategies:
    """The strategies by the agent's own configuration, for a Node with these labels and
    annotations."""
    of_node = slo_config.spec(config, labels, annotations)
    slo, troubles = node_slo({"spec": of_node.spec})
    reasons = (f"spec of the node: {trouble.reason}" for trouble in troubles.values())
    return Strategies(slo, of_node.origins, (*of_node.troubles, *reasons))


def with_pods(of_node: Strategies, pods: Iterable[ApiPod]) -> Strategies:
    """The strategies of a node with those of these pods."""
    of_pods: dict[str, PodStrategies] = {}
    troubles: list[str] = []
    for pod in sorted(pods, key=lambda pod: pod.title):
        in_force, faults = of_pod(of_node.slo, pod)
        troubles += faults
        if in_force.own:
            of_pods[pod.title] = in_force
    return msgspec.structs.replace(
        of_node, pods=of_pods, pod_troubles=tuple(troubles[:MAX_POD_TROUBLES])
    )


MAX_POD_TROUBLES: Final = 32


def read(path: str) -> Strategies:
    """The strategies in the agent's file. Raises OSError and JsonError."""
    return bounds.decode(_strategies, files.read(path, _MAX_BYTES))


_strategies: Final = msgspec.json.Decoder(Strategies)
