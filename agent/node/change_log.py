"""The change log: reports what changed since the last pass, each change once, as log messages,
metrics and Events of pods and of the Node.

`ChangeRecorder` compares each pass with the one before, and writes log and metrics. `PodEvents`
limits how often a lasting cause becomes an Event. The notes of a Node's Events are about its faults
while they last, and about its changes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from agent.allocate.cpu_claims import ClaimRefusal
from agent.allocate.locality import FarReason, Key, NearNodes
from agent.allocate.pools import Decision
from agent.cgroup.order import ValueOutcome, WriteOutcome, WriteState
from agent.host.log_once import about, of_title
from agent.kube.events import Regarding
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Device
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.model.snapshot import Owner
from agent.node.sources import SourceName
from agent.node.violations import (
    CpuSource,
    RefusedLimit,
    Shortfall,
    Unallocated,
    find_overlaps,
    started,
)
from agent.telemetry.metrics import AgentMetrics

AGENT_NOT_READY: Final = "AgentNotReady"
INVALID_NODE: Final = "InvalidNodeConfiguration"
KUBELET_INCOMPATIBLE: Final = "KubeletIncompatible"
SOURCE_UNREADABLE: Final = "SourceUnreadable"
CPU_OVERLAP: Final = "CPUOverlap"
DEVICE_UNHEALTHY: Final = "DeviceUnhealthy"
COMPETING_WRITER: Final = "CompetingWriter"
NODE_CPUS_CHANGED: Final = "NodeCPUsChanged"
KUBELET_POLICY_CHANGED: Final = "KubeletPolicyChanged"

DELAY_SECONDS: Final[Mapping[str, float]] = {
    AGENT_NOT_READY: 10.0,
    INVALID_NODE: 0.0,
    KUBELET_INCOMPATIBLE: 10.0,
    SOURCE_UNREADABLE: 60.0,
    CPU_OVERLAP: 60.0,
    DEVICE_UNHEALTHY: 10.0,
    COMPETING_WRITER: 0.0,
}
"""How long a fault lasts before an Event says so: a kubelet that restarts can't be read for
moments, and without a frontend each start of a container overlaps for moments."""
_NAMED: Final = 8


class NodeNotes(NamedTuple):
    """What Events of the Node say."""

    name: str
    uid: str
    """The Node's uid in the API, empty while it is not known."""
    faults: Mapping[str, str]
    """Notes by the reason of a warning."""
    state: Mapping[str, str] = {}
    """By the reason of the normal Event that reports its change."""


class DeviceFaults(NamedTuple):
    """What is wrong with devices."""

    devices: Iterable[Device] = ()
    missing: Iterable[str] = ()
    """PCI addresses of GPUs that the driver does not list."""
    fault: str = ""
    """Why the driver can't be read."""


def node_faults(
    of_object: Iterable[str],
    sources: Mapping[SourceName, Iterable[str]],
    overlaps: Iterable[str],
    devices: DeviceFaults,
    others: Iterable[str] = (),
) -> dict[str, str]:
    """Notes by reason.

    `of_object`: why annotations and labels of the Node have no effect.
    `sources`: the problems of each source.
    `overlaps`: sentences about containers on CPUs of owners.
    `others`: sentences about other processes that keep changing values."""
    kubelet = sources.get(SourceName.KUBELET_COMBINATION, ())
    reported = (SourceName.KUBELET_COMBINATION, SourceName.NODE_OBJECT)
    unreadable = (
        f"{source.value}: {problem}"
        for source, problems in sources.items()
        if source not in reported
        for problem in problems
    )
    notes = {
        INVALID_NODE: "; ".join(of_object),
        KUBELET_INCOMPATIBLE: "; ".join(kubelet),
        SOURCE_UNREADABLE: "; ".join(sorted(unreadable)),
        CPU_OVERLAP: _first(overlaps),
        DEVICE_UNHEALTHY: _first(_of_devices(devices)),
        COMPETING_WRITER: _first(others),
    }
    return {reason: note for reason, note in notes.items() if note}


def _of_devices(faults: DeviceFaults) -> Iterator[str]:
    for each in faults.devices:
        if not each.healthy:
            reasons = [condition.message or condition.reason for condition in each.conditions]
            why = f": {', '.join(reasons)}" if reasons else ""
            yield f"{each.type} {each.minor} ({each.uuid}) is not healthy{why}"
    for address in faults.missing:
        yield f"the driver does not list the GPU at {address}"
    if faults.fault:
        yield f"the GPU driver can't be read: {faults.fault}"


