"""Who takes the CPU time of pods that wait: the agent looks at everything that runs every
LOOK_SECONDS, and keeps what is above a bound or unusual for a pod."""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from agent.cgroup.hierarchy import CgroupError, Controllers, Hierarchy
from agent.cri.client import Cri
from agent.host import files
from agent.host.daemon import Periodic
from agent.host.log_once import Problem
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.pod.pods import Pod
from agent.model.settings import options
from agent.model.settings.agent import RestoreSettings
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.usage import CgroupUse, sampled_pod
from agent.usage import WAITS_FILE
from agent.usage.contention import CpuWait, Interval, Party, PartyKind, cpu_waits
from agent.usage.look import LookedPod, Lookout
from agent.view.contention import ShownWait, sentence, shown

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
"""The time between two looks."""
NOW_SECONDS: Final = 2.0
"""The time between the two looks of a command."""
LONG: Final = 0.1
"""A longer wait, in seconds of each second, is too long."""
SHORT: Final = 0.02
"""A shorter wait is not too long, though unusual for the pod."""
UNUSUAL: Final = 3.0
"""A wait is unusual if it is so many times as long as the pod's usual one."""
_RECENT_SECONDS: Final = 4 * LOOK_SECONDS
_HOUR: Final = 240
"""The looks of an hour."""
_LEAST_LOOKS: Final = 20
"""Before so many looks nothing is usual for a pod."""
_USUAL_SHARE: Final = 0.95
_ALL: Final = ""
"""The name of all pods together."""
_MAX_BYTES: Final = 1 << 20
_MOST_WAITS: Final = 64
_MOST_NAMED: Final = 5


class CgroupTasks(CgroupUse):
    """Reads also the CPUs and the threads of cgroups, from one thread."""

    def __init__(self, controllers: Controllers, hierarchy: Hierarchy) -> None:
        super().__init__(controllers)
        self._hierarchy = hierarchy

    def cpus(self, group: str) -> CpuSet:
        """Empty if they can't be read."""
        try:
            return self._hierarchy.effective_cpus(group)
        except CgroupError:
            return EMPTY

    def threads(self, group: str) -> tuple[int, ...]:
        try:
            return self._hierarchy.threads(group)
        except CgroupError:
            return ()


def looked_pods(pods: Iterable[Pod]) -> tuple[LookedPod, ...]:
    """The pods that have cgroups on this machine."""
    return tuple(
        LookedPod(Party(PartyKind.POD, pod.title, pod.qos.value), sampled)
        for pod in pods
        if (sampled := sampled_pod(pod)) is not None
    )


class NodeWaits(msgspec.Struct, frozen=True):
    """What the agent has last found out."""

    at: float = 0.0
    """Seconds since 1970."""
    waited: float = 0.0
    """Of all pods together, in seconds of each second."""
    usual: Mapping[str, float] = {}
    """The 95th percentile of the waits of the last hour, by title of the pod, and of all together
    by "", where there were enough looks."""
    too_long: tuple[ShownWait, ...] = ()
    """The longest waits that are too long, the longest first."""


_node_waits: Final = msgspec.json.Decoder(NodeWaits)


def read(path: str) -> NodeWaits:
    """What the agent wrote last. Raises OSError and JsonError."""
    return bounds.decode(_node_waits, files.read(path, _MAX_BYTES))


def wait_now(settings: RestoreSettings, title: str) -> ShownWait | None:
    """How long a pod of this node waits in the next NOW_SECONDS, and for whom; None if the runtime
    does not have the pod. Raises CgroupError and RpcError."""
    pods, interval = _now(settings)
    of_pod = next((pod.party for pod in pods if pod.party.name == title), None)
    if of_pod is None:
        return None
    waits = {wait.pod: wait for wait in cpu_waits(interval)}
    wait = waits.get(of_pod) or CpuWait(of_pod, EMPTY, 0.0, 0.0, 0.0, ())
    return shown(wait, interval.seconds, _last(settings).usual.get(title))


def waits_of_node(settings: RestoreSettings) -> NodeWaits:
    """What the agent has last found out. If it has not looked recently, this function looks for
    NOW_SECONDS. Raises CgroupError and RpcError."""
    last = _last(settings)
    if abs(time.time() - last.at) < _RECENT_SECONDS:
        return last
    _, interval = _now(settings)
    waits = cpu_waits(interval, SHORT)
    return NodeWaits(
        time.time(),
        sum(wait.waited for wait in waits),
        too_long=tuple(shown(wait, interval.seconds) for wait in waits if wait.waited >= LONG),
    )


def _last(settings: RestoreSettings) -> NodeWaits:
    try:
        return read(os.path.join(settings.state_dir, WAITS_FILE))
    except (OSError, JsonError):  # an agent without usage does not look
        return NodeWaits()


