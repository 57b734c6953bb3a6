"""Admission of the requests of pods and containers, for every frontend: it calls the hooks with the
snapshot and the assumed containers, and notifies the agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from agent.hooks import cpuset
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import AssumedContainer, AssumedContainers, Keep, Override, requested_cpus
from agent.hooks.requests import (
    FIELDS,
    UNCHANGED,
    Changes,
    ContainerName,
    CreateContainer,
    Creation,
    DeviceFields,
    Outcomes,
    SandboxCreation,
    Unread,
    Update,
    UpdateContainer,
    Verdict,
    announced,
    with_device_changes,
)
from agent.host.log_once import about
from agent.model import notice
from agent.model.audit import AuditEvent, Record
from agent.model.devices.visibility import Visibility
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import (
    ContainerAnnounced,
    Created,
    Notification,
    PodAnnounced,
    PodFailed,
    Resized,
    SnapshotRequest,
)
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.qos import QoS
from agent.model.settings.frontends import CREATE, DEVICES, RUN, UPDATE, FailurePolicies
from agent.model.snapshot import NOTHING, Snapshot, excludes
from agent.model.verdict import Code, FailureReason, Refuse, Wait

if TYPE_CHECKING:
    from agent.hooks.carriers import Carried


_UNDECIDED: Final = Visibility()
_UNREAD: Final = frozenset(
    {
        FailureReason.TOO_LARGE,
        FailureReason.COMPRESSED,
        FailureReason.MALFORMED,
        FailureReason.INTERNAL_ERROR,
    }
)
"""Reasons that leave the content of a request unknown."""
MAX_NAMES: Final = 4096
"""The most containers whose names are kept; those that were created first are dropped."""
_CODES: Final[dict[str, Code]] = {
    FailureReason.TOO_LARGE: Code.RESOURCE_EXHAUSTED,
    FailureReason.MALFORMED: Code.INVALID_ARGUMENT,
}


class Admission:
    """Decides requests. `state_dir`: the agent's folder, where each container has the file that
    lists its CPUs. `settable`: the fields of devices that the frontend can change. `append` takes
    records for the audit trail."""

    def __init__(
        self,
        snapshots: SnapshotFile,
        notifier: Notifier,
        assumed: AssumedContainers,
        policies: FailurePolicies,
        state_dir: str,
        settable: DeviceFields,
        append: Callable[[Sequence[Record]], None] = lambda records: None,
    ) -> None:
        self._append = append
        self._snapshots = snapshots
        self._notifier = notifier
        self._assumed = assumed
        self._state_dir = state_dir
        self.outcomes = Outcomes(policies)
        self._settable = settable
        self._names: dict[str, ContainerName] = {}

    def pod_announced(self, pod: PodAnnounced) -> bool:
        """The sandbox is about to be created, or was just created. Returns whether the agent was
        notified."""
        return self._notifier.notify(pod)

    def create_sandbox(self, sandbox: SandboxCreation) -> Verdict:
        """The answer to a request to create a sandbox. It is Wait while the pod's cgroup, from
        which the sandbox inherits its CPUs, may have CPUs of another pod. A sandbox is created even
        if the agent does not correct the cgroup in time."""
        pod, snapshot = sandbox.pod, self._snapshots.current()
        if sandbox.notified is None:
            sandbox.notified = self.pod_announced(pod)
        if not sandbox.notified or snapshot is None:
            return UNCHANGED
        if pod.uid in snapshot.announced or all(owner.is_of(pod.uid) for owner in snapshot.owners):
            return UNCHANGED
        if not sandbox.waiting.late:
            return Wait()
        qos = announced(pod, 0).qos
        detail = f"pod {pod.namespace}/{pod.name}: its cgroup may have CPUs of other pods"
        fields = about(f"{pod.namespace}/{pod.name}")
        self.outcomes.continued(RUN, qos, FailureReason.TIMEOUT, detail, fields)
        return UNCHANGED

    def pod_created(self, pod: PodAnnounced, *, made: bool) -> None:
        """The result of creating the sandbox."""
        if made:
            self.sandbox_changed(pod.uid)
        else:
            self._notifier.notify(PodFailed(pod.uid))

    def sandbox_changed(self, uid: str) -> None:
        """The runtime created or removed the pod's sandbox: the claim that the pod announced ends
        unless the runtime lists the pod."""
        self._notifier.notify(SnapshotRequest(waits=False, sandbox_uid=uid))

    def create(self, creation: Creation, carried: Callable[[], Carried]) -> Verdict:
        """The answer to a request to create a container. The creation then counts as in progress
        until `created` or `abandoned`. `carried` reads the devices that the request names."""
        request, snapshot = creation.request, self._current_snapshot()
        assumed = self._assumed.all(snapshot)
        late = creation.waiting.late
        if creation.has_cpu_claim is None and (snapshot is None or snapshot.gives_claims):
            creation.has_cpu_claim = carried().has_cpu_claim
        # No container is refused for its place: after the deadline it shares the whole pool.
        answer = cpuset.create(
            request,
            snapshot,
            assumed,
            lambda: not late and carried().has_devices,
            has_cpu_claim=bool(creation.has_cpu_claim),
        )
        visible = decided_devices(request, snapshot)
        waits = isinstance(answer, Wait)
        if (waits or isinstance(visible, Wait)) and not late:
            notification: Notification = request.pod
            if waits and snapshot is not None and cpuset.local_request(request, snapshot):
                creation.announced = True
                notification = ContainerAnnounced(
                    request.pod, request.container_name, request.requested
                )
            creation.waiting.notify(self._notifier.notify, notification)
            return Wait()
        late_reason = ""
        if isinstance(answer, Wait):
            late_reason = answer.reason
            decided = self._fallback(creation, snapshot, assumed, late_reason)
            if isinstance(decided, Refuse):
                return decided
            answer = decided
        device_changes = self._device_changes(creation, carried, visible, snapshot)
        if isinstance(device_changes, Refuse):
            return device_changes
        changes = self._assume(creation, answer, snapshot)
        if device_changes != UNCHANGED:
            changes = with_device_changes(changes, device_changes)
        self._append([_admission_record(creation, changes, late_reason)])
        return changes

    def unhooked(
        self, hook: str, creation: Creation | None, reason: str, detail: str
    ) -> Unread | Refuse | None:
        """The answer to a request that can't be read, whose hook failed, or that can't wait any
        longer. `creation` is None if the request was not read. A request with unknown content
        (_UNREAD) fails if it could take CPUs or devices that a pod owns; otherwise the failure
        policy decides. Returns Unread for a creation that continues: the caller passes it to
        `created` with the result; None for another request that continues unchanged."""
        class_, title = None, "a container whose request could not be read"
        fields: Mapping[str, str] = {}
        if creation is not None:
            fields = creation.fields
            classes = (creation.qos, DEVICES) if creation.allocated else creation.classes
            class_, title = self.outcomes.strictest(hook, *classes), creation.pod_title
            if creation.announced:
                self._notifier.notify(creation.failed())
            if creation.assumed is not None:
                self._assumed.failed(creation.assumed)
        why = f"{title}: {detail}"
        if (
            reason in _UNREAD
            and hook in (CREATE, UPDATE)
            and (owned := _owned(self._current_snapshot()))
        ):
            why = f"{why}; it could take {owned}"
            self.outcomes.refused(hook, class_, reason, why, fields)
        elif not self.outcomes.fails(hook, class_, reason, why, fields):
            self._append([_unhooked_record(hook, creation, reason, why, refused=False)])
            return (
                Unread(self._assumed.assume(AssumedContainer("", title, None)))
                if hook == CREATE
                else None
            )
        self._append([_unhooked_record(hook, creation, reason, why, refused=True)])
        return Refuse(_CODES.get(reason, Code.INTERNAL), f"{hook}: {why}")

    def created(self, creation: Creation | Unread, container_id: str) -> None:
        """The result of a creation. `container_id` is "" if no container was created, or if its id
        is unknown."""
        if isinstance(creation, Creation) and container_id:
            self._keep_name(container_id, creation)
        if creation.assumed is None:
            return
        if container_id:
            self._assumed.answered(creation.assumed, container_id)
        else:
            self._assumed.failed(creation.assumed)
        notification: Notification = SnapshotRequest()
        if isinstance(creation, Creation):
            notification = creation.failed()
            if container_id:
                notification = Created(container_id, creation.request.requested, creation.kept)
        self._notifier.notify(notification)

    def abandoned(self, creation: Creation) -> None:
        """The caller cancelled a creation that waited. No container is assumed, but the agent may
        reserve CPUs for it."""
        if creation.announced:
            self._notifier.notify(creation.failed())

    def creations_missed(self) -> None:
        """Containers may have been created without a hook. Until the agent's next pass they may
        hold any CPU."""
        title = "a container that was created without a hook"
        self._assumed.failed(self._assumed.assume(AssumedContainer("", title, None)))
        self._notifier.notify(SnapshotRequest())

    def start(self) -> int:
        """A container is being started; the number identifies the start in `started`."""
        return self._assumed.start(self._current_snapshot())

    def started(self, number: int) -> None:
        """The start has ended, with or without success."""
        if self._assumed.started(number, self._snapshots.current()):
            self.report_change()

    def removed(self, container_id: str) -> None:
        """The container was removed, and holds no CPUs."""
        self._names.pop(container_id, None)
        self._assumed.removed(container_id)

    def report_change(self) -> None:
        """Notifies the agent of a change, which starts a pass. No call waits for that pass."""
        self._notifier.notify(SnapshotRequest(waits=False))

    def update(self, update: Update) -> Verdict:
        """The answer to a request to update a container."""
        request, snapshot = update.request, self._current_snapshot()
        answer = cpuset.update(request, snapshot, self._assumed.of(request.container_id))
        if isinstance(answer, Wait):
            if not update.waiting.late:
                update.waiting.notify(self._notifier.notify, SnapshotRequest())
                return Wait()
            waited = f"container {request.container_id}: {answer.reason}"
            if self.outcomes.fails(UPDATE, None, FailureReason.TIMEOUT, waited):
                record = _unhooked_record(UPDATE, None, FailureReason.TIMEOUT, waited, refused=True)
                self._append([self._with_name(record, request)])
                return Refuse(Code.UNAVAILABLE, waited)
            answer = cpuset.without_owners(request, snapshot)
        changes = UNCHANGED if isinstance(answer, Wait) else cpuset.changes(request, answer)
        if changes != UNCHANGED:
            record = self._with_name(Record(event=AuditEvent.UPDATE_ADMITTED), request)
            message = f"container {request.container_id}"
            self._append([_with_changes(record, request.requested, changes, message)])
        return changes

    def updated(self, update: Update, *, may_be_of_agent: bool = False) -> None:
        """The runtime made the update. `may_be_of_agent`: this frontend also gets the updates
        that the agent makes. An update with the agent's CPU shares counts as one of them, and not
        as a kubelet's request."""
        request, snapshot = update.request, self._snapshots.current()
        if snapshot is None:
            return
        wanted = snapshot.containers.get(request.container_id) if may_be_of_agent else None
        if wanted is not None and wanted.resources.shares == request.requested.shares:
            return
        if snapshot.cpu_policy != "none" and request.requested.shares:
            self._notifier.notify(Resized(request.container_id, request.requested))

    def _keep_name(self, container_id: str, creation: Creation) -> None:
        """For the audit records of the container's updates: these requests have only its id."""
        pod = creation.request.pod
        if len(self._names) >= MAX_NAMES:
            del self._names[next(iter(self._names))]
        self._names[container_id] = ContainerName(
            pod.namespace, pod.name, pod.uid, creation.request.container_name
        )

    def _with_name(self, record: Record, request: UpdateContainer) -> Record:
        name = request.name or self._names.get(request.container_id)
        if name is None:
            return record
        return msgspec.structs.replace(record, **msgspec.structs.asdict(name))

    def _assume(
        self, creation: Creation, answer: Keep | Override, snapshot: Snapshot | None
    ) -> Changes:
        """Assumes the container. Returns the changes of its CPUs and limits."""
        request = creation.request
        given = answer.wanted if isinstance(answer, Override) else NOTHING
        cpus = requested_cpus(request.requested.cpuset if given.cpuset is None else given.cpuset)
        title = f"a new container of {creation.pod_title}"
        creation.assumed = self._assumed.assume(
            AssumedContainer(request.pod.uid, title, cpus, given)
        )
        cpus_folder = ""
        if snapshot is not None and cpuset.reads_cpus(request, snapshot, given):
            folder = notice.folder(request.pod.uid, request.container_name)
            path = f"{self._state_dir}/{folder}"
            # Some runtimes can't mount a folder that is missing, because the agent could not write.
            cpus_folder = path if os.path.isdir(path) else ""
        changes = cpuset.changes(request, answer, cpus_folder)
        creation.kept = changes.resources.unset
        return changes

    def _refuse(self, creation: Creation, why: str) -> Refuse:
        if creation.announced:
            self._notifier.notify(creation.failed())
        record = _record(creation, AuditEvent.CONTAINER_REFUSED)
        self._append([msgspec.structs.replace(record, message=why)])
        return Refuse(Code.UNAVAILABLE, why)

    def _device_changes(
        self,
        creation: Creation,
        carried: Callable[[], Carried],
        visible: Visibility | Wait | None,
        snapshot: Snapshot | None,
    ) -> Changes | Refuse:
        """The changes for the devices that the container sees. `visible`: the agent's decision
        (`decided_devices`)."""
        if visible is None:
            return UNCHANGED
        from agent.hooks.visibility import visible_devices  # not on a node without devices

        node = snapshot.devices if snapshot is not None else None
        changes = visible_devices(creation, carried, visible, node, self._settable, self.outcomes)
        return self._refuse(creation, changes) if isinstance(changes, str) else changes

    def _fallback(
        self,
        creation: Creation,
        snapshot: Snapshot | None,
        assumed: Collection[AssumedContainer],
        reason: str,
    ) -> Keep | Override | Refuse:
        """The answer after the deadline. `reason`: why the creation waited until then."""
        if snapshot is not None and cpuset.local_request(creation.request, snapshot):
            creation.qos = QoS.LSR
        waited = f"{creation.pod_title}: no CPUs after {creation.waiting.timeout_seconds:g} s"
        why, fields = f"{waited}: {reason}", creation.fields
        class_ = self.outcomes.strictest(CREATE, *creation.classes)
        if self.outcomes.fails(CREATE, class_, FailureReason.TIMEOUT, why, fields):
            return self._refuse(creation, why)
        answer = cpuset.fallback(creation.request, snapshot, assumed)
        if isinstance(answer, Wait):
            why = f"{waited}: {answer.reason}"
            self.outcomes.refused(CREATE, creation.qos, FailureReason.NO_CPU, why, fields)
            return self._refuse(creation, why)
        return answer

    def _current_snapshot(self) -> Snapshot | None:
        """The snapshot. The assumed containers that its pass has seen are dropped."""
        snapshot = self._snapshots.current()
        if snapshot is not None:
            self._assumed.seen(snapshot)
        return snapshot


