"""The request for a pod or container as a value, from its arrival to the reply, for every frontend.

`CreateContainer` and `UpdateContainer` have what decisions read of the request of a runtime's
client. `Changes` is the answer of the hooks. `SandboxCreation`, `Creation` and `Update` keep the
state of one request while it is held and until its result is known. `Outcomes` counts and logs
requests that the hooks could not decide.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.host.log_once import CountedWarnings, about
from agent.model.devices.visibility import Mount
from agent.model.linux_resources import NO_RESOURCES, LinuxResources
from agent.model.notifications import (
    ContainerFailed,
    Notification,
    PodAnnounced,
    SnapshotRequest,
)
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.pods import Pod, pod_metadata, pod_uid
from agent.model.pod.qos import kube_class
from agent.model.settings.frontends import DEVICES, FailurePolicies
from agent.model.verdict import Refuse, Wait


class CreateContainer(msgspec.Struct, frozen=True):
    """A request to create a container."""

    pod: PodAnnounced
    container_name: str
    requested: LinuxResources = NO_RESOURCES


class ContainerName(msgspec.Struct, frozen=True):
    """The names of a container and its pod."""

    namespace: str
    pod: str
    uid: str
    container: str


class UpdateContainer(msgspec.Struct, frozen=True):
    """A request to update a container. `name` None: it has only the id, as in the CRI."""

    container_id: str
    requested: LinuxResources = NO_RESOURCES
    name: ContainerName | None = None


def announced_pod(
    uid: str,
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    cgroup_parent: str,
) -> PodAnnounced:
    """The announcement of a pod, with only the labels and annotations that decisions read."""
    read = pod_metadata(labels, annotations)
    return PodAnnounced(
        uid=pod_uid(uid, namespace, name),
        namespace=namespace,
        name=name,
        labels=read.labels,
        annotations=read.annotations,
        cgroup_parent=cgroup_parent,
    )


def announced(pod: PodAnnounced, created_at: int) -> Pod:
    """The pod for decisions, before the runtime has it."""
    return Pod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        labels=pod.labels,
        annotations=pod.annotations,
        kube_class=kube_class(pod.cgroup_parent),
        created_at=created_at,
    )


FIELDS: Final = (
    "mounts",
    "environment",
    "cdi_devices",
    "nodes",
    "annotations",
    "removed_mounts",
    "removed_cdi_devices",
    "removed_nodes",
)
"""The fields of Changes about devices."""


class CarriedNode(msgspec.Struct, frozen=True):
    """A device node in a request; `major` and `minor` are -1 when it does not name them."""

    host_path: str
    container_path: str
    permissions: str = "rw"
    major: int = -1
    minor: int = -1


class Changes(msgspec.Struct, frozen=True):
    """The changes of one request, which keeps its values where a field is None or empty. The fields
    from `mounts` on apply to a creation only. Their entries are added to those of the request; a
    variable or an annotation that the request has gets the new value. An annotation with the value
    None is removed, and so are the entries in the `removed_` fields (mounts and nodes by their path
    in the container)."""

    resources: LinuxResources = NO_RESOURCES
    mounts: tuple[Mount, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    nodes: tuple[CarriedNode, ...] = ()
    annotations: tuple[tuple[str, str | None], ...] = ()
    removed_mounts: tuple[str, ...] = ()
    removed_cdi_devices: tuple[str, ...] = ()
    removed_nodes: tuple[CarriedNode, ...] = ()


UNCHANGED: Final = Changes()
Verdict = Changes | Wait | Refuse
"""The answer to a request to create or update a container, for every frontend."""


class DeviceFields(msgspec.Struct, frozen=True):
    """The fields of Changes about devices that a frontend can change. `numbers`: it adds device
    nodes by their major and minor numbers."""

    fields: frozenset[str] = frozenset(FIELDS)
    numbers: bool = False


def not_settable(wanted: Changes, settable: DeviceFields) -> tuple[str, ...]:
    """The wanted changes of devices that the frontend can't make, by field."""
    names = tuple(name for name in FIELDS if name not in settable.fields and getattr(wanted, name))
    if settable.numbers and any(node.major < 0 for node in wanted.nodes):
        return (*names, "nodes without a number")
    return names


def with_device_changes(changes: Changes, device_changes: Changes) -> Changes:
    """The changes of CPUs and limits together with those of devices."""
    fields = {name: getattr(device_changes, name) for name in FIELDS}
    fields["mounts"] = (*changes.mounts, *device_changes.mounts)
    fields["environment"] = (*changes.environment, *device_changes.environment)
    return msgspec.structs.replace(changes, **fields)


