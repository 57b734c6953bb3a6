"""The API server as the store of the agent's objects: reads, watches, and server-side apply.

An apply compares the wanted with the stored object, and sends nothing if the stored object has all
wanted fields. Maps and keyed lists are shared field by field: the API server knows the owner of
each field. A list without keys (`zones` in the CRDs that others install) belongs to its last writer
as a whole: there the apply includes the entries of others and the object's resourceVersion, so that
a concurrent write leads to a conflict and is not lost. The same applies to the list of devices,
where others own the entries of types that Topolet does not report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from agent.kube import events, objects, wire
from agent.kube.errors import ConflictError, MalformedError, NotFoundError
from agent.kube.events import Regarding
from agent.kube.kind_watch import KindWatch
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Changed, Discovery, Kind, Object, Read, kind_named
from agent.kube.schedule import spread
from agent.kube.transport import FIELD_MANAGER, Query, Transport
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.devices import device_object
from agent.model.nrt import node_status, resource_topology

if TYPE_CHECKING:
    from agent.kube.eviction import EvictionResult

T = TypeVar("T")


class LastApply(msgspec.Struct, frozen=True):
    """What was applied last, as JSON; the version of the object that the server had then; and when
    all its fields were compared."""

    sent: bytes = b""
    version: str = ""
    compared_at: float = 0.0


class Repair(msgspec.Struct, frozen=True):
    """An object had other fields than those that were applied, and was written again. Attributes
    that an older version of the API does not have are written again without this."""

    kind: str
    name: str
    manager: str = ""
    """The field manager that wrote it last, "" if unknown."""
    deleted: bool = False
    """The object did not exist."""


# The first watch of a node begins at a time within this window that depends on its name.
SPREAD_SECONDS: Final = 10.0
# An applied object is compared again after this time, since another writer may have changed it.
RECHECK_SECONDS: Final = 300.0
# Attempts of one apply that conflicts with other writers.
TRIES: Final = 4

# Which entries Topolet wrote, in lists that have one owner as a whole.
_OWN_ENTRIES: Final[dict[str, IsOwn]] = {objects.TOPOLOGY.name: resource_topology.is_own_entry}
# The kinds whose objects hardly anybody else writes: their version shows that somebody did. Every
# apply of an unchanged object compares it, read from the server's cache.
_OWN_KINDS: Final = (objects.TOPOLOGY, objects.DEVICE)
_CACHED: Final[Query] = {"resourceVersion": "0"}
_MAX_MANAGER: Final = 128
"""Characters of a field manager (apimachinery, pkg/apis/meta/v1/validation)."""


class Cluster:
    """Objects of one API server, for one node. An unchanged object is not applied again. One thread
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
        self._of_node: list[ListWatch[Any]] = []
        self._recheck_seconds = recheck_seconds
        self._clock = clock
        self._applied: dict[tuple[str, str, str], LastApply] = {}
        self.repaired: Callable[[Repair], None] = _ignore

    def recorder(
        self, controller: str, action: str, results: Callable[[str], None]
    ) -> events.Recorder:
        """Records Events about the node and its pods."""
        return events.Recorder(self._transport, controller, self._node_name, action, results)

    def version(self, kind: str) -> str | None:
        """The best API version that the server and Topolet have in common; None if the server does
        not serve the kind."""
        return self.discovery.version(kind_named(kind))

    def get(self, kind: str, name: str, *, cached: bool = False) -> Object | None:
        """Returns None also if the server does not serve the kind."""
        which = kind_named(kind)
        version = self.discovery.version(which)
        if version is None:
            return None
        path = objects.path(which.group, version, which.plural, name)
        return self._found(which, path, _CACHED if cached else None)

    def apply(self, wanted: Object) -> bool:
        """Takes over the fields of `wanted` from other managers, whose other fields stay. Raises
        NotFoundError for a Node that does not exist."""
        return self._apply(wanted, "")

    def apply_status(self, wanted: Object) -> bool:
        """Like `apply`, for the status of an existing object."""
        return self._apply(wanted, "/status")

    def apply_as_is(self, wanted: Object) -> bytes:
        """Applies an object whose fields nobody else sets, whatever the server has. Returns it as
        the server has it after that. Raises KubeError and AccessError."""
        kind = kind_named(wanted["kind"])
        version = wanted["apiVersion"].rpartition("/")[2]
        path = objects.path(kind.group, version, kind.plural, wanted["metadata"]["name"])
        return self._transport.apply(path, wanted).body

    def delete(self, kind: str, name: str) -> bool:
        which = kind_named(kind)
        version = self.discovery.version(which)
        for subresource in ("", "/status"):
            self._applied.pop((kind, name, subresource), None)
        if version is None:
            return False
        try:
            self._transport.delete(objects.path(which.group, version, which.plural, name))
        except NotFoundError:
            return False
        return True

    def forget(self, kind: str, name: str) -> None:
        """Another client changed the object: the next apply reads it."""
        for key, each in list(self._applied.items()):
            if key[:2] == (kind, name):
                again = msgspec.structs.replace(each, compared_at=-self._recheck_seconds)
                self._applied[key] = again

    def watch_pods(self, node_name: str, read: Read[T], changed: Changed[T]) -> ListWatch[T]:
        return self._watch(objects.POD, f"spec.nodeName={node_name}", read, changed)

    def watch_node(self, name: str, read: Read[T], changed: Changed[T]) -> ListWatch[T]:
        return self._watch(objects.NODE, f"metadata.name={name}", read, changed)

    def watch_named(
        self, kind: Kind, name: str, read: Read[T], changed: Changed[T]
    ) -> KindWatch[T]:
        """Watches the one object, while the server has its kind."""
        return self.watch_selected(kind, f"metadata.name={name}", read, changed)

    def watch_selected(
        self, kind: Kind, fields: str, read: Read[T], changed: Changed[T]
    ) -> KindWatch[T]:
        """Watches the objects with these fields, while the server has their kind."""
        return KindWatch(
            self._transport,
            self.discovery,
            kind,
            read,
            changed,
            select={"fieldSelector": fields},
            first_seconds=self._first_seconds,
        )

    def of_node(self, kind: Kind, node_name: str, take: Callable[[msgspec.Raw], T]) -> list[T]:
        """The objects whose `spec.nodeName` is the node, each read by `take`, as the server's cache
        has them. Raises KubeError and AccessError."""
        path = objects.path(kind.group, kind.versions[0], kind.plural)
        select: Query = {"fieldSelector": f"spec.nodeName={node_name}"}
        return wire.listed(path, select, self._transport.get, take, from_cache=True).found

    def claim(self, namespace: str, name: str) -> bytes:
        """A ResourceClaim as JSON. Raises KubeError and AccessError. A pod waits for it that the
        watches have to report too: they begin at once."""
        for watch in self._of_node:
            watch.begin()
        return self._transport.get(objects.claim_path(namespace, name))

    def apply_claim_status(self, namespace: str, name: str, status: Object) -> None:
        """Applies own fields of the status of a ResourceClaim; ConflictError if another claim has
        its name. Raises KubeError and AccessError."""
        self._transport.apply(f"{objects.claim_path(namespace, name)}/status", status)

    def merge_status(self, kind: Kind, name: str, body: Object) -> None:
        """A merge patch of the status. Raises KubeError and AccessError."""
        path = objects.path(kind.group, kind.versions[0], kind.plural, name)
        self._transport.merge(f"{path}/status", body)

    def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> None:
        """Sets annotations of a pod; ConflictError if another pod has its name. Raises KubeError
        and AccessError."""
        metadata = {"uid": uid, "annotations": dict(annotations)}
        self._transport.merge(objects.pod_path(namespace, name), {"metadata": metadata})

    def evict_pod(self, pod: Regarding, *, kill: bool) -> EvictionResult:
        """Evicts the pod. Raises KubeError and AccessError; TooManyRequestsError if a disruption
        budget forbids it, or the server has too much to do.

        `kill`: deletes it, whatever its budgets say."""
        from agent.kube import eviction  # most agents evict none

        return (eviction.delete if kill else eviction.evict)(self._transport, pod)

    def _watch(self, kind: Kind, fields: str, read: Read[T], changed: Changed[T]) -> ListWatch[T]:
        watch = ListWatch(
            self._transport,
            objects.path(kind.group, kind.versions[0], kind.plural),
            {"fieldSelector": fields},
            read,
            changed,
            first_seconds=self._first_seconds,
        )
        self._of_node.append(watch)
        return watch

    def _apply(self, wanted: Object, subresource: str) -> bool:
        kind, name = kind_named(wanted["kind"]), wanted["metadata"]["name"]
        key = kind.name, name, subresource
        sent = msgspec.json.encode(wanted, order="deterministic")
        last = self._applied.get(key, LastApply())
        compared = self._clock() - last.compared_at < self._recheck_seconds
        if sent == last.sent and compared and not self._written_by_others(kind, wanted, last):
            return False
        for last_try in (*[False] * (TRIES - 1), True):
            try:
                changed, version, stored = self._apply_once(kind, wanted, subresource)
            except ConflictError:
                if last_try:
                    raise
            else:
                break
        self._applied[key] = LastApply(sent, version, self._clock())
        if changed and sent == last.sent and not _changed_by_koord_manager(stored, wanted):
            manager = "" if stored is None else last_manager(stored)
            self.repaired(Repair(kind.name, name, manager, stored is None))
        return changed

    def _written_by_others(self, kind: Kind, wanted: Object, last: LastApply) -> bool:
        """Whether the object has another version than after the last apply, or does not exist. The
        server's cache may be older than that apply."""
        if kind not in _OWN_KINDS:
            return False
        version = wanted["apiVersion"].rpartition("/")[2]
        path = objects.path(kind.group, version, kind.plural, wanted["metadata"]["name"])
        found = self._found(kind, path, _CACHED)
        return found is None or not wire.not_newer(_version_of(found), last.version)

    def _apply_once(
        self, kind: Kind, wanted: Object, subresource: str
    ) -> tuple[bool, str, Object | None]:
        """Returns whether anything changed, the version of the object after that, and the object
        before it, None if it did not exist.

        Raises ConflictError after a concurrent write."""
        version = wanted["apiVersion"].rpartition("/")[2]
        path = objects.path(kind.group, version, kind.plural, wanted["metadata"]["name"])
        stored = self._found(kind, path)
        if stored is None and (kind.must_exist or subresource):
            raise NotFoundError(f"{kind.name} {wanted['metadata']['name']} does not exist")
        if subresource:
            wanted = node_status.with_stored_amounts(wanted, stored)
        elif kind is objects.DEVICE:
            wanted = device_object.with_others(wanted, stored)
        elif kind is objects.NODE and stored is not None:
            own = _own_labels(stored)
            wanted = node_status.without_labels_of_others(wanted, stored, own)
        patch = self._patch(wanted, stored, subresource)
        if patch is None:
            return False, _version_of(stored or {}), stored
        before = stored
        if stored is not None and (changes := same_version(stored, wanted["apiVersion"])):
            stored = decoded_object(path, self._transport.json_patch(path, changes))
            patch = self._patch(wanted, stored, subresource)
            if patch is None:
                return True, _version_of(stored), before
        try:
            answer = self._transport.apply(path + subresource, patch)
        except NotFoundError:
            self.discovery.forget(kind)
            raise
        written = decoded_object(path, answer.body)
        changed = stored is None or _version_of(stored) != _version_of(written)
        return changed, _version_of(written), before

    def _patch(self, wanted: Object, stored: Object | None, subresource: str) -> Object | None:
        is_own = _OWN_ENTRIES.get(wanted["kind"])
        return patch(wanted, stored, FIELD_MANAGER, is_own, subresource.lstrip("/"))

    def _found(self, kind: Kind, path: str, query: Query | None = None) -> Object | None:
        try:
            return decoded_object(path, self._transport.get(path, query))
        except NotFoundError:
            if query is None:  # otherwise many nodes without a Device would ask each time
                self.discovery.forget(kind)
            return None


