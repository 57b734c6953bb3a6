"""Who disturbs the pods of the node. The agent looks at everything that runs every LOOK_SECONDS,
and keeps what is above a bound or unusual for a pod. A command looks for itself."""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from agent.cgroup.hierarchy import CgroupError, Controllers, Hierarchy
from agent.discover.cpus import TopologyView
from agent.host import files
from agent.host.daemon import Periodic
from agent.host.log_once import Problem
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import Topology
from agent.model.pod.pods import Pod
from agent.model.settings.agent import RestoreSettings
from agent.node.disturbers import (
    OwnersWatch,
    disturbed_owners,
    looked_owners,
    owners_of_node,
    quiet_of_node,
    runtime_pods,
)
from agent.node.usage import CgroupUse, party_of, sampled_pod
from agent.usage import WAITS_FILE
from agent.usage.contention import (
    CoreSharing,
    CpuWait,
    Interval,
    Party,
    PartyKind,
    core_sharings,
    cpu_waits,
    delays,
)
from agent.usage.look import LookedPod, Lookout
from agent.usage.machine import Machine
from agent.usage.pressure import (
    DISKS,
    MEMORY,
    CacheUse,
    Consumption,
    Pressure,
    SharedCard,
    cache_uses,
    pressures,
)
from agent.usage.resctrl import Monitored
from agent.usage.sampler import Last, UsageSampler
from agent.usage.traffic import DiskTraffic
from agent.view.contention import (
    Disturbance,
    sentences,
    shown,
    shown_pressure,
    shown_sharing,
)
from agent.view.disturbers import DisturbedOwner

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
"""The time between two looks of the agent."""
NOW_SECONDS: Final = 2.0
"""The time between the two looks of a command."""
LONG: Final = 0.1
"""A longer wait, in seconds of each second, is too long."""
SHORT: Final = 0.02
"""A shorter wait is not too long, though unusual for the pod."""
UNUSUAL: Final = 3.0
"""A wait is unusual if it is so many times as long as the pod's usual one."""
SHARED: Final = 0.25
"""A pod shares its cores if others run beside it for so long, in seconds of each second."""
_RECENT_SECONDS: Final = 4 * LOOK_SECONDS
_HOUR: Final = 240
"""The looks of an hour."""
_DAY: Final = 24 * _HOUR
_LEAST_LOOKS: Final = 20
"""Before so many looks nothing is usual for a pod."""
_USUAL_SHARE: Final = 0.95
_ALL: Final = ""
"""The name of all pods together."""
_MAX_BYTES: Final = 4 << 20
_MOST_PODS: Final = 32
_MOST_NAMED: Final = 5
_SOME: Final = "some"
_MOST_CACHES: Final = 8


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


class NodeWaits(msgspec.Struct, frozen=True):
    """What the agent has last found out."""

    at: float = 0.0
    """Seconds since 1970."""
    waited: float = 0.0
    """The waits of all pods together, in seconds of each second."""
    usual: Mapping[str, float] = {}
    """The 95th percentile of the waits of the last hour, by title of the pod, and of the last day
    of all together by "", where there were enough looks."""
    disturbed: tuple[Disturbance, ...] = ()
    """The first _MOST_NAMED pods that wait too long or are disturbed otherwise, the longest waits
    first: each may have hundreds of takers."""
    more: int = 0
    """How many further pods are."""
    cards: tuple[SharedCard, ...] = ()
    """The busy graphics cards that pods share."""

    @classmethod
    def of(
        cls,
        at: float,
        now: Seen,
        usual: Mapping[str, float],
        disturbed: Sequence[Disturbance],
    ) -> NodeWaits:
        """With all pods that are disturbed."""
        more = max(0, len(disturbed) - _MOST_NAMED)
        named = tuple(disturbed[:_MOST_NAMED])
        return cls(at, now.waited, usual, named, more, now.cards[:_MOST_PODS])


_node_waits: Final = msgspec.json.Decoder(NodeWaits)


