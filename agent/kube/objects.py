"""The kinds of objects that Topolet uses, with the versions of each that the API server serves; the
interface to an API server or a folder, the changes that a watch reports, and the known state with
which new events are compared."""

from __future__ import annotations

import datetime
import enum
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from sys import intern
from typing import Annotated, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from agent.kube.errors import MalformedError, NotFoundError, StoreError
from agent.kube.transport import Transport, segment
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.objects import ObjectError, ObjectIdentity


class Kind(msgspec.Struct, frozen=True):
    """A kind of objects."""

    name: str
    group: str
    versions: tuple[str, ...]
    """The supported versions, the best first."""
    plural: str
    must_exist: bool = False
    """Topolet never creates such an object, it only changes some of its fields."""


POD: Final = Kind("Pod", "", ("v1",), "pods", must_exist=True)
NODE: Final = Kind("Node", "", ("v1",), "nodes", must_exist=True)
NAMESPACE: Final = Kind("Namespace", "", ("v1",), "namespaces", must_exist=True)
TOPOLOGY: Final = Kind(
    "NodeResourceTopology",
    "topology.node.k8s.io",
    ("v1alpha2", "v1alpha1"),
    "noderesourcetopologies",
)
DEVICE: Final = Kind("Device", "scheduling.koordinator.sh", ("v1alpha1",), "devices")
RESERVATION: Final = Kind("Reservation", DEVICE.group, DEVICE.versions, "reservations")
RESOURCE_SLICE: Final = Kind("ResourceSlice", "resource.k8s.io", ("v1",), "resourceslices")
NODE_METRIC: Final = Kind("NodeMetric", "slo.koordinator.sh", ("v1alpha1",), "nodemetrics")
NODE_SLO: Final = Kind("NodeSLO", NODE_METRIC.group, NODE_METRIC.versions, "nodeslos")
REBIND: Final = Kind("RebindResource", DEVICE.group, DEVICE.versions, "rebindresources")

_KINDS = {
    each.name: each for each in (NODE, NAMESPACE, TOPOLOGY, DEVICE, NODE_METRIC, RESOURCE_SLICE)
}


def kind_named(name: str) -> Kind:
    """Returns a cluster-scoped kind. Raises StoreError."""
    kind = _KINDS.get(name)
    if kind is None:
        raise StoreError(f"kind {name} is not one of {', '.join(_KINDS)}")
    return kind


def path(group: str, version: str, plural: str = "", name: str = "") -> str:
    """The path of a version of a group, of a resource, or of one object."""
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return "/".join([base, *([plural] if plural else []), *([segment(name)] if name else [])])


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"


def claim_path(namespace: str, name: str) -> str:
    """The path of a ResourceClaim."""
    return (
        f"/apis/resource.k8s.io/v1/namespaces/{segment(namespace)}/resourceclaims/{segment(name)}"
    )


def rfc3339(seconds: int) -> str:
    """A time, given in seconds since 1970."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat().replace("+00:00", "Z")


RECHECK_SECONDS: Final = 300.0


class Discovery:
    """The versions that the server serves. An answer is kept for `recheck_seconds`."""

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._recheck_seconds = recheck_seconds
        self._known: dict[str, tuple[float, str | None]] = {}
        self._minor: tuple[float, int] | None = None

    def version(self, kind: Kind) -> str | None:
        """Returns the best version of the kind that the server serves, or None. Raises
        KubeError."""
        if not kind.group:
            return kind.versions[0]
        known = self._known.get(kind.name)
        if known is None or self._clock() - known[0] >= self._recheck_seconds:
            known = self._clock(), self._served_version(kind)
            self._known[kind.name] = known
        return known[1]

    def minor(self) -> int:
        """Returns the minor version of Kubernetes that the server has, 0 if it has another form.
        Raises KubeError."""
        answer = self._minor
        if answer is None or self._clock() - answer[0] >= self._recheck_seconds:
            body = self._transport.get("/version")
            try:
                text = bounds.decode(_server_version, body).minor
            except JsonError as error:
                raise MalformedError(f"GET /version: {error}") from error
            # Distributions add a plus.
            digits = text.rstrip("+")
            answer = self._clock(), int(digits) if digits.isascii() and digits.isdigit() else 0
            self._minor = answer
        return answer[1]

    def forget(self, kind: Kind) -> None:
        """Drops the answer, after the server reported that the kind does not exist, or answered
        nothing: it may be another one now."""
        self._known.pop(kind.name, None)
        self._minor = None

    def _served_version(self, kind: Kind) -> str | None:
        for version in kind.versions:
            version_path = path(kind.group, version)
            try:
                body = self._transport.get(version_path)
            except NotFoundError:
                continue
            try:
                served = bounds.decode(_resources, body).resources or ()
            except JsonError as error:
                raise MalformedError(f"GET {version_path}: {error}") from error
            if any(each.name == kind.plural for each in served):
                return version
        return None


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _ServerVersion(msgspec.Struct, frozen=True):
    minor: Annotated[str, msgspec.Meta(max_length=8)] = ""


_server_version = msgspec.json.Decoder(_ServerVersion)


class _ResourceList(msgspec.Struct, frozen=True):
    resources: list[_Resource] | None = None


_resources = msgspec.json.Decoder(_ResourceList)


Object = dict[str, Any]
T = TypeVar("T")


class ObjectKey(NamedTuple):
    """The name of an object of a kind."""

    namespace: str
    """Empty for a cluster-scoped object."""
    name: str


class ChangeKind(enum.Enum):
    """An object that was recreated under the same name is reported as deleted and added."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class Change(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A change of an object."""

    kind: ChangeKind
    key: ObjectKey
    value: T
    """The new value, or the last known value of a deleted object."""


