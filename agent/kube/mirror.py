"""What is known of watched objects, and what changes when more is heard."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from agent.kube.objects import Change, ChangeKind, Key
from agent.model import jsontext
from agent.model.jsontext import JsonError

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
    def key(self) -> Key:
        return Key(self.namespace, self.name)


class Known(msgspec.Struct, Generic[T], frozen=True):
    """One object; `uid` tells it from another of its name."""

    uid: str
    version: str
    value: T


class Mirror(Generic[T]):
    """Tells every change once. Not safe for several threads that write."""

    def __init__(self, type_: type[T]) -> None:
        """An object that is no `type_` is logged, and its last good value stays."""
        self._decoder = msgspec.json.Decoder(type_)
        self._known: dict[Key, Known[T]] = {}

    def values(self) -> dict[Key, T]:
        return {key: known.value for key, known in self._known.copy().items()}

    def replace(self, found: Iterable[tuple[Metadata, bytes]]) -> list[Change[T]]:
        """All that is there."""
        changes: list[Change[T]] = []
        gone = set(self._known)
        for metadata, raw in found:
            gone.discard(metadata.key)
            changes += self.put(metadata, raw)
        for key in gone:
            changes += self.drop(key)
        return changes

    def put(self, metadata: Metadata, raw: bytes) -> list[Change[T]]:
        """One that is there."""
        key = metadata.key
        before = self._known.get(key)
        if before and (before.uid, before.version) == (metadata.uid, metadata.resource_version):
            return []
        try:
            value = jsontext.decode(self._decoder, raw)
        except JsonError as error:
            log.error("%s can not be read: %s", "/".join(filter(None, key)), error)
            return [] if before is None or before.uid == metadata.uid else self.drop(key)
        self._known[key] = Known(metadata.uid, metadata.resource_version, value)
        if before is None:
            return [Change(ChangeKind.ADDED, key, value)]
        if before.uid != metadata.uid:
            return [
                Change(ChangeKind.DELETED, key, before.value),
                Change(ChangeKind.ADDED, key, value),
            ]
        return [Change(ChangeKind.MODIFIED, key, value)]

    def drop(self, key: Key) -> list[Change[T]]:
        """One that is gone."""
        before = self._known.pop(key, None)
        return [] if before is None else [Change(ChangeKind.DELETED, key, before.value)]
