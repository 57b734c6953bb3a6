"""A list in pages, as of one moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from agent.kube import wire
from agent.kube.errors import GoneError, MalformedError
from agent.kube.transport import Query

T = TypeVar("T")

PAGE: Final = 500


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
    """`take` makes what is kept of an object, page by page. `remembered`: from the server's memory,
    which is as old as it likes. Raises KubeError, AccessError and whatever `take` raises."""
    asked = f"list of {path}"
    query: Query = {**select, "limit": PAGE}
    if remembered:
        query = {**query, "resourceVersion": "0"}
    found: list[T] = []
    while True:
        try:
            page = wire.page(asked, get(path, query))
        except GoneError:
            if "continue" not in query:
                raise
            # The server offers to go on with a newer state: what changed meanwhile on the pages
            # before would be lost.
            found.clear()
            query = dict(select)
            continue
        found.extend(map(take, page.items or ()))
        token = page.metadata.continue_
        if not token:
            break
        if query.get("continue") == token:
            raise MalformedError(f"{asked}: the same page again")
        query = {**select, "limit": PAGE, "continue": token}
    if not page.metadata.resource_version:
        raise MalformedError(f"{asked}: has no resourceVersion")
    return Listed(found, page.metadata.resource_version)
