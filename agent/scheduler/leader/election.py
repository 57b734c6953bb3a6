"""Leader election among the schedulers, by a Lease (coordination.k8s.io/v1).

The clocks of machines are not compared, as in client-go (tools/leaderelection): a Lease expires
when a candidate has not seen it change for its duration, by the candidate's own clock.
"""

from __future__ import annotations

import datetime
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from agent.host.log_once import Problem
from agent.kube.errors import (
    ConflictError,
    MalformedError,
    NotFoundError,
    RejectedError,
    StoreError,
)
from agent.kube.transport import ResponseLimits, Transport, segment
from agent.model.objects import ObjectError, converted, decoded

log = logging.getLogger(__name__)
_KIND: Final = "Lease"
_BASE: Final = "/apis/coordination.k8s.io/v1/namespaces"
_Object = dict[str, Any]
BIND_SECONDS: Final = 3.5
"""The longest time of a Binding."""
READ_LIMITS: Final = ResponseLimits(connect_seconds=0.5, read_seconds=0.5, whole_seconds=0.5)
"""The limits of the read that determines the outcome of a Binding. Both together end before
kube-scheduler's timeout (`httpTimeout`), so that kube-scheduler receives a reason."""


class LeaseTimes(msgspec.Struct, frozen=True):
    """A candidate acquires a Lease that has not changed for `lease_seconds`. A leader that could
    not renew its Lease for `renew_seconds` stops leading. A leader renews the Lease, and every
    other candidate reads it, every `retry_seconds`."""

    lease_seconds: int = 15
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError(
                f"lease duration {self.lease_seconds} s, renew deadline {self.renew_seconds} s, "
                f"retry period {self.retry_seconds} s: each must be less than the one before"
            )


class Clocks(msgspec.Struct, frozen=True):
    """`monotonic` decides, and includes the time that the machine is suspended. `wall` is for the
    fields that users read. `wait` returns True if it was interrupted."""

    monotonic: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    wall: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    random: Callable[[], float] = random.random


def limits(times: LeaseTimes) -> ResponseLimits:
    """The limits of a Leader's transport, so that several attempts fit into `renew_seconds`."""
    seconds = (times.renew_seconds - times.retry_seconds) / 3
    return ResponseLimits(connect_seconds=seconds, read_seconds=seconds, whole_seconds=seconds)


def lease_times(lease_seconds: int) -> LeaseTimes:
    """Returns the times for this duration, in the proportions of kube-scheduler's 15, 10 and 2
    seconds."""
    return LeaseTimes(lease_seconds, lease_seconds * 2 / 3, lease_seconds * 2 / 15)


def bind_limits(times: LeaseTimes) -> ResponseLimits:
    """The limits of a Binding. A Binding that is sent at the end of the leader's term ends before
    another candidate may lead."""
    seconds = min(BIND_SECONDS, (times.lease_seconds - times.renew_seconds) * 0.8)
    connect, answer = seconds / 4, seconds * 3 / 4
    return ResponseLimits(connect_seconds=connect, read_seconds=answer, whole_seconds=answer)


