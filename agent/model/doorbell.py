"""The datagrams by which the proxy tells the agent to look, before and after a call."""

from __future__ import annotations

import msgspec

from agent.model import jsontext
from agent.model.jsontext import JsonError


class DoorbellError(ValueError):
    """A datagram that is none of ours."""


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request asks for a container, "" and 0 for nothing; a quota or memory limit of -1 is
    none. The quota is for 100,000 microseconds."""

    cpuset: str = ""
    mems: str = ""
    shares: int = 0
    quota_microseconds: int = 0
    memory_limit_bytes: int = 0


class PodComes(msgspec.Struct, frozen=True, tag="pod"):
    """A pod's sandbox or container is about to be created; only what decisions read."""

    uid: str
    namespace: str
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    cgroup_parent: str


class PodFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The sandbox of a pod that was announced did not come to be."""

    uid: str


class ContainerComes(msgspec.Struct, frozen=True, tag="container"):
    """A container that qualifies for CPUs of its own by a node-local policy is about to be created;
    `shares` tell its request."""

    pod: PodComes
    name: str
    shares: int


class ContainerFailed(msgspec.Struct, frozen=True, tag="container-failed"):
    """A container that was announced did not come to be."""

    uid: str
    name: str


class Resized(msgspec.Struct, frozen=True, tag="resized"):
    """The runtime changed a container; `asked`: by its caller, before the rewrite."""

    container_id: str
    asked: Asked


class Created(msgspec.Struct, frozen=True, tag="created"):
    """A container exists; `asked`: by its caller, before the rewrite. `kept`: the fields of Limits
    in which the request went on as it came."""

    container_id: str
    asked: Asked
    kept: tuple[str, ...] = ()


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Something changed, or somebody waits for a fresh snapshot."""


Ring = PodComes | PodFailed | ContainerComes | ContainerFailed | Created | Resized | Look

_decoder: msgspec.json.Decoder[Ring] = msgspec.json.Decoder(Ring)


def encode(ring: Ring) -> bytes:
    """One datagram."""
    return msgspec.json.encode(ring)


def decode(datagram: bytes) -> Ring:
    """Raises DoorbellError."""
    try:
        return jsontext.decode(_decoder, datagram)
    except JsonError as error:
        raise DoorbellError(f"doorbell: {error}") from None