def _ignore(repair: Repair) -> None:
    pass


def _version_of(found: Object) -> str:
    return str(found.get("metadata", {}).get("resourceVersion"))


def last_manager(stored: Object) -> str:
    """The field manager that wrote the object last, if that is after Topolet's last write, else "".
    A manager that only removes fields is not listed, because it owns no field afterwards."""
    times = {
        str(each.get("manager", ""))[:_MAX_MANAGER]: str(each.get("time", ""))
        for each in sorted(_managed(stored), key=lambda each: str(each.get("time", "")))
    }
    own = times.pop(FIELD_MANAGER, "")
    name = max(times, key=lambda each: times[each], default="")
    return name if times.get(name, "") >= own else ""


def decoded_object(path: str, body: bytes) -> Object:
    """The object in a response. Raises MalformedError, which names the path."""
    try:
        found = bounds.decode(_object, body)
    except JsonError as error:
        raise MalformedError(f"{path}: {error}") from error
    if not isinstance(found.get("metadata"), dict):
        raise MalformedError(f"{path}: not an object")
    return found


_object = msgspec.json.Decoder(Object)
_any = msgspec.json.Decoder(object)


Path = tuple[str, ...]

IsOwn = Callable[[Path, str], bool]
"""Whether Topolet wrote an entry of a list without keys: the names of the lists that lead to it,
and the entry's key."""

