"""The embedded store of standalone mode: YAML files instead of the API server, and a watch of them.

Each object has one file: `<folder>/<kind in lower case>/<name>.yaml`. Pods, which only people add,
are in `pod/<namespace>/<name>.yaml`. A watch reads the folder again after each period.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec
import yaml

from agent.host import files
from agent.host.log_once import Problem
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kube.errors import StoreError
from agent.kube.objects import Changed, Mirror, Object, ObjectKey, Read, WatchedMetadata, kind_named
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.devices import device_object
from agent.model.devices.device_object import DOMAIN
from agent.model.nrt.node_status import LABEL_PREFIX

T = TypeVar("T")
log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 1.0


class EmbeddedStore:
    """Objects by kind and name; cluster-scoped kinds only. A watch reads the folder again after
    each period."""

    def __init__(self, folder: str, *, period_seconds: float = PERIOD_SECONDS) -> None:
        self._folder = folder
        self._period = period_seconds

    def get(self, kind: str, name: str, *, cached: bool = False) -> Object | None:
        """The stored object, None if it does not exist. Raises StoreError."""
        return _read(f"{kind} {name}", self._path(kind, name))

    def apply(self, wanted: Object) -> bool:
        """Stores the object. Returns False if the stored one is the same. Fields that others wrote
        to a Node stay, and so do devices of types that Topolet does not report. An unreadable
        object that only Topolet writes is replaced. Raises StoreError, also for an unreadable
        Node."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        stored: Object | None = None
        try:
            stored = self.get(kind, name)
        except StoreError:
            if kind in _SHARED:
                raise
        if stored is not None and kind in _SHARED:
            wanted = _merged_with_others(stored, wanted)
        elif kind == device_object.KIND:
            wanted = device_object.with_others(wanted, stored)
        return self._put(wanted, stored)

    def apply_status(self, wanted: Object) -> bool:
        """Replaces Topolet's resources (`koordinator.sh/`) in the status, and keeps all others.
        Raises StoreError, also if the object does not exist."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        stored = self.get(kind, name)
        if stored is None:
            raise StoreError(f"{kind} {name} does not exist")
        before = stored.get("status")
        status = dict(before) if isinstance(before, dict) else {}
        for field, amounts in wanted["status"].items():
            stored_amounts = status.pop(field, None) or {}
            kept = {key: value for key, value in stored_amounts.items() if not _is_own(key)}
            if kept or amounts:
                status[field] = {**kept, **amounts}
        body = {key: value for key, value in stored.items() if key != "status"}
        return self._put({**body, "status": status} if status else body, stored)

    def version(self, kind: str) -> str | None:
        return kind_named(kind).versions[0]

    def forget(self, kind: str, name: str) -> None:
        """Does nothing: every apply reads the stored object."""

    def _put(self, wanted: Object, stored: Object | None) -> bool:
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        if stored == wanted:
            return False
        text = yaml.dump(wanted, Dumper=_Dumper, sort_keys=False, width=100_000)
        path = self._path(kind, name)
        try:
            files.make_folders(os.path.dirname(path))
            files.replace(path, text.encode(), durable=False, mode=0o644)
        except OSError as error:
            raise StoreError(f"{kind} {name} in {path}: {error}") from error
        return True

    def delete(self, kind: str, name: str) -> bool:
        """Returns False if the object did not exist. Raises StoreError."""
        path = self._path(kind, name)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"{kind} {name} in {path}: {error}") from error
        return True

    def watch_pods(self, node_name: str, read: Read[T], changed: Changed[T]) -> FolderWatch[T]:
        """Watches the pods whose `spec.nodeName` is that node."""
        return FolderWatch(lambda: self._pods(node_name), read, changed, self._period)

    def watch_node(self, name: str, read: Read[T], changed: Changed[T]) -> FolderWatch[T]:
        return FolderWatch(lambda: self._one("Node", name), read, changed, self._period)

    def _one(self, kind: str, name: str) -> Iterator[tuple[WatchedMetadata, bytes]]:
        if (found := self.get(kind, name)) is not None:
            yield served(f"{kind} {name}", found)

    def _pods(self, node_name: str) -> Iterator[tuple[WatchedMetadata, bytes]]:
        folder = os.path.join(self._folder, "pod")
        for namespace in _names(folder):
            for file in _names(os.path.join(folder, namespace)):
                name, extension = os.path.splitext(file)
                what = f"Pod {namespace}/{name}"
                path = os.path.join(folder, namespace, file)
                if extension != ".yaml" or (pod := _read(what, path)) is None:
                    continue
                spec = pod.get("spec")
                if isinstance(spec, dict) and spec.get("nodeName") == node_name:
                    yield served(what, pod)

    def _path(self, kind: str, name: str) -> str:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise StoreError(f"{kind}: {name!r} is not an object name")
        return os.path.join(self._folder, kind.lower(), f"{name}.yaml")


def _read(what: str, path: str) -> Object | None:
    try:
        content = documents.read(path)
    except FileNotFoundError:
        return None
    except (OSError, DocumentError) as error:
        raise StoreError(f"{what} in {path}: {error}") from error
    if not isinstance(content, dict):
        raise StoreError(f"{what} in {path} is not an object")
    return content


def served(what: str, found: Object) -> tuple[WatchedMetadata, bytes]:
    """Returns the object as an API server sends it; its version is a digest of the content."""
    try:
        text = msgspec.json.encode(found)
        metadata = bounds.decode(_object, text).metadata
    except (TypeError, msgspec.MsgspecError, RecursionError, JsonError) as error:
        raise StoreError(f"{what}: {error}") from error
    version = hashlib.blake2b(text, digest_size=8).hexdigest()
    return msgspec.structs.replace(metadata, resource_version=version), text


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(str(error)) from error


class _WithMetadata(msgspec.Struct, frozen=True):
    metadata: WatchedMetadata


_object = msgspec.json.Decoder(_WithMetadata)

_SHARED = ("Node",)


def _merged_with_others(stored: Object, wanted: Object) -> Object:
    """The stored object with the wanted fields. Topolet's unwanted labels are removed."""
    merged = _merged(stored, wanted)
    if wanted_labels := wanted["metadata"].get("labels"):
        labels = merged["metadata"]["labels"]
        for key in [key for key in labels if str(key).startswith(LABEL_PREFIX)]:
            if key not in wanted_labels:
                del labels[key]
    return merged


