"""Reads YAML files that other programs or people write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any, Final

import msgspec

MAX_BYTES: Final = 4 << 20
SAVED_BYTES: Final = 256 << 20
"""The limit of a file with all objects of a kind, as `kubectl get -o yaml` writes it."""


class DocumentError(ValueError):
    """A file that is not YAML, not a regular file, or too large; the message names the place."""


def text(path: str, most_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file of at most that size. A pipe or a device in its place is an
    error at once. Raises OSError and DocumentError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DocumentError("is not a regular file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise DocumentError(f"is larger than {most_bytes} bytes")
    return content


def read(path: str) -> Any:
    """Returns the plain values of a file with one document. Raises OSError and DocumentError."""
    return parse(text(path))


def parse(content: bytes | str) -> Any:
    """The plain values of one document. Raises DocumentError."""
    import yaml  # takes a megabyte, which an agent without a kubelet saves

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(content, loader)
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        raise DocumentError(fault(error)) from error


def fault(error: Exception) -> str:
    """What is wrong, and where, by an error of a YAML reader. Quotes nothing of the file, which may
    have secrets: `password: *s3cr3t` is an alias that is not defined."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "is not YAML"
    problem: str = getattr(error, "problem", None) or "can't be read"
    unquoted = problem.partition("'")[0].rstrip(" ,:")
    return f"is not YAML: line {mark.line + 1}, column {mark.column + 1}: {unquoted}"


def saved_objects(path: str) -> Iterator[dict[str, Any]]:
    """The objects in a file, or in all files of a folder and its folders, in the order of their
    names: JSON (`.json`), or YAML with any number of documents (`.yaml`, `.yml`). The items of
    lists are objects of their own. Raises OSError and DocumentError, which names the file."""
    if not os.path.isdir(path):
        yield from _of_file(path)
        return
    found = False
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".yaml", ".yml", ".json")):
                found = True
                yield from _of_file(os.path.join(folder, name))
    if not found:
        raise DocumentError(f"{path}: has no file .yaml, .yml or .json")


def _of_file(path: str) -> Iterator[dict[str, Any]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = text(path, SAVED_BYTES)
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from None
    try:
        if path.endswith(".json"):
            documents = [msgspec.json.decode(content)]
        else:
            documents = list(yaml.load_all(content, loader))
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        raise DocumentError(f"{path}: {fault(error)}") from error
    for document in documents:
        yield from _items(path, document)


def _items(path: str, document: Any) -> Iterator[dict[str, Any]]:
    if document is None:
        return
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise DocumentError(f"{path}: an object without kind")
    items = document.get("items")
    if not document["kind"].endswith("List") or not isinstance(items, list):
        yield document
        return
    for item in items:
        # The items of a typed list do not repeat its kind.
        kind = document["kind"].removesuffix("List")
        if not isinstance(item, dict) or not isinstance(item.get("kind", kind), str):
            raise DocumentError(f"{path}: an item of {document['kind']} is not an object")
        yield {"kind": kind, **item}


def from_json(content: bytes) -> dict[str, Any]:
    """An object that an API server sent. Raises DocumentError."""
    try:
        return _object.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DocumentError(f"is not a JSON object: {error}") from error


_object: Final = msgspec.json.Decoder(dict[str, Any])


def as_json(found: object) -> bytes:
    """The JSON of plain values. Raises DocumentError for values that JSON does not have."""
    try:
        return msgspec.json.encode(found)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError, RecursionError) as error:
        raise DocumentError(f"has no JSON: {error}") from error
