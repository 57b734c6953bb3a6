"""The Reservations of Koordinator's scheduler. A Reservation holds CPUs, NUMA amounts and devices
of a node for later pods, in the same annotations as a pod.

A pod that Koordinator's scheduler placed in a Reservation names the Reservation in an annotation,
and holds its part of it; the Reservation holds the rest. Topolet's scheduler places no pod in a
Reservation. (Koordinator: apis/scheduling/v1alpha1/reservation_types.go;
pkg/util/reservation/reservation.go, IsReservationActive and NewReservePod.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.allocate.node_allocator.assigned_pods import AssignedPod, remaining, reserved_by
from agent.model.objects import ObjectMetadata, decoded
from agent.scheduler.state.records import PodRecord

log = logging.getLogger(__name__)

_ACTIVE: Final = frozenset(("Available", "Waiting"))


class ReservationRecord(msgspec.Struct, frozen=True):
    """A Reservation. `held`: all that it holds on its node, including the parts of its pods; None
    if it is not active."""

    uid: str
    node: str = ""
    held: AssignedPod | None = None


class ReservedPart(msgspec.Struct, frozen=True):
    """What a Reservation holds on a node in addition to its pods; `held` None: nothing."""

    node: str
    uid: str
    held: AssignedPod | None


class KoordinatorReservations:
    """What Reservations of Koordinator hold on nodes, without what their pods have. One thread at a
    time."""

    def __init__(self, pods: Mapping[str, PodRecord]) -> None:
        """`pods` are the bound pods of the whole cluster, by uid."""
        self._pods = pods
        self._by_name: dict[str, ReservationRecord] = {}
        self._by_uid: dict[str, ReservationRecord] = {}
        self._owners: dict[str, set[str]] = {}

    def update(self, name: str, record: ReservationRecord | None) -> list[ReservedPart]:
        """Returns the changed parts. `record` None: the Reservation was deleted."""
        before = self._by_name.pop(name, None)
        parts = []
        if before is not None:
            del self._by_uid[before.uid]
            parts.append(ReservedPart(before.node, before.uid, None))
        if record is not None and record.held is not None:
            self._by_name[name] = self._by_uid[record.uid] = record
            part = self._part(record)
            if before is not None and (before.node, before.uid) == (record.node, record.uid):
                parts = []
            parts.append(part)
        return parts

    def pod_changed(
        self, uid: str, before: PodRecord | None, now: PodRecord | None
    ) -> list[ReservedPart]:
        """Must be called after a pod was bound, changed or removed. Returns what its Reservation
        holds now."""
        names = {each.reservation for each in (before, now) if each is not None} - {""}
        for name in names:
            owners = self._owners.setdefault(name, set())
            if now is not None and now.reservation == name:
                owners.add(uid)
            else:
                owners.discard(uid)
            if not owners:
                del self._owners[name]
        return [self._part(self._by_uid[name]) for name in sorted(names & self._by_uid.keys())]

    def _part(self, record: ReservationRecord) -> ReservedPart:
        pods = (self._pods[uid] for uid in sorted(self._owners.get(record.uid, ())))
        owners = [each.assigned for each in pods if each.node == record.node and each.assigned]
        held = remaining(record.held, owners) if record.held is not None else None
        return ReservedPart(record.node, record.uid, held)


class _Meta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _Template(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _Spec(msgspec.Struct, frozen=True):
    template: _Template | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    node_name: str = ""


class _Reservation(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_reservations: Final = msgspec.json.Decoder(_Reservation)


def reservation(text: bytes) -> ReservationRecord:
    """Decodes a Reservation. Annotations of the object override those of its template. Raises
    ObjectError."""
    raw = decoded(text, "Reservation", _reservations)
    metadata, status = raw.metadata, raw.status
    if status.phase not in _ACTIVE or not status.node_name:
        return ReservationRecord(metadata.uid)
    template = raw.spec.template or _Template()
    annotations = {**(template.metadata.annotations or {}), **(metadata.annotations or {})}
    held = reserved_by(metadata.uid, f"Reservation {metadata.name}", annotations)
    for fault in held.faults:
        log.warning("%s on node %s: %s", held.title, status.node_name, fault)
    return ReservationRecord(metadata.uid, status.node_name, held)
