"""Batch beside services: each second, between two passes, the agent computes what the strategies in
force want of the cgroups of pods, writes what differs, and gives back what they want no more.

The values that it has replaced are in the journal of the agent, so that also an agent that starts
later without strategies gives them back, as `topolet restore` does."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.allocate.colocation import be_suppress, priority
from agent.allocate.colocation.be_suppress import BePool, NodeUse, Suppression
from agent.allocate.colocation.priority import KernelPriority
from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import CgroupError, Controllers
from agent.cgroup.journal import Journal
from agent.cgroup.order import ValueOutcome, WriteState, parent
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.policies import BeOnOwned
from agent.model.cpu.topology import Topology
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS, is_qos_root
from agent.node.sources import SourceName, Sources
from agent.node.usage import sampled_pod
from agent.usage.node_metric import qos_of_pod
from agent.usage.pod_strategies import PodStrategies, of_pod
from agent.usage.strategies import Strategies

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A group and a file of it."""
PRIORITY: Final = "cpu-priority"
SUPPRESSION: Final = "cpu-suppression"
FEATURES: Final = (PRIORITY, SUPPRESSION)
GROW_SECONDS: Final = 5.0
"""BE pods lose CPUs at once, and get some back so long after the last change: each is a pass."""


class ColocatedPod(msgspec.Struct, frozen=True):
    """A pod that runs, with the strategies in force for it."""

    title: str
    qos: QoS
    group: str
    containers: Mapping[str, str]
    """Their cgroups by name."""
    strategies: PodStrategies


class Colocated(msgspec.Struct, frozen=True):
    """What the last second has brought."""

    wanted: Mapping[str, Mapping[Key, str]] = {}
    """By feature, the contents of files."""
    unsupported: Mapping[str, str] = {}
    """By feature that is wanted, why this machine can't have it."""
    suppression: Suppression = Suppression()
    failed: tuple[str, ...] = ()


def colocated(
    pods: Iterable[Pod], in_api: Mapping[str, ApiPod], strategies: Strategies
) -> Iterator[ColocatedPod]:
    """The pods that run on this kernel and that the API server knows.

    `in_api`: by uid."""
    for pod in pods:
        api_pod, sampled = in_api.get(pod.uid), sampled_pod(pod)
        if api_pod is not None and sampled is not None:
            in_force = strategies.pods.get(pod.title) or of_pod(strategies.slo, api_pod)[0]
            qos = qos_of_pod(api_pod)
            yield ColocatedPod(pod.title, qos, sampled.group, sampled.containers, in_force)


