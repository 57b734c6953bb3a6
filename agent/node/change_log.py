"""The change log: reports what changed since the last pass, each change once, as log messages,
metrics and Events of pods and of the Node.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from agent.allocate.cpu_claims import ClaimRefusal
from agent.allocate.pools import Decision
from agent.cgroup.outcome import ValueOutcome, WriteOutcome, WriteState
from agent.kube.events import Regarding
from agent.model.apiobjects import ApiPod
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Pod
from agent.model.snapshot import Owner
from agent.node.violations import Shortfall, find_overlaps, started
from agent.telemetry.metrics import AgentMetrics

log = logging.getLogger(__name__)

# A container that ends loses its cgroup before the runtime lists it as ended.
_NO_CGROUP_SECONDS = 1.0


class ChangeRecorder:
    """Keeps the state of the last pass."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics
        self._overlapping: frozenset[tuple[str, str]] = frozenset()
        self._refused: frozenset[ClaimRefusal] = frozenset()
        self._failed: frozenset[str] = frozenset()
        self._short: frozenset[Shortfall] = frozenset()
        self._vanished: dict[str, str] = {}
        self._no_cgroup: dict[str, float] = {}
        self._logged_without_cgroup: frozenset[str] = frozenset()

    def decided(
        self,
        pods: tuple[Pod, ...],
        decision: Decision,
        owners: tuple[Owner, ...],
        holds: Mapping[str, CpuSet],
    ) -> None:
        """Logs refused claims, owners of offline CPUs, moved CPUs, and containers on the CPUs of
        owners that run. `owners`: those to check."""
        refused = frozenset(decision.refusals)
        for each in sorted(refused - self._refused, key=lambda each: each.uid):
            self._metrics.refusals.inc()
            where = f"annotation {each.key}: " if each.key else ""
            place = f"has CPUs {each.held} of its own" if each.held else "keeps the pool"
            claims = f"claims CPUs {each.claimed}: " if each.claimed and each.held else ""
            log.error("pod %s %s: %s%s%s", each.title, place, where, claims, each.reason)
        self._refused = refused
        titles = {pod.uid: pod.title for pod in pods}
        for move in decision.moves:
            change = f"CPUs {move.source} -> {move.target}: {move.reason.value}"
            log.info("%s %s: %s", titles[move.uid], move.name, change)

        vanished = {each.title: each.offline for each in decision.owners if each.offline}
        for title in sorted(vanished.keys()):
            if vanished[title] != self._vanished.get(title):
                log.error("pod %s: CPUs %s of its own are offline", title, vanished[title])
        for title in sorted(self._vanished.keys() - vanished.keys()):
            log.info("pod %s: its CPUs are online again, or its pod has ended", title)
        self._vanished = vanished

        running = started(pods)
        found = {
            (each.container_id, each.owner_uid): each
            for each in find_overlaps(pods, owners, holds)
            if each.owner_uid in running
        }
        for key in sorted(found.keys() - self._overlapping):
            self._metrics.overlaps.inc()
            overlap = found[key]
            log.error(
                "pod %s runs on CPUs %s of pod %s", overlap.title, overlap.cpus, overlap.owner
            )
        self._overlapping = frozenset(found)

    def export(self, decision: Decision) -> None:
        """Exports the decision as metrics."""
        self._metrics.decided(
            {"ls": decision.ls_pools, "be": decision.be_pools},
            decision.owners,
            tuple((each.title, each.key, each.reason) for each in decision.refusals),
        )

    def without_cgroup(self, titles: Mapping[str, str], now: float) -> None:
        """Logs running containers, by id, whose cgroup stays unknown: their CPUs can't be set.
        `now`: monotonic seconds."""
        self._no_cgroup = {each: self._no_cgroup.get(each, now) for each in titles}
        staying = frozenset(
            each for each, since in self._no_cgroup.items() if now - since >= _NO_CGROUP_SECONDS
        )
        for each in sorted(staying - self._logged_without_cgroup):
            log.error("%s: its cgroup can't be found, its CPUs are not known", titles[each])
        self._logged_without_cgroup = staying
        self._metrics.containers_without_group.set(len(staying))

    def shortfalls(self, shortfalls: tuple[Shortfall, ...]) -> None:
        """Logs containers with fewer CPUs than promised."""
        for each in sorted(frozenset(shortfalls) - self._short, key=lambda each: each.title):
            log.error("pod %s: %s", each.title, each.text)
        self._short = frozenset(shortfalls)
        self._metrics.short_of_cpus.set(len(shortfalls))

    def written(
        self, outcomes: Sequence[WriteOutcome], others: ValueOutcome, titles: Mapping[str, str]
    ) -> list[str]:
        """Logs what was written. Returns the failures as texts; `titles` by group."""
        for change in (each for of in outcomes for each in of.having(WriteState.WRITTEN)):
            self._metrics.cgroup_writes.labels("written").inc()
            log.info("%s: cpuset %s -> %s", titles[change.group], change.old, change.new)
        failures = {
            change.group: f"{titles[change.group]}: {change.note}"
            for outcome in outcomes
            for change in outcome.having(WriteState.FAILED)
        }
        for value in others.having(WriteState.WRITTEN):
            self._metrics.cgroup_writes.labels("written").inc()
            log.info("%s: %s %s -> %s", titles[value.group], value.file, value.old, value.new)
        failures |= {
            f"{value.group} {value.file}": f"{titles[value.group]} {value.file}: {value.note}"
            for value in others.having(WriteState.FAILED)
        }
        errors = {others.journal_error, *(outcome.journal_error for outcome in outcomes)}
        failures |= {f"journal {error}": error for error in errors if error is not None}
        for key in sorted(failures.keys() - self._failed):
            self._metrics.cgroup_writes.labels("failed").inc()
            log.error("not set: %s", failures[key])
        self._failed = frozenset(failures)
        return [failures[key] for key in sorted(failures)]