_NOTIFY_AGAIN_SECONDS: Final = 0.1
_LOG_AGAIN_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class Waiting:
    """The time for which a request may be held: `timeout_seconds` from `started` (monotonic
    seconds) on."""

    def __init__(self, started: float, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._deadline = started + timeout_seconds
        self._notified_at = 0.0

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._deadline

    def notify(self, send: Callable[[Notification], bool], notification: Notification) -> None:
        """Sends the notification, but not at every retry of the request."""
        now = time.monotonic()
        if now - self._notified_at >= _NOTIFY_AGAIN_SECONDS:
            self._notified_at = now
            send(notification)


class SandboxCreation:
    """One sandbox, from the request to create it to the result. `notified`: whether the
    notification of the agent was delivered, None before it was sent."""

    def __init__(self, pod: PodAnnounced, waiting: Waiting) -> None:
        self.pod = pod
        self.waiting = waiting
        self.notified: bool | None = None


class Creation:
    """One container, from the request to create it to the result."""

    def __init__(self, request: CreateContainer, waiting: Waiting) -> None:
        self.request = request
        self.waiting = waiting
        self.pod_title = f"pod {request.pod.namespace}/{request.pod.name}"
        self.qos = announced(request.pod, 0).qos
        """For the failure policy: also LSR if a node-local policy gives the container CPUs."""
        self.assumed: int | None = None
        """The container's number in AssumedContainers."""
        self.kept: tuple[str, ...] = ()
        self.announced = False
        """Whether the agent may reserve CPUs for the container."""
        self.has_cpu_claim: bool | None = None
        """Whether it has CPUs of a ResourceClaim; None before the request is read for them."""

    @property
    def fields(self) -> Mapping[str, str]:
        """For log records."""
        pod = self.request.pod
        return about(f"{pod.namespace}/{pod.name}", self.request.container_name)

    @property
    def classes(self) -> tuple[str, ...]:
        """For the failure policy of its CPUs. Those of a ResourceClaim are devices."""
        return (self.qos, DEVICES) if self.has_cpu_claim else (self.qos,)

    @property
    def allocated(self) -> bool:
        """Whether a scheduler allocated devices to its pod."""
        return DEVICE_ALLOCATED in self.request.pod.annotations

    def failed(self) -> Notification:
        """The agent's notification if the container is not created."""
        pod = self.request.pod
        return (
            ContainerFailed(pod.uid, self.request.container_name)
            if self.announced
            else SnapshotRequest()
        )


class Update:
    """One request to update a container, until its reply."""

    def __init__(self, request: UpdateContainer, waiting: Waiting) -> None:
        self.request = request
        self.waiting = waiting


class Unread:
    """A creation that continues although its request could not be read; `assumed`: the number of
    the container among the assumed ones; it may hold any CPU."""

    def __init__(self, assumed: int) -> None:
        self.assumed = assumed


Key = tuple[str, ...]
"""Hook, class ("" for an unknown pod), reason."""


class Outcomes:
    """Counts and logs the requests that fail, or continue without a decision. The reasons are
    those of FailureReason. A class is a QoS class or `devices`."""

    def __init__(self, policies: FailurePolicies) -> None:
        self._policies = policies
        self.failed_open: Counter[Key] = Counter()
        self.failed: Counter[Key] = Counter()
        self._warnings = CountedWarnings(log, _LOG_AGAIN_SECONDS)

    def fails(
        self,
        hook: str,
        class_: str | None,
        reason: str,
        detail: str,
        fields: Mapping[str, str] = {},
    ) -> bool:
        """Whether the call fails by the policy of its hook and class. `fields`: of the log record,
        without the reason."""
        if self._policies.fails(hook, class_):
            self.refused(hook, class_, reason, detail, fields)
            return True
        self.continued(hook, class_, reason, detail, fields)
        return False

    def strictest(self, hook: str, *classes: str) -> str:
        """The first class of a call whose policy fails the call, else its first class."""
        return next((each for each in classes if self._policies.fails(hook, each)), classes[0])

    def refused(
        self,
        hook: str,
        class_: str | None,
        reason: str,
        detail: str,
        fields: Mapping[str, str] = {},
    ) -> None:
        """The call fails under every policy."""
        self._note(self.failed, hook, class_, reason, f"fails: {detail}", fields)

    def continued(
        self,
        hook: str,
        class_: str | None,
        reason: str,
        detail: str,
        fields: Mapping[str, str] = {},
    ) -> None:
        """The call continues under every policy."""
        self._note(self.failed_open, hook, class_, reason, f"continues: {detail}", fields)

    def _note(
        self,
        counts: Counter[Key],
        hook: str,
        class_: str | None,
        reason: str,
        text: str,
        fields: Mapping[str, str],
    ) -> None:
        key = hook, str(class_ or ""), reason
        self._warnings.add(counts, key, f"{hook} {text}", {**fields, "reason": reason})