def read(path: str) -> NodeWaits:
    """What the agent wrote last. Raises OSError and JsonError."""
    return bounds.decode(_node_waits, files.read(path, _MAX_BYTES))


def finding(node: NodeWaits) -> str:
    """What is wrong on the node, with the sentences about some pods; empty if nothing is."""
    usual = node.usual.get(_ALL)
    # Many pods with short waits are normal: only more than usual is wrong.
    unusual = usual is not None and node.waited >= max(LONG, UNUSUAL * usual)
    if not (node.disturbed or unusual):
        return ""
    usually = "" if usual is None else f", usually {1000 * usual:.0f}"
    texts = [f"its pods wait {1000 * node.waited:.0f} ms of each second for CPUs{usually}"]
    for disturbance in node.disturbed:
        texts += sentences(disturbance, also_without_wait=False)
    return "; ".join([*texts, f"{node.more} more pods are disturbed"] if node.more else texts)


def too_long(waited: float, usual: float | None) -> bool:
    """Whether a wait is too long.

    `usual`: the 95th percentile of the pod's waits; None if it is not known."""
    return waited >= LONG or (usual is not None and waited >= max(SHORT, UNUSUAL * usual))


class UsualWaits:
    """The waits of the last hour of each pod, and of the last day of all together."""

    def __init__(self) -> None:
        self._waits: dict[str, array[float]] = {}

    def usual(self) -> dict[str, float]:
        """The 95th percentile of the waits by name, where there are enough."""
        return {
            name: sorted(waits)[round(_USUAL_SHARE * (len(waits) - 1))] if any(waits) else 0.0
            for name, waits in self._waits.items()
            if len(waits) >= _LEAST_LOOKS
        }

    def add(self, waits: Mapping[str, float]) -> None:
        """Adds the waits of one look, and forgets those of other names."""
        self._waits = {name: self._waits.get(name) or array("f") for name in waits}
        for name, waited in waits.items():
            self._waits[name].append(waited)
            del self._waits[name][: -_DAY if name == _ALL else -_HOUR]


class ConsumedMoment(msgspec.Struct, frozen=True):
    """What pods and units have and have done, at one time."""

    at: float = 0.0
    """Seconds of any clock that is not set; 0 if nothing was read yet."""
    consumed: Mapping[Party, Consumption] = {}
    monitored: Mapping[tuple[str, str], Monitored] = {}
    """By group of resctrl and L3 cache."""


def moment(sampler: UsageSampler, pods: Iterable[Pod]) -> ConsumedMoment:
    """By the last counters of the sampler."""
    counted = sampler.counted()
    _, of_pods, _ = sampler.last()
    of_disks = _moved(counted.traffic.pod_disks)
    consumed = {}
    for pod in pods:
        stalls = counted.waits.pods.get(pod.uid, {})
        consumed[party_of(pod)] = Consumption(
            of_pods.get(pod.uid, Last()).memory_with_cache_bytes,
            of_disks.get(pod.uid, {}),
            {name: stalls[name, _SOME] for name in (MEMORY, DISKS) if (name, _SOME) in stalls},
            counted.pod_major_faults.get(pod.uid),
        )
    of_disks = _moved(counted.traffic.unit_disks)
    for name, unit in counted.units.items():
        consumed[Party(PartyKind.UNIT, name)] = Consumption(
            unit.memory_bytes, of_disks.get(name, {})
        )
    return ConsumedMoment(counted.at, consumed, counted.monitored)


def _moved(traffic: Mapping[tuple[str, str], DiskTraffic]) -> dict[str, dict[str, int]]:
    """The bytes by owner and disk."""
    moved: dict[str, dict[str, int]] = {}
    for (owner, disk), counters in traffic.items():
        moved.setdefault(owner, {})[disk] = counters.read_bytes + counters.written_bytes
    return moved


