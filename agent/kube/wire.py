"""Lists and watch events as the API server sends them."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.kube.errors import MalformedError
from agent.kube.mirror import Metadata
from agent.model import bounds
from agent.model.bounds import JsonError

_INITIAL_END: Final = "k8s.io/initial-events-end"


class ListMetadata(msgspec.Struct, frozen=True):
    """`continue_` asks for the next page; empty on the last."""

    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, frozen=True):
    """A list or one page of it."""

    metadata: ListMetadata
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch; the object of an ERROR is a Status."""

    type: str
    object: msgspec.Raw


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata


def page(asked: str, body: bytes) -> Page:
    """Raises MalformedError, as all here."""
    try:
        return bounds.decode(_pages, body)
    except JsonError as error:
        raise MalformedError(f"{asked}: {error}") from error


def event(asked: str, line: bytes) -> WatchEvent:
    try:
        return bounds.decode(_events, line)
    except JsonError as error:
        raise MalformedError(f"{asked}: {error}") from error


def metadata(asked: str, text: msgspec.Raw) -> Metadata:
    """The metadata of an object with a name and a version, or with a version alone."""
    try:
        found = bounds.decode(_objects, bytes(text)).metadata
    except JsonError as error:
        raise MalformedError(f"{asked}: {error}") from error
    if not found.resource_version:
        raise MalformedError(f"{asked}: an object without resourceVersion")
    return found


def ends_initial(bookmark: Metadata) -> bool:
    """Whether all existing objects were reported (WatchList)."""
    return (bookmark.annotations or {}).get(_INITIAL_END) == "true"


def not_newer(version: str, than: str | None) -> bool:
    """Versions are numbers that grow; those that are none are newer unless equal."""
    if version.isdecimal() and than is not None and than.isdecimal():
        return int(version) <= int(than)
    return version == than


_pages = msgspec.json.Decoder(Page)
_events = msgspec.json.Decoder(WatchEvent)
_objects = msgspec.json.Decoder(_Object)
