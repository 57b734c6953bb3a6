"""Writes what the features of colocation want, and gives back what they want no more."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS
from agent.model.settings.feature_modes import FeatureMode
from agent.node.colocation.cpu_suppression import CpuSuppression
from agent.node.colocation.koordlet import KoordletTakeover
from agent.node.colocation.moment import ColocatedPod, Moment, colocated
from agent.node.features import (
    MOST_NAMED,
    Feature,
    FeatureState,
    FeatureWriter,
    Key,
    ShownFile,
)
from agent.node.sources import SourceName, Sources
from agent.telemetry.usage_metrics import ColocationMeasures
from agent.usage.strategies import Strategies
from agent.view.colocation import shown

_NOTHING: Final = Moment()
"""What a feature that is off sees: it wants nothing then, and gives back what it has changed."""
_Pods = tuple[Mapping[str, Pod], Mapping[str, ApiPod]]


class Colocation:
    """`step` and `follow` are called from the thread of the passes.

    `features`: all but the suppression.
    `pods`: returns the pods of the runtime, and their objects in the API, by uid; None while they
        are not known: what an earlier agent has written stays until then.
    `strategies`: returns what is in force.
    `excludes`: whether the agent leaves the pod alone.
    `wake`: lets the agent make a pass, which writes the cpusets of BE pods.
    `path`: the file for people, at most every TOLD_SECONDS.
    `modes`: of each feature, by its name.
    `takeover`: what koordlet left, and whether it runs; None if no feature acts."""

    def __init__(
        self,
        controllers: Controllers,
        journal: Journal,
        suppression: CpuSuppression,
        features: Sequence[Feature[Moment]],
        pods: Callable[[], _Pods | None],
        strategies: Callable[[], Strategies],
        excludes: Callable[[Pod], bool],
        sources: Sources,
        wake: Callable[[], None],
        path: str,
        modes: Mapping[str, FeatureMode],
        clock: Callable[[], float] = time.monotonic,
        takeover: KoordletTakeover | None = None,
    ) -> None:
        self._suppression = suppression
        self._pods = pods
        self._strategies = strategies
        self._excludes = excludes
        self._sources = sources
        self._wake = wake
        self._modes = modes
        self._suppresses = modes[suppression.name] is FeatureMode.ACT
        self._takeover = takeover
        self._shown = ShownFile(path, clock)
        self._be_cpus = suppression.now.cpus if self._suppresses else None
        self._decision: Decision | None = None
        self._seen: tuple[object, ...] = ()
        self._colocated: tuple[ColocatedPod, ...] = ()
        # On v1 a pass restores the quotas of BE pods, and that of all of them would be in the way.
        acts = FeatureMode.ACT in modes.values()
        held = frozenset(
            (group, file)
            for group, file in journal.values
            if acts and file != limits.QUOTA and limits.is_of_colocation(group, file)
        )
        self._writer = FeatureWriter(
            controllers,
            journal,
            (suppression, *features),
            modes,
            _NOTHING,
            limits.is_of_colocation,
            held,
            clock,
        )

    @property
    def state(self) -> FeatureState:
        """What the last step has brought."""
        return self._writer.state

    def holds(self) -> Collection[Key]:
        """The files that features have now: passes leave them alone."""
        return self._writer.held

    def be_cpus(self) -> CpuSet | None:
        """The CPUs that suppression leaves to BE pods; None for all of their pool."""
        return self._be_cpus

    def follow(self, topology: Topology, decision: Decision) -> None:
        """Takes the pools of a pass."""
        self._decision = decision
        self._suppression.follow(topology, decision)

    def step(self) -> None:
        """Computes, writes what differs, and gives back what is wanted no more. While a koordlet
        runs, it does nothing. Never raises."""
        try:
            if (pods := self._pods()) is not None:
                self._step(pods)
        except Exception as failure:  # noqa: BLE001  a fault must not end the passes
            fault = self._writer.fault("colocation", failure)
            self._sources.report(SourceName.COLOCATION, [fault])

    def _step(self, pods: _Pods) -> None:
        if blocked := self._blocked(pods):
            self._writer.pause(blocked)
            self._settle(None)
        else:
            self._writer.step(self._moment(pods))
            self._settle(self._suppression.now.cpus)

    def _blocked(self, pods: _Pods) -> str:
        """Why nothing is written: koordlet runs, or what it left can't be taken over yet."""
        if self._takeover is None:
            return ""
        if blocked := self._takeover.blocked():
            return blocked
        managed = [pod for pod in pods[0].values() if not self._excludes(pod)]
        if left := self._takeover.take(managed):
            self._writer.hold(left)
            self._wake()
        return self._takeover.blocked()

    def _settle(self, be_cpus: CpuSet | None) -> None:
        """Reports what a second has brought.

        `be_cpus`: the CPUs of BE pods, if the agent suppresses them."""
        self._sources.report(SourceName.COLOCATION, self._writer.problems())
        self._tell()
        be_cpus = be_cpus if self._suppresses else None
        if be_cpus != self._be_cpus:
            self._be_cpus = be_cpus
            self._wake()

    def measured(self) -> ColocationMeasures:
        """For metrics."""
        wanted, suppression = self.state.wanted, self._suppression.now
        amount = suppression.amount
        batch = self._suppresses and any(pod.qos is QoS.BE for pod in self._colocated)
        return ColocationMeasures(
            {name: len(of.files) for name, of in wanted.items()},
            [name for name, of in wanted.items() if of.problem],
            len(self.state.failed),
            None if amount is None else amount.left / 1000,
            batch and suppression.at_minimum,
        )

    def _tell(self) -> None:
        failed = self._writer.state.failed[:MOST_NAMED]
        features = self._writer.shown()
        self._shown.tell(
            shown(features, self._suppression.now, failed, suppresses=self._suppresses)
        )

    def _moment(self, pods: _Pods) -> Moment:
        """The pods are computed again only when something has changed."""
        strategies = self._strategies()
        seen = (*pods, strategies)
        if len(self._seen) != len(seen) or any(map(operator.is_not, seen, self._seen)):
            managed = (pod for pod in pods[0].values() if not self._excludes(pod))
            self._colocated = tuple(colocated(managed, pods[1], strategies))
            self._seen = seen
        return Moment(self._colocated, strategies, self._decision)