LIST_KEYS: Final = {
    "zones": "name",
    "resources": "name",
    "costs": "name",
    "attributes": "name",
    "ownerReferences": "uid",
}
"""The lists whose entries have keys, and these keys; any other list is one value."""

_TYPE: Final = frozenset(("apiVersion", "kind"))
"""An object from a list does not have these fields."""


def patch(
    wanted: Object,
    stored: Object | None,
    manager: str,
    is_own: IsOwn | None = None,
    subresource: str = "",
) -> Object | None:
    """The object to apply as `manager` with force; None if nothing has to be written.

    `stored`: the stored object with its managedFields, None if it does not exist.
    `is_own`: whether an entry of a list without keys is Topolet's; without it, none is."""
    if stored is None:
        return wanted
    fields = _managed(stored)
    written = [_fields(entry) for entry in fields]
    own = [
        _fields(entry)
        for entry in fields
        if entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and (entry.get("subresource") or "") == subresource
    ]
    merge = _Merge(is_own or _nothing_own)
    merged = merge.object(wanted, stored, written, ())
    stale = merge.dropped or any(_stale(owned, wanted) for owned in own)
    fields_wanted = {name: value for name, value in merged.items() if name not in _TYPE}
    if _contains(stored, fields_wanted) and not stale:
        return None
    version = stored.get("metadata", {}).get("resourceVersion")
    if merge.others and version:
        merged = {**merged, "metadata": {**merged["metadata"], "resourceVersion": version}}
    return merged


