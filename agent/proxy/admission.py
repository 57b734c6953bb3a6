"""What becomes of a pod's or container's request, whatever door it comes through: joins snapshot,
grants and doorbell, and asks the hooks."""

from __future__ import annotations

import time

import msgspec

from agent.hooks import cpuset
from agent.hooks.changes import UNCHANGED, Changes
from agent.hooks.cpuset import Give, Grant, Wait
from agent.hooks.requests import CreateContainer, UpdateContainer
from agent.model import notice
from agent.model.cpuset import CpuSet
from agent.model.doorbell import (
    ContainerComes,
    ContainerFailed,
    Created,
    Look,
    PodComes,
    PodFailed,
    Resized,
    Ring,
)
from agent.model.snapshot import Snapshot
from agent.model.wanted import NOTHING
from agent.proxy.bell import Bell
from agent.proxy.grants import Grants
from agent.proxy.snapshots import SnapshotFile

RING_AGAIN_SECONDS = 0.1


class Held(msgspec.Struct, frozen=True):
    """Not yet: ask again soon."""


class Refused(msgspec.Struct, frozen=True):
    """The container must not be made."""

    why: str


HELD = Held()


class Waiting:
    """A request that may be held until `deadline` (monotonic seconds); while it is, it rings the
    agent again and again but not at every question."""

    def __init__(self, started: float, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        self._deadline = started + patience_seconds
        self._rung_at = 0.0

    @property
    def late(self) -> bool:
        return time.monotonic() >= self._deadline

    def ring(self, bell: Bell, ring: Ring) -> None:
        now = time.monotonic()
        if now - self._rung_at >= RING_AGAIN_SECONDS:
            self._rung_at = now
            bell.ring(ring)


class Creation:
    """One container from the request to make it to what came of that."""

    def __init__(self, request: CreateContainer, waiting: Waiting) -> None:
        self.request = request
        self.waiting = waiting
        self.pod_title = f"pod {request.pod.namespace}/{request.pod.name}"
        self.grant: int | None = None
        self.kept: tuple[str, ...] = ()
        self.announced = False
        """Whether the agent holds CPUs for the container alone."""

    def failed(self) -> Ring:
        """What the agent hears when it does not come to be."""
        pod = self.request.pod
        return ContainerFailed(pod.uid, self.request.container_name) if self.announced else Look()


class Update:
    """One request to change a container, until its reply."""

    def __init__(self, request: UpdateContainer, waiting: Waiting) -> None:
        self.request = request
        self.waiting = waiting


class Admission:
    """`state_dir`: where the agent keeps what containers are told."""

    def __init__(self, snapshots: SnapshotFile, bell: Bell, grants: Grants, state_dir: str) -> None:
        self._snapshots = snapshots
        self._bell = bell
        self._grants = grants
        self._state_dir = state_dir
        self.timed_out = 0

    def pod_comes(self, pod: PodComes) -> None:
        """Its sandbox is about to be made, or was just made."""
        self._bell.ring(pod)

    def pod_made(self, pod: PodComes, *, made: bool) -> None:
        """What came of the sandbox."""
        self._bell.ring(Look() if made else PodFailed(pod.uid))

    def create(self, creation: Creation) -> Changes | Held | Refused:
        """What the request to make a container goes on with; from then on the creation counts as
        under way, until `created` or `abandoned`."""
        request, snapshot = creation.request, self._seen()
        grants = self._grants.all()
        answer = cpuset.create(request, snapshot, grants)
        if isinstance(answer, Wait) and creation.waiting.late:
            self.timed_out += 1
            answer = cpuset.last_resort(request, snapshot, grants, answer.reason)
            if isinstance(answer, Wait):
                if creation.announced:
                    self._bell.ring(creation.failed())
                waited = f"no CPUs after {creation.waiting.patience_seconds:g} s"
                return Refused(f"{creation.pod_title}: {waited}: {answer.reason}")
        if isinstance(answer, Wait):
            ring: Ring = request.pod
            if snapshot is not None and cpuset.local_request(request, snapshot):
                creation.announced = True
                ring = ContainerComes(request.pod, request.container_name, request.asked.shares)
            creation.waiting.ring(self._bell, ring)
            return HELD
        given = answer.wanted if isinstance(answer, Give) else NOTHING
        cpus = _asked(request.asked.cpuset if given.cpuset is None else given.cpuset)
        creation.grant = self._grants.open(Grant(request.pod.uid, creation.pod_title, cpus, given))
        told_in = ""
        if given.exclusive and snapshot is not None and cpuset.is_told(request, snapshot):
            folder = notice.folder(request.pod.uid, request.container_name)
            told_in = f"{self._state_dir}/{folder}"
        changes = cpuset.changes(request, answer, told_in)
        creation.kept = changes.kept
        return changes

    def created(self, creation: Creation, container_id: str) -> None:
        """What came of it; "" for no container, or one whose id nobody knows."""
        if creation.grant is None:
            return
        ring = creation.failed()
        if container_id:
            self._grants.answered(creation.grant, container_id)
            ring = Created(container_id, creation.request.asked, creation.kept)
        else:
            self._grants.failed(creation.grant)
        self._bell.ring(ring)

    def abandoned(self, creation: Creation) -> None:
        """A held one that nobody waits for any more: it holds nothing of ours, but the agent may
        hold CPUs for it."""
        if creation.announced:
            self._bell.ring(creation.failed())

    def update(self, update: Update) -> Changes | Held:
        """What the request to change a container goes on with."""
        request, snapshot = update.request, self._seen()
        answer = cpuset.update(request, snapshot, self._grants.of(request.container_id))
        if isinstance(answer, Wait):
            if not update.waiting.late:
                update.waiting.ring(self._bell, Look())
                return HELD
            self.timed_out += 1
            answer = cpuset.without_owners(request, snapshot)
        return UNCHANGED if isinstance(answer, Wait) else cpuset.changes(request, answer)

    def updated(self, update: Update) -> None:
        """The runtime made the change."""
        request, snapshot = update.request, self._snapshots.current()
        if snapshot is not None and snapshot.cpu_policy != "none" and request.asked.shares:
            self._bell.ring(Resized(request.container_id, request.asked))

    def _seen(self) -> Snapshot | None:
        snapshot = self._snapshots.current()
        if snapshot is not None:
            self._grants.seen(snapshot)
        return snapshot


def _asked(requested: str) -> CpuSet | None:
    """What an unchanged request may end up on: its cpuset, or anything."""
    try:
        return CpuSet.parse(requested) or None
    except ValueError:
        return None