class Colocation:
    """`step` is called from the thread of the passes.

    `pods`: returns the pods of the runtime, and their objects in the API, by uid.
    `strategies`: returns what is in force.
    `node_use`: returns the newest use of CPU, None while it is not known; it may raise
        AnnotationError.
    `excludes`: whether the agent leaves the pod alone.
    `wake`: lets the agent make a pass, which writes the cpusets of BE pods.
    `on_owned`: whether suppressed BE pods run on CPUs that LSR pods own.
    `acts`: False computes and reports, and writes nothing."""

    def __init__(
        self,
        controllers: Controllers,
        journal: Journal,
        pods: Callable[[], tuple[Mapping[str, Pod], Mapping[str, ApiPod]]],
        node_use: Callable[[], NodeUse | None],
        strategies: Callable[[], Strategies],
        excludes: Callable[[Pod], bool],
        sources: Sources,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        on_owned: BeOnOwned = BeOnOwned.IN_PROPORTION,
        acts: bool,
    ) -> None:
        self._controllers = controllers
        self._journal = journal
        self._pods = pods
        self._strategies = strategies
        self._excludes = excludes
        self._node_use = node_use
        self._sources = sources
        self._wake = wake
        self._clock = clock
        self._on_owned = on_owned
        self._acts = acts
        self._pool = BePool((), EMPTY)
        self._suppression = Suppression()
        self._changed_at = 0.0
        self._be_cpus: CpuSet | None = None
        self._ability: KernelPriority | None = None
        self._made_of: tuple[Mapping[str, Pod], Mapping[str, ApiPod], Strategies] | None = None
        self._colocated_pods: tuple[ColocatedPod, ...] = ()
        self._held: frozenset[Key] = frozenset()
        self._quotas_held: frozenset[Key] = frozenset()
        self.state = Colocated()
        """What the last step has found; read by other threads."""

    def holds(self) -> Collection[Key]:
        """The files that strategies have now: passes leave them alone."""
        return self._held

    def be_cpus(self) -> CpuSet | None:
        """The CPUs that suppression leaves to BE pods; None for all of their pool."""
        return self._be_cpus

    def follow(self, topology: Topology, decision: Decision) -> None:
        """Takes the pools of a pass."""
        owned = union(owner.cpus for owner in decision.owners if owner.qos is QoS.LSR)
        self._pool = BePool(topology.cpus, decision.be_pool, owned, self._on_owned)

    def step(self) -> None:
        """Computes, writes what differs, and gives back what is wanted no more."""
        colocated_pods = self._colocated()
        wanted: dict[str, Mapping[Key, str]] = {}
        unsupported: dict[str, str] = {}
        wanted[PRIORITY], unsupported[PRIORITY] = self._priority(colocated_pods)
        wanted[SUPPRESSION], unsupported[SUPPRESSION] = self._suppress(colocated_pods)
        files = {key: text for of_feature in wanted.values() for key, text in of_feature.items()}
        failed = self._write(files) if self._acts else ()
        self.state = Colocated(
            {name: of_feature for name, of_feature in wanted.items() if of_feature},
            {name: reason for name, reason in unsupported.items() if reason},
            self._suppression,
            failed,
        )
        reasons = (f"{name}: {reason}" for name, reason in self.state.unsupported.items())
        self._sources.report(SourceName.COLOCATION, (*reasons, *failed[:_MOST_NAMED]))

    def measured(self) -> tuple[dict[str, int], Collection[str], int]:
        """For metrics: the number of files by feature, what this machine can't have, and the number
        of failures."""
        state = self.state
        files = {name: len(state.wanted.get(name, ())) for name in FEATURES}
        return files, state.unsupported, len(state.failed)

    def _colocated(self) -> tuple[ColocatedPod, ...]:
        """Computed again only when something has changed."""
        pods, in_api = self._pods()
        made_of = (pods, in_api, self._strategies())
        if self._made_of is None or any(
            new is not old for new, old in zip(made_of, self._made_of, strict=True)
        ):
            managed = (pod for pod in pods.values() if not self._excludes(pod))
            self._colocated_pods = tuple(colocated(managed, in_api, made_of[2]))
            self._made_of = made_of
        return self._colocated_pods

    def _suppress(self, pods: Iterable[ColocatedPod]) -> tuple[Mapping[Key, str], str]:
        strategy = self._strategies().slo.resource_used_threshold_with_be
        problem = ""
        try:
            use = self._node_use() if strategy.enable else None
        except AnnotationError as error:
            use, problem = None, str(error)
        new = be_suppress.suppression(strategy, use, self._pool, self._suppression)
        now, had = self._clock(), self._suppression.cpus
        if new.cpus is not None and had is not None and len(new.cpus) >= len(had):
            stays = len(new.cpus) == len(had) or now - self._changed_at < GROW_SECONDS
            if stays and had <= self._pool.usable():
                new = msgspec.structs.replace(new, cpus=had)
        if new.cpus != had:
            self._changed_at = now
        self._suppression = new
        be_cpus = new.cpus if self._acts else None
        if be_cpus != self._be_cpus:
            self._be_cpus = be_cpus
            self._wake()
        return ({} if new.quota is None else self._quotas(new.quota, pods)), problem

    def _quotas(self, of_all: CpuQuota, pods: Iterable[ColocatedPod]) -> dict[Key, str]:
        """The quota of the kubelet's group of all BE pods. On v1 no group in it may have a larger
        one."""
        quotas: dict[Key, str] = {}
        for pod in pods:
            above = parent(pod.group)
            if pod.qos is not QoS.BE or not is_qos_root(above):
                continue
            with contextlib.suppress(CgroupError, ValueError):  # a group that is gone has none
                quotas |= self._quota(above, of_all)
            if self._controllers.version("cpu") != 1:
                continue
            for group in (pod.group, *pod.containers.values()):
                with contextlib.suppress(CgroupError, ValueError):
                    own = self._own_quota(group)
                    if be_suppress.within(own, of_all) != own:
                        quotas |= self._quota(group, of_all)
        return quotas

    def _quota(self, group: str, quota: CpuQuota) -> dict[Key, str]:
        resources = LinuxResources(quota=quota)
        return {
            (group, file): limits.text(
                self._controllers, group, file, resources, self._controllers.read(group, file) or ""
            )
            for file in limits.files(self._controllers, resources)
        }

    def _own_quota(self, group: str) -> CpuQuota:
        """The quota of a v1 group before suppression. Raises CgroupError, ValueError."""
        journalled = self._journal.values.get((group, limits.QUOTA))
        text = journalled.value if journalled else self._controllers.read(group, limits.QUOTA) or ""
        texts = {limits.QUOTA: text}
        return limits.parsed(self._controllers, group, texts).quota or NO_QUOTA

    def _priority(self, pods: Iterable[ColocatedPod]) -> tuple[Mapping[Key, str], str]:
        wanting = [pod for pod in pods if pod.strategies.cpu_qos.enable]
        if not wanting:
            return {}, ""
        ability = self._abilities(wanting[0].group)
        if ability is KernelPriority.NEITHER:
            return {}, f"this kernel has neither {priority.BVT} nor {priority.IDLE}"
        return {
            (pod.group, file): text
            for pod in wanting
            for file, text in priority.priority(pod.qos, pod.strategies.cpu_qos, ability).items()
        }, ""

    def _abilities(self, group: str) -> KernelPriority:
        """What the kernel has, by the files of a group of a pod."""
        if self._ability is None:
            by_file = {
                priority.BVT: KernelPriority.GROUP_IDENTITY,
                priority.IDLE: KernelPriority.IDLE_GROUPS,
            }
            try:
                self._ability = next(
                    (
                        ability
                        for file, ability in by_file.items()
                        if self._controllers.read(group, file) is not None
                    ),
                    KernelPriority.NEITHER,
                )
            except CgroupError:  # the group is gone: the next second asks again
                return KernelPriority.NEITHER
        return self._ability

    def _write(self, wanted: Mapping[Key, str]) -> tuple[str, ...]:
        """Returns the failures."""
        weight = limits.weight_file(self._controllers)
        held = {*wanted, *((group, weight) for group, file in wanted if file == limits.IDLE)}
        ended = {
            (group, file)
            for group, file in self._journal.values
            if (group, file) not in held
            and (
                file in limits.OF_STRATEGIES
                or (group, file) in self._quotas_held
                or is_qos_root(group)
                or (file == weight and (group, limits.IDLE) in self._journal)
            )
        }
        # Passes leave alone what is held now, and what was held until it has been given back.
        self._held = frozenset(held | ended)
        outcomes = []
        if ended:
            outcomes.append(limits.restore(self._controllers, self._journal, ended))
        if wanted:
            outcomes.append(limits.apply_texts(self._controllers, self._journal, wanted))
        self._held = frozenset(held)
        self._quotas_held = frozenset(key for key in wanted if key[1] in (limits.QUOTA, limits.MAX))
        return tuple(self._reported(outcomes))

    def _reported(self, outcomes: Iterable[ValueOutcome]) -> Iterator[str]:
        for outcome in outcomes:
            for change in outcome.having(WriteState.WRITTEN):
                log.info("%s: %s %s -> %s", change.group, change.file, change.old, change.new)
            for change in outcome.having(WriteState.FAILED):
                yield f"{change.group} {change.file}: {change.note}"


_MOST_NAMED: Final = 5
