"""A list in pages, as of one moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from agent.kube import wire
from agent.kube.errors import GoneError, MalformedError, TooLargeError
from agent.kube.transport import Query

T = TypeVar("T")

PAGE: Final = 500
_SHRINKS: Final = 25
"""By what a page shrinks: 500 objects, 20, 1."""


class Listed(msgspec.Struct, Generic[T]):
    """What was found, and the resourceVersion that it is as of."""

    found: list[T]
    version: str


def listed(
    path: str,
    select: Query,
    get: Callable[[str, Query], bytes],
    take: Callable[[msgspec.Raw], T],
    *,
    remembered: bool = False,
) -> Listed[T]:
    """`take` reads the kept fields of an object, page by page. `remembered`: from the server's
    cache, which may be old and answers without pages. After an answer that is too large the list
    begins anew with smaller pages. Raises KubeError, AccessError and the exceptions of `take`."""
    asked = f"list of {path}"
    size = PAGE
    query: Query = {**select, "limit": size}
    if remembered:
        query = {**query, "resourceVersion": "0"}
    found: list[T] = []
    while True:
        try:
            page = wire.page(asked, get(path, query))
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
            # The server offers to go on with a newer state: what changed meanwhile on the pages
            # before would be lost.
            found.clear()
            query = dict(select) if size == PAGE else {**select, "limit": size}
            continue
        found.extend(map(take, page.items or ()))
        token = page.metadata.continue_
        if not token:
            break
        if query.get("continue") == token:
            raise MalformedError(f"{asked}: the same page again")
        query = {**select, "limit": size, "continue": token}
    if not page.metadata.resource_version:
        raise MalformedError(f"{asked}: has no resourceVersion")
    return Listed(found, page.metadata.resource_version)