def _first(texts: Iterable[str]) -> str:
    """The first _NAMED texts, and the number of the others."""
    listed = list(texts)
    more = [f"and {len(listed) - _NAMED} more"] if len(listed) > _NAMED else []
    return "; ".join(listed[:_NAMED] + more)


def node_state(topology: Topology, kubelet: KubeletConfiguration | None) -> dict[str, str]:
    """What normal Events of the Node report when it changes, by reason.

    `kubelet`: None if its configuration is not known."""
    nodes = ", ".join(
        f"{numa_node.cpus} on NUMA node {numa_node.id}"
        for numa_node in topology.numa_nodes
        if numa_node.cpus
    )
    texts = {NODE_CPUS_CHANGED: f"CPUs {nodes} are online"}
    if kubelet is not None:
        policies = {
            "cpuManagerPolicy": kubelet.cpu_manager_policy,
            "topologyManagerPolicy": kubelet.topology_manager_policy,
            "memoryManagerPolicy": kubelet.memory_manager_policy,
        }
        texts[KUBELET_POLICY_CHANGED] = ", ".join(map(" ".join, policies.items()))
    return texts


def node_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Notes by reason, for the state that differs. A state that is known on one side only has not
    changed."""
    return {
        reason: f"{text}; before: {before[reason]}"
        for reason, text in after.items()
        if before.get(reason, text) != text
    }


log = logging.getLogger(__name__)

# A container that ends loses its cgroup before the runtime lists it as ended.
_NO_CGROUP_SECONDS = 1.0


class ChangeRecorder:
    """Keeps the state of the last pass."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics
        self._overlapping: frozenset[tuple[str, str]] = frozenset()
        self.overlaps: tuple[str, ...] = ()
        """The containers on CPUs of an owner that runs, as sentences."""
        self._refused: frozenset[ClaimRefusal] = frozenset()
        self._failed: frozenset[str] = frozenset()
        self._short: frozenset[Shortfall] = frozenset()
        self._unallocated: frozenset[Unallocated] = frozenset()
        self._refused_limits: frozenset[tuple[str, str, str]] = frozenset()
        self._far: frozenset[Key] = frozenset()
        self._offline: dict[str, str] = {}
        self._no_cgroup: dict[str, float] = {}
        self._logged_without_cgroup: frozenset[str] = frozenset()

    def decided(
        self,
        pods: tuple[Pod, ...],
        decision: Decision,
        owners: tuple[Owner, ...],
        holds: Mapping[str, CpuSet],
    ) -> None:
        """Logs refused claims, moved CPUs, new owners with devices or huge pages, owners of offline
        CPUs, and containers on the CPUs of owners that run.

        `owners`: the owners whose CPUs must be free of other containers.
        `holds`: by container id, the CPUs that it holds."""
        self._log_refusals(decision)
        titles = {pod.uid: pod.title for pod in pods}
        for move in decision.moves:
            change = f"CPUs {move.source} -> {move.target}: {move.reason.value}"
            fields = about(titles[move.uid], move.name, move.reason.name.lower())
            log.info("%s %s: %s", titles[move.uid], move.name, change, extra=fields)
        for owner in decision.alignments:
            fields = about(titles[owner.uid], owner.name)
            log.info("%s %s: %s", titles[owner.uid], owner.name, owner.text, extra=fields)
        self._log_offline(
            {owner.title: owner.offline for owner in decision.owners if owner.offline}
        )
        self._log_overlaps(pods, owners, holds)

    def _log_refusals(self, decision: Decision) -> None:
        refused = frozenset(decision.refusals)
        for each in sorted(refused - self._refused, key=lambda each: each.uid):
            self._metrics.refusals.inc()
            where = f"annotation {each.key}: " if each.key else ""
            place = f"has CPUs {each.held} of its own" if each.held else "keeps the pool"
            claims = f"claims CPUs {each.claimed}: " if each.claimed and each.held else ""
            fields = about(each.title, reason=each.cause.value)
            log.error(
                "pod %s %s: %s%s%s", each.title, place, where, claims, each.reason, extra=fields
            )
        self._refused = refused

    def _log_offline(self, offline: dict[str, str]) -> None:
        """Logs, by the title of a pod, the CPUs that it owns and that are offline."""
        for title in sorted(offline.keys()):
            if offline[title] != self._offline.get(title):
                fields = about(title, reason="offline")
                log.error(
                    "pod %s: CPUs %s of its own are offline", title, offline[title], extra=fields
                )
        for title in sorted(self._offline.keys() - offline.keys()):
            text = "pod %s: its CPUs are online again, or it has ended"
            log.info(text, title, extra=about(title))
        self._offline = offline

    def _log_overlaps(
        self, pods: tuple[Pod, ...], owners: tuple[Owner, ...], holds: Mapping[str, CpuSet]
    ) -> None:
        running = started(pods)
        overlaps = {
            (each.container_id, each.owner_uid): each
            for each in find_overlaps(pods, owners, holds)
            if each.owner_uid in running
        }
        for key in sorted(overlaps.keys() - self._overlapping):
            self._metrics.overlaps.inc()
            fields = about(overlaps[key].title, reason="overlap")
            log.error("%s", overlaps[key].text, extra=fields)
        self.overlaps = tuple(overlaps[key].text for key in sorted(overlaps))
        self._overlapping = frozenset(overlaps)
        self._metrics.overlapping.set(len({container for container, _ in overlaps}))

    def export(self, decision: Decision) -> None:
        self._metrics.decided(
            decision.pools,
            decision.owners,
            tuple((each.title, each.key, each.cause) for each in decision.refusals),
        )

    def without_cgroup(self, titles: Mapping[str, str], now: float) -> None:
        """Logs running containers, by id, whose cgroup stays unknown: their CPUs can't be set.

        `now`: monotonic seconds."""
        self._no_cgroup = {
            container_id: self._no_cgroup.get(container_id, now) for container_id in titles
        }
        staying = frozenset(
            container_id
            for container_id, since in self._no_cgroup.items()
            if now - since >= _NO_CGROUP_SECONDS
        )
        for container_id in sorted(staying - self._logged_without_cgroup):
            log.error(
                "%s: its cgroup can't be found, its CPUs are not known",
                titles[container_id],
                extra=of_title(titles[container_id]),
            )
        self._logged_without_cgroup = staying
        self._metrics.containers_without_group.set(len(staying))

    def shortfalls(self, shortfalls: tuple[Shortfall, ...]) -> None:
        """Logs containers with fewer CPUs than promised."""
        for each in sorted(frozenset(shortfalls) - self._short, key=lambda each: each.title):
            fields = about(each.title, each.container, "shortfall")
            log.error("pod %s: %s", each.title, each.text, extra=fields)
        self._short = frozenset(shortfalls)
        self._metrics.short_of_cpus.set(len(shortfalls))

    def differing(self, numbers: Mapping[CpuSource, int]) -> None:
        """Exports, by source, the number of containers on other CPUs than it names. The log has the
        reasons, as refused claims, shortfalls and failed writes."""
        for source in CpuSource:
            self._metrics.differing_cpus.set(numbers.get(source, 0), source.value)

    def unallocated(self, pods: tuple[Unallocated, ...]) -> None:
        """Logs LSE and LSR pods to which nobody allocated CPUs."""
        for each in sorted(frozenset(pods) - self._unallocated, key=lambda each: each.title):
            fields = about(each.title, reason="unallocated")
            log.warning("pod %s: %s", each.title, each.text, extra=fields)
        self._unallocated = frozenset(pods)
        self._metrics.without_cpus.set(len(pods))

    def far_from_devices(self, places: Mapping[Key, NearNodes], titles: Mapping[str, str]) -> None:
        """Logs containers that run on more NUMA nodes than those near to their devices, or whose
        memory is not bound there although their policy binds it.

        `titles`: of the pods, by uid."""
        problems = {
            key: problem for key, place in places.items() if (problem := place.problem(key[1]))
        }
        for uid, name in sorted(problems.keys() - self._far):
            fields = about(titles[uid], name, "far_from_devices")
            log.warning("pod %s: %s", titles[uid], problems[uid, name], extra=fields)
        self._far = frozenset(problems)
        numbers = Counter(place.far for place in places.values())
        for reason in FarReason:
            self._metrics.far_from_devices.set(numbers[reason], reason.name.lower())

    def refused_limits(self, limits: tuple[RefusedLimit, ...]) -> None:
        """Logs limits that the state of their pod's cgroup does not allow."""
        now = {(each.uid, each.container, each.file): each for each in limits}
        for key in sorted(now.keys() - self._refused_limits):
            limit = now[key]
            fields = about(limit.title, limit.container, "limit_refused")
            log.warning("pod %s: %s", limit.title, limit.text, extra=fields)
        self._refused_limits = frozenset(now)
        numbers = Counter((each.title, each.container, each.file) for each in limits)
        self._metrics.refused_limits(numbers)

    def written(
        self, outcomes: Sequence[WriteOutcome], others: ValueOutcome, titles: Mapping[str, str]
    ) -> list[str]:
        """Logs what was written to cpusets (`outcomes`) and other files (`others`). Returns the
        failures as texts, without refused limits.

        `titles`: by group."""
        for change in (change for of in outcomes for change in of.having(WriteState.WRITTEN)):
            self._metrics.cgroup_writes.inc("written")
            title = titles[change.group]
            log.info("%s: cpuset %s -> %s", title, change.old, change.new, extra=of_title(title))
        failures = {
            change.group: f"{titles[change.group]}: {change.note}"
            for outcome in outcomes
            for change in outcome.having(WriteState.FAILED)
        }
        for value in others.having(WriteState.WRITTEN):
            self._metrics.cgroup_writes.inc("written")
            title, text = titles[value.group], f"{value.file} {value.old} -> {value.new}"
            log.info("%s: %s", title, text, extra=of_title(title))
        failures |= {
            f"{value.group} {value.file}": f"{titles[value.group]} {value.file}: {value.note}"
            for value in others.having(WriteState.FAILED)
            if not value.refused
        }
        errors = {others.journal_error, *(outcome.journal_error for outcome in outcomes)}
        failures |= {f"journal {error}": error for error in errors if error is not None}
        for key in sorted(failures.keys() - self._failed):
            self._metrics.cgroup_writes.inc("failed")
            log.error("not set: %s", failures[key])
        self._failed = frozenset(failures)
        return [failures[key] for key in sorted(failures)]


