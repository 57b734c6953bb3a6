"""The embedded store of standalone mode: what would go to the API server, as YAML files.

One file an object: `<folder>/<kind in lower case>/<name>.yaml`.
"""

from __future__ import annotations

import os
from typing import Any

import yaml

from agent.host import files
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kube.errors import StoreError
from agent.model.resources import LABEL_PREFIX

Object = dict[str, Any]


class EmbeddedStore:
    """Objects by kind and name; cluster-scoped kinds only."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def get(self, kind: str, name: str) -> Object | None:
        """The stored object, None when there is none. Raises StoreError."""
        path = self._path(kind, name)
        try:
            content = documents.read(path)
        except FileNotFoundError:
            return None
        except (OSError, DocumentError) as error:
            raise StoreError(f"{kind} {name} in {path}: {error}") from error
        if not isinstance(content, dict):
            raise StoreError(f"{kind} {name} in {path} is no object")
        return content

    def apply(self, wanted: Object) -> bool:
        """Stores the object; False when it is stored like this already. Raises StoreError.

        What others wrote of a Node stays: a Node that can't be read is an error here, while an
        object that is ours alone is replaced.
        """
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        stored: Object | None = None
        try:
            stored = self.get(kind, name)
        except StoreError:
            if kind in _SHARED:
                raise
        if stored is not None and kind in _SHARED:
            wanted = _beside_others(stored, wanted)
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

    def _path(self, kind: str, name: str) -> str:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise StoreError(f"{kind}: {name!r} is no object name")
        return os.path.join(self._folder, kind.lower(), f"{name}.yaml")


_SHARED = ("Node",)


def _beside_others(stored: Object, wanted: Object) -> Object:
    """The stored object with our fields as wanted; of its labels all of ours are."""
    merged = _merged(stored, wanted)
    if ours := wanted["metadata"].get("labels"):
        labels = merged["metadata"]["labels"]
        for key in [key for key in labels if str(key).startswith(LABEL_PREFIX)]:
            if key not in ours:
                del labels[key]
    return merged


def _merged(stored: Object, wanted: Object) -> Object:
    merged = dict(stored)
    for key, value in wanted.items():
        before = stored.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            value = _merged(before, value)
        merged[key] = value
    return merged


_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
