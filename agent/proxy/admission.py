"""What becomes of a pod's or container's request, whatever door it comes through: joins snapshot,
grants and doorbell, and asks the hooks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from agent.hooks import cpuset, decided
from agent.hooks.changes import UNCHANGED, Changes, Says, joined
from agent.hooks.cpuset import Answer, Give, Grant, Keep, Wait
from agent.model import notice
from agent.model.cpuset import CpuSet
from agent.model.doorbell import (
    ContainerComes,
    Created,
    Look,
    PodComes,
    PodFailed,
    Resized,
    Ring,
)
from agent.model.failurepolicy import CREATE, DEVICES, UPDATE, FailurePolicies
from agent.model.qos import QoS
from agent.model.snapshot import Snapshot
from agent.model.wanted import NOTHING
from agent.proxy.bell import Bell
from agent.proxy.calls import Creation, Unread, Update
from agent.proxy.grants import Grants
from agent.proxy.outcomes import Outcomes
from agent.proxy.snapshots import SnapshotFile

if TYPE_CHECKING:
    from agent.hooks.carriers import Carried


class Held(msgspec.Struct, frozen=True):
    """Not yet: ask again soon."""


class Refused(msgspec.Struct, frozen=True):
    """The container must not be made."""

    why: str


HELD = Held()


class Admission:
    """`state_dir`: where the agent keeps what containers are told. `says`: what the door can change
    of a container's devices."""

    def __init__(
        self,
        snapshots: SnapshotFile,
        bell: Bell,
        grants: Grants,
        policies: FailurePolicies,
        state_dir: str,
        says: Says,
    ) -> None:
        self._snapshots = snapshots
        self._bell = bell
        self._grants = grants
        self._state_dir = state_dir
        self.outcomes = Outcomes(policies)
        self._says = says

    def pod_comes(self, pod: PodComes) -> None:
        """Its sandbox is about to be made, or was just made."""
        self._bell.ring(pod)

    def pod_made(self, pod: PodComes, *, made: bool) -> None:
        """What came of the sandbox."""
        self._bell.ring(Look() if made else PodFailed(pod.uid))

    def create(
        self, creation: Creation, carried: Callable[[], Carried]
    ) -> Changes | Held | Refused:
        """What the request to make a container goes on with; from then on the creation counts as
        under way, until `created` or `abandoned`. `carried` reads what it names of devices."""
        request, snapshot = creation.request, self._seen()
        grants = self._grants.all()
        answer = cpuset.create(request, snapshot, grants)
        visible = decided.seen(request, snapshot)
        waits = isinstance(answer, Wait)
        if (waits or isinstance(visible, Wait)) and not creation.waiting.late:
            ring: Ring = request.pod
            if waits and snapshot is not None and cpuset.local_request(request, snapshot):
                creation.announced = True
                ring = ContainerComes(request.pod, request.container_name, request.asked.shares)
            creation.waiting.ring(self._bell, ring)
            return HELD
        if isinstance(answer, Wait):
            answer = self._last_resort(creation, snapshot, grants, answer.reason)
        if isinstance(answer, Wait):
            return self._refused(creation, answer.reason)
        shown = UNCHANGED
        if visible is not None:
            from agent.proxy.shown import DeniedError, shown_to  # not on a node without devices

            try:
                node = snapshot.devices if snapshot is not None else None
                shown = shown_to(creation, carried, visible, node, self._says, self.outcomes)
            except DeniedError as error:
                return self._refused(creation, str(error))
        changes = self._granted(creation, answer, snapshot)
        return changes if shown == UNCHANGED else joined(changes, shown)

    def unhooked(
        self, hook: str, creation: Creation | None, reason: str, detail: str
    ) -> Unread | Refused | None:
        """For a request that can't be looked into, or whose hook went wrong: whether it goes on is
        the policy's choice. A creation that does must be told to `created`. `creation`: what was
        read of it before."""
        class_, title = None, "a container that could not be looked into"
        if creation is not None:
            classes = (creation.qos, DEVICES) if creation.allocated else (creation.qos,)
            class_, title = self.outcomes.strictest(hook, *classes), creation.pod_title
            if creation.announced:
                self._bell.ring(creation.failed())
            if creation.grant is not None:
                self._grants.failed(creation.grant)
        if self.outcomes.fails(hook, class_, reason, f"{title}: {detail}"):
            return Refused(f"{hook}: {title}: {detail}")
        if hook == CREATE:
            return Unread(self._grants.open(Grant("", title, None)))
        return None

    def created(self, creation: Creation | Unread, container_id: str) -> None:
        """What came of it; "" for no container, or one whose id nobody knows."""
        if creation.grant is None:
            return
        if container_id:
            self._grants.answered(creation.grant, container_id)
        else:
            self._grants.failed(creation.grant)
        ring: Ring = Look()
        if isinstance(creation, Creation):
            ring = creation.failed()
            if container_id:
                ring = Created(container_id, creation.request.asked, creation.kept)
        self._bell.ring(ring)

    def abandoned(self, creation: Creation) -> None:
        """A held one that nobody waits for any more: it holds nothing of ours, but the agent may
        hold CPUs for it."""
        if creation.announced:
            self._bell.ring(creation.failed())

    def missed(self) -> None:
        """Containers may have been made that nobody asked us about: until the agent has looked,
        they may hold any CPU."""
        self._grants.failed(self._grants.open(Grant("", "a time without us", None)))
        self._bell.ring(Look())

    def removed(self, container_id: str) -> None:
        """A container holds nothing any more."""
        self._grants.gone(container_id)

    def look(self) -> None:
        """Something changed that the agent may want to see at once."""
        self._bell.ring(Look())

    def update(self, update: Update) -> Changes | Held | Refused:
        """What the request to change a container goes on with."""
        request, snapshot = update.request, self._seen()
        answer = cpuset.update(request, snapshot, self._grants.of(request.container_id))
        if isinstance(answer, Wait):
            if not update.waiting.late:
                update.waiting.ring(self._bell, Look())
                return HELD
            waited = f"container {request.container_id}: {answer.reason}"
            if self.outcomes.fails(UPDATE, None, "late", waited):
                return Refused(waited)
            answer = cpuset.without_owners(request, snapshot)
        return UNCHANGED if isinstance(answer, Wait) else cpuset.changes(request, answer)

    def updated(self, update: Update) -> None:
        """The runtime made the change."""
        request, snapshot = update.request, self._snapshots.current()
        if snapshot is not None and snapshot.cpu_policy != "none" and request.asked.shares:
            self._bell.ring(Resized(request.container_id, request.asked))

    def _granted(
        self, creation: Creation, answer: Keep | Give, snapshot: Snapshot | None
    ) -> Changes:
        """What it gets of CPUs and limits, held for it from now on."""
        request = creation.request
        given = answer.wanted if isinstance(answer, Give) else NOTHING
        cpus = may_hold(request.asked.cpuset if given.cpuset is None else given.cpuset)
        creation.grant = self._grants.open(Grant(request.pod.uid, creation.pod_title, cpus, given))
        told_in = ""
        if given.exclusive and snapshot is not None and cpuset.is_told(request, snapshot):
            folder = notice.folder(request.pod.uid, request.container_name)
            told_in = f"{self._state_dir}/{folder}"
        changes = cpuset.changes(request, answer, told_in)
        creation.kept = changes.kept
        return changes

    def _refused(self, creation: Creation, why: str) -> Refused:
        if creation.announced:
            self._bell.ring(creation.failed())
        return Refused(why)

    def _last_resort(
        self,
        creation: Creation,
        snapshot: Snapshot | None,
        grants: Collection[Grant],
        reason: str,
    ) -> Answer:
        """The answer when the deadline has passed; Wait for an error, with its text."""
        if snapshot is not None and cpuset.local_request(creation.request, snapshot):
            creation.qos = QoS.LSR
        waited = f"{creation.pod_title}: no CPUs after {creation.waiting.patience_seconds:g} s"
        if self.outcomes.fails(CREATE, creation.qos, "late", f"{waited}: {reason}"):
            return Wait(f"{waited}: {reason}")
        answer = cpuset.last_resort(creation.request, snapshot, grants)
        if isinstance(answer, Wait):
            answer = Wait(f"{waited}: {answer.reason}")
            self.outcomes.refused(CREATE, creation.qos, "no_cpu", answer.reason)
        return answer

    def _seen(self) -> Snapshot | None:
        snapshot = self._snapshots.current()
        if snapshot is not None:
            self._grants.seen(snapshot)
        return snapshot


def may_hold(requested: str) -> CpuSet | None:
    """What an unchanged request may end up on: its cpuset, or anything."""
    try:
        return CpuSet.parse(requested) or None
    except ValueError:
        return None
