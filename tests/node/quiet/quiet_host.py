"""A host with owners that ask for a feature of quiet CPUs, with a clock that is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from agent.allocate.pools import Decision
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import QUIET, QUIET_FEATURES
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QoS
from agent.model.settings.feature_modes import FeatureMode
from agent.model.snapshot import Owner
from agent.node.features import Feature
from agent.node.quiet.moment import QuietMoment
from agent.node.quiet.writer import QuietCpus
from agent.node.sources import Sources
from agent.usage import QUIET_FILE
from agent.view import quiet
from agent.view.features import ShownFeature
from tests.builders import machine, pod

ALL: Final = CpuSet(range(8))


class QuietHost:
    """A machine of eight CPUs. `cpus`: can be those of this machine, from 0 on."""

    cpus = ALL

    def __init__(
        self,
        folder: Path,
        controllers: Controllers,
        feature: Callable[[Journal], Feature[QuietMoment]],
    ) -> None:
        """`feature`: makes that of an agent with this journal."""
        self.folder = folder
        self.controllers = controllers
        self._feature = feature
        self.now = 100.0
        self.pods: dict[str, Pod] = {}
        self.owners: tuple[Owner, ...] = ()
        self.start()

    def start(self) -> QuietCpus:
        """A new agent."""
        self.journal = Journal(self.folder / "journal")
        feature = self._feature(self.journal)
        self.asks = feature.name
        self.quiet = QuietCpus(
            self.controllers,
            self.journal,
            (feature,),
            dict.fromkeys(QUIET_FEATURES, FeatureMode.ACT),
            frozenset(),
            Sources(),
            str(self.folder / QUIET_FILE),
            lambda: self.now,
        )
        return self.quiet

    def own(self, cpus: CpuSet | str, asks: str = "", group: str = "") -> None:
        """A pod owns these CPUs, and asks for the feature, or for others."""
        name = f"p{len(self.owners)}"
        containers = (Container(name, "main", ContainerState.RUNNING, group),) if group else ()
        asking = msgspec.structs.replace(
            pod(name, containers=containers), annotations={QUIET: asks or self.asks}
        )
        self.pods = {**self.pods, name: asking}
        self.owners += (Owner(name, f"ns/{name}", QoS.LSE, str(cpus)),)

    def leave(self) -> None:
        """No pod owns CPUs."""
        self.pods, self.owners = {}, ()

    def decision(self) -> Decision:
        return Decision(self.owners, {}, (), {})

    def step(self) -> None:
        self.now += 10
        topology = machine(1, len(self.cpus))
        self.quiet.follow(self.pods.values(), topology, self.decision())
        self.quiet.step()

    def shown(self) -> ShownFeature:
        (feature,) = quiet.read(str(self.folder / QUIET_FILE)).features
        return feature
