"""The API server as the place of the agent's objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from agent.kube import difference, events, kinds
from agent.kube.difference import Ours
from agent.kube.errors import ConflictError, MalformedError, NotFoundError
from agent.kube.kinds import Discovery, Kind, kind_named
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Changed, Object, Read
from agent.kube.schedule import spread
from agent.kube.transport import FIELD_MANAGER, Transport
from agent.model import bounds, nodestatus, nodetopology
from agent.model.bounds import JsonError

T = TypeVar("T")

# A node's first watch begins at a moment of its own in this window.
SPREAD_SECONDS: Final = 10.0
# After so long what was applied is looked at again: another writer may have taken it.
RECHECK_SECONDS: Final = 300.0
# Who loses a race with another writer looks again.
TRIES: Final = 4

# Whose entries are whose in lists that have one owner as a whole.
_OURS: Final[dict[str, Ours]] = {kinds.TOPOLOGY.name: nodetopology.ours}


class Cluster:
    """Objects of one API server, for one node. What was applied is not sent again; one thread
    applies."""

    def __init__(
        self,
        transport: Transport,
        node_name: str,
        *,
        spread_seconds: float = SPREAD_SECONDS,
        recheck_seconds: float = RECHECK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.discovery = Discovery(transport, clock, recheck_seconds)
        self.reachability = transport.reachability
        self._transport = transport
        self._node_name = node_name
        self._first_seconds = spread(node_name, spread_seconds)
        self._recheck_seconds = recheck_seconds
        self._clock = clock
        self._applied: dict[tuple[str, str, str], tuple[bytes, float]] = {}

    def recorder(
        self, controller: str, action: str, results: Callable[[str], None]
    ) -> events.Recorder:
        """For Events about pods of the node."""
        return events.Recorder(self._transport, controller, self._node_name, action, results)

    def version(self, kind: str) -> str | None:
        """The best API version that the server and Topolet have in common, None when it does not
        serve the kind."""
        return self.discovery.version(kind_named(kind))

    def get(self, kind: str, name: str) -> Object | None:
        """None too where the server does not have the kind."""
        which = kind_named(kind)
        version = self.discovery.version(which)
        if version is None:
            return None
        return self._found(which, kinds.path(which.group, version, which.plural, name))

    def apply(self, wanted: Object) -> bool:
        """Fields of `wanted` that others hold become ours, all else of theirs stays. A Node is not
        made: that is a NotFoundError."""
        return self._apply(wanted, "")

    def apply_status(self, wanted: Object) -> bool:
        """The same for the status of an existing object."""
        return self._apply(wanted, "/status")

    def delete(self, kind: str, name: str) -> bool:
        which = kind_named(kind)
        version = self.discovery.version(which)
        for subresource in ("", "/status"):
            self._applied.pop((kind, name, subresource), None)
        if version is None:
            return False
        try:
            self._transport.delete(kinds.path(which.group, version, which.plural, name))
        except NotFoundError:
            return False
        return True

    def forget(self, kind: str, name: str) -> None:
        """Another client changed the object: the next apply reads it."""
        for key, (sent, _) in list(self._applied.items()):
            if key[:2] == (kind, name):
                self._applied[key] = sent, -self._recheck_seconds

    def watch_pods(self, node_name: str, read: Read[T], changed: Changed[T]) -> ListWatch[T]:
        """The server sends only those of the node."""
        return self._watch(kinds.POD, f"spec.nodeName={node_name}", read, changed)

    def watch_node(self, name: str, read: Read[T], changed: Changed[T]) -> ListWatch[T]:
        return self._watch(kinds.NODE, f"metadata.name={name}", read, changed)

    def _watch(self, kind: Kind, fields: str, read: Read[T], changed: Changed[T]) -> ListWatch[T]:
        return ListWatch(
            self._transport,
            kinds.path(kind.group, kind.versions[0], kind.plural),
            {"fieldSelector": fields},
            read,
            changed,
            first_seconds=self._first_seconds,
        )

    def _apply(self, wanted: Object, subresource: str) -> bool:
        kind, name = kind_named(wanted["kind"]), wanted["metadata"]["name"]
        key = kind.name, name, subresource
        sent = msgspec.json.encode(wanted, order="deterministic")
        last, checked = self._applied.get(key, (b"", 0.0))
        if sent == last and self._clock() - checked < self._recheck_seconds:
            return False
        for last_try in (*[False] * (TRIES - 1), True):
            try:
                changed = self._applied_now(kind, wanted, subresource)
            except ConflictError:
                if last_try:
                    raise
            else:
                break
        self._applied[key] = sent, self._clock()
        return changed

    def _applied_now(self, kind: Kind, wanted: Object, subresource: str) -> bool:
        """Raises ConflictError after a concurrent write."""
        version = wanted["apiVersion"].rpartition("/")[2]
        path = kinds.path(kind.group, version, kind.plural, wanted["metadata"]["name"])
        seen = self._found(kind, path)
        if seen is None and (kind.must_exist or subresource):
            raise NotFoundError(f"{kind.name} {wanted['metadata']['name']} is not there")
        if subresource:
            wanted = nodestatus.with_seen_amounts(wanted, seen)
        patch = self._patch(wanted, seen, subresource)
        if patch is None:
            return False
        if seen is not None and (moved := difference.same_version(seen, wanted["apiVersion"])):
            seen = _decoded(path, self._transport.edit(path, moved))
            patch = self._patch(wanted, seen, subresource)
            if patch is None:
                return True
        try:
            answer = self._transport.apply(path + subresource, patch)
        except NotFoundError:
            self.discovery.forget(kind)
            raise
        return seen is None or _version_of(seen) != _version_of(_decoded(path, answer.body))

    def _patch(self, wanted: Object, seen: Object | None, subresource: str) -> Object | None:
        ours = _OURS.get(wanted["kind"])
        return difference.patch(wanted, seen, FIELD_MANAGER, ours, subresource.lstrip("/"))

    def _found(self, kind: Kind, path: str) -> Object | None:
        try:
            return _decoded(path, self._transport.get(path))
        except NotFoundError:
            self.discovery.forget(kind)
            return None


def _version_of(found: Object) -> str:
    return str(found["metadata"].get("resourceVersion"))


def _decoded(path: str, body: bytes) -> Object:
    try:
        found = bounds.decode(_object, body)
    except JsonError as error:
        raise MalformedError(f"{path}: {error}") from error
    if not isinstance(found.get("metadata"), dict):
        raise MalformedError(f"{path}: no object")
    return found


_object = msgspec.json.Decoder(Object)