def same_version(stored: Object, api_version: str) -> list[Object] | None:
    """The JSON patch to send before an apply in `api_version` to an object that was written in
    another version of the API, None if it is not needed. An API server that merges an apply
    converts the object to every version in which it was written, and fails (500) if one of them
    lacks a field. The patch declares that all fields were written in the new version. Their owners
    stay."""
    changes: list[Object] = [
        {
            "op": "replace",
            "path": f"/metadata/managedFields/{place}/apiVersion",
            "value": api_version,
        }
        for place, entry in enumerate(_managed(stored))
        if entry.get("apiVersion", api_version) != api_version
    ]
    if not changes:
        return None
    version = stored["metadata"].get("resourceVersion")
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *changes]


def _nothing_own(_path: Path, _name: str) -> bool:
    return False


class _Merge:
    """Adds the stored entries of others to the wanted lists without keys."""

    def __init__(self, is_own: IsOwn) -> None:
        self._is_own = is_own
        self.others = False
        """There were entries of others."""
        self.dropped = False
        """There were entries of Topolet that the wanted object does not have."""

    def object(self, wanted: Object, stored: Object, written: list[Object], path: Path) -> Object:
        merged = {}
        for name, value in wanted.items():
            before = stored.get(name)
            below = [of for each in written if isinstance(of := each.get(f"f:{name}"), dict)]
            if isinstance(value, dict) and isinstance(before, dict):
                value = self.object(value, before, below, path)
            elif name in LIST_KEYS and isinstance(value, list) and isinstance(before, list):
                keyed = any(key.startswith("k:") for each in below for key in each)
                if not keyed and name != "ownerReferences":
                    value = self._list(value, before, (*path, name))
            merged[name] = value
        return merged

    def _list(self, wanted: list[Object], stored: list[Object], path: Path) -> list[Object]:
        """The merged list, in the stored order; new entries are last."""
        key = LIST_KEYS[path[-1]]
        left = {each[key]: each for each in wanted}
        merged = []
        for entry in stored:
            name = _key_of(entry, key)
            if name in left:
                own = left.pop(name)
                merged.append({**entry, **self.object(own, entry, [], path)})
            elif self._is_own(path, name):
                self.dropped = True
            else:
                self.others = True
                merged.append(entry)
        return merged + list(left.values())


