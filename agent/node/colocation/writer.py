"""Writes what the features of colocation want, and gives back what they want no more."""

from __future__ import annotations

import itertools
import logging
import operator
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.cgroup.order import ValueOutcome, WriteState
from agent.host import files
from agent.host.log_once import Problem
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS
from agent.model.settings.colocation import FeatureMode
from agent.node.colocation.cpu_suppression import CpuSuppression
from agent.node.colocation.koordlet import KoordletTakeover
from agent.node.colocation.moment import (
    CHECK_SECONDS,
    ColocatedPod,
    Feature,
    Key,
    Moment,
    WantedFiles,
    colocated,
)
from agent.node.sources import SourceName, Sources
from agent.telemetry.usage_metrics import ColocationMeasures
from agent.usage.strategies import Strategies
from agent.view.colocation import ShownColocation, ShownFeature, shown

log = logging.getLogger(__name__)

_MOST_NAMED: Final = 5
_MOST_TEXT: Final = 500
_NOTHING: Final = Moment()
"""What a feature that is off sees: it wants nothing then, and gives back what it has changed."""
TOLD_SECONDS: Final = 5.0
_Pods = tuple[Mapping[str, Pod], Mapping[str, ApiPod]]


class WouldWrite(msgspec.Struct, frozen=True):
    """What a feature that observes would write if it acted."""

    files: int = 0
    first: tuple[str, ...] = ()
    """The first of them, as text."""