def looked_pods(pods: Iterable[Pod]) -> tuple[LookedPod, ...]:
    """The pods that have cgroups on this machine."""
    return tuple(
        LookedPod(party_of(pod), sampled)
        for pod in pods
        if (sampled := sampled_pod(pod)) is not None
    )


def siblings(topology: Topology) -> dict[int, CpuSet]:
    """By CPU, all CPUs of its core."""
    by_core: dict[int, CpuSet] = {}
    for cpu in topology.cpus:
        by_core[cpu.core] = by_core.get(cpu.core, EMPTY) | CpuSet([cpu.id])
    return {cpu.id: by_core[cpu.core] for cpu in topology.cpus}


class Seen(msgspec.Struct, frozen=True):
    """What was seen between two looks."""

    interval: Interval
    delays: Mapping[Party, float]
    """How long the threads of pods waited, in seconds of each second."""
    waits: Mapping[Party, CpuWait]
    """The longest ones, with what they consist of."""
    pressures: tuple[Pressure, ...]
    sharings: tuple[CoreSharing, ...]
    cards: tuple[SharedCard, ...]
    caches: tuple[CacheUse, ...]

    @property
    def waited(self) -> float:
        """By all pods together, in seconds of each second."""
        return sum(self.delays.values())

    def waited_by(self, pod: Party) -> float:
        """By the pod, in seconds of each second. The part of interrupts is missing if too many
        others have longer waits."""
        wait = self.waits.get(pod)
        return self.delays.get(pod, 0.0) if wait is None else wait.waited

    def long_waits(self, usual: Mapping[str, float]) -> tuple[CpuWait, ...]:
        """The waits that are too long, the longest first.

        `usual`: the 95th percentile of the waits of pods by title, where it is known."""
        return tuple(
            wait for wait in self.waits.values() if too_long(wait.waited, usual.get(wait.pod.name))
        )

    def disturbs(self, pod: Party, usual: float | None) -> bool:
        """Whether the pod waits too long or is disturbed otherwise.

        `usual`: the 95th percentile of its waits; None if it is not known."""
        wait = self.waits.get(pod)
        return (
            (wait is not None and too_long(wait.waited, usual))
            or any(pressure.pod == pod for pressure in self.pressures)
            or any(sharing.pod == pod for sharing in self.sharings)
            or any(card.pod == pod.name for card in self.cards)
        )

    def disturbance(self, pod: Party, usual: float | None) -> Disturbance:
        """All that disturbs the pod.

        `usual`: the 95th percentile of its waits; None if it is not known."""
        wait = self.waits.get(pod) or CpuWait(pod, EMPTY, 0.0, 0.0, 0.0, ())
        cores = (shown_sharing(sharing) for sharing in self.sharings if sharing.pod == pod)
        return Disturbance(
            shown(wait, self.interval.seconds, usual),
            tuple(shown_pressure(pressure) for pressure in self.pressures if pressure.pod == pod),
            next(cores, None),
            tuple(card for card in self.cards if card.pod == pod.name),
            self.caches[:_MOST_CACHES],
        )


def seen(
    interval: Interval,
    cores: Mapping[int, CpuSet],
    before: ConsumedMoment,
    now: ConsumedMoment,
    cards: Iterable[SharedCard] = (),
    requested_bytes: Callable[[], Mapping[Party, int]] = dict,
    least: float = SHORT,
    most: int | None = _MOST_PODS,
) -> Seen:
    """What was seen between two looks, and between two moments.

    `cores`: by CPU, all CPUs of its core.
    `requested_bytes`: returns the memory that pods request.
    `least`: waits that are shorter, in seconds of each second, are left out.
    `most`: only so many waits are explained, the longest ones; None for all."""
    return Seen(
        interval,
        delays(interval),
        {wait.pod: wait for wait in cpu_waits(interval, least, most)},
        pressures(before.consumed, now.consumed, now.at - before.at, requested_bytes),
        core_sharings(interval, cores, SHARED),
        tuple(cards),
        cache_uses(before.monitored, now.monitored, now.at - before.at),
    )


