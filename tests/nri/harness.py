"""The NRI plugin with a real socket to a fake runtime, and a simulated agent."""

from __future__ import annotations

from pathlib import Path

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import AssumedContainers
from agent.host.loop import Loop
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from agent.model.settings import frontends as failure_policy
from agent.model.settings.frontends import Deadlines, NriSettings
from agent.nri import messages
from agent.nri.conflicts import Conflicts
from agent.nri.containers import PERIOD_SECONDS, Containers, Updater
from agent.nri.hooks import NriHooks
from agent.nri.link import PluginLink
from agent.proto import nri_pb2 as pb
from tests.hooks.simulated_agent import SimulatedAgent
from tests.hooks.snapshots import BOOT
from tests.nri.fake import FakeRuntime


def pod(uid: str, qos: str = "", claim: str = "") -> pb.PodSandbox:
    it = pb.PodSandbox(id=f"s-{uid}", uid=uid, namespace="ns", name=uid)
    it.linux.cgroup_parent = f"/kubepods/burstable/pod{uid}"
    if qos:
        it.labels[QOS_LABEL] = qos
    if claim:
        it.annotations[RESOURCE_STATUS] = f'{{"cpuset": "{claim}"}}'
    return it


def container(container_id: str, uid: str, cpus: str = "", shares: int = 512) -> pb.Container:
    it = pb.Container(id=container_id, pod_sandbox_id=f"s-{uid}", name="main")
    it.linux.resources.cpu.cpus = cpus
    it.linux.resources.cpu.shares.value = shares
    return it


class PluginHarness(SimulatedAgent):
    """The plugin, a fake runtime and a simulated agent. `others`: the other connected plugins."""

    def __init__(self, folder: Path, hold_seconds: float = 30.0, proc: str = "/proc") -> None:
        self.path = folder / "snapshot.json"
        super().__init__(self.path, folder / "notifications.sock")
        self.loop = Loop()
        self.runtime = FakeRuntime(folder, self.loop)
        self.notifier = Notifier(str(folder / "notifications.sock"))
        self.assumed, self.containers = AssumedContainers(), Containers()
        self.others: tuple[str, ...] = ()
        self.conflicts = Conflicts("10-topolet", lambda: self.others)
        snapshot_file = SnapshotFile(str(self.path), BOOT)
        policies, _ = failure_policy.failure_policies(NriSettings())
        self.admission = Admission(
            snapshot_file, self.notifier, self.assumed, policies, str(folder), messages.SETTABLE
        )
        hooks = NriHooks(
            self.admission,
            Deadlines(hold_seconds),
            snapshot_file,
            self.containers,
            self.conflicts,
        )
        self.link = PluginLink(self.loop, self.runtime.path, "topolet", "10", hooks)
        self.updater = Updater(
            self.loop,
            self.link,
            snapshot_file,
            self.containers,
            self.assumed,
            self.notifier,
            self.conflicts,
            proc,
        )
        self.link.start()
        self.updater.start()

    def begin_create(self, it: pb.Container, of: pb.PodSandbox) -> int:
        return self.runtime.begin("CreateContainer", pb.EventRequest(pod=of, container=it))

    def create(self, it: pb.Container, of: pb.PodSandbox) -> str:
        """Creates a container and returns its CPUs."""
        event = pb.EventRequest(pod=of, container=it)
        reply = self.runtime.call("CreateContainer", event, pb.CreateContainerResponse)
        cpus = reply.adjust.linux.resources.cpu.cpus
        if cpus:
            event.container.linux.resources.cpu.cpus = cpus
        self.runtime.call("PostCreateContainer", event, pb.Empty)
        return event.container.linux.resources.cpu.cpus

    def update(self, it: pb.Container, of: pb.PodSandbox, cpus: str = "", shares: int = 0) -> str:
        """Updates a container and returns its CPUs."""
        event = pb.EventRequest(pod=of, container=it)
        event.linux_resources.cpu.cpus = cpus
        event.linux_resources.cpu.shares.value = shares
        reply = self.runtime.call("UpdateContainer", event, pb.UpdateContainerResponse)
        now = reply.update[0].linux.resources.cpu.cpus if reply.update else cpus
        event.ClearField("linux_resources")
        event.container.linux.resources.cpu.cpus = now
        self.runtime.call("PostUpdateContainer", event, pb.Empty)
        return now

    def end(self, it: pb.Container, of: pb.PodSandbox) -> None:
        event = pb.EventRequest(pod=of, container=it)
        for method in ("StopContainer", "RemoveContainer"):
            self.runtime.call(method, event, pb.Empty)

    def sent_updates(self) -> list[tuple[str, str]]:
        """Container and CPUs of each update that the runtime received since the last call."""
        updates, self.runtime.updates = self.runtime.updates, []
        return [(each.container_id, each.linux.resources.cpu.cpus) for each in updates]

    def run_two_periods(self) -> None:
        """Runs until the updater has checked the snapshot at least twice."""
        passed: list[bool] = []
        self.loop.after(2.5 * PERIOD_SECONDS, lambda: passed.append(True))
        self.runtime.until("two periods", lambda: passed)

    def close(self) -> None:
        self.link.close()
        self.runtime.close()
        super().close()
        self.notifier.close()
        self.loop.close()
