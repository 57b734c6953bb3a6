"""What `topolet top` reads of a node: the machine, the agent's decisions, the audit trail and the
load of each CPU at one moment; and of pods the use of their cgroups and the runtime's data."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from agent.cgroup import names
from agent.cgroup.hierarchy import Controllers, Handles, Hierarchy, mounted
from agent.cri.client import Cri
from agent.discover.cpus import TopologyView
from agent.hooks.agent_client import read_snapshot
from agent.host import files
from agent.host.files import Stamp, Tree
from agent.host.listener import receives_datagrams
from agent.model import audit
from agent.model import snapshot as snapshots
from agent.model.cpu.topology import Topology
from agent.model.notifications import SOCKET
from agent.model.pod.pods import Pod
from agent.model.snapshot import Snapshot, SnapshotError
from agent.node.reserved_load import cpu_times
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError
from agent.telemetry import audit as trail
from agent.usage.past import PastHour
from agent.view.devices import ShownDevice
from agent.view.history import RecentChanges
from agent.view.live import LiveNode, live, loads
from agent.view.top.values import Group, NodeObservation, Opened, Sample, Usage, sample

_DAY_SECONDS: Final = 86_400.0
_TRAIL_BYTES: Final = 8 << 20
"""How much of each file of the trail is read at the start: its last bytes."""
_MOST_SAMPLES: Final = 3_600
_STAT: Final = "proc/stat"


class NodeSampler:
    """Observes the node from files below `root` and in the agent's state folder, without requests
    to other processes."""

    def __init__(
        self, node: str, root: str, state_dir: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._node = node
        self._tree = Tree(root)
        self._machine = TopologyView(root)
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, snapshots.FILE)
        self._clock = clock
        self._stamp: Stamp = ()
        self._snapshot: Snapshot | None = None
        self._unread = ""
        self._made_of: object = None
        self._live: LiveNode | None = None
        self._times: dict[int, tuple[int, int]] = {}
        self._recent = RecentChanges()
        self._offsets: dict[str, int] = {}
        self._samples: list[Sample] = []

    @property
    def topology(self) -> Topology:
        """The machine; it is read again when CPUs come or go. Raises DiscoveryError."""
        return self._machine.topology()

    @property
    def generation(self) -> int:
        """The number of the last snapshot that was read, 0 without one."""
        return self._snapshot.generation if self._snapshot else 0

    def observe(
        self,
        devices: Sequence[ShownDevice] = (),
        usage: Mapping[str, Usage] | None = None,
        problems: Sequence[str] = (),
        hour: PastHour | None = None,
    ) -> NodeObservation:
        """The node now. The loads are those since the last call.

        `devices`, `usage`: what the caller read of devices and pods.
        `problems`: why it could not read all.
        `hour`: the load and pressure of the last hour; None if the agent does not sample them.

        Raises DiscoveryError, OSError."""
        now = self._clock()
        topology = self.topology
        unread = [*self._read_snapshot(), *problems]
        made_of = topology, self._snapshot, devices
        if self._live is None or made_of != self._made_of:
            self._live = live(self._node, topology, self._snapshot, devices)
            self._made_of = made_of
        times = cpu_times((self._tree.read(_STAT) or b"").decode("ascii", "replace"))
        load = loads(self._times, times, (cpu.id for cpu in topology.cpus))
        self._times = times
        self._read_trail()
        recent = self._recent.since(audit.stamp(now - _DAY_SECONDS))
        age = None
        if self._snapshot is not None and self._snapshot.boot_id == files.boot_id():
            age = max(time.monotonic() - self._snapshot.listed_at / 1e9, 0.0)
        observed = NodeObservation(now, self._live, tuple(unread), age, load, usage or {}, recent)
        self._samples = [*self._samples[-_MOST_SAMPLES:], sample(observed)]
        return msgspec.structs.replace(observed, samples=tuple(self._samples), hour=hour)

    def _read_snapshot(self) -> Iterator[str]:
        """Reads the snapshot again if it has changed. Yields why there are no decisions, or why
        they may be outdated."""
        stamp = files.stamp(self._path)
        if stamp != self._stamp:
            self._stamp, self._unread = stamp, ""
            try:
                self._snapshot = read_snapshot(self._path)
            except FileNotFoundError:
                self._snapshot = None
            except (OSError, SnapshotError) as error:
                self._unread = f"the agent's decisions can't be read: {error}"
        if self._unread:
            yield self._unread
        if not receives_datagrams(os.path.join(self._state_dir, SOCKET)):
            yield (
                f"no agent uses the state folder {self._state_dir}"
                if self._snapshot is None
                else "the agent does not run: these are its last decisions"
            )

    def _read_trail(self) -> None:
        """A trail that does not exist or can't be read has no records."""
        with contextlib.suppress(OSError):
            for record in trail.appended(self._state_dir, self._offsets, _TRAIL_BYTES):
                self._recent.add(record)


