"""A node with owners of CPUs that ask for quiet ones, and a clock that is given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import CgroupError, Controllers
from agent.cgroup.irqbalance import Irqbalance
from agent.cgroup.journal import Journal
from agent.cgroup.limits import IRQ_AFFINITY, KINDS_OF_MACHINE
from agent.cgroup.machine_files import MachineFiles
from agent.model.cpu.topology import Topology
from agent.model.pod.annotations import QUIET
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS
from agent.model.settings.feature_modes import FeatureMode
from agent.model.settings.quiet import QUIET_FEATURES
from agent.model.snapshot import Owner
from agent.node.features import Feature
from agent.node.quiet.interrupts import QuietInterrupts
from agent.node.quiet.moment import QuietMoment
from agent.node.quiet.packet_steering import PacketSteering
from agent.node.quiet.writer import QuietCpus
from agent.node.sources import SourceName, Sources
from tests.builders import pod


class KilledError(BaseException):
    """No handler of the agent runs after SIGKILL either."""


class WatchedMachine(MachineFiles):
    """The files of a machine whose kernel refuses some writes, and on which the agent is killed."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.refusals: dict[str, int] = {}
        """The errors of groups."""
        self.idle: set[str] = set()
        """The groups of interrupts that occur no more: the kernel does not move them."""
        self.writes: list[tuple[str, str, str]] = []
        self.reads = 0
        self.left: int | None = None
        """So many writes before the kill; None for no kill."""

    def count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KilledError

    def read(self, group: str, file: str) -> str:
        self.reads += 1
        return super().read(group, file)

    def write(self, group: str, file: str, text: str) -> None:
        self.count()
        self.writes.append((group, file, text))
        if (number := self.refusals.get(group)) is not None:
            raise CgroupError(f"cannot write {file}") from OSError(number, os.strerror(number))
        if os.path.isfile(path := self.path(group, file)) and os.path.getsize(path):
            os.truncate(path, 0)  # no file of the kernel
            if file == IRQ_AFFINITY and group not in self.idle:
                with open(
                    os.path.join(os.path.dirname(path), "effective_affinity_list"), "w"
                ) as at:
                    at.write(f"{text}\n")
        super().write(group, file, text)


class QuietNode:
    """`root`: has the files of the machine."""

    def __init__(self, folder: Path, root: Path, topology: Topology, asks: str) -> None:
        """`asks`: the features that owners ask for."""
        self.folder = folder
        self.root = root
        self.topology = topology
        self.machine = WatchedMachine(str(root))
        self.now = 100.0
        self.asks = asks
        self.pods: dict[str, tuple[Pod, str]] = {}
        groups = folder / "cgroup"
        groups.mkdir()
        self.controllers = Controllers(
            str(groups),
            others={
                **dict.fromkeys(KINDS_OF_MACHINE, lambda: self.machine),
                "irqbalance": lambda: Irqbalance(
                    str(root), lambda: self.journal.values, lambda: self.now
                ),
            },
        )
        self.start()

    def start(self, mode: FeatureMode = FeatureMode.ACT) -> None:
        """A new agent with the journal that is there."""
        self.journal = Journal(self.folder / "journal")
        self.sources = Sources()
        root = str(self.root)
        features: tuple[Feature[QuietMoment], ...] = (
            QuietInterrupts(root, self.controllers, self.journal, lambda: self.now),
            PacketSteering(root, self.controllers, self.journal, lambda: self.now),
        )
        self.quiet = QuietCpus(
            self.controllers,
            self.journal,
            features,
            dict.fromkeys(QUIET_FEATURES, mode),
            frozenset(),
            self.sources,
            str(self.folder / "quiet.json"),
            lambda: self.now,
        )

    def own(self, name: str, cpus: str, annotations: Mapping[str, str] | None = None) -> None:
        """A pod that owns the CPUs.

        `annotations`: None for what `asks` says."""
        one = pod(name)
        notes = {QUIET: self.asks} if annotations is None else dict(annotations)
        self.pods[name] = (
            Pod(
                one.uid, one.namespace, one.name, one.labels, notes, one.kube_class, one.created_at
            ),
            cpus,
        )

    def follow(self) -> None:
        """A pass."""
        owners = tuple(
            Owner(name, f"ns/{name}", QoS.LSE, cpus) for name, (_, cpus) in self.pods.items()
        )
        pods = [one for one, _ in self.pods.values()]
        self.quiet.follow(pods, self.topology, Decision(owners, {}, (), {}))

    def step(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.now += 1
            self.quiet.step()

    def problems(self) -> tuple[str, ...]:
        return self.sources.problems.get(SourceName.QUIET, ())

    def notes(self, feature: str) -> tuple[str, ...]:
        return self.quiet.state.wanted[feature].notes

    def refused(self) -> set[int]:
        """The numbers of interrupts that the kernel does not move."""
        wanted = {(group, file) for group, file, _ in self.machine.writes if file == IRQ_AFFINITY}
        return {int(group[1:]) for group, _ in wanted - set(self.journal.files)}

    def restore(self) -> None:
        """By `topolet restore`."""
        limits.restore(self.controllers, Journal(self.folder / "journal"))


def interrupts(root: Path, affinities: Mapping[int, str], node: int = -1) -> None:
    """Makes interrupts, without an affinity for an empty one."""
    for number, affinity in affinities.items():
        folder = root / "proc/irq" / str(number)
        (folder / f"device{number}").mkdir(parents=True)
        (folder / "node").write_text(f"{node}\n")
        if affinity:
            (folder / "smp_affinity_list").write_text(f"{affinity}\n")
            (folder / "effective_affinity_list").write_text(f"{affinity}\n")


def affinities(root: Path) -> dict[int, str]:
    """The affinities of the interrupts that have one."""
    return {
        int(path.parent.name): path.read_text().strip()
        for path in sorted((root / "proc/irq").glob("*/smp_affinity_list"))
    }
