"""Leader election among the schedulers, by a Lease."""

from __future__ import annotations

import datetime
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.kube.answers import ResponseLimits
from agent.kube.errors import ConflictError, NotFoundError, RejectedError, StoreError
from agent.kube.transport import Transport, segment
from agent.model.objects import ObjectError
from agent.scheduler import lease
from agent.scheduler.lease import LeaseTimes, Object, ObservedLease, Spec

log = logging.getLogger(__name__)

_BASE: Final = "/apis/coordination.k8s.io/v1/namespaces"


class Clocks(msgspec.Struct, frozen=True):
    """`monotonic` decides, and includes the time that the machine is suspended. `wall` is for
    people. `wait` returns True when it was interrupted."""

    monotonic: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    wall: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    random: Callable[[], float] = random.random


def limits(times: LeaseTimes) -> ResponseLimits:
    """The limits of the transport of a Leader: a later answer is useless."""
    patience = (times.renew_seconds - times.retry_seconds) / 3
    return ResponseLimits(connect_seconds=patience, read_seconds=patience, whole_seconds=patience)


class Leader:
    """A candidate, and the leader while `leading`. Runs on a thread of its own until `stop`.

    Leadership that could not be renewed ends by the clock alone, even while the thread is blocked,
    some seconds before another candidate may begin.
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
    ) -> None:
        """`identity` must be unique, also across restarts. `acquired` is called on the thread at
        each acquisition, and must not block."""
        self.identity = identity
        self.trouble: str | None = None
        self._transport = transport
        self._namespace, self._name = namespace, name
        self._folder = f"{_BASE}/{segment(namespace)}/leases"
        self._path = f"{self._folder}/{segment(name)}"
        self._times = times or LeaseTimes()
        self._clocks = clocks or Clocks()
        self._acquired = acquired or (lambda: None)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self.run, name=f"lease {name}", daemon=True)
        self._observed: ObservedLease | None = None
        self._ours: Object | None = None
        self._until: float | None = None
        self._led = False
        self._term = 0

    @property
    def leading(self) -> bool:
        return (until := self._until) is not None and self._clocks.monotonic() < until

    @property
    def term(self) -> int:
        """Grows with every acquisition. State of one term need not be valid in the next."""
        return self._term

    @property
    def holder(self) -> str:
        """The holder of the Lease when it was read last, empty for none."""
        return (self._observed.spec.holder_identity or "") if self._observed else ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Releases the Lease, so that another candidate can begin at once."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(3 * self._transport.limits.whole_seconds)
        else:
            self._release()
        self._until = None

    def run(self) -> None:
        """The body of the thread."""
        while not self._stopped.is_set():
            self.step()
            pause = self._times.retry_seconds * (1 if self.leading else 1 + self._clocks.random())
            if self._clocks.wait(self._stopped, pause):
                break
        self._release()

    def step(self) -> None:
        """One attempt to renew or to acquire. Never raises."""
        began = self._clocks.monotonic()
        self._notice_end()
        try:
            ours = self._renewed() or self._taken()
            self.trouble = None
        except (StoreError, ObjectError) as error:
            if str(error) != self.trouble:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            self.trouble = str(error)
            self._ours = None
            return
        if ours:
            # Counted from before the request: other candidates do not count from an earlier time.
            self._until = began + self._times.renew_seconds
            self._begin()
        else:
            self._until = None
            self._notice_end()

    def _renewed(self) -> bool:
        """Renews the Lease without a read. Returns False where another client wrote since our last
        write."""
        if self._ours is None or not self.leading:
            return False
        try:
            self._write(self._ours)
        except (ConflictError, NotFoundError):
            self._ours = None
        return self._ours is not None

    def _taken(self) -> bool:
        try:
            found = lease.decode(self._transport.get(self._path))
        except NotFoundError:
            return self._made()
        observed_lease = lease.observed(
            lease.spec_of(found), self._observed, self._clocks.monotonic()
        )
        self._observed = observed_lease
        if self._clocks.monotonic() < lease.expires_at(observed_lease, self.identity, self._times):
            return False
        try:
            self._write(found)
        except (ConflictError, NotFoundError):
            return False
        return True

    def _made(self) -> bool:
        spec = lease.renewed(Spec(), self.identity, self._times, self._clocks.wall())
        wanted = lease.body(self._namespace, self._name, spec)
        try:
            answer = self._transport.create(self._folder, wanted)
        except RejectedError as error:
            if "already exists" in str(error):
                return False
            raise
        self._keep(lease.decode(answer))
        return True

    def _write(self, found: Object) -> None:
        spec = lease.renewed(lease.spec_of(found), self.identity, self._times, self._clocks.wall())
        answer = self._transport.request("PUT", self._path, body=lease.replaced(found, spec))
        self._keep(lease.decode(answer.body))

    def _keep(self, written: Object) -> None:
        self._ours = written
        self._observed = lease.observed(
            lease.spec_of(written), self._observed, self._clocks.monotonic()
        )

    def _begin(self) -> None:
        if not self._led:
            self._led = True
            self._term += 1
            log.info("%s leads", self.identity)
            self._acquired()

    def _notice_end(self) -> None:
        if self._led and not self.leading:
            self._led = False
            log.warning("%s has lost the lease; its holder is %s", self.identity, self.holder)

    def _release(self) -> None:
        leading, self._until = self.leading, None
        self._notice_end()
        if not leading or self._ours is None:
            return
        try:
            spec = lease.released(lease.spec_of(self._ours), self._clocks.wall())
            self._transport.request("PUT", self._path, body=lease.replaced(self._ours, spec))
        except (StoreError, ObjectError) as error:
            log.warning("lease %s/%s is not released: %s", self._namespace, self._name, error)
