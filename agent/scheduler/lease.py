"""The Lease of the leader election (coordination.k8s.io/v1), and when a candidate may take it.

Clocks of machines are not compared: a Lease expires when it has not changed for its duration by the
candidate's own clock.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import msgspec

from agent.model.objects import ObjectError, converted, decoded

KIND: Final = "Lease"
Object = dict[str, Any]


class LeaseTimes(msgspec.Struct, frozen=True):
    """A candidate takes a Lease that has not changed for `lease_seconds`. A leader that could not
    renew it for `renew_seconds` stops. It is renewed, or read, every `retry_seconds`."""

    lease_seconds: int = 15
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError(
                f"a lease of {self.lease_seconds} s, given up after {self.renew_seconds} s and "
                f"renewed every {self.retry_seconds} s: each must be less than the one before"
            )


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """`holder_identity` is empty where nobody holds the Lease. Times are in the format of the
    API."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class ObservedLease(msgspec.Struct, frozen=True):
    """A Lease as it was read. `since` is when it was first read with this content, by our clock."""

    spec: Spec
    since: float


def observed(spec: Spec, before: ObservedLease | None, now: float) -> ObservedLease:
    """Returns `before` where the Lease has not changed, else a new observation."""
    if before is not None and before.spec == spec:
        return before
    return ObservedLease(spec, now)


def expires_at(observed_lease: ObservedLease, identity: str, times: LeaseTimes) -> float:
    """When `identity` may take the Lease, by the clock of the observation."""
    holder = observed_lease.spec.holder_identity
    if not holder or holder == identity:
        return observed_lease.since
    return observed_lease.since + (
        observed_lease.spec.lease_duration_seconds or times.lease_seconds
    )


def renewed(before: Spec, identity: str, times: LeaseTimes, wall: datetime.datetime) -> Spec:
    """The spec of a Lease that `identity` renews or takes. `wall` is for people."""
    now = _text(wall)
    ours = before.holder_identity == identity
    return Spec(
        identity,
        times.lease_seconds,
        before.acquire_time if ours else now,
        now,
        (before.lease_transitions or 0) + (0 if ours or before.renew_time is None else 1),
    )


def released(before: Spec, wall: datetime.datetime) -> Spec:
    """The spec of a Lease without holder: any candidate may take it."""
    return Spec("", 1, _text(wall), _text(wall), before.lease_transitions)


def body(namespace: str, name: str, spec: Spec) -> Object:
    """A new Lease object."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": KIND,
        "metadata": {"namespace": namespace, "name": name},
        "spec": msgspec.to_builtins(spec),
    }


def replaced(found: Object, spec: Spec) -> Object:
    """The same object, at the same resourceVersion, with our fields as in `spec`."""
    return {**found, "spec": {**(found.get("spec") or {}), **msgspec.to_builtins(spec)}}


def decode(text: bytes) -> Object:
    """Raises ObjectError."""
    return decoded(text, KIND, _objects)


def spec_of(found: Object) -> Spec:
    """Raises ObjectError."""
    if not isinstance(found.get("metadata"), dict):
        raise ObjectError(KIND, "without a name", "metadata: is missing")
    return converted(found, KIND, _Lease).spec or Spec()


class _Lease(msgspec.Struct, frozen=True):
    spec: Spec | None = None


_objects: Final = msgspec.json.Decoder(Object)


def _text(wall: datetime.datetime) -> str:
    return wall.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
