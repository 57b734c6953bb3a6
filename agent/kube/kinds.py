"""The kinds of objects that Topolet uses, their paths, and the versions of each that the API server
serves, which change with its CustomResourceDefinitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.kube.errors import MalformedError, NotFoundError, StoreError
from agent.kube.transport import Transport, segment
from agent.model import bounds
from agent.model.bounds import JsonError


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
TOPOLOGY: Final = Kind(
    "NodeResourceTopology",
    "topology.node.k8s.io",
    ("v1alpha2", "v1alpha1"),
    "noderesourcetopologies",
)
DEVICE: Final = Kind("Device", "scheduling.koordinator.sh", ("v1alpha1",), "devices")
RESERVATION: Final = Kind("Reservation", DEVICE.group, DEVICE.versions, "reservations")
REBIND: Final = Kind("RebindResource", DEVICE.group, DEVICE.versions, "rebindresources")

_KINDS = {each.name: each for each in (NODE, TOPOLOGY, DEVICE)}


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

    def forget(self, kind: Kind) -> None:
        """Drops the answer, after the server reported that the kind does not exist."""
        self._known.pop(kind.name, None)

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


class _ResourceList(msgspec.Struct, frozen=True):
    resources: list[_Resource] | None = None


_resources = msgspec.json.Decoder(_ResourceList)