def _is_own(resource: object) -> bool:
    return str(resource).startswith(DOMAIN)


def _merged(stored: Object, wanted: Object) -> Object:
    merged = dict(stored)
    for key, value in wanted.items():
        before = stored.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            value = _merged(before, value)
        merged[key] = value
    return merged


_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


Found = Callable[[], Iterable[tuple[WatchedMetadata, bytes]]]
"""The watched objects as JSON. Raises StoreError."""


class FolderWatch(Generic[T]):
    """Reads the files again after each period; while reading fails, it keeps the known objects."""

    def __init__(
        self,
        found: Found,
        read: Read[T],
        changed: Changed[T],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._found = found
        self._changed = changed
        self._period = period_seconds
        self._mirror: Mirror[T] = Mirror(read)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch of a folder", daemon=True)
        self._read_at = time.monotonic()
        self.synced = False
        self._problem = Problem(log, "", logging.ERROR)

    @property
    def problem(self) -> str | None:
        return self._problem.text

    @property
    def age_seconds(self) -> float:
        """The time since the last successful read of the folder."""
        return time.monotonic() - self._read_at

    def objects(self) -> dict[ObjectKey, T]:
        return self._mirror.values()

    def start(self) -> None:
        """Reads the files at once, and then after each period."""
        self._read_files()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            self._read_files()

    def _read_files(self) -> None:
        try:
            changes = self._mirror.replace(
                [
                    (metadata.key, self._mirror.decoded(metadata, text))
                    for metadata, text in self._found()
                ]
            )
        except StoreError as error:
            self._problem.report(str(error))
            return
        self._problem.clear()
        self._read_at = time.monotonic()
        if (changes or not self.synced) and not self._stopped.is_set():
            self._changed(changes)
        self.synced = True
