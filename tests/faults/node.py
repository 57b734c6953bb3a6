"""A node that survives its agents: machine, groups, runtime, state folder, and pods that change."""

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
from tests.faults.runtime import PlayedRuntime
from tests.fixtures import trees

CLASSES = ("LSE", "LSR", "LS", "BE", "")
MAX_PODS = 12
MAX_CONTAINERS = 2
_PARENTS = {"BE": "/kubepods/besteffort"}


class Container(msgspec.Struct):
    """`group` is None until it is started."""

    id: str
    group: str | None = None


class Pod(msgspec.Struct):
    """`claim` as in the annotation, any text; "" for none."""

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
        """By its label, otherwise by its cgroup."""
        return self.qos or ("BE" if "/besteffort/" in self.parent else "LS")

    @property
    def running(self) -> list[str]:
        """Groups of its containers."""
        return [each.group for each in self.containers if each.group is not None]


def large_machine(folder: Path, version: int) -> PlayedNode:
    """Two sockets with 4 cores of 2 threads each; the groups are plain files."""
    root = trees.write(str(folder / "machine"), trees.machine(2, 1, 1, 4, 2))
    cpus = CpuSet(range(16))
    return PlayedNode(folder, root, PlainCgroups(folder / "cgroup", version, cpus), cpus)


def this_machine(folder: Path, name: str) -> PlayedNode:
    """Real groups below `/name`; on a large machine only the first 16 CPUs change owners."""
    groups = RealCgroups(name)
    return PlayedNode(folder, "/", groups, groups.cpus)


