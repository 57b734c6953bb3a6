"""NUMA nodes by the node's report, and the pods assigned since. Kubernetes' rules place pods
without CPUs or devices from Topolet (see `allocate.nrt`), and the kubelet's policies restricted and
single-numa-node admit or reject all pods. The node's agent reports the free amounts some time after
a pod was assigned: until then its amounts are subtracted. A plain pod may take them from any NUMA
node, so they are subtracted from each one; which one the kubelet chooses depends on ended pods and
on the order of arrival. The allocation of any other pod names its NUMA nodes, except under the CPU
manager policy static, where the kubelet chooses them too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping

import msgspec

from agent.allocate.node_allocation import PodAllocation, TopologyOptions
from agent.allocate.nrt.filter import filter as by_zones
from agent.allocate.nrt.filter import preferred_misfit, restricts
from agent.allocate.nrt.node import Assumed, ZonedNode, ZoneReport, with_freed, without
from agent.allocate.nrt.score import score
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.pod.zone_request import ZonedPod
from agent.model.settings.plugin_args import ZoneScoring


class Zones:
    """The zones of one node. `report` None: it does not count, and every pod passes. Not
    thread-safe."""

    def __init__(self, report: ZoneReport | None) -> None:
        self._report = report
        self._reported = report.reported if report else None
        self._since: dict[str, Assumed] = {}
        self._left: ZonedNode | None = None

    def with_report(self, report: ZoneReport | None, uncounted: Container[str]) -> Zones:
        """A new report, which counts all pods but those (uids) of `uncounted`."""
        other = Zones(report)
        if report is not None:
            other._since = {uid: each for uid, each in self._since.items() if uid in uncounted}
        return other

    def update_report(
        self, report: ZoneReport | None, left: ZonedNode | None, uncounted: Container[str] = ()
    ) -> None:
        """`left`: the amounts that all pods but those of `uncounted` leave free; None: unknown."""
        self._report, self._reported, self._left = report, left, None
        self._since = {uid: each for uid, each in self._since.items() if uid in uncounted}

    def without(
        self,
        uids: Collection[str],
        allocations: Iterable[PodAllocation] = (),
        cpus: TopologyOptions | None = None,
    ) -> Zones:
        """A copy without these pods. Their `allocations` become free; anything else that the
        node counts stays in its report. `cpus`: their NUMA nodes."""
        other = Zones(self._report)
        other._since = {uid: each for uid, each in self._since.items() if uid not in uids}
        other._reported = reported = self._reported
        counted = [_zones_of(each, cpus) for each in allocations if each.uid not in self._since]
        if self._report and reported and any(counted):
            other._reported = with_freed(reported, self._report.empty, counted)
        return other

    def restricts(self, uid: str, pod: ZonedPod, steps: Steps = UNCOUNTED) -> Refusal | None:
        """Why the kubelet would reject the pod under its policy restricted, or because of an init
        container under single-numa-node; None if it would admit the pod. It does not matter who
        chooses the pod's CPUs and devices. Raises TooComplexError."""
        report = self._report
        if report is None or not restricts(report.reported, pod):
            return None
        return _lack(preferred_misfit, report, self._left_for(uid), pod, steps)

    def score(
        self, uid: str, pod: ZonedPod, scoring: ZoneScoring, steps: Steps = UNCOUNTED
    ) -> int | Refusal:
        """The score of the node for a pod without CPUs or devices from Topolet. A request for NUMA
        nodes may have no amount: then only the reported resources matter, not the free amounts.
        Raises TooComplexError."""
        left, report = None, self._report
        if report is not None:
            left = self._left_for(uid) if pod.whole.taken else report.reported
            if lack := _lack(by_zones, report, left, pod, steps):
                return lack
        return score(left, pod, scoring.type, scoring.weights, steps)

    def state(self) -> tuple[ZonedNode, ...] | None:
        """What the answers to a pod that holds nothing here read; None without a report."""
        report, left = self._report, self._left_for("")
        if report is None:
            return None
        return (report.reported, report.empty) + ((left,) if left is not None else ())

    def place(
        self,
        uid: str,
        allocation: PodAllocation | None,
        taken: Mapping[str, int],
        cpus: TopologyOptions | None,
    ) -> None:
        """Adds a pod. `allocation` and `taken`: see `assumed_of`; `cpus`: their NUMA nodes."""
        if self._report is None:
            return
        if assumed := assumed_of(allocation, taken, cpus):
            self._since[uid] = assumed
        self._left = None

    def leave(self, uid: str) -> None:
        """No longer subtracts a pod, unless the node's report counts it."""
        if self._since.pop(uid, None) is not None:
            self._left = None

    def _left_for(self, uid: str) -> ZonedNode | None:
        """The amounts that all pods but this one leave free; None: unknown."""
        reported = self._reported
        if reported is None or not self._since:
            return reported
        if uid in self._since:
            return without(reported, [each for key, each in self._since.items() if key != uid])
        if self._left is None:
            self._left = without(reported, self._since.values())
        return self._left


def _lack(
    check: Callable[[ZonedNode, ZonedPod, Steps], object],
    report: ZoneReport,
    left: ZonedNode | None,
    pod: ZonedPod,
    steps: Steps,
) -> Refusal | None:
    """The refusal of `check`, or that the amounts are unknown: `left` None."""
    found = check(left or report.empty, pod, steps)
    if isinstance(found, Refusal):
        lasting = left is None or isinstance(check(report.empty, pod, steps), Refusal)
        return msgspec.structs.replace(found, lasting=lasting)
    if left is None and report.declines:
        return Refusal(Reason.STALE_REPORT)
    return None


def assumed_of(
    allocation: PodAllocation | None, taken: Mapping[str, int], cpus: TopologyOptions | None
) -> Assumed | None:
    """The pod's own CPUs and amounts by its allocation; a pod on a shared pool takes no CPU.
    `taken`: the amounts that the kubelet takes for the pod, from any NUMA node if the allocation
    names none. A static kubelet follows no allocation."""
    zones = _zones_of(allocation, cpus) if allocation is not None else {}
    if cpus and cpus.kubelet_static:
        owned: Counter[str] = Counter()
        for amounts in zones.values():
            owned.update(amounts)
        zones, taken = {}, {**owned, **taken}
    named = {name for amounts in zones.values() for name in amounts}
    anywhere = {name: amount for name, amount in taken.items() if name not in named}
    return Assumed(zones, anywhere) if zones or anywhere else None


def _zones_of(allocation: PodAllocation, cpus: TopologyOptions | None) -> dict[int, dict[str, int]]:
    zones: dict[int, dict[str, int]] = {}
    for area in cpus.layout.nodes if cpus and cpus.layout else ():
        if own := (area.cpus & allocation.cpus.mask).bit_count():
            zones[area.id] = {"cpu": 1000 * own}
    for node, amounts in allocation.amounts.items():
        there = {name: amount for name, amount in amounts.items() if name != "cpu"}
        zones[node] = {**zones.get(node, {}), **there}
    return zones
