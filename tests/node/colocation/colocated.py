"""A node whose pods are in real cgroups, with a clock and a use that are given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent.allocate.colocation.be_suppress import NodeUse
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.node_slo import CpuQos, NodeSlo, QosClass, ResourceQos
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.node.colocation.cpu_priority import CpuPriority
from agent.node.colocation.cpu_suppression import CpuSuppression
from agent.node.colocation.memory_qos import PodMemoryQos
from agent.node.colocation.writer import Colocation
from agent.node.sources import Sources
from agent.usage import COLOCATION_FILE
from agent.usage.strategies import Strategies
from tests.builders import pod
from tests.cgroup.real_groups import RealGroups

ROOT = "/sys/fs/cgroup"
BATCH_IDLES = Strategies(
    NodeSlo(
        resource_qos_strategy=ResourceQos(
            be_class=QosClass(cpu_qos=CpuQos(enable=True, group_identity=-1))
        )
    )
)


class FileGroups:
    """Groups of cgroup v2 as regular files, which accept every value."""

    def __init__(self, root: Path, files: Mapping[str, str]) -> None:
        """`files`: of each group."""
        self.root = root
        self._files = files
        root.mkdir()
        (root / "cgroup.controllers").write_text("cpuset cpu memory\n")

    def make(self, name: str = "") -> str:
        folder = self.path(name, "")
        if not folder.exists():
            folder.mkdir()
            for file, text in self._files.items():
                (folder / file).write_text(f"{text}\n")
        return name

    def path(self, group: str, file: str) -> Path:
        return Path(f"{self.root}{group}", file)


class ColocatedNode:
    """Pods in cgroups, below kubepods/CLASS as the kubelet places them."""

    def __init__(
        self,
        folder: Path,
        groups: RealGroups | FileGroups,
        controllers: Controllers | None = None,
    ) -> None:
        self.folder = folder
        self.groups = groups
        self.controllers = controllers or Controllers(ROOT)
        self.allocatable_bytes: int | None = 64 << 30
        self.kubelet: KubeletConfiguration | None = KubeletConfiguration("here")
        self.strategies = BATCH_IDLES
        self.excluded = ""
        self.use: NodeUse | None = None
        self.passes: list[CpuSet | None] = []
        self.now = 100.0
        self.problems: dict[str, int] = {}
        self.pods: dict[str, Pod] = {}
        self.api_pods: dict[str, ApiPod] = {}
        groups.make("/kubepods")
        self.start()

    def start(self, *, acts: bool = True) -> Colocation:
        self.journal = Journal(self.folder / "journal")
        self.suppression = CpuSuppression(
            self.controllers, self.journal, lambda: self.use, clock=lambda: self.now
        )
        self.colocation = Colocation(
            self.controllers,
            self.journal,
            self.suppression,
            (
                CpuPriority(self.controllers),
                PodMemoryQos(
                    self.controllers,
                    lambda: self.allocatable_bytes,
                    lambda: self.kubelet,
                    acts=acts,
                ),
            ),
            lambda: (self.pods, self.api_pods),
            lambda: self.strategies,
            lambda pod: pod.name == self.excluded,
            Sources(self.problems.__setitem__),
            lambda: self.passes.append(self.colocation.be_cpus()),
            str(self.folder / COLOCATION_FILE),
            lambda: self.now,
            acts=acts,
        )
        return self.colocation

    def run(self, name: str, kube_class: str, **of_api: Any) -> str:
        """The group of a new pod.

        `of_api`: fields of its object."""
        above = "/kubepods" if kube_class == "guaranteed" else f"/kubepods/{kube_class}"
        self.groups.make(above)
        group = self.groups.make(f"{above}/pod{name}")
        main = Container("c", "main", ContainerState.RUNNING, f"{group}/main")
        self.groups.make(f"{above}/pod{name}/main")
        self.pods = {**self.pods, name: pod(name, containers=(main,))}
        api_pod = ApiPod(name, "ns", name, "n", Phase.RUNNING, {}, {}, kube_class, 1)
        api_pod = msgspec.structs.replace(api_pod, **of_api)
        self.api_pods = {**self.api_pods, name: api_pod}
        return group

    def value(self, group: str, file: str) -> str:
        return (self.controllers.read(group, file) or "").strip()
