"""The resources that are free on the NUMA nodes of a node for pods without CPUs or devices from
Topolet: the amounts of its NodeResourceTopology report, without the pods that the report does not
count yet.

The report does not name the pods that it counts; it has only a fingerprint of them. Which pods fit
the fingerprint is found from the order in which pods started, the last pods that ended, and the
pods that were added since the report. A process that has just started does not know these. If the
report then counts unknown pods, the free amounts are unknown until the next report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.allocate.node_allocation import TopologyOptions
from agent.allocate.node_allocator.zones import assumed_of
from agent.allocate.nrt.node import (
    DECLINING,
    Assumed,
    NrtFreshness,
    ZonedNode,
    ZoneReport,
    freshness,
    without,
    zone_report,
)
from agent.model.cpu.policies import Strategy, kubelet_numa_policy
from agent.model.nrt import resource_topology
from agent.model.nrt.resource_topology import FingerprintMethod, NodeTopology
from agent.model.pod.numa_request import NumaRequest, exclusive
from agent.scheduler.state.records import InternPool, PodRecord

MAX_REMOVED: Final = 8
"""The number of the last deleted pods that a report may still count."""


class ReportFreshness:
    """Determines the pods that the report of one node counts. One thread at a time."""

    __slots__ = ("_admitted", "_counted", "_deleted", "_ended", "_pods", "_started", "_unreported")

    def __init__(self, pods: Mapping[str, PodRecord]) -> None:
        """`pods` are the assigned pods of the whole cluster, by uid."""
        self._pods = pods
        self._started: list[str] = []
        self._admitted: list[str] = []
        self._ended: dict[str, PodRecord] = _NO_PODS
        self._deleted: tuple[tuple[int, NumaRequest | None], ...] = ()
        self._unreported: frozenset[str] = frozenset()
        self._counted: _Counted | None = None

    @property
    def empty(self) -> bool:
        """Whether no pod has started."""
        return not self._started

    def reported(self) -> None:
        """Must be called for each new report of the node, which may count all started pods."""
        self._counted = None
        if self._unreported:
            self._unreported = self._unreported.difference(self._started)

    def updated(self, pod: PodRecord, *, new: bool = False) -> None:
        """Takes the current record of a pod on the node, terminated or not. `new`: no report can
        count it yet."""
        uid, pods = pod.uid, self._started
        if pod.terminated:
            self._ended = {**self._ended, uid: pod}
        elif new or not pod.started:
            self._unreported |= {uid}
        if not (pod.started or pod.terminated):
            pods = self._admitted
        elif uid in self._admitted:
            self._admitted.remove(uid)
        if uid not in pods:
            pods.append(uid)
        self._counted = None

    def deleted(self, pod: PodRecord) -> None:
        """Takes the last record of a deleted pod."""
        uid = pod.uid
        if uid in self._unreported:
            self._unreported -= {uid}
        if uid in self._ended:
            self._ended = {key: each for key, each in self._ended.items() if key != uid}
        if uid in self._admitted:
            self._admitted.remove(uid)
        if uid in self._started:
            self._started.remove(uid)
            self._deleted = (*self._deleted[1 - MAX_REMOVED :], (_hash(pod), pod.numa_request))
        self._counted = None

    def counted(self, zones: ZoneReport) -> frozenset[str] | None:
        """Returns the uids of the pods that the report counts; None if it counts unknown pods."""
        if self._counted is None:
            self._counted = self._count(zones)
        return self._counted.uids

    def _count(self, zones: ZoneReport) -> _Counted:
        if zones.fingerprint is None:
            return _Counted(frozenset(self._started) - self._unreported)
        deleted = [
            pod_hash for pod_hash, numa_request in self._deleted if _counts(zones, numa_request)
        ]
        for uids in self._reported_sets():
            pods = [pod for pod in map(self._pod, uids) if _counts(zones, pod.numa_request)]
            found = freshness(zones.fingerprint, [_hash(each) for each in pods], deleted)
            if found.state is not NrtFreshness.OTHER:
                missing = {each.uid for each in pods[len(pods) - found.missing :]}
                return _Counted(frozenset(uids) - missing)
        return _Counted(None)

    def _reported_sets(self) -> Iterator[list[str]]:
        """Yields the sets of pods that reports may count, in the order of their start: all started
        pods, as Topolet's agent reports; without terminated pods, as a kubelet reports; and with
        the pods that the kubelet has admitted but that do not run yet by the API server."""
        yield self._started
        running = [uid for uid in self._started if uid not in self._ended]
        if self._ended:
            yield running
        if self._admitted:
            yield [*running, *self._admitted]

    def _pod(self, uid: str) -> PodRecord:
        return self._ended.get(uid) or self._pods[uid]


class _Counted(msgspec.Struct, frozen=True):
    uids: frozenset[str] | None


_NO_PODS: Final[dict[str, PodRecord]] = {}


def _counts(zones: ZoneReport, numa_request: NumaRequest | None) -> bool:
    if zones.method is FingerprintMethod.ALL:
        return True
    return numa_request is not None and exclusive(numa_request, zones.reported.available)


def _hash(pod: PodRecord) -> int:
    namespace, _, name = pod.title.partition("/")
    return resource_topology.pod_hash(namespace, name)


def zones_matter(topology: NodeTopology, strategy: Strategy) -> bool:
    """Whether the feasibility or score of any pod depends on the report."""
    policy = kubelet_numa_policy(topology.policy)
    return policy in DECLINING or strategy is Strategy.LEAST_NUMA_NODES


def zone_report_of(topology: NodeTopology, allocatable: Iterable[str]) -> ZoneReport:
    """Returns the zone report. Nodes of one model share the value of their amounts without pods."""
    found = zone_report(topology, allocatable)
    return msgspec.structs.replace(found, empty=_empty.of(found.empty))


def remaining(
    zones: ZoneReport,
    report_freshness: ReportFreshness,
    pods: Iterable[PodRecord],
    cpus: TopologyOptions | None = None,
) -> ZonedNode | None:
    """Returns the amounts that `pods`, all pods bound to the node, leave free; None if the report
    counts unknown pods. The report may still count deleted pods: their amounts stay unavailable
    until the next report. `cpus` maps the pods' CPUs to NUMA nodes."""
    counted = report_freshness.counted(zones)
    if counted is None:
        return None
    taken = [
        assumed
        for each in pods
        if each.uid not in counted and (assumed := _assumed(each, cpus)) is not None
    ]
    return without(zones.reported, taken) if taken else zones.reported


_empty: Final = InternPool[ZonedNode]()


def _assumed(pod: PodRecord, cpus: TopologyOptions | None) -> Assumed | None:
    """Returns the amounts that a pod takes on known NUMA nodes; the choice of the kubelet is
    unknown."""
    if pod.assigned is None:
        return None
    taken = pod.numa_request.whole.taken if pod.numa_request is not None else {}
    return assumed_of(pod.assigned.allocation, taken, cpus)
