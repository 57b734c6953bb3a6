"""The interface to stored objects: an API server or a folder."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

Object = dict[str, Any]
T = TypeVar("T")


class ObjectKey(NamedTuple):
    """`namespace` is empty for what has none."""

    namespace: str
    name: str


class ChangeKind(enum.Enum):
    """An object that was created again under its old name is deleted and added."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class Change(msgspec.Struct, Generic[T], frozen=True):
    """`value` is the new one; of what is deleted the last one that was known."""

    kind: ChangeKind
    key: ObjectKey
    value: T


Read = Callable[[bytes], T]
"""An object's JSON as the value that is kept of it. Raises JsonError or ObjectError."""

Changed = Callable[[Sequence[Change[T]]], None]
"""Called on the watch's thread: what belongs together, in its order; every change once. The first
call is for all that is there, be it nothing."""


class Watch(Protocol[T]):
    """Follows objects on a thread of its own."""

    @property
    def synced(self) -> bool:
        """Whether all existing objects were reported."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why the watch fails now."""
        ...

    @property
    def age_seconds(self) -> float:
        """Since the store of the objects answered last."""
        ...

    def objects(self) -> dict[ObjectKey, T]:
        """The known objects."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None:
        """Stops at once, from any thread; no change is reported afterwards."""
        ...


class Objects(Protocol):
    """All methods raise StoreError; those without a namespace are for kinds that have none."""

    def version(self, kind: str) -> str | None:
        """Of the API, in which objects of that kind are applied; None where there are none."""
        ...

    def get(self, kind: str, name: str) -> Object | None:
        """The object, None when there is none."""
        ...

    def apply(self, wanted: Object) -> bool:
        """Makes our fields those of `wanted`; False when they were like this already."""
        ...

    def apply_status(self, wanted: Object) -> bool:
        """The same for the status of an existing object."""
        ...

    def forget(self, kind: str, name: str) -> None:
        """Another client changed the object: the next apply reads it."""
        ...

    def delete(self, kind: str, name: str) -> bool:
        """False when there was none."""
        ...

    def watch_pods(self, node_name: str, read: Read[T], changed: Changed[T]) -> Watch[T]:
        """The pods of one node, each as `read` makes it."""
        ...

    def watch_node(self, name: str, read: Read[T], changed: Changed[T]) -> Watch[T]:
        """The one Node."""
        ...
