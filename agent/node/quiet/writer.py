"""Writes what the features of quiet CPUs want, and gives back what they want no more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from agent.allocate.cpu_claims import ClaimRefusal
from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import Topology
from agent.model.pod.pods import Pod
from agent.model.settings.feature_modes import FeatureMode
from agent.node.features import MOST_NAMED, Feature, FeatureState, FeatureWriter, Key, ShownFile
from agent.node.quiet.host_slices import HOST_SLICES, pause_cpus
from agent.node.quiet.moment import QuietMoment, quiet_owners
from agent.node.quiet.partitions import PARTITIONS, CpusetPartitions
from agent.node.sources import SourceName, Sources
from agent.telemetry.quiet_metrics import QuietMeasures
from agent.view.quiet import ShownQuiet, ShownQuietOwner

_NOTHING: Final = QuietMoment()
"""What a feature that is off sees."""
CHECK_SECONDS: Final = 1.0
"""What does not change is read so often: other programs write the same files."""


class QuietCpus:
    """`follow` and `step` are called from the thread of the passes.

    `default`: has the features of an owner that does not ask.
    `path`: is the file for people."""

    def __init__(
        self,
        controllers: Controllers,
        journal: Journal,
        features: Sequence[Feature[QuietMoment]],
        modes: Mapping[str, FeatureMode],
        default: frozenset[str],
        sources: Sources,
        path: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._modes = modes
        self._default = default
        self._partitions = next(
            (each for each in features if isinstance(each, CpusetPartitions)), None
        )
        self._sources = sources
        self._shown = ShownFile(path, clock)
        self._moment: QuietMoment | None = None
        self._refusals: tuple[ClaimRefusal, ...] = ()
        acts = FeatureMode.ACT in modes.values()
        held = frozenset(key for key in journal.values if acts and limits.is_of_quiet(key[1]))
        self._writer = FeatureWriter(
            controllers,
            journal,
            features,
            modes,
            _NOTHING,
            lambda group, file: limits.is_of_quiet(file),
            held,
            clock,
            CHECK_SECONDS,
        )

    @property
    def state(self) -> FeatureState:
        """What the last step has brought."""
        return self._writer.state

    def measured(self) -> QuietMeasures:
        """For metrics. May be called from another thread."""
        state, moment = self.state, self._moment
        owners = () if moment is None else moment.owners
        asked = Counter(feature for owner in owners for feature in owner.wishes.features)
        return QuietMeasures(
            {name: len(of.files) for name, of in state.wanted.items()},
            [name for name, of in state.wanted.items() if of.problem],
            len(state.failed),
            {name: asked[name] for name in state.wanted},
        )

    def holds(self) -> Collection[Key]:
        """The files that features have now: passes leave them alone."""
        return self._writer.held

    def refusals(self) -> tuple[ClaimRefusal, ...]:
        """The annotations of owners that can't be read."""
        return self._refusals

    def pause_cpus(self, pods: tuple[Pod, ...], topology: Topology, decision: Decision) -> CpuSet:
        """Where a pass puts the pause containers of all pods; empty where each runs as the other
        containers of its pod do."""
        if self._modes[HOST_SLICES] is not FeatureMode.ACT:
            return EMPTY
        owners, _ = quiet_owners(pods, decision, self._default)
        decision = msgspec.structs.replace(decision, pauses=EMPTY)
        return pause_cpus(self._chained(QuietMoment(owners, topology, decision, pods)))

    def _chained(self, moment: QuietMoment) -> QuietMoment:
        """The moment with the CPUs of a chain, which the host's groups must not name: they are not
        needed while no owner wants these to move."""
        acts = self._modes[PARTITIONS] is FeatureMode.ACT
        if self._partitions is None or not acts or not any(moment.asking(HOST_SLICES)):
            return moment
        return msgspec.structs.replace(moment, chain=self._partitions.chain(moment))

    def before(self, pods: Iterable[Pod], topology: Topology, decision: Decision) -> None:
        """Ends the partitions whose CPUs the decision changes, before a pass writes. Never
        raises."""
        if self._partitions is None:
            return
        owners, _ = quiet_owners(pods, decision, self._default)
        moment = QuietMoment(owners, topology, decision)
        try:
            self._writer.release(self._partitions.leaving(moment, self._writer.held))
        except Exception as failure:  # noqa: BLE001  a fault must not end the passes
            self._sources.report(SourceName.QUIET, [self._writer.fault("partitions", failure)])

    def follow(self, pods: Iterable[Pod], topology: Topology, decision: Decision) -> None:
        """Takes the owners of a pass, and writes what they change at once."""
        pods = tuple(pods)
        owners, self._refusals = quiet_owners(pods, decision, self._default)
        moment = self._chained(QuietMoment(owners, topology, decision, pods))
        if moment != self._moment:
            self._moment = moment
            self.step()

    def step(self) -> None:
        """Computes, writes what differs, and gives back what is wanted no more. It does nothing
        before the first pass. Never raises."""
        if self._moment is None:
            return
        try:
            self._writer.step(self._moment)
        except Exception as failure:  # noqa: BLE001  a fault must not end the passes
            self._sources.report(SourceName.QUIET, [self._writer.fault("quiet CPUs", failure)])
            return
        faults = [
            f"pod {each.title}: annotation {each.key}: {each.reason}" for each in self._refusals
        ]
        self._sources.report(SourceName.QUIET, (*self._writer.problems(), *faults[:MOST_NAMED]))
        self._shown.tell(
            ShownQuiet(
                self._writer.shown(),
                tuple(
                    ShownQuietOwner(
                        owner.title, str(owner.cpus), tuple(sorted(owner.wishes.features))
                    )
                    for owner in self._moment.owners
                ),
                self.state.failed[:MOST_NAMED],
                tuple(faults[:MOST_NAMED]),
            )
        )
