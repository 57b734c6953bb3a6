"""A node whose pods are in real cgroups, with a clock and a use that are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from agent.allocate.colocation.be_suppress import NodeUse
from agent.allocate.colocation.cpu_burst import SharedUse
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.cgroup.limits import MAX, QUOTA
from agent.cgroup.resctrl import ControlGroups
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.node_slo import CpuQos, MemoryQos, NodeSlo, QosClass, ResourceQos
from agent.model.pod.apiobjects import ApiContainer, ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import KubeClass
from agent.model.settings.agent import AgentSettings
from agent.model.settings.colocation import feature_modes
from agent.model.settings.feature_modes import FeatureMode
from agent.node.colocation import cpu_suppression
from agent.node.colocation.cpu_burst import CpuBursting
from agent.node.colocation.cpu_priority import CpuPriority
from agent.node.colocation.cpu_suppression import CpuSuppression
from agent.node.colocation.disk_qos import DiskQos
from agent.node.colocation.koordlet import KoordletTakeover
from agent.node.colocation.left_alone import LeftAloneNetwork, LeftAloneSystem
from agent.node.colocation.memory_qos import PodMemoryQos
from agent.node.colocation.moment import Moment
from agent.node.colocation.oom_scores import OomScores
from agent.node.colocation.resctrl import CacheAndBandwidth
from agent.node.colocation.writer import Colocation
from agent.node.features import Feature
from agent.node.sources import Sources
from agent.usage import COLOCATION_FILE
from agent.usage.strategies import Strategies
from tests.builders import pod
from tests.cgroup.real_groups import RealGroups

ROOT = "/sys/fs/cgroup"
WITHOUT_LIMIT = MappingProxyType({"main": 0})
BATCH_IDLES = Strategies(
    NodeSlo(
        resource_qos_strategy=ResourceQos(
            be_class=QosClass(cpu_qos=CpuQos(enable=True, group_identity=-1))
        )
    )
)


def memory_qos(ls: MemoryQos | None = None, be: MemoryQos | None = None) -> Strategies:
    """`ls`: of LSR pods, too."""
    of_services = QosClass(memory_qos=ls or MemoryQos())
    classes = ResourceQos(
        lsr_class=of_services,
        ls_class=of_services,
        be_class=QosClass(memory_qos=be or MemoryQos()),
    )
    return Strategies(NodeSlo(resource_qos_strategy=classes))


def used(of_pods: float) -> NodeUse:
    """Of eight CPUs."""
    return NodeUse(
        capacity_milli=8000,
        reserved_milli=0,
        node_cores=of_pods + 0.5,
        pods_cores=of_pods + 0.5,
        other_pods_cores=of_pods,
        applications_cores=0.0,
        other_applications_cores=0.0,
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
        resctrl: ControlGroups | None = None,
    ) -> None:
        """`resctrl`: that of the controllers; None for a machine without."""
        self.resctrl = resctrl
        self.folder = folder
        self.groups = groups
        self.controllers = controllers or Controllers(ROOT)
        self.allocatable_bytes: int | None = 64 << 30
        self.kubelet: KubeletConfiguration | None = KubeletConfiguration("here")
        self.strategies = BATCH_IDLES
        self.excluded = ""
        self.known = True
        self.least_oom_score = -1000
        self.root = "/"
        self.use: NodeUse | None = None
        self.shared_use: SharedUse | None = None
        self.passes: list[CpuSet | None] = []
        self.now = 100.0
        self.problems: dict[str, int] = {}
        self.pods: dict[str, Pod] = {}
        self.api_pods: dict[str, ApiPod] = {}
        self.takeover: Callable[[Journal], KoordletTakeover] | None = None
        groups.make("/kubepods")
        self.start()

    def start(self, features: str = "", *, acts: bool = True) -> Colocation:
        """`features`: the modes of features that do less."""
        switch: Literal["act", "observe"] = "act" if acts else "observe"
        settings = AgentSettings(colocation=switch, colocation_features=features)
        modes = feature_modes(settings)
        self.journal = Journal(self.folder / "journal")
        self.suppression = CpuSuppression(
            self.controllers,
            self.journal,
            lambda: self.use,
            clock=lambda: self.now,
            last=cpu_suppression.last(str(self.folder / COLOCATION_FILE)),
        )
        self.memory_qos = PodMemoryQos(
            self.controllers,
            lambda: self.allocatable_bytes,
            lambda: self.kubelet,
            lambda: self.now,
            acts=modes[PodMemoryQos.name] is FeatureMode.ACT,
        )
        self.colocation = Colocation(
            self.controllers,
            self.journal,
            self.suppression,
            self.features(),
            lambda: (self.pods, self.api_pods) if self.known else None,
            lambda: self.strategies,
            lambda pod: pod.name == self.excluded,
            Sources(self.problems.__setitem__),
            self.wake,
            str(self.folder / COLOCATION_FILE),
            modes,
            lambda: self.now,
            self.takeover and self.takeover(self.journal),
        )
        return self.colocation

    def features(self) -> tuple[Feature[Moment], ...]:
        """All but the suppression."""
        return (
            *self._with_resctrl(),
            *self.further_features(),
            CpuPriority(self.controllers),
            CpuBursting(
                self.controllers,
                self.journal,
                lambda: self.shared_use,
                self.wake,
                lambda: self.now,
            ),
            self.memory_qos,
            OomScores(self.least_oom_score),
            DiskQos(self.controllers, self.root, lambda: self.now),
            LeftAloneNetwork(),
            LeftAloneSystem(),
        )

    def _with_resctrl(self) -> tuple[CacheAndBandwidth, ...]:
        if self.resctrl is None:
            return ()
        return (CacheAndBandwidth(self.resctrl, self.journal, lambda: self.now),)

    def further_features(self) -> tuple[Feature[Moment], ...]:
        """Those of a node of a subclass."""
        return ()

    def wake(self) -> None:
        self.passes.append(self.colocation.be_cpus())

    def run(
        self,
        name: str,
        kube_class: KubeClass,
        limits_milli: Mapping[str, int] = WITHOUT_LIMIT,
        **of_api: Any,
    ) -> str:
        """The group of a new pod.

        `limits_milli`: by container, 0 without a limit of CPU.
        `of_api`: fields of its object."""
        above = "/kubepods" if kube_class == "guaranteed" else f"/kubepods/{kube_class}"
        self.groups.make(above)
        group = self.groups.make(f"{above}/pod{name}")
        for each in limits_milli:
            self.groups.make(f"{above}/pod{name}/{each}")
        running = tuple(
            Container(f"{name} {each}", each, ContainerState.RUNNING, f"{group}/{each}")
            for each in limits_milli
        )
        self.pods = {**self.pods, name: pod(name, containers=running)}
        api_pod = ApiPod(name, "ns", name, "n", Phase.RUNNING, {}, {}, kube_class, 1)
        self.api_pods = {**self.api_pods, name: api_pod}
        self.resize(name, limits_milli)
        of_api_pod = msgspec.structs.replace(self.api_pods[name], **of_api)
        self.api_pods = {**self.api_pods, name: of_api_pod}
        if all(limits_milli.values()):
            self.set_quota(group, sum(limits_milli.values()))
        for each, limit_milli in limits_milli.items():
            if limit_milli:
                self.set_quota(f"{group}/{each}", limit_milli)
        return group

    def resize(self, name: str, limits_milli: Mapping[str, int]) -> None:
        """The pod has these limits in the API."""
        containers = tuple(
            ApiContainer(each, limits={"cpu": limit_milli} if limit_milli else {})
            for each, limit_milli in limits_milli.items()
        )
        resized = msgspec.structs.replace(self.api_pods[name], containers=containers)
        self.api_pods = {**self.api_pods, name: resized}

    def set_quota(self, group: str, limit_milli: int) -> None:
        """As a kubelet does. Raises OSError if the kernel refuses it."""
        v1 = self.controllers.version("cpu") == 1
        text = f"{100 * limit_milli}" if v1 else f"{100 * limit_milli} 100000"
        self.groups.path(group, QUOTA if v1 else MAX).write_text(text)

    def value(self, group: str, file: str) -> str:
        return (self.controllers.read(group, file) or "").strip()