def _record(creation: Creation, event: str) -> Record:
    pod = creation.request.pod
    return Record(
        event=event,
        namespace=pod.namespace,
        pod=pod.name,
        uid=pod.uid,
        container=creation.request.container_name,
    )


def _admission_record(creation: Creation, changes: Changes, late_reason: str) -> Record:
    """`late_reason`: why the agent had not decided at the deadline, "" if it had."""
    record = _record(creation, AuditEvent.CONTAINER_ADMITTED)
    record = _with_changes(record, creation.request.requested, changes, late_reason)
    return msgspec.structs.replace(record, reason=FailureReason.TIMEOUT) if late_reason else record


def _with_changes(
    record: Record, requested: LinuxResources, changes: Changes, message: str
) -> Record:
    """Adds the CPUs, and only the names of the other changed fields: their values may be
    secrets."""
    others = [name for name in changes.resources.names if name != "cpuset"]
    others += [name for name in FIELDS if getattr(changes, name)]
    also = f"also changed: {', '.join(others)}" if others else ""
    return msgspec.structs.replace(
        record,
        field="cpus",
        before=requested.cpuset or "",
        after=changes.resources.over(requested).cpuset or "",
        message="; ".join(each for each in (message, also) if each),
    )


def _unhooked_record(
    hook: str, creation: Creation | None, reason: str, why: str, *, refused: bool
) -> Record:
    """The record of a request that continued or failed without a decision. `why` names the pod or
    the container."""
    event = AuditEvent.CONTAINER_REFUSED if refused else AuditEvent.CONTAINER_ADMITTED
    if hook == UPDATE:
        event = AuditEvent.UPDATE_REFUSED if refused else AuditEvent.UPDATE_ADMITTED
    record = _record(creation, event) if creation else Record(event=event)
    return msgspec.structs.replace(record, reason=reason, message=f"{hook}: {why}")


