"""The Node as the API server tells of it: what people and others say of it, and who it is."""

from __future__ import annotations

import msgspec

from agent.model.objects import converted

KIND = "Node"


class ApiNode(msgspec.Struct, frozen=True):
    """`uid` is empty where no API server gave one."""

    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class NodeObject(msgspec.Struct, frozen=True):
    """A Node as it stands in JSON."""

    metadata: _Metadata


def from_object(body: object) -> ApiNode:
    """Raises ObjectError."""
    return value(converted(body, KIND, NodeObject))


def value(raw: NodeObject) -> ApiNode:
    metadata = raw.metadata
    return ApiNode(metadata.uid, metadata.labels or {}, metadata.annotations or {})


class _Metadata(msgspec.Struct, frozen=True):
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