def disturbance_now(settings: RestoreSettings, title: str) -> Disturbance | None:
    """What disturbs a pod of this node in the next NOW_SECONDS; None if the runtime does not have
    the pod. Raises CgroupError, DiscoveryError and RpcError."""
    pods, now, own_cpus = _look(settings, 0.0, title)
    of_pod = next((pod for pod in pods if pod.name == title), None)
    if of_pod is None:
        return None
    last = _last(settings)
    disturbance = now.disturbance(of_pod, last.usual.get(title))
    # The driver of the cards is the agent's alone.
    cards = tuple(card for card in last.cards if card.pod == title)
    return msgspec.structs.replace(disturbance, cards=cards, own_cpus=own_cpus)


def waits_of_node(settings: RestoreSettings) -> NodeWaits:
    """What the agent has last found out. If it has not looked recently, this function looks for
    NOW_SECONDS. Raises CgroupError, DiscoveryError and RpcError."""
    last = _last(settings)
    if abs(time.time() - last.at) < _RECENT_SECONDS:
        return last
    pods, now, _ = _look(settings, SHORT)
    return NodeWaits.of(time.time(), now, {}, _longest(now, pods, {}))


def _last(settings: RestoreSettings) -> NodeWaits:
    try:
        return read(os.path.join(settings.state_dir, WAITS_FILE))
    except (OSError, JsonError):  # an agent without usage does not look
        return NodeWaits()


def _look(
    settings: RestoreSettings, least: float, title: str = ""
) -> tuple[list[Party], Seen, DisturbedOwner | None]:
    """The pods, what was seen in NOW_SECONDS, and what disturbed the pod with this title on the
    CPUs that it owns; None if it owns none.

    `least`: waits that are shorter, in seconds of each second, are left out."""
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    try:
        pods = runtime_pods(settings, hierarchy)
        topology = TopologyView(settings.root).topology()
        groups = CgroupTasks(Controllers(settings.cgroup_root, hierarchy.handles), hierarchy)
        lookout, looked = Lookout(settings.root, groups), looked_pods(pods)
        owners = looked_owners(
            (
                owner
                for owner in (owners_of_node(settings.state_dir) if title else ())
                if any(owner.is_of(pod.uid) for pod in pods if pod.title == title)
            ),
            pods,
        )
        watch = OwnersWatch(settings.root, hierarchy) if owners else None
        lookout.look(looked)
        before = _moment_now(settings, groups, pods, looked)
        interval = None
        while interval is None:
            time.sleep(NOW_SECONDS)
            interval = lookout.look(looked)
        now = _moment_now(settings, groups, pods, looked)
        disturbed: tuple[DisturbedOwner, ...] = ()
        if watch is not None:
            disturbed = disturbed_owners(
                watch.disturbers(owners, pods), quiet_of_node(settings.state_dir)
            )
        parties = [pod.party for pod in looked]
        of_pods = seen(
            interval,
            siblings(topology),
            before,
            now,
            least=least,
            most=_MOST_PODS if least else None,
        )
        return parties, of_pods, disturbed[0] if disturbed else None
    finally:
        hierarchy.close()


def _moment_now(
    settings: RestoreSettings,
    groups: CgroupTasks,
    pods: Iterable[Pod],
    looked: Iterable[LookedPod],
) -> ConsumedMoment:
    sampler = UsageSampler(Machine(settings.root), groups)
    sampler.follow([pod.sampled for pod in looked], {})
    sampler.sample()
    return moment(sampler, pods)


def _longest(
    now: Seen, pods: Iterable[Party], usual: Mapping[str, float]
) -> tuple[Disturbance, ...]:
    disturbed = (
        now.disturbance(pod, usual.get(pod.name))
        for pod in pods
        if now.disturbs(pod, usual.get(pod.name))
    )
    longest_first = sorted(disturbed, key=lambda of: (-of.cpu.waited_milliseconds, of.cpu.pod))
    return tuple(longest_first[:_MOST_PODS])