class PlayedNode:
    """No pod claims its last CPU, so that the pools are never empty.

    `touched`: uids of pods whose claim or class has changed since it was cleared. `originals`: by
    group, the values that a restore may give back.
    """

    def __init__(self, folder: Path, root: str, cgroups: Cgroups, cpus: CpuSet) -> None:
        self.cgroups = cgroups
        self.state = folder / "state"
        self.state.mkdir()
        (folder / "kubelet").mkdir()
        self.socket_path = folder / "cri.sock"
        self.runtime = PlayedRuntime(self.socket_path, self._put_in_force)
        self.pods: dict[str, Pod] = {}
        self.touched: set[str] = set()
        self.originals: dict[str, set[CpuSet]] = {}
        self._claimable = sorted(cpus)[:-1][:15]
        self._beyond = max(cpus) + 80
        self._made = 0
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
        before, self.runtime = self.runtime, PlayedRuntime(self.socket_path, self._put_in_force)
        self.runtime.succeed(before)

    def snapshot(self) -> Snapshot | None:
        """The agent's last snapshot; None if there is none that can be read."""
        try:
            return snapshots.decode((self.state / "snapshot.json").read_bytes())
        except (FileNotFoundError, SnapshotError):
            return None

    def notify(self, notification: Notification) -> bool:
        """Whether the agent received it."""
        try:
            self._notifier.sendto(
                notifications.encode(notification), str(self.state / "doorbell.sock")
            )
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            return False
        return True

    def looked(self, since: int, still: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Waits for a snapshot of a pass that began later; False once `still` returns false."""
        deadline = time.monotonic() + seconds
        while True:
            snapshot = self.snapshot()
            if snapshot is not None and snapshot.listed_at > since:
                return True
            if not still():
                return False
            if time.monotonic() > deadline:
                raise TimeoutError("the agent does not look")
            time.sleep(0.001)

    # Changes of pods.

    def churn(self, choice: random.Random) -> None:
        """One random change."""
        changes = [self.create_pod] * (3 if len(self.pods) < MAX_PODS // 2 else 1)
        if len(self.pods) >= MAX_PODS:
            changes = []
        if self.pods:
            changes += [self.creates, self.creates, self.starts, self.starts]
            changes += [self.ends, self.delete_pod, self.claims_anew, self.changes_class]
        choice.choice(changes)(choice)

    def create_pod(self, choice: random.Random) -> None:
        qos = choice.choice(CLASSES)
        claim = self._some_claim(choice) if qos in ("LSE", "LSR") or choice.random() < 0.1 else ""
        pod = self.add(qos, claim, announced=choice.random() < 0.3)
        if choice.random() < 0.8:
            self.create(pod, starts=True)

    def add(
        self,
        qos: str = "",
        claim: str = "",
        *,
        announced: bool = False,
        guaranteed: bool = False,
    ) -> Pod:
        """A pod with its sandbox and no container."""
        self._made += 1
        above = "/kubepods" if guaranteed else _PARENTS.get(qos, "/kubepods/burstable")
        parent = f"{self.cgroups.top}{above}/podp{self._made}"
        pod = Pod(f"p{self._made}", qos, claim, parent)
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
        self.touched.add(pod.uid)
        return pod

    def delete_pod(self, choice: random.Random) -> None:
        pod = choice.choice(list(self.pods.values()))
        for each in list(pod.containers):
            self._end(pod, each)
        with self.runtime.lock:
            del self.runtime.sandboxes[pod.sandbox_id]
            del self.runtime.statuses[pod.sandbox_id]
        self.cgroups.remove(pod.sandbox_group)
        self.cgroups.remove(pod.parent)
        del self.pods[pod.uid]

    def creates(self, choice: random.Random) -> None:
        pod = choice.choice(list(self.pods.values()))
        if len(pod.containers) < MAX_CONTAINERS:
            self.create(pod, starts=choice.random() < 0.5)

    def starts(self, choice: random.Random) -> None:
        waiting = [
            (pod, each)
            for pod in self.pods.values()
            for each in pod.containers
            if each.group is None
        ]
        if waiting:
            self._start(*choice.choice(waiting))

    def ends(self, choice: random.Random) -> None:
        pod = choice.choice(list(self.pods.values()))
        if pod.containers:
            self._end(pod, choice.choice(pod.containers))

    def claims_anew(self, choice: random.Random) -> None:
        pod = choice.choice(list(self.pods.values()))
        pod.claim = self._some_claim(choice) if choice.random() < 0.7 else ""
        self.changed(pod)

    def changes_class(self, choice: random.Random) -> None:
        pod = choice.choice(list(self.pods.values()))
        pod.qos = choice.choice(CLASSES)
        self.changed(pod)

    def changed(self, pod: Pod) -> None:
        self.touched.add(pod.uid)
        with self.runtime.lock:
            self.runtime.sandboxes[pod.sandbox_id] = self._listed(pod)

    def _some_claim(self, choice: random.Random) -> str:
        """Mostly a few CPUs, sometimes an invalid claim."""
        if choice.random() < 0.2:
            wide = str(CpuSet(self._claimable))
            return choice.choice([wide, f"0-{self._beyond}", str(self._beyond), "x"])
        most = max(1, len(self._claimable) // 5)
        return str(CpuSet(choice.sample(self._claimable, choice.randint(1, most))))

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

    def create(self, pod: Pod, *, starts: bool) -> Container:
        self._made += 1
        container = Container(f"c-{pod.uid}-{self._made}")
        pod.containers.append(container)
        listed = RuntimeContainer(
            container.id, pod.sandbox_id, f"n{self._made}", ContainerState.CREATED
        )
        with self.runtime.lock:
            self.runtime.containers[container.id] = listed
            self.runtime.statuses[container.id] = VerboseStatus(
                cgroups_path=f"{pod.parent}/{container.id}"
            )
        if starts:
            self._start(pod, container)
        return container

    def _start(self, pod: Pod, container: Container) -> None:
        """Starts it on the CPUs of the runtime's record, which the agent may have changed."""
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

    def _put_in_force(self, group: str, cpus: CpuSet) -> None:
        """A write of the runtime. Unless the agent wrote the same value before, the restore may not
        restore an older one."""
        with contextlib.suppress(FileNotFoundError):
            if self.cgroups.own(group) != cpus:
                self.originals[group].add(cpus)
                self.cgroups.set(group, cpus)

    def _make(self, group: str, cpus: CpuSet | None = None, *, process: bool = False) -> None:
        own = self.cgroups.make(group, cpus, process=process)
        self.originals[group] = {own}
        above = group.rpartition("/")[0]
        if cpus is not None:  # created on Topolet's CPUs: gets those it would have had
            self.originals[group].add(
                EMPTY if self.cgroups.version == 2 else self.cgroups.own(above)
            )
        if self.cgroups.version == 2 and process:  # a kernel may refuse to let it inherit again
            self.originals[group].add(self.cgroups.effective(above))
