"""Admission with a snapshot, notifications and a clock in memory, and requests as values."""

from __future__ import annotations

import time

import msgspec
import pytest

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.carriers import Carried
from agent.hooks.cpuset import AssumedContainers
from agent.hooks.requests import (
    CreateContainer,
    Creation,
    DeviceFields,
    SandboxCreation,
    Update,
    UpdateContainer,
    Verdict,
    Waiting,
)
from agent.model.audit import Record
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import Notification, PodAnnounced
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from agent.model.settings import frontends as failure_policy
from agent.model.settings.frontends import ProxySettings
from agent.model.snapshot import Snapshot
from tests.hooks.snapshots import BOOT

DEFAULT_POLICY = ProxySettings().hook_failure_policy
IGNORE = "*=ignore"
HOLD_SECONDS = 60.0


class _Snapshots(SnapshotFile):
    def __init__(self) -> None:
        super().__init__("/nowhere/snapshot.json", BOOT)
        self.snapshot: Snapshot | None = None

    def current(self) -> Snapshot | None:
        return self.snapshot


class _Notifier(Notifier):
    def __init__(self) -> None:
        self.received: list[Notification] = []
        self.delivers = True
        self.sent = self.undelivered = 0

    def notify(self, notification: Notification) -> bool:
        if self.delivers:
            self.received.append(notification)
        return self.delivers


class AdmissionHarness:
    """`records`: those of the audit trail."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        policy: str = DEFAULT_POLICY,
        state_dir: str = "/nowhere",
    ) -> None:
        self._now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self._now)
        self.snapshots = _Snapshots()
        self.notifier = _Notifier()
        self.assumed = AssumedContainers()
        self.records: list[Record] = []
        self.admission = Admission(
            self.snapshots,
            self.notifier,
            self.assumed,
            failure_policy.parse_policies(policy),
            state_dir,
            DeviceFields(),
            self.records.extend,
        )
        self.outcomes = self.admission.outcomes

    def publish(self, snapshot: Snapshot | None) -> None:
        """The agent publishes the snapshot of a pass that begins now; None: its file is away."""
        if snapshot is not None:
            snapshot = msgspec.structs.replace(snapshot, listed_at=time.monotonic_ns())
        self.snapshots.snapshot = snapshot

    def publish_earlier(self, snapshot: Snapshot) -> None:
        """The agent publishes the snapshot of a pass that began before everything here."""
        self.snapshots.snapshot = msgspec.structs.replace(snapshot, listed_at=0)

    def notifications(self) -> list[Notification]:
        """The notifications since the last call."""
        received, self.notifier.received = self.notifier.received, []
        return received

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def waiting(self) -> Waiting:
        """A request that is held for HOLD_SECONDS at most, from now on."""
        return Waiting(self._now, HOLD_SECONDS)

    def sandbox(self, announced: PodAnnounced) -> SandboxCreation:
        return SandboxCreation(announced, self.waiting())

    def creation(self, request: CreateContainer) -> Creation:
        return Creation(request, self.waiting())

    def update_of(
        self, container_id: str, cpus: str | None = None, shares: int | None = None
    ) -> Update:
        """A request without the names of the container, as in the CRI."""
        requested = LinuxResources(cpus, shares=shares)
        return Update(UpdateContainer(container_id, requested), self.waiting())

    def create(self, creation: Creation, carried: Carried = Carried()) -> Verdict:  # noqa: B008
        return self.admission.create(creation, lambda: carried)

    def created(self, request: CreateContainer, container_id: str) -> None:
        """The container is created without a wait."""
        creation = self.creation(request)
        self.create(creation)
        self.admission.created(creation, container_id)

    def update(self, container_id: str, cpus: str | None = None) -> Verdict:
        return self.admission.update(self.update_of(container_id, cpus))


def pod(
    uid: str, qos: str = "", claim: str = "", kube: str | None = None, *, allocated: bool = False
) -> PodAnnounced:
    """`claim`: a cpuset, or a whole resource-status. `kube`: the cgroup of its QoS class, "" for
    Guaranteed; None: BestEffort for a BE pod, Burstable for others. `allocated`: a scheduler
    allocated devices to it."""
    annotations = {}
    if claim:
        status = claim if claim.startswith("{") else f'{{"cpuset": "{claim}"}}'
        annotations[RESOURCE_STATUS] = status
    if allocated:
        annotations[DEVICE_ALLOCATED] = "{}"
    if kube is None:
        kube = "/besteffort" if qos == "BE" else "/burstable"
    labels = {QOS_LABEL: qos} if qos else {}
    return PodAnnounced(uid, "ns", uid, labels, annotations, f"/kubepods{kube}/pod{uid}")


def container(
    uid: str,
    qos: str = "",
    claim: str = "",
    cpus: str | None = None,
    shares: int = 512,
    kube: str | None = None,
) -> CreateContainer:
    """Container `main` of such a pod. `cpus`: the cpuset of its request."""
    requested = LinuxResources(cpus, shares=shares)
    return CreateContainer(pod(uid, qos, claim, kube), "main", requested)