class Contention:
    """Looks on a thread of its own.

    `groups`: for that thread alone.
    `moment`: returns what pods and units have and have done.
    `cards`: returns the busy graphics cards that pods share.
    `requested_bytes`: returns the memory that pods request.
    `wake`: lets the agent make a pass, which reports new disturbances.
    `now`: seconds since 1970."""

    def __init__(
        self,
        root: str,
        state_dir: str,
        groups: CgroupTasks,
        moment: Callable[[], ConsumedMoment],
        cards: Callable[[], Iterable[SharedCard]],
        requested_bytes: Callable[[], Mapping[Party, int]],
        wake: Callable[[], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._lookout = Lookout(root, groups)
        self._path = os.path.join(state_dir, WAITS_FILE)
        self._moment = moment
        self._cards = cards
        self._requested_bytes = requested_bytes
        self._wake = wake
        self._now = now
        self._usual = UsualWaits()
        self._before, self._last = ConsumedMoment(), ConsumedMoment()
        self._lock = threading.Lock()
        self._pods: tuple[LookedPod, ...] = ()
        self._cores: Mapping[int, CpuSet] = {}
        self._waits: tuple[CpuWait, ...] = ()
        self._delays: Mapping[str, float] = {}
        self._sentences: Mapping[str, tuple[str, ...]] = {}
        self._hurried = False
        self._problem = Problem(log, f"{self._path}: ")
        self._thread = Periodic("contention", LOOK_SECONDS, self._look_again, NOW_SECONDS)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()

    def follow(self, pods: Collection[Pod], topology: Topology) -> None:
        """From now on these pods of the runtime are looked at."""
        looked, cores = looked_pods(pods), siblings(topology)
        with self._lock:
            self._pods, self._cores = looked, cores

    def waits(self) -> tuple[CpuWait, ...]:
        """Those that are too long."""
        with self._lock:
            return self._waits

    def delays(self) -> Mapping[str, float]:
        """By title, how long the threads of pods waited, in seconds of each second."""
        with self._lock:
            return self._delays

    def sentences(self) -> Mapping[str, tuple[str, ...]]:
        """About the pods that are disturbed, by uid."""
        with self._lock:
            return self._sentences

    def _look_again(self) -> None:
        """Takes a look. If it does not know what somebody waits, the next one is soon, but not the
        one after it."""
        hurried = self._hurried
        self.step()
        self._hurried = self._lookout.incomplete and not hurried
        if self._hurried:
            self._thread.hurry()

    def step(self) -> None:
        """Takes a look, and finds out who was disturbed since the last one."""
        with self._lock:
            pods, cores = self._pods, self._cores
        interval, moment = self._lookout.look(pods), self._moment()
        if moment.at > self._last.at:
            self._before, self._last = self._last, moment
        if interval is None:
            return
        before = self._before if self._before.at else self._last
        now = seen(interval, cores, before, self._last, self._cards(), self._requested_bytes)
        usual = self._usual.usual()
        parties = [pod.party for pod in pods]
        disturbed = _longest(now, parties, usual)
        self._write(NodeWaits.of(self._now(), now, usual, disturbed))
        waited = {pod: now.waited_by(pod) for pod in parties}
        self._usual.add({pod.name: waited[pod] for pod in parties} | {_ALL: now.waited})
        uids = {pod.party.name: pod.sampled.uid for pod in pods}
        about = {
            uids[of.cpu.pod]: tuple(sentences(of, also_without_wait=False)) for of in disturbed
        }
        with self._lock:
            new = about.keys() - self._sentences.keys()
            self._sentences, self._waits = about, now.long_waits(usual)
            self._delays = {pod.name: delay for pod, delay in now.delays.items()}
        if new:
            self._wake()

    def _write(self, node: NodeWaits) -> None:
        try:
            files.replace(self._path, msgspec.json.encode(node), durable=False)
        except OSError as error:
            self._problem.report(files.reason(error))
        else:
            self._problem.clear()