CLAIM_NOT_HONORED: Final = "CPUClaimNotHonored"
INVALID_ANNOTATION: Final = "InvalidAnnotation"
INVALID_LABEL: Final = "InvalidLabel"
LIMIT_REFUSED: Final = "LimitRefused"
FAR_FROM_DEVICES: Final = "FarFromDevices"
DISTURBED: Final = "Disturbed"
NO_CPUS_ALLOCATED: Final = "NoCPUsAllocated"
CPUS_ASSIGNED: Final = "CPUsAssigned"
CPUS_CHANGED: Final = "CPUsChanged"
CPUS_RELEASED: Final = "CPUsReleased"
REPEAT_SECONDS: Final = 1800.0
"""A lasting cause is recorded again after this time: the API server keeps an Event for an hour."""
PAUSE_SECONDS: Final = 60.0
"""The least time between two Events of one pod and reason."""
LASTING_SECONDS: Final = 10.0
"""How long the claim of a pod without a container is refused before an Event says so: the pod that
had the CPUs before may still be ending."""
DISTURBED_SECONDS: Final = 30.0
"""How long a pod is disturbed before an Event says so."""


class EventRecorder(Protocol):
    """Delivers Events."""

    def record(self, regarding: Regarding, reason: str, note: str) -> None: ...

    def inform(self, regarding: Regarding, reason: str, note: str) -> None: ...


