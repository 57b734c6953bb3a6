"""A simulated node for several agents: machine, cgroups, runtime, state folder, changing pods."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from agent.cri.client import RuntimeContainer, Sandbox, VerboseStatus
from agent.model import notifications
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.notifications import Notification, PodAnnounced
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.pods import ContainerState
from agent.model.pod.qos import QOS_LABEL
from agent.model.snapshot import Snapshot, SnapshotError
from tests.faults.cgroups import Cgroups, PlainCgroups, RealCgroups
from tests.faults.runtime import SimulatedRuntime
from tests.fixtures import trees

CLASSES = ("LSE", "LSR", "LS", "BE", "")
MAX_PODS = 12
MAX_CONTAINERS = 2
_PARENTS = {"BE": "/kubepods/besteffort"}


class Container(msgspec.Struct):
    """`group`: None until the container is started."""

    id: str
    group: str | None = None


class Pod(msgspec.Struct):
    """`claim`: the CPUs in the annotation, any text; "" for none."""

    uid: str
    qos: str
    claim: str
    parent: str
    containers: list[Container] = []

    @property
    def sandbox_id(self) -> str:
        return f"s-{self.uid}"

    @property
    def sandbox_group(self) -> str:
        return f"{self.parent}/{self.sandbox_id}"

    @property
    def qos_class(self) -> str:
        """From the label, or from the cgroup without a label."""
        return self.qos or ("BE" if "/besteffort/" in self.parent else "LS")

    @property
    def running(self) -> list[str]:
        """The groups of the running containers."""
        return [each.group for each in self.containers if each.group is not None]


def large_machine(folder: Path, version: int) -> SimulatedNode:
    """A node with two sockets of 4 cores with 2 threads; the cgroups are plain files."""
    root = trees.write(str(folder / "machine"), trees.machine(2, 1, 1, 4, 2))
    cpus = CpuSet(range(16))
    return SimulatedNode(folder, root, PlainCgroups(folder / "cgroup", version, cpus), cpus)


def this_machine(folder: Path, name: str) -> SimulatedNode:
    """A node with real cgroups below `/name`. Pods claim only the first 16 CPUs."""
    groups = RealCgroups(name)
    return SimulatedNode(folder, "/", groups, groups.cpus)


class SimulatedNode:
    """`changed_uids`: pods whose claim or class has changed. `originals`: by group, the values that
    a restore may write. No pod claims the last CPU, so that the pools are never empty."""

    def __init__(self, folder: Path, root: str, cgroups: Cgroups, cpus: CpuSet) -> None:
        self.cgroups = cgroups
        self.state = folder / "state"
        self.state.mkdir()
        (folder / "kubelet").mkdir()
        self.socket_path = folder / "cri.sock"
        self.runtime = SimulatedRuntime(self.socket_path, self._apply_update)
        self.pods: dict[str, Pod] = {}
        self.changed_uids: set[str] = set()
        self.originals: dict[str, set[CpuSet]] = {}
        self._claimable = sorted(cpus)[:-1][:15]
        self._absent_cpu = max(cpus) + 80
        self._created = 0
        self._notifier = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        common = (f"--state-dir={self.state}", f"--root={root}")
        common += (f"--cgroup-root={cgroups.root}", f"--runtime-endpoint=unix://{self.socket_path}")
        self.restore_words = ("restore", *common)
        self.agent_words = (
            *("agent", "--standalone", "--http=", "--node-name=n", "--period-seconds=60"),
            *common,
            f"--kubelet-dir={folder / 'kubelet'}",
        )
        for group in cgroups.groups():
            self.originals[group] = {cgroups.own(group)}
        for group in ("/kubepods", "/kubepods/burstable", "/kubepods/besteffort"):
            self._make(f"{cgroups.top}{group}")

    def close(self) -> None:
        self._notifier.close()
        self.runtime.close()
        self.cgroups.close()

    def stop_runtime(self) -> None:
        self.runtime.close()

    def start_runtime(self) -> None:
        """Starts a runtime with the containers of the last one."""
        before, self.runtime = self.runtime, SimulatedRuntime(self.socket_path, self._apply_update)
        self.runtime.take_over(before)

    def snapshot(self) -> Snapshot | None:
        """The agent's last snapshot; None if there is none that can be read."""
        try:
            return snapshots.decode((self.state / "snapshot.json").read_bytes())
        except (FileNotFoundError, SnapshotError):
            return None

    def notify(self, notification: Notification) -> bool:
        """Sends a notification. Returns whether the agent received it."""
        try:
            self._notifier.sendto(
                notifications.encode(notification), str(self.state / notifications.SOCKET)
            )
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            return False
        return True

    def wait_for_pass(self, since: int, runs: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Waits for the snapshot of a pass that began after `since`. Returns False if the agent
        does not run."""
        deadline = time.monotonic() + seconds
        while True:
            snapshot = self.snapshot()
            if snapshot is not None and snapshot.listed_at > since:
                return True
            if not runs():
                return False
            if time.monotonic() > deadline:
                raise TimeoutError("the agent has no pass")
            time.sleep(0.001)

    # Changes of pods.

    def churn(self, rng: random.Random) -> None:
        """Makes one random change."""
        changes = [self.create_some_pod] * (3 if len(self.pods) < MAX_PODS // 2 else 1)
        if len(self.pods) >= MAX_PODS:
            changes = []
        if self.pods:
            changes += [
                self.create_some_container,
                self.create_some_container,
                self.start_some_container,
                self.start_some_container,
            ]
            changes += [
                self.end_some_container,
                self.delete_some_pod,
                self.change_some_claim,
                self.change_some_class,
            ]
        rng.choice(changes)(rng)

    def create_some_pod(self, rng: random.Random) -> None:
        qos = rng.choice(CLASSES)
        claim = self._some_claim(rng) if qos in ("LSE", "LSR") or rng.random() < 0.1 else ""
        pod = self.add_pod(qos, claim, announced=rng.random() < 0.3)
        if rng.random() < 0.8:
            self.create_container(pod, start=True)

    def add_pod(
        self,
        qos: str = "",
        claim: str = "",
        *,
        announced: bool = False,
        guaranteed: bool = False,
    ) -> Pod:
        """Adds a pod with a sandbox and no container."""
        self._created += 1
        above = "/kubepods" if guaranteed else _PARENTS.get(qos, "/kubepods/burstable")
        parent = f"{self.cgroups.top}{above}/podp{self._created}"
        pod = Pod(f"p{self._created}", qos, claim, parent)
        self._make(parent)
        if announced:
            sandbox = self._listed(pod)
            self.notify(
                PodAnnounced(pod.uid, "ns", pod.uid, sandbox.labels, sandbox.annotations, parent)
            )
        self._make(pod.sandbox_group)
        self.originals[pod.sandbox_group] |= self.originals[parent]
        with self.runtime.lock:
            self.runtime.statuses[pod.sandbox_id] = VerboseStatus(
                cgroup_parent=parent, cgroups_path=pod.sandbox_group
            )
            self.runtime.sandboxes[pod.sandbox_id] = self._listed(pod)
        self.pods[pod.uid] = pod
        self.changed_uids.add(pod.uid)
        return pod

    def delete_some_pod(self, rng: random.Random) -> None:
        pod = rng.choice(list(self.pods.values()))
        for each in list(pod.containers):
            self._end(pod, each)
        with self.runtime.lock:
            del self.runtime.sandboxes[pod.sandbox_id]
            del self.runtime.statuses[pod.sandbox_id]
        self.cgroups.remove(pod.sandbox_group)
        self.cgroups.remove(pod.parent)
        del self.pods[pod.uid]

    def create_some_container(self, rng: random.Random) -> None:
        pod = rng.choice(list(self.pods.values()))
        if len(pod.containers) < MAX_CONTAINERS:
            self.create_container(pod, start=rng.random() < 0.5)

    def start_some_container(self, rng: random.Random) -> None:
        waiting = [
            (pod, each)
            for pod in self.pods.values()
            for each in pod.containers
            if each.group is None
        ]
        if waiting:
            self._start(*rng.choice(waiting))

    def end_some_container(self, rng: random.Random) -> None:
        pod = rng.choice(list(self.pods.values()))
        if pod.containers:
            self._end(pod, rng.choice(pod.containers))

    def change_some_claim(self, rng: random.Random) -> None:
        pod = rng.choice(list(self.pods.values()))
        pod.claim = self._some_claim(rng) if rng.random() < 0.7 else ""
        self.update_sandbox(pod)

    def change_some_class(self, rng: random.Random) -> None:
        pod = rng.choice(list(self.pods.values()))
        pod.qos = rng.choice(CLASSES)
        self.update_sandbox(pod)

    def update_sandbox(self, pod: Pod) -> None:
        self.changed_uids.add(pod.uid)
        with self.runtime.lock:
            self.runtime.sandboxes[pod.sandbox_id] = self._listed(pod)

    def _some_claim(self, rng: random.Random) -> str:
        """A random claim: a few CPUs, sometimes an invalid claim."""
        if rng.random() < 0.2:
            wide = str(CpuSet(self._claimable))
            return rng.choice([wide, f"0-{self._absent_cpu}", str(self._absent_cpu), "x"])
        most = max(1, len(self._claimable) // 5)
        return str(CpuSet(rng.sample(self._claimable, rng.randint(1, most))))

    def _listed(self, pod: Pod) -> Sandbox:
        return Sandbox(
            id=pod.sandbox_id,
            uid=pod.uid,
            namespace="ns",
            name=pod.uid,
            ready=True,
            created_at=int(pod.uid[1:]),
            labels={QOS_LABEL: pod.qos} if pod.qos else {},
            annotations=({RESOURCE_STATUS: json.dumps({"cpuset": pod.claim})} if pod.claim else {}),
        )

    def create_container(self, pod: Pod, *, start: bool) -> Container:
        self._created += 1
        container = Container(f"c-{pod.uid}-{self._created}")
        pod.containers.append(container)
        listed = RuntimeContainer(
            container.id, pod.sandbox_id, f"n{self._created}", ContainerState.CREATED
        )
        with self.runtime.lock:
            self.runtime.containers[container.id] = listed
            self.runtime.statuses[container.id] = VerboseStatus(
                cgroups_path=f"{pod.parent}/{container.id}"
            )
        if start:
            self._start(pod, container)
        return container

    def _start(self, pod: Pod, container: Container) -> None:
        """Starts a container on the CPUs of its status, which the agent may have updated."""
        group = f"{pod.parent}/{container.id}"
        with self.runtime.lock:
            prepared = self.runtime.statuses[container.id].resources.cpuset
            self._make(group, CpuSet.parse(prepared) if prepared else None, process=True)
            self.runtime.containers[container.id] = msgspec.structs.replace(
                self.runtime.containers[container.id], state=ContainerState.RUNNING
            )
        container.group = group

    def _end(self, pod: Pod, container: Container) -> None:
        with self.runtime.lock:
            del self.runtime.containers[container.id]
            del self.runtime.statuses[container.id]
        if container.group is not None:
            self.cgroups.remove(container.group)
        pod.containers.remove(container)

    def _apply_update(self, group: str, cpus: CpuSet) -> None:
        """Writes CPUs as the runtime does on an update. A new value is one more original."""
        with contextlib.suppress(FileNotFoundError):
            if self.cgroups.own(group) != cpus:
                self.originals[group].add(cpus)
                self.cgroups.set(group, cpus)

    def _make(self, group: str, cpus: CpuSet | None = None, *, process: bool = False) -> None:
        own = self.cgroups.make(group, cpus, process=process)
        self.originals[group] = {own}
        above = group.rpartition("/")[0]
        if cpus is not None:  # created on the CPUs of Topolet: the original is that of the parent
            self.originals[group].add(
                EMPTY if self.cgroups.version == 2 else self.cgroups.own(above)
            )
        if self.cgroups.version == 2 and process:  # some kernels refuse an empty value
            self.originals[group].add(self.cgroups.effective(above))