class Leadership(Protocol):
    """Whether this process leads: a Leader, or always (AlwaysLeader)."""

    @property
    def leading(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def holder(self) -> str: ...

    @property
    def continues(self) -> bool: ...

    @property
    def lease_problem(self) -> str | None: ...


class AlwaysLeader:
    """Always leads, for a cluster with a single scheduler."""

    leading = True
    term = 1
    holder = ""
    continues = True
    lease_problem: str | None = None


class Leader:
    """A candidate, and the leader while `leading`. Runs on a thread of its own until `stop`.

    Leadership that is not renewed ends by the clock alone, even while the thread is blocked, and
    some seconds before another candidate may lead.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        name: str,
        identity: str,
        *,
        times: LeaseTimes | None = None,
        clocks: Clocks | None = None,
        acquired: Callable[[], None] | None = None,
        unhealthy: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`identity` must be unique, also across restarts, except that a process may reuse the
        identity of a dead one (`candidate`). `acquired` is called at each acquisition, on the
        thread that made the attempt, and must not block. `unhealthy`: why this process must not
        lead; while it has a reason, the Lease is neither renewed nor acquired."""
        self.identity = identity
        self.problem = Problem(log, f"lease {namespace}/{name}: ")
        self._transport = transport
        self._namespace, self._name = namespace, name
        self._folder = f"{_BASE}/{segment(namespace)}/leases"
        self._path = f"{self._folder}/{segment(name)}"
        self._times = times or LeaseTimes()
        self._clocks = clocks or Clocks()
        self._acquired = acquired or (lambda: None)
        self._unhealthy = unhealthy
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self.run, name=f"lease {name}", daemon=True)
        self._observed: _ObservedLease | None = None
        self._written: _Object | None = None
        self._until: float | None = None
        self._led = False
        self._term = 0
        self._continues = True
        self._answered_at = self._clocks.monotonic()

    @property
    def leading(self) -> bool:
        return (until := self._until) is not None and self._clocks.monotonic() < until

    @property
    def term(self) -> int:
        """Grows with every acquisition. State of one term need not be valid in the next."""
        return self._term

    @property
    def continues(self) -> bool:
        """Whether no other candidate has led since the former process with this identity. It is so
        if the Lease had this identity whenever this process read it."""
        return self._continues

    @property
    def holder(self) -> str:
        """The host of the other candidate that holds the Lease, as it was read last; "" if there is
        none."""
        holder = self._observed.spec.holder_identity if self._observed else None
        return host_of(holder) if holder and holder != self.identity else ""

    @property
    def lease_problem(self) -> str | None:
        """Why the Lease could be neither read nor written for its duration; None if it could."""
        if self._clocks.monotonic() - self._answered_at < self._times.lease_seconds:
            return None
        text = self.problem.text
        return f"lease {self._namespace}/{self._name}: {text}" if text else None

    def start(self) -> None:
        """Makes the first attempt, and starts the thread for the others."""
        self.step()
        self._thread.start()

    def stop(self) -> None:
        """Releases the Lease, so that another candidate can lead at once."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(3 * self._transport.limits.whole_seconds)
        else:
            self._release()
        self._until = None

    def run(self) -> None:
        """The body of the thread."""
        while not self._stopped.is_set():
            pause = self._times.retry_seconds * (1 if self.leading else 1 + self._clocks.random())
            if self._clocks.wait(self._stopped, pause):
                break
            self.step()
        self._release()

    def step(self) -> None:
        """One attempt to renew or to acquire. Never raises."""
        began = self._clocks.monotonic()
        self._check_end()
        if (reason := self._unhealthy()) is not None:
            self.problem.report(reason)
            return
        try:
            leads = self._renew() or self._acquire()
            self.problem.clear()
        except (StoreError, ObjectError) as error:
            self.problem.report(str(error))
            self._written = None
            return
        self._answered_at = self._clocks.monotonic()
        if leads:
            # Counted from before the request: other candidates do not count from an earlier time.
            self._lead(began + self._times.renew_seconds)
        else:
            self._until = None
            self._check_end()

    def _renew(self) -> bool:
        """Renews the Lease without a read. Returns False if this process does not lead, or another
        client has changed the Lease since this process wrote it."""
        if self._written is None or not self.leading:
            return False
        try:
            self._write(self._written)
        except (ConflictError, NotFoundError):
            self._written = None
        return self._written is not None

    def _acquire(self) -> bool:
        try:
            found = _decoded(self._transport.get(self._path))
        except NotFoundError:
            return self._create()
        observed_lease = _observation(_spec_of(found), self._observed, self._clocks.monotonic())
        self._observed = observed_lease
        # Before the write: its answer may be lost.
        self._continues &= observed_lease.spec.holder_identity == self.identity
        if self._clocks.monotonic() < _expires_at(observed_lease, self.identity, self._times):
            return False
        try:
            self._write(found)
        except (ConflictError, NotFoundError):
            return False
        return True

    def _create(self) -> bool:
        self._continues = False
        spec = _renewed_spec(_LeaseSpec(), self.identity, self._times, self._clocks.wall())
        wanted = _new_lease(self._namespace, self._name, spec)
        try:
            answer = self._transport.create(self._folder, wanted)
        except RejectedError as error:
            if "already exists" in str(error):
                return False
            raise
        self._keep(_decoded(answer))
        return True

    def _write(self, found: _Object) -> None:
        spec = _renewed_spec(_spec_of(found), self.identity, self._times, self._clocks.wall())
        answer = self._transport.request("PUT", self._path, body=_with_spec(found, spec))
        self._keep(_decoded(answer.body))

    def _keep(self, written: _Object) -> None:
        self._written = written
        self._observed = _observation(_spec_of(written), self._observed, self._clocks.monotonic())

    def _lead(self, until: float) -> None:
        begins = not self._led
        if begins:
            # Before this process leads: a thread that sees so knows that the term is new.
            self._led = True
            self._term += 1
        self._until = until
        if begins:
            log.info("%s is the leader", self.identity)
            self._acquired()

    def _check_end(self) -> None:
        if self._led and not self.leading:
            self._led = False
            reason = f"its holder is {self.holder}" if self.holder else "it was not renewed in time"
            log.warning("%s has lost the lease: %s", self.identity, reason)

    def _release(self) -> None:
        self._check_end()
        leading, self._until = self.leading, None
        if not leading or self._written is None:
            return
        try:
            spec = _released_spec(_spec_of(self._written), self._clocks.wall())
            self._transport.request("PUT", self._path, body=_with_spec(self._written, spec))
        except (StoreError, ObjectError) as error:
            log.warning("lease %s/%s is not released: %s", self._namespace, self._name, error)


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`holder_identity` is empty if the Lease has no holder. Times are in the format of the API."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _ObservedLease(msgspec.Struct, frozen=True):
    """A Lease as it was read. `since` is when it was first read with this content, by the local
    clock."""

    spec: _LeaseSpec
    since: float


def _observation(spec: _LeaseSpec, before: _ObservedLease | None, now: float) -> _ObservedLease:
    """Returns `before` if the Lease has not changed, else a new observation."""
    if before is not None and before.spec == spec:
        return before
    return _ObservedLease(spec, now)


def _expires_at(observed_lease: _ObservedLease, identity: str, times: LeaseTimes) -> float:
    """When `identity` may acquire the Lease, by the clock of the observation."""
    holder = observed_lease.spec.holder_identity
    if not holder or holder == identity:
        return observed_lease.since
    return observed_lease.since + (
        observed_lease.spec.lease_duration_seconds or times.lease_seconds
    )


def _renewed_spec(
    before: _LeaseSpec, identity: str, times: LeaseTimes, wall: datetime.datetime
) -> _LeaseSpec:
    """The spec of a Lease that `identity` renews or acquires. `wall` is the time in its fields."""
    now = _text(wall)
    renews = before.holder_identity == identity
    return _LeaseSpec(
        identity,
        times.lease_seconds,
        before.acquire_time if renews else now,
        now,
        (before.lease_transitions or 0) + (0 if renews or before.renew_time is None else 1),
    )


def _released_spec(before: _LeaseSpec, wall: datetime.datetime) -> _LeaseSpec:
    """The spec of a Lease without holder: any candidate may acquire it."""
    return _LeaseSpec("", 1, _text(wall), _text(wall), before.lease_transitions)


def _new_lease(namespace: str, name: str, spec: _LeaseSpec) -> _Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": _KIND,
        "metadata": {"namespace": namespace, "name": name},
        "spec": msgspec.to_builtins(spec),
    }


def _with_spec(found: _Object, spec: _LeaseSpec) -> _Object:
    """The same object, at the same resourceVersion, with the fields of `spec`."""
    return {**found, "spec": {**(found.get("spec") or {}), **msgspec.to_builtins(spec)}}


def host_of(identity: str) -> str:
    """The part of a candidate's identity that is not secret. The random part after it is known only
    to readers of the Lease (see `explain.endpoint`)."""
    return identity.partition("_")[0]


def read_holder(transport: Transport, namespace: str, name: str) -> str:
    """The identity of a Lease's holder, "" if it has none. Raises KubeError."""
    path = f"{_BASE}/{segment(namespace)}/leases/{segment(name)}"
    try:
        return _spec_of(_decoded(transport.get(path))).holder_identity or ""
    except ObjectError as error:
        raise MalformedError(f"GET {path}: {error}") from error


def _decoded(text: bytes) -> _Object:
    """Raises ObjectError."""
    return decoded(text, _KIND, _objects)


def _spec_of(found: _Object) -> _LeaseSpec:
    """Raises ObjectError."""
    if not isinstance(found.get("metadata"), dict):
        raise ObjectError(_KIND, "without a name", "metadata: is missing")
    return converted(found, _KIND, _Lease).spec or _LeaseSpec()


class _Lease(msgspec.Struct, frozen=True):
    spec: _LeaseSpec | None = None


_objects: Final = msgspec.json.Decoder(_Object)


def _text(wall: datetime.datetime) -> str:
    return wall.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
