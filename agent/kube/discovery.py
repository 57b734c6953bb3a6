"""Which versions of a kind the server has; CRDs come, go and change under us."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.kube import kinds
from agent.kube.errors import MalformedError, NotFoundError
from agent.kube.kinds import Kind
from agent.kube.transport import Transport
from agent.model import jsontext
from agent.model.jsontext import JsonError

RECHECK_SECONDS: Final = 300.0


class Discovery:
    """Remembers an answer for a while."""

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._recheck_seconds = recheck_seconds
        self._known: dict[str, tuple[float, str | None]] = {}

    def version(self, kind: Kind) -> str | None:
        """The best of the kind's versions that is served, None when none is. Raises KubeError."""
        if not kind.group:
            return kind.versions[0]
        known = self._known.get(kind.name)
        if known is None or self._clock() - known[0] >= self._recheck_seconds:
            known = self._clock(), self._asked(kind)
            self._known[kind.name] = known
        return known[1]

    def forget(self, kind: Kind) -> None:
        """The server denied knowing it."""
        self._known.pop(kind.name, None)

    def _asked(self, kind: Kind) -> str | None:
        for version in kind.versions:
            path = kinds.path(kind.group, version)
            try:
                body = self._transport.get(path)
            except NotFoundError:
                continue
            try:
                served = jsontext.decode(_resources, body).resources or ()
            except JsonError as error:
                raise MalformedError(f"GET {path}: {error}") from error
            if any(each.name == kind.plural for each in served):
                return version
        return None


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _ResourceList(msgspec.Struct, frozen=True):
    resources: list[_Resource] | None = None


_resources = msgspec.json.Decoder(_ResourceList)
