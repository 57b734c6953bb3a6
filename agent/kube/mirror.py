"""What is known of watched objects, and what changes when more is heard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from sys import intern
from typing import Generic, TypeVar

import msgspec

from agent.kube.objects import Change, ChangeKind, Key
from agent.model import jsontext
from agent.model.jsontext import JsonError
from agent.model.objects import ObjectError

T = TypeVar("T")
log = logging.getLogger(__name__)

Read = Callable[[bytes], T]
"""An object's JSON as the value that is kept. Raises JsonError or ObjectError."""


def as_type(type_: type[T]) -> Read[T]:
    """The fields that the type has."""
    decoder = msgspec.json.Decoder(type_)
    return lambda text: jsontext.decode(decoder, text)


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Of an object, as far as a watch needs it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> Key:
        return Key(intern(self.namespace), self.name)


class Known(msgspec.Struct, Generic[T], frozen=True):
    """One object; `uid` tells it from another of its name."""

    uid: str
    version: str
    value: T


class Mirror(Generic[T]):
    """Tells every change once. Not safe for several threads that write."""

    def __init__(self, read: Read[T]) -> None:
        """An object that can't be read is logged, and its last good value stays."""
        self._read = read
        self._known: dict[Key, Known[T]] = {}

    def values(self) -> dict[Key, T]:
        return {key: known.value for key, known in self._known.copy().items()}

    def understood(self, metadata: Metadata, raw: bytes) -> Known[T] | None:
        """What would be known of one that is there; None: nothing. Changes nothing, so that the
        bytes of all that is there are never held at once."""
        before = self._known.get(metadata.key)
        if before and (before.uid, before.version) == (metadata.uid, metadata.resource_version):
            return before
        try:
            value = self._read(raw)
        except (JsonError, ObjectError) as error:
            log.error("%s can not be read: %s", "/".join(filter(None, metadata.key)), error)
            return before if before and before.uid == metadata.uid else None
        return Known(metadata.uid, metadata.resource_version, value)

    def replace(self, found: Iterable[tuple[Key, Known[T] | None]]) -> list[Change[T]]:
        """All that is there, each as it was understood."""
        changes: list[Change[T]] = []
        gone = set(self._known)
        for key, known in found:
            gone.discard(key)
            changes += self._take(key, known)
        for key in gone:
            changes += self.drop(key)
        return changes

    def put(self, metadata: Metadata, raw: bytes) -> list[Change[T]]:
        """One that is there."""
        return self._take(metadata.key, self.understood(metadata, raw))

    def drop(self, key: Key) -> list[Change[T]]:
        """One that is gone."""
        before = self._known.pop(key, None)
        return [] if before is None else [Change(ChangeKind.DELETED, key, before.value)]

    def _take(self, key: Key, known: Known[T] | None) -> list[Change[T]]:
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