CLAIM_NOT_HONORED: Final = "CPUClaimNotHonored"
INVALID_ANNOTATION: Final = "InvalidAnnotation"
INVALID_LABEL: Final = "InvalidLabel"
INVALID_NODE: Final = "InvalidNodeConfiguration"
AGAIN_SECONDS: Final = 1800.0
"""The API server keeps an Event for an hour: a lasting cause is recorded again."""


class EventRecorder(Protocol):
    """Delivers Events."""

    def record(self, regarding: Regarding, reason: str, note: str) -> None: ...


class NodeFaults(NamedTuple):
    """The invalid labels and annotations of a Node; `uid`: the API's."""

    name: str
    uid: str
    faults: Iterable[str]


class PodEvents:
    """Events of pods that do not have promised CPUs, or have an invalid annotation or label, and of
    the Node: one when the cause appears, and every AGAIN_SECONDS while it lasts. Without `records`
    it does nothing."""

    def __init__(
        self, records: EventRecorder | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._clock = clock
        self._recorded: dict[tuple[Regarding, str, str], float] = {}

    def record(
        self,
        shortfalls: Iterable[Shortfall],
        unread: Iterable[ClaimRefusal],
        known: Mapping[str, ApiPod],
        labels: Iterable[tuple[str, str]] = (),
        node: NodeFaults | None = None,
    ) -> None:
        """`unread`: refusals of annotations that name no CPUs; `known`: the API's pods; `labels`:
        uids of pods with faults of their labels; `node` None: the Node is not known."""
        if self._records is None:
            return
        notes = [(each.uid, CLAIM_NOT_HONORED, each.text) for each in shortfalls]
        notes += [
            (each.uid, INVALID_ANNOTATION, f"annotation {each.key}: {each.reason}")
            for each in unread
        ]
        notes += [(uid, INVALID_LABEL, fault) for uid, fault in labels]
        by_uid = {pod.runtime_uid: pod for pod in known.values()} if notes else {}
        events = [
            (Regarding(pod.namespace, pod.name, pod.uid), reason, note)
            for uid, reason, note in notes
            if (pod := by_uid.get(uid)) is not None
        ]
        if node is not None:
            about = Regarding("", node.name, node.uid, "Node")
            events += [(about, INVALID_NODE, fault) for fault in node.faults]
        now = self._clock()
        standing = {}
        for event in events:
            before = self._recorded.get(event)
            if before is None or now - before >= AGAIN_SECONDS:
                self._records.record(*event)
                before = now
            standing[event] = before
        self._recorded = standing