def decided_devices(
    request: CreateContainer, snapshot: Snapshot | None
) -> Visibility | Wait | None:
    """The agent's decision about the container's devices; None if the snapshot has no decisions
    about devices, or the container is excluded from them."""
    pod = request.pod
    if snapshot is None:
        allocated = DEVICE_ALLOCATED in pod.annotations
        return Wait("the agent has written no snapshot") if allocated else None
    if snapshot.devices is None:
        return None
    if excludes(snapshot.excluded, pod.namespace, pod.name, request.container_name):
        return None
    known = snapshot.pods.get(pod.uid)
    visible = known.of(request.container_name).visible if known else None
    if visible is not None:
        return visible
    if DEVICE_ALLOCATED in pod.annotations:
        return Wait("the agent has not decided about this pod's devices")
    return _UNDECIDED if snapshot.devices.checks_all else None


def _owned(snapshot: Snapshot | None) -> str:
    """CPUs or a device that one pod owns, for an error message; "" when no pod owns any."""
    if snapshot is None:
        return ""
    for owner in snapshot.owners:
        if owner.claimed:
            return f"CPUs {owner.claimed} of pod {owner.title}"
    if snapshot.devices is not None and snapshot.devices.held:
        return f"device {snapshot.devices.held[0].uuid}"
    return ""