def _now(settings: RestoreSettings) -> tuple[tuple[LookedPod, ...], Interval]:
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    try:
        hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
        pods = looked_pods(RuntimeView(cri, CgroupLocator(hierarchy)).observe().pods)
    finally:
        cri.close()
    try:
        controllers = Controllers(settings.cgroup_root, hierarchy.handles)
        lookout = Lookout(settings.root, CgroupTasks(controllers, hierarchy))
        lookout.look(pods)
        interval = None
        while interval is None:  # the clock has moved
            time.sleep(NOW_SECONDS)
            interval = lookout.look(pods)
        return pods, interval
    finally:
        hierarchy.close()


def finding(node: NodeWaits) -> str:
    """What is wrong on the node, with a sentence for each of the longest waits; empty if nothing
    is."""
    usual = node.usual.get(_ALL)
    if not (node.too_long or (usual is not None and too_long(node.waited, usual))):
        return ""
    usually = "" if usual is None else f", usually {1000 * usual:.0f}"
    head = f"its pods wait {1000 * node.waited:.0f} ms of each second for CPUs{usually}"
    more = len(node.too_long) - _MOST_NAMED
    texts = [head, *map(sentence, node.too_long[:_MOST_NAMED])]
    return "; ".join([*texts, f"{more} more pods wait"] if more > 0 else texts)


class UsualWaits:
    """The waits of the last hour of each pod, and of all together."""

    def __init__(self) -> None:
        self._waits: dict[str, array[float]] = {}

    def usual(self) -> dict[str, float]:
        """The 95th percentile of the waits by name, where there are enough."""
        return {
            name: sorted(waits)[round(_USUAL_SHARE * (len(waits) - 1))] if any(waits) else 0.0
            for name, waits in self._waits.items()
            if len(waits) >= _LEAST_LOOKS
        }

    def add(self, waits: dict[str, float]) -> None:
        """Adds the waits of one look, and forgets those of other names."""
        self._waits = {name: self._waits.get(name) or array("f") for name in waits}
        for name, waited in waits.items():
            self._waits[name].append(waited)
            del self._waits[name][:-_HOUR]


def too_long(waited: float, usual: float | None) -> bool:
    """Whether a wait is too long.

    `usual`: the 95th percentile of the pod's waits; None if it is not known."""
    return waited >= LONG or (usual is not None and waited >= max(SHORT, UNUSUAL * usual))


class Contention:
    """Looks on a thread of its own.

    `groups`: for that thread alone.
    `wake`: lets the agent make a pass, which reports new waits.
    `now`: seconds since 1970."""

    def __init__(
        self,
        root: str,
        state_dir: str,
        groups: CgroupTasks,
        wake: Callable[[], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._lookout = Lookout(root, groups)
        self._path = os.path.join(state_dir, WAITS_FILE)
        self._wake = wake
        self._now = now
        self._usual = UsualWaits()
        self._lock = threading.Lock()
        self._pods: tuple[LookedPod, ...] = ()
        self._long_waits: dict[str, tuple[CpuWait, ShownWait]] = {}
        self._problem = Problem(log, f"{self._path}: ")
        self._thread = Periodic("contention", LOOK_SECONDS, self.step)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()

    def follow(self, pods: Collection[Pod]) -> None:
        """From now on these pods of the runtime are looked at."""
        looked = looked_pods(pods)
        with self._lock:
            self._pods = looked

    def waits(self) -> list[CpuWait]:
        """Those that are too long."""
        with self._lock:
            return [wait for wait, _ in self._long_waits.values()]

    def sentences(self) -> dict[str, str]:
        """About them, by uid of the pod."""
        with self._lock:
            return {uid: sentence(wait) for uid, (_, wait) in self._long_waits.items()}

    def step(self) -> None:
        """Takes a look, and finds out who waited since the last one."""
        with self._lock:
            pods = self._pods
        interval = self._lookout.look(pods)
        if interval is None:
            return
        waits = {wait.pod.name: wait for wait in cpu_waits(interval, SHORT)}
        of_pods = {pod.party.name: pod.sampled for pod in pods}
        usual = self._usual.usual()
        long_waits = {
            pod.uid: (wait, shown(wait, interval.seconds, usual.get(name)))
            for name, pod in of_pods.items()
            if (wait := waits.get(name)) is not None and too_long(wait.waited, usual.get(name))
        }
        total = sum(wait.waited for wait in waits.values())
        self._write(NodeWaits(self._now(), total, usual, _longest(long_waits)))
        self._usual.add(
            {name: waits[name].waited if name in waits else 0.0 for name in of_pods} | {_ALL: total}
        )
        with self._lock:
            new = long_waits.keys() - self._long_waits.keys()
            self._long_waits = long_waits
        if new:
            self._wake()

    def _write(self, node: NodeWaits) -> None:
        try:
            files.replace(self._path, msgspec.json.encode(node), durable=False)
        except OSError as error:
            self._problem.report(files.reason(error))
        else:
            self._problem.clear()


def _longest(long_waits: Mapping[str, tuple[CpuWait, ShownWait]]) -> tuple[ShownWait, ...]:
    waits = (wait for _, wait in long_waits.values())
    longest_first = sorted(waits, key=lambda wait: (-wait.waited_milliseconds, wait.pod))
    return tuple(longest_first[:_MOST_WAITS])
