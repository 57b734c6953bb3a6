"""A node with passes and quiet CPUs, whose pods are in cgroups of v2."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.cgroup import writer
from agent.cgroup.hierarchy import Controllers, Handles, Hierarchy
from agent.cgroup.host_slices import SliceCpus
from agent.cgroup.journal import Journal
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.pod.annotations import QUIET
from agent.model.pod.pods import Pod
from agent.model.settings.feature_modes import FeatureMode
from agent.model.settings.quiet import QUIET_FEATURES
from agent.node.enforcement import sandbox_cpusets, wanted_cpusets
from agent.node.quiet.host_slices import HostSlices
from agent.node.quiet.partitions import CpusetPartitions
from agent.node.quiet.writer import QuietCpus
from agent.node.sources import Sources
from tests import builders
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import FileGroups


class PartitionedNode:
    """Pods that own CPUs ask for partitions. No pod runs on the CPUs in `reserved`. The top of real
    groups is that of all pods."""

    def __init__(
        self,
        folder: Path,
        groups: RealGroups | FileGroups,
        root: str,
        topology: Topology,
        reserved: str = "0",
        handles: Handles | None = None,
    ) -> None:
        self.folder = folder
        self.groups = groups
        self.topology = topology
        self.rules = PoolRules(node_reserved=CpuSet.parse(reserved))
        self.hierarchy = Hierarchy(root)
        if handles is not None:
            self.hierarchy.handles = handles
        others = {"slice": lambda: SliceCpus(self.hierarchy)}
        self.controllers = Controllers(root, self.hierarchy.handles, others)
        self.pods: dict[str, Pod] = {}
        self.owned: Mapping[str, CpuSet] = {}
        self.problems: tuple[str, ...] = ()
        self.now = 100.0
        self.above = "" if isinstance(groups, RealGroups) else "/kubepods"
        self.kubepods = groups.make(self.above)
        groups.make(f"{self.above}/burstable")
        self.start()

    def start(self, mode: FeatureMode = FeatureMode.ACT, *, chain: bool = True) -> None:
        """An agent begins."""
        self.journal = Journal(self.folder / "journal")
        partitions = CpusetPartitions(self.controllers, chain=chain)
        slices = HostSlices(self.controllers, self.hierarchy, self.journal)
        self.quiet = QuietCpus(
            self.controllers,
            self.journal,
            (partitions, slices),
            dict.fromkeys(QUIET_FEATURES, mode),
            frozenset(),
            Sources(lambda source, count: None),
            str(self.folder / "quiet.json"),
            lambda: self.now,
        )

    def add(
        self,
        name: str,
        cpuset: str = "",
        qos: str = "LSE",
        kube_class: Literal["guaranteed", "burstable"] = "guaranteed",
        asks: str = "partitions",
    ) -> str:
        """The group of a new pod that owns these CPUs, or shares the pool.

        `asks`: the features that an owner asks for."""
        folder = self.above if kube_class == "guaranteed" else f"{self.above}/burstable"
        group = self.groups.make(f"{folder}/pod{name}")
        of_pod = builders.pod(name, qos if cpuset else "LS", cpuset, kube_class=kube_class)
        container = builders.running(f"{name}-main", f"{group}/main")
        sandbox = builders.running(f"{name}-pause", f"{group}/pause")
        annotations = dict(of_pod.annotations)
        if cpuset:
            annotations[QUIET] = asks
        self.pods[name] = msgspec.structs.replace(
            of_pod,
            annotations=annotations,
            containers=(msgspec.structs.replace(container, name="main"),),
            sandboxes=(msgspec.structs.replace(sandbox, name=""),),
        )
        # The frontends give a new container its CPUs with its creation.
        cpus = self.decide().pods[name].of("main").cpuset
        for each in ("pause", "main"):
            made = self.groups.make(f"{folder}/pod{name}/{each}")
            self.groups.path(made, "cpuset.cpus").write_text(f"{cpus}\n")
        return group

    def end(self, name: str) -> None:
        """The pod and its groups are gone."""
        group = self.pods.pop(name).containers[0].group
        assert group is not None
        pod = group.rpartition("/")[0]
        for each in (group, f"{pod}/pause", pod):
            if isinstance(self.groups, RealGroups):
                self.groups.remove(each)
            else:
                shutil.rmtree(self.groups.path(each, ""))

    def decide(self) -> Decision:
        pods = tuple(self.pods.values())
        decision = decide(self.topology, pods, KubeletCpus(), self.owned, {}, self.rules)
        pauses = self.quiet.pause_cpus(pods, self.topology, decision)
        return msgspec.structs.replace(decision, pauses=pauses)

    def make_pass(self) -> bool:
        """Writes what a pass does. Whether all groups have their CPUs."""
        pods = tuple(self.pods.values())
        decision = self.decide()
        self.quiet.before(pods, self.topology, decision)
        outcomes = [
            writer.apply(self.hierarchy, self.journal, cpusets)
            for cpusets in (wanted_cpusets(pods, decision), sandbox_cpusets(pods, decision))
        ]
        self.owned = {owner.uid: owner.cpus for owner in decision.owners}
        self.quiet.follow(pods, self.topology, decision)
        return all(outcome.ok for outcome in outcomes)

    def step(self) -> None:
        """A second passes."""
        self.now += 1
        self.quiet.step()

    def told(self) -> tuple[str, ...]:
        """The problems that are reported now."""
        state = self.quiet.state
        of_features = (each.problem for each in state.wanted.values() if each.problem)
        return (*of_features, *state.failed)

    def value(self, group: str, file: str) -> str:
        """Without the code under test."""
        return self.groups.path(group, f"cpuset.cpus{file}").read_text().strip()
