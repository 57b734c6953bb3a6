"""Lists and watch events as the API server sends them, and reading a list in pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from agent.kube.errors import GoneError, MalformedError, TooLargeError
from agent.kube.objects import WatchedMetadata
from agent.kube.transport import Query
from agent.model import bounds
from agent.model.bounds import JsonError

_INITIAL_END: Final = "k8s.io/initial-events-end"


class ListMetadata(msgspec.Struct, frozen=True):
    """`continue_`: the token of the next page; empty on the last one."""

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
    metadata: WatchedMetadata


def page(request: str, body: bytes) -> Page:
    """Raises MalformedError, as all functions of this module."""
    try:
        return bounds.decode(_pages, body)
    except JsonError as error:
        raise MalformedError(f"{request}: {error}") from error


def event(request: str, line: bytes) -> WatchEvent:
    try:
        return bounds.decode(_events, line)
    except JsonError as error:
        raise MalformedError(f"{request}: {error}") from error


def metadata(request: str, text: msgspec.Raw) -> WatchedMetadata:
    """The metadata of an object with a name and a version, or with a version alone."""
    try:
        found = bounds.decode(_objects, bytes(text)).metadata
    except JsonError as error:
        raise MalformedError(f"{request}: {error}") from error
    if not found.resource_version:
        raise MalformedError(f"{request}: an object without resourceVersion")
    return found


def ends_initial(bookmark: WatchedMetadata) -> bool:
    """Whether all existing objects were reported (WatchList)."""
    return (bookmark.annotations or {}).get(_INITIAL_END) == "true"


def not_newer(version: str, than: str | None) -> bool:
    """Versions are numbers that grow; any other text counts as newer unless it is equal."""
    if version.isdecimal() and than is not None and than.isdecimal():
        return int(version) <= int(than)
    return version == than


_pages = msgspec.json.Decoder(Page)
_events = msgspec.json.Decoder(WatchEvent)
_objects = msgspec.json.Decoder(_Object)


T = TypeVar("T")

PAGE: Final = 500
_SHRINKS: Final = 25
"""The factor by which a page shrinks: 500 objects, 20, 1."""


class Listed(msgspec.Struct, Generic[T]):
    """The objects of a list, and its resourceVersion."""

    found: list[T]
    version: str


def listed(
    path: str,
    select: Query,
    get: Callable[[str, Query], bytes],
    take: Callable[[msgspec.Raw], T],
    *,
    from_cache: bool = False,
) -> Listed[T]:
    """`take` reads the kept fields of an object, page by page. `from_cache`: the server answers
    from its cache, which may be old, without pages. After a response that is too large the list
    restarts with smaller pages. Raises KubeError, AccessError and the exceptions of `take`."""
    request = f"list of {path}"
    size = PAGE
    query: Query = {**select, "limit": size}
    if from_cache:
        query = {**query, "resourceVersion": "0"}
    found: list[T] = []
    while True:
        try:
            got = page(request, get(path, query))
        except TooLargeError:
            if size == 1:
                raise
            size = max(1, size // _SHRINKS)
            found.clear()
            query = {**select, "limit": size}
            continue
        except GoneError:
            if "continue" not in query:
                raise
            # The server's new token continues with a newer state: changes on the pages before
            # would be lost.
            found.clear()
            query = dict(select) if size == PAGE else {**select, "limit": size}
            continue
        found.extend(map(take, got.items or ()))
        token = got.metadata.continue_
        if not token:
            break
        if query.get("continue") == token:
            raise MalformedError(f"{request}: the same page again")
        query = {**select, "limit": size, "continue": token}
    if not got.metadata.resource_version:
        raise MalformedError(f"{request}: has no resourceVersion")
    return Listed(found, got.metadata.resource_version)