_POD_FILES: Final = {
    1: (
        ("cpuset", "cpuset.cpus", "cpuset.mems"),
        ("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ),
    2: (
        ("cpuset", "cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems"),
        ("cpu", "cpu.max", "cpu.weight"),
        ("memory", "memory.max", "memory.current"),
    ),
}
"""By cgroup version: the controllers, each with the files that are displayed."""


class PodReader:
    """Reads pods from the runtime, and their use from their cgroups. For one thread, because a
    runtime may take long to answer.

    Raises CgroupError."""

    def __init__(self, cri: Cri, cgroup_root: str, proc: str) -> None:
        self._cri = cri
        self._controllers = Controllers(cgroup_root, Handles(0))
        self._mounts = {
            each: path
            for each in ("cpuset", "cpu", "memory")
            if (path := mounted(cgroup_root, each))
        }
        self._runtime = RuntimeView(cri, CgroupLocator(Hierarchy(cgroup_root, proc)))
        self._pods: dict[str, Pod] = {}
        self._used: dict[str, tuple[float, float]] = {}

    def observe(self) -> None:
        """Lists the pods. Raises RpcError."""
        self._pods = {pod.uid: pod for pod in self._runtime.observe().pods}
        self._used = {uid: used for uid, used in self._used.items() if uid in self._pods}

    def usage(self) -> dict[str, Usage]:
        """By pod uid, the use of CPU time since the last call, and of memory."""
        by_uid = {}
        now = time.monotonic()
        for uid, pod in self._pods.items():
            groups = _groups(pod)
            used = _total(map(self._controllers.cpu_seconds, groups))
            before = self._used.pop(uid, None)
            rate = None
            if used is not None:
                self._used[uid] = now, used
                if before is not None and now > before[0]:
                    rate = max(used - before[1], 0.0) / (now - before[0])
            memory = _total(self._memory_bytes(group) for group in groups)
            by_uid[uid] = Usage(rate, None if memory is None else round(memory))
        return by_uid

    def opened(self, uid: str) -> Opened:
        """The metadata, containers and cgroup files of a pod."""
        try:
            self.observe()
            pod = self._pods.get(uid)
            if pod is None:
                return Opened(uid, "the runtime does not list the pod")
        except RpcError as error:
            return Opened(uid, f"the runtime does not answer: {error}")
        groups = []
        own = _pod_group(pod)
        if own is not None:
            groups.append(self._group("", own))
        groups += [self._group(each.name, each.group) for each in pod.containers if each.group]
        return Opened(
            uid,
            "",
            pod.labels,
            pod.annotations,
            tuple((each.name, each.state.value) for each in pod.containers),
            tuple(groups),
        )

    def _group(self, container: str, group: str) -> Group:
        texts = {}
        for version in (2, 1):
            for controller, *wanted in _POD_FILES[version]:
                if self._mounts.get(controller, (0, ""))[0] != version:
                    continue
                for name in wanted:
                    if text := self._read(controller, group, name):
                        texts[name] = text
        return Group(container, group, texts)

    def _memory_bytes(self, group: str) -> float | None:
        version, _ = self._mounts.get("memory", (0, ""))
        name = "memory.current" if version == 2 else "memory.usage_in_bytes"
        text = self._read("memory", group, name) or ""
        return int(text) if text.isdecimal() else None

    def _read(self, controller: str, group: str, name: str) -> str | None:
        """The content, None where the file, the group or the controller is missing."""
        _, path = self._mounts.get(controller, (0, ""))
        if not path:
            return None
        with contextlib.suppress(OSError):
            return Tree(path).text(f"{group.lstrip('/')}/{name}")
        return None


def _pod_group(pod: Pod) -> str | None:
    group = next((each.group for each in (*pod.sandboxes, *pod.containers) if each.group), None)
    if group is None:
        return None
    return names.pod_group(os.path.dirname(group), pod.uid)


def _groups(pod: Pod) -> list[str]:
    """The pod's group, or those of its containers if they have none of their own."""
    own = _pod_group(pod)
    return [own] if own else [each.group for each in pod.containers if each.group]


def _total(values: Iterable[float | None]) -> float | None:
    measured = [each for each in values if each is not None]
    return sum(measured) if measured else None
