"""The known state of watched objects, and the changes that new events make."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from sys import intern
from typing import Generic, TypeVar

import msgspec

from agent.kube.objects import Change, ChangeKind, ObjectKey, Read
from agent.model.bounds import JsonError
from agent.model.objects import ObjectError

T = TypeVar("T")
log = logging.getLogger(__name__)


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Of an object, as far as a watch needs it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(intern(self.namespace), self.name)


class Known(msgspec.Struct, Generic[T], frozen=True):
    """One object; `uid` distinguishes it from another of its name."""

    uid: str
    version: str
    value: T


class Mirror(Generic[T]):
    """Tells every change once. Not safe for several threads that write."""

    def __init__(self, read: Read[T]) -> None:
        """An object that can't be read is logged, and its last good value stays."""
        self._read = read
        self._known: dict[ObjectKey, Known[T]] = {}

    def values(self) -> dict[ObjectKey, T]:
        return {key: known.value for key, known in self._known.copy().items()}

    def understood(self, metadata: Metadata, raw: bytes) -> Known[T] | None:
        """The value of an existing object; None: it has none. Changes nothing, so that the bytes of
        all objects are never in memory at once."""
        before = self._known.get(metadata.key)
        if before and (before.uid, before.version) == (metadata.uid, metadata.resource_version):
            return before
        try:
            value = self._read(raw)
        except (JsonError, ObjectError) as error:
            log.error("%s can not be read: %s", "/".join(filter(None, metadata.key)), error)
            return before if before and before.uid == metadata.uid else None
        return Known(metadata.uid, metadata.resource_version, value)

    def replace(self, found: Iterable[tuple[ObjectKey, Known[T] | None]]) -> list[Change[T]]:
        """Replaces everything by these values of `understood`."""
        changes: list[Change[T]] = []
        gone = set(self._known)
        for key, known in found:
            gone.discard(key)
            changes += self._take(key, known)
        for key in gone:
            changes += self.drop(key)
        return changes

    def put(self, metadata: Metadata, raw: bytes) -> list[Change[T]]:
        """Adds or replaces one object."""
        return self._take(metadata.key, self.understood(metadata, raw))

    def drop(self, key: ObjectKey) -> list[Change[T]]:
        """One that is gone."""
        before = self._known.pop(key, None)
        return [] if before is None else [Change(ChangeKind.DELETED, key, before.value)]

    def _take(self, key: ObjectKey, known: Known[T] | None) -> list[Change[T]]:
        if known is None:
            return self.drop(key)
        before = self._known.get(key)
        if before is known:
            return []
        self._known[key] = known
        if before is None:
            return [Change(ChangeKind.ADDED, key, known.value)]
        if before.uid != known.uid:
            return [
                Change(ChangeKind.DELETED, key, before.value),
                Change(ChangeKind.ADDED, key, known.value),
            ]
        return [Change(ChangeKind.MODIFIED, key, known.value)]