Read = Callable[[bytes], T]
"""Decodes an object's JSON to the value that is kept. Raises JsonError or ObjectError."""

Changed = Callable[[Sequence[Change[T]]], None]
"""Called on the watch's thread with changes that belong together, in order; each change is reported
once. The first call reports all existing objects, also when there are none."""


class Watch(Protocol[T]):
    """Watches objects on its own thread."""

    @property
    def synced(self) -> bool:
        """Whether all existing objects were reported."""
        ...

    @property
    def problem(self) -> str | None:
        """The current error of the watch."""
        ...

    @property
    def age_seconds(self) -> float:
        """The time since the last response of the store."""
        ...

    def objects(self) -> dict[ObjectKey, T]:
        """The known objects."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None:
        """Stops at once, from any thread; no change is reported afterwards."""
        ...


class Objects(Protocol):
    """All methods raise StoreError. Those with a kind are for cluster-scoped kinds."""

    def version(self, kind: str) -> str | None:
        """The API version in which objects of that kind are applied; None if the kind does not
        exist."""
        ...

    def get(self, kind: str, name: str, *, cached: bool = False) -> Object | None:
        """The object, None if it does not exist.

        `cached`: the answer may be some seconds old."""
        ...

    def apply(self, wanted: Object) -> bool:
        """Sets Topolet's fields to those of `wanted`. Returns False if nothing changed."""
        ...

    def apply_status(self, wanted: Object) -> bool:
        """The same for the status of an existing object."""
        ...

    def forget(self, kind: str, name: str) -> None:
        """The next apply reads the object, since another client changed it."""
        ...

    def delete(self, kind: str, name: str) -> bool:
        """Returns False if the object does not exist."""
        ...

    def watch_pods(self, node_name: str, read: Read[T], changed: Changed[T]) -> Watch[T]:
        """Watches the pods of one node, each decoded by `read`."""
        ...

    def watch_node(self, name: str, read: Read[T], changed: Changed[T]) -> Watch[T]:
        """Watches the one Node."""
        ...


log = logging.getLogger(__name__)


class WatchedMetadata(ObjectIdentity, frozen=True, rename="camel", kw_only=True):
    """The metadata of an object that a watch needs. A bookmark has no name."""

    name: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(intern(self.namespace), self.name)


class Known(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One object, as it was read last."""

    uid: str
    """It distinguishes the object from another one of the same name."""
    version: str
    value: T


class Mirror(Generic[T]):
    """The known state of the watched objects. It returns each change once. One thread writes. An
    object that can't be decoded is logged, and its last good value stays."""

    def __init__(self, read: Read[T]) -> None:
        self._read = read
        self._known: dict[ObjectKey, Known[T]] = {}

    def values(self) -> dict[ObjectKey, T]:
        return {key: known.value for key, known in self._known.copy().items()}

    def decoded(self, metadata: WatchedMetadata, raw: bytes) -> Known[T] | None:
        """Decodes an existing object; None if it has no value. The mirror does not change: a
        caller decodes a list object by object, and never keeps the bytes of all."""
        before = self._known.get(metadata.key)
        if before and (before.uid, before.version) == (metadata.uid, metadata.resource_version):
            return before
        try:
            value = self._read(raw)
        except (JsonError, ObjectError) as error:
            log.error("%s can't be read: %s", "/".join(filter(None, metadata.key)), error)
            return before if before and before.uid == metadata.uid else None
        # Most values have the uid: 100,000 pods would keep 7 MB of uids twice.
        of_value = getattr(value, "uid", "")
        uid = of_value if of_value == metadata.uid else metadata.uid
        return Known(uid, metadata.resource_version, value)

    def replace(self, found: Iterable[tuple[ObjectKey, Known[T] | None]]) -> list[Change[T]]:
        """Replaces all objects by these results of `decoded`."""
        changes: list[Change[T]] = []
        gone = set(self._known)
        for key, known in found:
            gone.discard(key)
            changes += self._take(key, known)
        for key in gone:
            changes += self.drop(key)
        return changes

    def put(self, metadata: WatchedMetadata, raw: bytes) -> list[Change[T]]:
        """Adds or replaces one object."""
        return self._take(metadata.key, self.decoded(metadata, raw))

    def drop(self, key: ObjectKey) -> list[Change[T]]:
        """Removes a deleted object."""
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
