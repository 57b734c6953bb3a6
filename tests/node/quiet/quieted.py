"""A node whose machine files are those of a folder, with owners that are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal, OriginalValue
from agent.cgroup.limits import KINDS_OF_MACHINE
from agent.cgroup.machine_files import MachineFiles
from agent.model.cpu.topology import Topology
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.settings.agent import AgentSettings
from agent.model.settings.quiet import default_features, quiet_modes
from agent.node.features import Feature
from agent.node.quiet.moment import QuietMoment, quiet_owners
from agent.node.quiet.writer import QuietCpus
from agent.node.sources import Sources
from agent.usage import QUIET_FILE
from agent.view import quiet as shown
from agent.view.quiet import ShownQuiet
from tests.builders import machine, pod

WORKQUEUES = "sys/devices/virtual/workqueue/cpumask"


def quiet_pod(
    name: str, cpus: str, annotations: Mapping[str, str], qos: str = "LSE", *names: str
) -> Pod:
    """A pod that claims CPUs. It has one container unless `names` has some."""
    containers = tuple(
        Container(f"{name}-{each}", each, ContainerState.RUNNING) for each in names or ("main",)
    )
    owner = pod(name, qos, cpus, containers=containers)
    return msgspec.structs.replace(owner, annotations={**owner.annotations, **annotations})


def moment_of(
    pods: Sequence[Pod], topology: Topology | None = None, default: frozenset[str] = frozenset()
) -> QuietMoment:
    """The moment after a pass over these pods, by default on eight CPUs."""
    topology = topology or machine(1, 8)
    decision = decided(pods, topology)
    return QuietMoment(quiet_owners(pods, decision, default)[0], topology, decision, tuple(pods))


def decided(pods: Sequence[Pod], topology: Topology) -> Decision:
    return decide(topology, tuple(pods), KubeletCpus(), {}, {})


class QuietMachine:
    """Its clock stands until a test moves it."""

    def __init__(self, folder: Path, *features: Feature[QuietMoment]) -> None:
        self.folder = folder
        self.root = folder / "host"
        self.root.mkdir()
        self.topology = machine(1, 8)
        self.features = features
        self.now = 100.0
        self.problems: dict[str, int] = {}
        self.sources = Sources(self.problems.__setitem__)
        (folder / "cgroup").mkdir()
        self.start()

    def start(
        self, switch: Literal["observe", "act"] = "act", features: str = "", owners: str = ""
    ) -> QuietCpus:
        """An agent that starts, after another one that was killed if there was one."""
        settings = AgentSettings(quiet=switch, quiet_features=features, quiet_owners=owners)
        self.journal = Journal(self.folder / "journal")
        files = self.files()
        self.controllers = Controllers(
            str(self.folder / "cgroup"), others=dict.fromkeys(KINDS_OF_MACHINE, lambda: files)
        )
        self.quiet = QuietCpus(
            self.controllers,
            self.journal,
            self.features,
            quiet_modes(settings),
            default_features(settings),
            self.sources,
            str(self.folder / QUIET_FILE),
            lambda: self.now,
        )
        return self.quiet

    def entry(self, group: str, file: str) -> OriginalValue | None:
        """That of the journal of the agent that runs."""
        return self.journal.value(group, file)

    def files(self) -> MachineFiles:
        """What reads and writes its files."""
        return MachineFiles(str(self.root))

    def follow(self, *pods: Pod) -> None:
        """A pass over these pods."""
        self.quiet.follow(pods, self.topology, decided(pods, self.topology))

    def second(self) -> None:
        """The next second."""
        self.now += 1.0
        self.quiet.step()

    def put(self, path: str, text: Any) -> None:
        """Another program, or the kernel, writes a file of the machine."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def text(self, path: str) -> str:
        return (self.root / path).read_text().strip()

    def told(self) -> ShownQuiet:
        """What people are told."""
        return shown.read(str(self.folder / QUIET_FILE))