class _Cause(NamedTuple):
    """The cause of an Event. All times are monotonic seconds."""

    since: float
    """When the cause appeared."""
    recorded: float | None = None
    """When its last Event was recorded, None before the first."""
    note: str = ""
    """The text of that Event."""

    def due(self, now: float, delay_seconds: float, *, same: bool) -> bool:
        """Whether an Event is to be recorded. `same`: it says the same as the last one."""
        if self.recorded is None:
            return now - self.since >= delay_seconds
        pause = REPEAT_SECONDS if same else PAUSE_SECONDS
        return now - self.recorded >= pause


class PodEvents:
    """Records Events of pods and of the Node.

    Warnings about a pod that does not have its promised CPUs, has an invalid annotation or label or
    a limit that its cgroup does not allow, belongs to a class that owns CPUs and got none, runs far
    from its devices, or is disturbed by others; and about faults of the Node. One for each object
    and reason when the cause appears, again every REPEAT_SECONDS while it lasts, and with a new
    text after PAUSE_SECONDS. Normal Events when a pod gets or loses CPUs, and when the Node
    changes.

    `records`: None if no Event is recorded."""

    def __init__(
        self, records: EventRecorder | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._clock = clock
        self._causes: dict[tuple[Regarding, str], _Cause] = {}
        self._owned: dict[str, str] | None = None
        self._changed: dict[str, float] = {}
        self._node: dict[str, str] = {}
        self._node_changed: dict[str, float] = {}

    @property
    def recorded(self) -> bool:
        """Whether Events are recorded; otherwise their notes need not be made."""
        return self._records is not None

    def owners(self, owners: Iterable[Owner], api_pods: Mapping[str, ApiPod]) -> None:
        """Records a normal Event for each pod that gets CPUs of its own, gets other ones, or loses
        them. A change is recorded after it has lasted LASTING_SECONDS: while a pod moves it has
        both sets of CPUs, and a pod that is ending loses its CPUs. The owners at the agent's start
        are not recorded. An owner whose CPUs are all offline has none.

        `api_pods`: by uid."""
        if self._records is None:
            return
        current = {owner.uid: owner.cpuset for owner in owners if owner.cpuset}
        if self._owned is None:
            self._owned = current
            return
        uids = [uid for uid in self._owned | current if self._owned.get(uid) != current.get(uid)]
        self._changed = {uid: since for uid, since in self._changed.items() if uid in uids}
        by_uid = {pod.runtime_uid: pod for pod in api_pods.values()} if uids else {}
        for uid in uids:
            before, cpus = self._owned.get(uid, ""), current.get(uid, "")
            since = self._changed.setdefault(uid, self._clock())
            pod = by_uid.get(uid)
            if pod is None or pod.terminal or pod.deleted:
                if not cpus:
                    del self._owned[uid]
            elif not before or self._clock() - since >= LASTING_SECONDS:
                about = Regarding(pod.namespace, pod.name, pod.uid)
                self._records.inform(about, *_change(before, cpus))
                self._owned[uid] = cpus
                if not cpus:
                    del self._owned[uid]

    def record(
        self,
        shortfalls: Iterable[Shortfall],
        refusals: Iterable[ClaimRefusal],
        unallocated: Iterable[Unallocated],
        created: Container[str],
        api_pods: Mapping[str, ApiPod],
        labels: Iterable[tuple[str, str]] = (),
        node: NodeNotes | None = None,
        limits: Iterable[RefusedLimit] = (),
        places: Mapping[Key, NearNodes] = MappingProxyType({}),
        disturbed: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """Records the warnings of a pass that are due.

        `refusals`: refused annotations.
        `created`: the uids of pods with a container.
        `api_pods`: by uid.
        `labels`: pairs of a pod's uid and a fault of its labels.
        `node`: None to record nothing about the Node.
        `places`: of containers with devices.
        `disturbed`: by uid, what disturbs a pod, in sentences."""
        if self._records is None:
            return
        now = self._clock()
        notes = _notes(shortfalls, refusals, unallocated, labels, limits)
        for (uid, name), place in sorted(places.items()):
            if problem := place.problem(name):
                notes.setdefault((uid, FAR_FROM_DEVICES), []).append(problem)
        for uid, sentences in disturbed.items():
            notes[uid, DISTURBED] = list(sentences)
        by_uid = {pod.runtime_uid: pod for pod in api_pods.values()} if notes else {}
        events: dict[tuple[Regarding, str], tuple[str, float]] = {}
        for (uid, reason), texts in notes.items():
            pod = by_uid.get(uid)
            if pod is None or pod.terminal:
                continue
            if reason == NO_CPUS_ALLOCATED and pod.scheduler:
                texts.append(f"spec.schedulerName: {pod.scheduler}")
            about = Regarding(pod.namespace, pod.name, pod.uid)
            delay_seconds = _delay_seconds(reason, created=uid in created)
            events[about, reason] = "; ".join(dict.fromkeys(texts)), delay_seconds
        if node is not None:
            about = Regarding("", node.name, node.uid, "Node")
            for reason, note in node.faults.items() if node.uid else ():
                events[about, reason] = note, DELAY_SECONDS[reason]
            self._node_changes(about, node.state, now)
        # A cause that ended recently is kept: one that comes and goes makes no Event each time.
        causes = {
            key: cause
            for key, cause in self._causes.items()
            if cause.recorded is not None and now - cause.recorded < PAUSE_SECONDS
        }
        for key, (note, delay_seconds) in events.items():
            causes[key] = self._lasting(key, note, delay_seconds, now)
        self._causes = causes

    def failed(self, node: NodeNotes) -> None:
        """Records the faults of a failed pass, which may not have called `record`: the other causes
        stay as they are."""
        for reason, note in node.faults.items() if self._records is not None else ():
            key = Regarding("", node.name, node.uid, "Node"), reason
            delay_seconds = DELAY_SECONDS[reason]
            self._causes[key] = self._lasting(key, note, delay_seconds, self._clock())

    def _lasting(
        self, key: tuple[Regarding, str], note: str, delay_seconds: float, now: float
    ) -> _Cause:
        """Records an Event of a present cause, if one is due. Returns the new state of the
        cause."""
        assert self._records is not None
        cause = self._causes.get(key) or _Cause(now)
        # The amounts change with each look.
        same = note == cause.note or key[1] == DISTURBED
        if not cause.due(now, delay_seconds, same=same):
            return cause
        self._records.record(*key, note)
        return _Cause(cause.since, now, note)

    def _node_changes(self, about: Regarding, state: Mapping[str, str], now: float) -> None:
        """Records at most one normal Event for each reason in PAUSE_SECONDS, with all that changed
        since the last one. The state at the agent's start is not recorded; a change before the Node
        is known is recorded later."""
        assert self._records is not None
        changes = node_changes(self._node, state) if about.uid else {}
        for reason, note in changes.items():
            if now - self._node_changed.get(reason, -PAUSE_SECONDS) >= PAUSE_SECONDS:
                self._records.inform(about, reason, note)
                self._node_changed[reason] = now
                del self._node[reason]
        self._node = {**state, **self._node}


def _delay_seconds(reason: str, *, created: bool) -> float:
    if reason == DISTURBED:
        return DISTURBED_SECONDS
    return 0 if created or reason == INVALID_LABEL else LASTING_SECONDS


def _change(before: str, cpus: str) -> tuple[str, str]:
    if not before:
        return CPUS_ASSIGNED, f"owns CPUs {cpus}"
    if not cpus:
        return CPUS_RELEASED, f"owns no CPUs; it had {before}"
    return CPUS_CHANGED, f"owns CPUs {cpus}; it had {before}"


def _notes(
    shortfalls: Iterable[Shortfall],
    refusals: Iterable[ClaimRefusal],
    unallocated: Iterable[Unallocated],
    labels: Iterable[tuple[str, str]],
    limits: Iterable[RefusedLimit],
) -> dict[tuple[str, str], list[str]]:
    """The notes by pod uid and reason, without the refusal of a pod with a shortfall, whose text
    has the same reason."""
    notes: dict[tuple[str, str], list[str]] = {}
    for short in shortfalls:
        notes.setdefault((short.uid, CLAIM_NOT_HONORED), []).append(short.text)
    for refusal in refusals:
        if (refusal.uid, CLAIM_NOT_HONORED) in notes:
            continue
        reason = CLAIM_NOT_HONORED if refusal.claimed else INVALID_ANNOTATION
        claims = f" claims CPUs {refusal.claimed}" if refusal.claimed else ""
        keeps = f"; it keeps CPUs {refusal.held}" if refusal.held else ""
        note = f"annotation {refusal.key}{claims}: {refusal.reason}{keeps}"
        notes.setdefault((refusal.uid, reason), []).append(note)
    for pod in unallocated:
        notes.setdefault((pod.uid, NO_CPUS_ALLOCATED), []).append(pod.text)
    for uid, fault in labels:
        notes.setdefault((uid, INVALID_LABEL), []).append(fault)
    for limit in limits:
        notes.setdefault((limit.uid, LIMIT_REFUSED), []).append(limit.text)
    return notes
