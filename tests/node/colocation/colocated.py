"""A node whose pods are in real cgroups, with a clock and a use that are given."""

from __future__ import annotations

from pathlib import Path

from agent.allocate.colocation.be_suppress import NodeUse
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.model.cpu.cpuset import CpuSet
from agent.model.node_slo import CpuQos, NodeSlo, QosClass, ResourceQos
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.node.colocation.cpu_priority import CpuPriority
from agent.node.colocation.cpu_suppression import CpuSuppression
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


class ColocatedNode:
    """Pods in real cgroups, below kubepods/CLASS as the kubelet places them."""

    def __init__(self, folder: Path, groups: RealGroups) -> None:
        self.folder = folder
        self.groups = groups
        self.controllers = Controllers(ROOT)
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
            (CpuPriority(self.controllers),),
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

    def run(self, name: str, kube_class: str) -> str:
        """The group of a new pod."""
        self.groups.make(f"/kubepods/{kube_class}")
        group = self.groups.make(f"/kubepods/{kube_class}/pod{name}")
        main = Container("c", "main", ContainerState.RUNNING, f"{group}/main")
        self.groups.make(f"/kubepods/{kube_class}/pod{name}/main")
        self.pods = {**self.pods, name: pod(name, containers=(main,))}
        api_pod = ApiPod(name, "ns", name, "n", Phase.RUNNING, {}, {}, kube_class, 1)
        self.api_pods = {**self.api_pods, name: api_pod}
        return group

    def value(self, group: str, file: str) -> str:
        return (self.controllers.read(group, file) or "").strip()
