"""The embedded store of standalone mode: YAML files instead of the API server. One file for each
object: `<folder>/<kind in lower case>/<name>.yaml`; pods, which only people add, in
`pod/<namespace>/<name>.yaml`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import yaml

from agent.host import files
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kube.errors import StoreError
from agent.kube.folderwatch import PERIOD_SECONDS, FolderWatch
from agent.kube.kinds import kind_named
from agent.kube.mirror import Metadata
from agent.kube.objects import Changed, Object, Read
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.nodestatus import DOMAIN, LABEL_PREFIX

T = TypeVar("T")


class EmbeddedStore:
    """Objects by kind and name; cluster-scoped kinds only."""

    def __init__(self, folder: str, *, period_seconds: float = PERIOD_SECONDS) -> None:
        """A watch reads the folder again after each period."""
        self._folder = folder
        self._period = period_seconds

    def get(self, kind: str, name: str) -> Object | None:
        """The stored object, None when there is none. Raises StoreError."""
        return _read(f"{kind} {name}", self._path(kind, name))

    def apply(self, wanted: Object) -> bool:
        """Stores the object; False when it is stored like this already. Raises StoreError. The
        fields that others wrote to a Node stay: an unreadable Node is an error, while an object of
        ours alone is replaced."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        stored: Object | None = None
        try:
            stored = self.get(kind, name)
        except StoreError:
            if kind in _SHARED:
                raise
        if stored is not None and kind in _SHARED:
            wanted = _beside_others(stored, wanted)
        return self._put(wanted, stored)

    def apply_status(self, wanted: Object) -> bool:
        """Of what the status counts, ours (`koordinator.sh/`) is all that is wanted; the rest
        stays. Raises StoreError, also where the object is not there."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        stored = self.get(kind, name)
        if stored is None:
            raise StoreError(f"{kind} {name} is not there")
        before = stored.get("status")
        status = dict(before) if isinstance(before, dict) else {}
        for field, amounts in wanted["status"].items():
            theirs = status.pop(field, None)
            kept = {key: value for key, value in (theirs or {}).items() if not _ours(key)}
            if kept or amounts:
                status[field] = {**kept, **amounts}
        body = {key: value for key, value in stored.items() if key != "status"}
        return self._put({**body, "status": status} if status else body, stored)

    def version(self, kind: str) -> str | None:
        """The best version that is supported."""
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
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.replace(path, text.encode(), durable=False, mode=0o644)
        except OSError as error:
            raise StoreError(f"{kind} {name} in {path}: {error}") from error
        return True

    def delete(self, kind: str, name: str) -> bool:
        """False when there was none. Raises StoreError."""
        path = self._path(kind, name)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"{kind} {name} in {path}: {error}") from error
        return True

    def watch_pods(self, node_name: str, read: Read[T], changed: Changed[T]) -> FolderWatch[T]:
        """Of that node: those whose `spec.nodeName` it is."""
        return FolderWatch(lambda: self._pods(node_name), read, changed, self._period)

    def watch_node(self, name: str, read: Read[T], changed: Changed[T]) -> FolderWatch[T]:
        """The one Node."""
        return FolderWatch(lambda: self._one("Node", name), read, changed, self._period)

    def _one(self, kind: str, name: str) -> Iterator[tuple[Metadata, bytes]]:
        if (found := self.get(kind, name)) is not None:
            yield _told(f"{kind} {name}", found)

    def _pods(self, node_name: str) -> Iterator[tuple[Metadata, bytes]]:
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
                    yield _told(what, pod)

    def _path(self, kind: str, name: str) -> str:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise StoreError(f"{kind}: {name!r} is no object name")
        return os.path.join(self._folder, kind.lower(), f"{name}.yaml")


def _read(what: str, path: str) -> Object | None:
    try:
        content = documents.read(path)
    except FileNotFoundError:
        return None
    except (OSError, DocumentError) as error:
        raise StoreError(f"{what} in {path}: {error}") from error
    if not isinstance(content, dict):
        raise StoreError(f"{what} in {path} is no object")
    return content


def _told(what: str, found: Object) -> tuple[Metadata, bytes]:
    """As a server reports it; the content is the version."""
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
    metadata: Metadata


_object = msgspec.json.Decoder(_WithMetadata)

_SHARED = ("Node",)


def _beside_others(stored: Object, wanted: Object) -> Object:
    """The stored object with our fields as wanted, and all of its labels of ours."""
    merged = _merged(stored, wanted)
    if ours := wanted["metadata"].get("labels"):
        labels = merged["metadata"]["labels"]
        for key in [key for key in labels if str(key).startswith(LABEL_PREFIX)]:
            if key not in ours:
                del labels[key]
    return merged


def _ours(resource: object) -> bool:
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
