"""The Lease that says which of several schedulers leads (coordination.k8s.io/v1), and who may take
it.

Machines' clocks are not compared: a holder's time is up when its Lease stood still for so long by
the clock of who looks at it.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import msgspec

from agent.model.objects import ObjectError, converted, decoded

KIND: Final = "Lease"
Object = dict[str, Any]


class Times(msgspec.Struct, frozen=True):
    """Another takes a Lease that stood still for `lease_seconds`; who could not renew it for
    `renew_seconds` stops before; it is renewed, or looked at, every `retry_seconds`."""

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
    """`holder_identity` is empty where nobody holds it; times as the API writes them."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Sight(msgspec.Struct, frozen=True):
    """A Lease that was looked at; `since`: when it was first seen to say so, by our clock."""

    spec: Spec
    since: float


def seen(spec: Spec, before: Sight | None, now: float) -> Sight:
    """What `before` becomes when the Lease says `spec` now."""
    if before is not None and before.spec == spec:
        return before
    return Sight(spec, now)


def free_at(sight: Sight, identity: str, times: Times) -> float:
    """When `identity` may take it, by the clock of the sight."""
    holder = sight.spec.holder_identity
    if not holder or holder == identity:
        return sight.since
    return sight.since + (sight.spec.lease_duration_seconds or times.lease_seconds)


def held(before: Spec, identity: str, times: Times, wall: datetime.datetime) -> Spec:
    """The Lease renewed, or taken, by `identity`. `wall` is for people to read."""
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
    """Nobody's: the next who looks may take it."""
    return Spec("", 1, _text(wall), _text(wall), before.lease_transitions)


def body(namespace: str, name: str, spec: Spec) -> Object:
    """A new one."""
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
