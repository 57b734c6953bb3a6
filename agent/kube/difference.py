"""The difference between the wanted and the stored object: nothing, or one server-side apply.

Maps and keyed lists are shared field by field: the API server knows the owner of each. A list
without keys (`zones` in the CRDs that others install) belongs to its last writer as a whole: there
the apply includes the entries of others and the object's resourceVersion, so that a concurrent
write leads to a conflict and is not lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

Object = dict[str, Any]
Path = tuple[str, ...]

Ours = Callable[[Path, str], bool]
"""Whether an entry of a list without keys is ours, by the names of the lists that lead to it."""

_KEYS: Final = {
    "zones": "name",
    "resources": "name",
    "costs": "name",
    "attributes": "name",
    "ownerReferences": "uid",
}
"""The lists whose entries have keys, and these keys; any other list is one value."""

_TYPE: Final = frozenset(("apiVersion", "kind"))
"""An object out of a list does not have them."""


def patch(
    wanted: Object,
    seen: Object | None,
    manager: str,
    ours: Ours | None = None,
    subresource: str = "",
) -> Object | None:
    """The object to apply as `manager` with force, None where nothing has to be written.

    `seen`: the last state known of it, with its managedFields, None where there is none; without
    `ours` no entry of a list without keys is.
    """
    if seen is None:
        return wanted
    fields = _managed(seen)
    written = [_fields(each) for each in fields]
    own = [
        _fields(each)
        for each in fields
        if each.get("manager") == manager
        and each.get("operation") == "Apply"
        and (each.get("subresource") or "") == subresource
    ]
    merge = _Merge(ours or _nothing_ours)
    merged = merge.object(wanted, seen, written, ())
    stale = merge.dropped or any(_stale(each, wanted) for each in own)
    says = {name: value for name, value in merged.items() if name not in _TYPE}
    if _contains(seen, says) and not stale:
        return None
    version = seen.get("metadata", {}).get("resourceVersion")
    if merge.others and version:
        merged = {**merged, "metadata": {**merged["metadata"], "resourceVersion": version}}
    return merged


def same_version(seen: Object, api_version: str) -> list[Object] | None:
    """The JSON patch to send before applying in `api_version` an object that was written in another
    version of the API, None when it is not needed. An API server that merges an apply converts the
    object to every version that it was written in, and fails (500) when one of them lacks a field:
    the patch declares that all of it was written in the new version. Owners of fields stay."""
    changes: list[Object] = [
        {
            "op": "replace",
            "path": f"/metadata/managedFields/{place}/apiVersion",
            "value": api_version,
        }
        for place, entry in enumerate(_managed(seen))
        if entry.get("apiVersion", api_version) != api_version
    ]
    if not changes:
        return None
    version = seen["metadata"].get("resourceVersion")
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *changes]


def _nothing_ours(_path: Path, _name: str) -> bool:
    return False


class _Merge:
    """Adds the entries of others to lists without keys; `others`: there were some; `dropped`: some
    of ours are not wanted any more."""

    def __init__(self, ours: Ours) -> None:
        self._ours = ours
        self.others = False
        self.dropped = False

    def object(self, wanted: Object, seen: Object, written: list[Object], path: Path) -> Object:
        merged = {}
        for name, value in wanted.items():
            before = seen.get(name)
            below = [each[f"f:{name}"] for each in written if f"f:{name}" in each]
            if isinstance(value, dict) and isinstance(before, dict):
                value = self.object(value, before, below, path)
            elif name in _KEYS and isinstance(value, list) and isinstance(before, list):
                keyed = any(key.startswith("k:") for each in below for key in each)
                if not keyed and name != "ownerReferences":
                    value = self._list(value, before, (*path, name))
            merged[name] = value
        return merged

    def _list(self, wanted: list[Object], seen: list[Object], path: Path) -> list[Object]:
        """In the stored order; new entries are last."""
        key = _KEYS[path[-1]]
        left = {each[key]: each for each in wanted}
        merged = []
        for entry in seen:
            name = entry.get(key)
            if name in left:
                mine = left.pop(name)
                merged.append({**entry, **self.object(mine, entry, [], path)})
            elif self._ours(path, str(name)):
                self.dropped = True
            else:
                self.others = True
                merged.append(entry)
        return merged + list(left.values())


def _contains(seen: object, wanted: object) -> bool:
    """Whether the object has all of `wanted`; an empty map needs nothing."""
    if not isinstance(wanted, dict):
        return seen == wanted
    found = seen if isinstance(seen, dict) else {}
    return all(
        _list_contains(found.get(name), value, _KEYS[name])
        if name in _KEYS and isinstance(value, list)
        else _contains(found.get(name), value)
        for name, value in wanted.items()
    )


def _list_contains(seen: object, wanted: list[Object], key: str) -> bool:
    if not isinstance(seen, list):
        return False
    found = {each.get(key): each for each in seen}
    return all(_contains(found.get(each[key]), each) for each in wanted)


def _stale(owned: Object, wanted: object, key: str = "") -> bool:
    """Whether `owned` (of managedFields) names a field that is wanted no longer."""
    for field, below in owned.items():
        kind, _, name = field.partition(":")
        if kind == "f":
            if isinstance(wanted, dict) and name in wanted:
                if isinstance(below, dict) and _stale(below, wanted[name], _KEYS.get(name, "")):
                    return True
            elif name != "name":
                return True
        elif kind == "k" and isinstance(wanted, list):
            entry = next((each for each in wanted if _is(each, name, key)), None)
            if entry is None or _stale(below, entry):
                return True
    return False


def _is(entry: object, key_text: str, key: str) -> bool:
    try:
        wanted = msgspec.json.decode(key_text)
    except msgspec.DecodeError:
        return False
    return (
        isinstance(entry, dict)
        and isinstance(wanted, dict)
        and bool(key)
        and entry.get(key) == wanted.get(key)
    )


def _managed(seen: Object) -> list[Object]:
    metadata = seen.get("metadata")
    found = metadata.get("managedFields") if isinstance(metadata, dict) else None
    return [each for each in found or () if isinstance(each, dict)]


def _fields(entry: Object) -> Object:
    fields = entry.get("fieldsV1")
    return fields if isinstance(fields, dict) else {}