class Colocated(msgspec.Struct, frozen=True):
    """What the last second has brought."""

    wanted: Mapping[str, WantedFiles] = {}
    """By the name of the feature."""
    failed: tuple[str, ...] = ()
    """The writes that failed."""
    would_write: Mapping[str, WouldWrite] = {}
    """By the name of a feature that observes."""


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
        features: Sequence[Feature],
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
        self._controllers = controllers
        self._journal = journal
        self._suppression = suppression
        self._features = (suppression, *features)
        self._pods = pods
        self._strategies = strategies
        self._excludes = excludes
        self._sources = sources
        self._wake = wake
        self._path = path
        self._clock = clock
        self._modes = modes
        self._suppresses = modes[suppression.name] is FeatureMode.ACT
        self._takeover = takeover
        self._contents: Mapping[Key, str] | None = None
        self._checked_at = 0.0
        self._compared_at: float | None = None
        self._told: ShownColocation | None = None
        self._told_at = -TOLD_SECONDS
        self._problem = Problem(log, f"{path}: ")
        self._faults: dict[str, str] = {}
        self._be_cpus = suppression.now.cpus if self._suppresses else None
        self._decision: Decision | None = None
        self._seen: tuple[object, ...] = ()
        self._colocated: tuple[ColocatedPod, ...] = ()
        # The first pass must not give back what stays wanted. On v1 it restores the quotas of BE
        # pods, and that of all of them would be in the way.
        acts = FeatureMode.ACT in modes.values()
        self._held = frozenset(
            (group, file)
            for group, file in journal.values
            if acts
            and (
                limits.is_of_strategies(file)
                or (file != limits.QUOTA and limits.concerns_more(group, file))
            )
        )
        self.state = Colocated()
        """What the last step has brought; read by other threads."""

    def holds(self) -> Collection[Key]:
        """The files that features have now: passes leave them alone."""
        return self._held

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
            self._sources.report(SourceName.COLOCATION, [self._fault("colocation", failure)])

    def _step(self, pods: _Pods) -> None:
        if blocked := self._blocked(pods):
            self._contents = None
            self._settle(Colocated(failed=(blocked,)), None)
            return
        moment = self._moment(pods)
        wanted = {feature.name: self._wanted(feature, moment) for feature in self._features}
        contents = {
            key: text
            for name, of in wanted.items()
            if self._modes[name] is FeatureMode.ACT
            for key, text in of.files.items()
        }
        failed, now = self.state.failed, self._clock()
        # Reading hundreds of files each second costs more than all else.
        if contents != self._contents or now - self._checked_at >= CHECK_SECONDS:
            failed = self._write(contents)
            self._contents, self._checked_at = contents, now
        would_write = self.state.would_write
        if self._compared_at is None or now - self._compared_at >= CHECK_SECONDS:
            would_write, self._compared_at = self._would_write(wanted), now
        self._settle(Colocated(wanted, failed, would_write), self._suppression.now.cpus)

    def _wanted(self, feature: Feature, moment: Moment) -> WantedFiles:
        """What the feature wants. One that fails keeps what it has, and the others go on."""
        off = self._modes[feature.name] is FeatureMode.OFF
        try:
            return feature.wanted(_NOTHING if off else moment)
        except Exception as failure:  # noqa: BLE001  no annotation ends all features
            last = self.state.wanted.get(feature.name, WantedFiles())
            return WantedFiles(last.files, self._fault(feature.name, failure))

    def _fault(self, of: str, failure: Exception) -> str:
        """A sentence about a bug of ours. A new one is logged with the place."""
        text = f"{of} failed: {failure!r}"[:_MOST_TEXT]
        if text != self._faults.get(of):
            self._faults[of] = text
            log.exception("%s", text)
        return text

    def _blocked(self, pods: _Pods) -> str:
        """Why nothing is written: koordlet runs, or what it left can't be taken over yet."""
        if self._takeover is None:
            return ""
        if blocked := self._takeover.blocked():
            return blocked
        managed = [pod for pod in pods[0].values() if not self._excludes(pod)]
        if left := self._takeover.take(managed):
            self._held, self._contents = self._held.union(left), None
            self._wake()
        return self._takeover.blocked()

    def _settle(self, state: Colocated, be_cpus: CpuSet | None) -> None:
        """Reports what a second has brought.

        `be_cpus`: the CPUs of BE pods, if the agent suppresses them."""
        self.state = state
        problems = (f"{name}: {of.problem}" for name, of in state.wanted.items() if of.problem)
        self._sources.report(SourceName.COLOCATION, (*problems, *state.failed[:_MOST_NAMED]))
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
        now = self._clock()
        if now - self._told_at < TOLD_SECONDS:
            return
        state = self.state
        features = []
        for name, of in state.wanted.items():
            would = state.would_write.get(name, WouldWrite())
            features.append(
                ShownFeature(
                    name,
                    self._modes[name],
                    len(of.files),
                    of.problem,
                    would.files,
                    would.first,
                    of.notes,
                )
            )
        failed = state.failed[:_MOST_NAMED]
        told = shown(tuple(features), self._suppression.now, failed, suppresses=self._suppresses)
        if told == self._told:
            return
        self._told_at = now
        try:
            files.replace(self._path, msgspec.json.encode(told), durable=False)
        except OSError as error:
            self._problem.report(files.reason(error))
        else:
            self._told = told
            self._problem.clear()

    def _moment(self, pods: _Pods) -> Moment:
        """The pods are computed again only when something has changed."""
        strategies = self._strategies()
        seen = (*pods, strategies)
        if len(self._seen) != len(seen) or any(map(operator.is_not, seen, self._seen)):
            managed = (pod for pod in pods[0].values() if not self._excludes(pod))
            self._colocated = tuple(colocated(managed, pods[1], strategies))
            self._seen = seen
        return Moment(self._colocated, strategies, self._decision)

    def _write(self, wanted: Mapping[Key, str]) -> tuple[str, ...]:
        """Returns the failures."""
        weight = limits.weight_file(self._controllers)
        held = {*wanted, *((group, weight) for group, file in wanted if file == limits.IDLE)}
        ended = {
            (group, file)
            for group, file in self._journal.values
            if (group, file) not in held
            and (
                (group, file) in self._held
                or limits.is_of_strategies(file)
                or limits.concerns_more(group, file)
                or (file == weight and (group, limits.IDLE) in self._journal)
            )
        }
        outcomes = []
        if ended:
            outcomes.append(limits.restore(self._controllers, self._journal, ended))
        if wanted:
            outcomes.append(limits.apply_texts(self._controllers, self._journal, wanted))
        before, self._held = self._held, frozenset(held)
        return tuple(self._reported(outcomes, before - ended))

    def _would_write(self, wanted: Mapping[str, WantedFiles]) -> dict[str, WouldWrite]:
        """Reads the files of the features that observe."""
        would: dict[str, WouldWrite] = {}
        for name, of in wanted.items():
            if self._modes[name] is FeatureMode.OBSERVE:
                writes = limits.differing(self._controllers, of.files)
                first = (f"{one.group} {one.file}: {one.old} -> {one.new}" for one in writes)
                named = tuple(itertools.islice(first, _MOST_NAMED))
                would[name] = WouldWrite(len(writes), named)
        return would

    def _reported(self, outcomes: Iterable[ValueOutcome], kept: Collection[Key]) -> Iterator[str]:
        """Logs the writes, and returns the failures.

        `kept`: the files that a feature had before, too. Some quotas change each second."""
        for outcome in outcomes:
            for change in outcome.having(WriteState.WRITTEN):
                level = logging.DEBUG if (change.group, change.file) in kept else logging.INFO
                text = "%s: %s %s -> %s"
                log.log(level, text, change.group, change.file, change.old, change.new)
            for change in outcome.having(WriteState.FAILED):
                yield f"{change.group} {change.file}: {change.note}"