def _contains(stored: object, wanted: object) -> bool:
    """Whether the stored object has all of `wanted`; an empty map in it counts as present."""
    if not isinstance(wanted, dict):
        return stored == wanted
    found = stored if isinstance(stored, dict) else {}
    return all(
        _list_contains(found.get(name), value, LIST_KEYS[name])
        if name in LIST_KEYS and isinstance(value, list)
        else _contains(found.get(name), value)
        for name, value in wanted.items()
    )


def _list_contains(stored: object, wanted: list[Object], key: str) -> bool:
    if not isinstance(stored, list):
        return False
    found = {_key_of(each, key): each for each in stored}
    return all(_contains(found.get(_key_of(each, key)), each) for each in wanted)


def _key_of(entry: object, key: str) -> str:
    return str(entry.get(key)) if isinstance(entry, dict) else ""


def _stale(owned: Object, wanted: object, key: str = "") -> bool:
    """Whether `owned` (of managedFields) has a field that `wanted` does not have."""
    for field, below in owned.items():
        kind, _, name = field.partition(":")
        if kind == "f":
            if isinstance(wanted, dict) and name in wanted:
                if isinstance(below, dict) and _stale(below, wanted[name], LIST_KEYS.get(name, "")):
                    return True
            elif name != "name":
                return True
        elif kind == "k" and isinstance(wanted, list):
            entry = next((each for each in wanted if _has_key(each, name, key)), None)
            if entry is None or (isinstance(below, dict) and _stale(below, entry)):
                return True
    return False


def _has_key(entry: object, key_text: str, key: str) -> bool:
    """Whether the entry of a keyed list is the one that managedFields name by `key_text` (JSON)."""
    try:
        wanted = bounds.decode(_any, key_text)
    except JsonError:
        return False
    return (
        isinstance(entry, dict)
        and isinstance(wanted, dict)
        and bool(key)
        and entry.get(key) == wanted.get(key)
    )


def _changed_by_koord_manager(stored: Object | None, wanted: Object) -> bool:
    """Whether a NodeResourceTopology has all but its attributes and the batch resources of zones.
    koord-manager writes the latter, by v1alpha1 of the API, which has no attributes, until the
    agent sees that it does."""
    if stored is None or wanted["kind"] != objects.TOPOLOGY.name or _contains(stored, wanted):
        return False
    zones = [
        {
            **zone,
            "resources": [
                resource for resource in zone["resources"] if resource["name"] not in _BATCH
            ],
        }
        for zone in wanted["zones"]
    ]
    remaining = {**wanted, "zones": zones}
    if "attributes" not in stored:
        remaining.pop("attributes", None)
    return _contains(stored, remaining)


_BATCH: Final = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")


def managers(stored: Object) -> set[str]:
    """The field managers of an object."""
    return {str(each.get("manager")) for each in _managed(stored)}


def _own_labels(stored: Object) -> set[str]:
    found: set[str] = set()
    for each in _managed(stored):
        if each.get("manager") == FIELD_MANAGER and each.get("operation") == "Apply":
            metadata = _fields(each).get("f:metadata")
            labels = metadata.get("f:labels") if isinstance(metadata, dict) else None
            if isinstance(labels, dict):
                found.update(key.removeprefix("f:") for key in labels)
    return found


def _managed(stored: Object) -> list[Object]:
    metadata = stored.get("metadata")
    found = metadata.get("managedFields") if isinstance(metadata, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _fields(entry: Object) -> Object:
    fields = entry.get("fieldsV1")
    return fields if isinstance(fields, dict) else {}
