"""One round of the agent: list the runtime, decide, set the cgroups right, publish, report."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from agent.allocate import pools
from agent.allocate.pools import Decision
from agent.cgroup import writer
from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cgroup.journal import Journal, JournalError, Original
from agent.cgroup.outcome import State
from agent.model.annotations import shared_containers
from agent.model.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.doorbell import Asked, Created, PodComes, PodFailed, Ring
from agent.model.exclusion import Patterns, excludes
from agent.model.pods import Container, ContainerState, Pod
from agent.model.topology import Topology
from agent.node import excluded, overlaps, wanted
from agent.node.announced import Announced
from agent.node.configured import NodeObject, rules
from agent.node.kubelet import KubeletView
from agent.node.machine import Machine
from agent.node.observed import Observed, Observer
from agent.node.publisher import Publisher
from agent.node.report import Reporter
from agent.node.witness import Witness
from agent.rpc.grpc import RpcError
from agent.runtime.cri import Cri
from agent.telemetry.metrics import AgentMetrics

log = logging.getLogger(__name__)


class RoundError(RuntimeError):
    """Something could not be set right; the message names it. Everything else was done."""


class Node:
    """The agent's state between rounds is only what makes answers steady; a restart loses nothing
    that the runtime and the cgroups do not tell again."""

    def __init__(
        self,
        machine: Machine,
        cri: Cri,
        observer: Observer,
        hierarchy: Hierarchy,
        journal: Journal,
        kubelet: KubeletView,
        node_object: NodeObject,
        publisher: Publisher,
        reporter: Reporter,
        metrics: AgentMetrics,
    ) -> None:
        self._machine = machine
        self._cri = cri
        self._observer = observer
        self._hierarchy = hierarchy
        self._journal = journal
        self._kubelet = kubelet
        self._node_object = node_object
        self._publisher = publisher
        self._reporter = reporter
        self._metrics = metrics
        self._announced = Announced()
        self._requested: dict[str, Asked] = {}
        self._witness = Witness(metrics)
        self._rung = True
        self.exclude: Patterns = ()
        """What is left alone; may be changed between looks."""

    def heard(self, rings: list[Ring]) -> None:
        """Takes note of what the proxy told; the next look answers it."""
        for ring in rings:
            self._rung = True
            self._metrics.rings.labels(type(ring).__struct_config__.tag).inc()
            if isinstance(ring, PodComes):
                self._announced.add(ring, time.monotonic(), time.time_ns())
            elif isinstance(ring, PodFailed):
                self._announced.drop(ring.uid)
            elif isinstance(ring, Created):
                self._requested[ring.container_id] = ring.asked

    def look(self) -> None:
        """Raises RpcError, DiscoveryError or OSError: then the snapshot stays; and StoreError or
        RoundError after the rest is done."""
        looked_at = time.monotonic_ns()
        observed, alone = excluded.part(self._observer.look(), self.exclude)
        topology = self._machine.topology()
        kubelet = self._kubelet.cpus()
        configured = self._node_object.configured(topology)
        listed = {pod.uid for pod in observed.pods}
        pods = observed.pods + tuple(
            pod
            for pod in self._announced.missing_from(listed, time.monotonic())
            if not excludes(self.exclude, pod.namespace, pod.name)
        )
        holds = self._holds(observed, topology)
        running_on = _running_on(pods, holds)
        decision = pools.decide(
            topology, pods, kubelet, self._publisher.owners, running_on, rules(configured)
        )
        self._witness.decided(pods, decision, holds)
        self._witness.unplaced(_unplaced(observed.pods), time.monotonic())
        failures = self._remember_requests(observed)
        failures += excluded.give_back(self._hierarchy, self._journal, alone)
        written, unwritten = self._set_right(observed, decision)
        failures += unwritten
        if written:
            holds = self._holds(observed, topology)
        self._prepare_created(observed, decision, holds)
        blocked = _blocked(overlaps.find(pods, decision.owners, holds))
        self._publisher.publish(
            decision,
            pods,
            blocked,
            kubelet.static,
            looked_at,
            fresh=self._rung,
            excluded=self.exclude,
            left_alone=[each.id for each in alone],
        )
        self._rung = False
        self._metrics.snapshot_generation.set(self._publisher.generation)
        self._metrics.decided(decision)
        self._reporter.report(topology, decision, pods, kubelet, configured)
        if failures:
            raise RoundError("; ".join(failures))

    def _holds(self, observed: Observed, topology: Topology) -> dict[str, CpuSet]:
        """By container id, what it runs on, or will start on."""
        holds = {}
        for pod in observed.pods:
            for container in pod.containers:
                if container.virtual:
                    continue
                if container.state is ContainerState.CREATED:
                    holds[container.id] = _starting(observed.starts_with, container, topology)
                elif container.group is not None:
                    try:
                        holds[container.id] = self._hierarchy.effective_cpus(container.group)
                    except CgroupError as error:
                        log.debug("%s: %s", pod.title, error)
        return holds

    def _set_right(self, observed: Observed, decision: Decision) -> tuple[bool, list[str]]:
        """Writes the cpusets of running containers and sandboxes; whether anything was written,
        and what could not be."""
        outcome = writer.apply(
            self._hierarchy, self._journal, wanted.cpusets(observed.pods, decision)
        )
        titles = {
            each.group: f"{pod.title} {each.name or 'sandbox'}"
            for pod in observed.pods
            for each in (*pod.containers, *pod.sandboxes)
            if each.group is not None
        }
        failures = self._witness.written(outcome, titles)
        return bool(outcome.having(State.WRITTEN)), failures

    def _prepare_created(
        self, observed: Observed, decision: Decision, holds: dict[str, CpuSet]
    ) -> None:
        """A container that is not started yet has no cgroup: the runtime changes what it starts
        with, and `holds` follows."""
        for pod in observed.pods:
            for container in pod.containers:
                if container.state is not ContainerState.CREATED or container.virtual:
                    continue
                cpus = wanted.parsed(decision.pods[pod.uid].of(container.name).cpuset)
                if cpus is None or holds[container.id] == cpus:
                    continue
                try:
                    self._cri.update_cpuset(container.id, cpus)
                except RpcError as error:
                    log.warning("%s %s: not prepared: %s", pod.title, container.name, error)
                    continue
                log.info("%s %s: will start on %s", pod.title, container.name, cpus)
                holds[container.id] = cpus

    def _remember_requests(self, observed: Observed) -> list[str]:
        """What the proxy replaced at creation is what a restore gives back. Errors are returned:
        cpusets and snapshot matter more."""
        groups = {each.id: each.group for pod in observed.pods for each in pod.containers}
        for ended in self._requested.keys() - groups.keys():
            del self._requested[ended]
        placed = {
            each: group for each, group in groups.items() if group and each in self._requested
        }
        originals = [
            Original(group, str(cpus))
            for each, group in placed.items()
            if (cpus := self._asked_for(self._requested[each].cpuset, group))
        ]
        try:
            # What the proxy says wins over what a write found before the proxy could say it.
            self._journal.update(originals, forget=[each.group for each in originals])
        except JournalError as error:
            return [str(error)]
        for each in placed:
            del self._requested[each]
        return []

    def _asked_for(self, requested: str, group: str) -> CpuSet:
        try:
            return CpuSet.parse(requested) or self._hierarchy.effective_cpus(
                group.rpartition("/")[0] or "/"
            )
        except (CpuSetError, CgroupError):
            return EMPTY


def _starting(starts_with: Mapping[str, str], container: Container, topology: Topology) -> CpuSet:
    try:
        return CpuSet.parse(starts_with.get(container.id, "")) or topology.online
    except CpuSetError:
        return topology.online


def _running_on(pods: tuple[Pod, ...], holds: Mapping[str, CpuSet]) -> dict[str, CpuSet]:
    """Side-cars that stay on a pool say nothing of their pod's own CPUs."""
    running = {}
    for pod in pods:
        aside = shared_containers(pod.annotations)
        running[pod.uid] = union(
            holds[each.id]
            for each in pod.containers
            if each.state is ContainerState.RUNNING and each.id in holds and each.name not in aside
        )
    return {uid: cpus for uid, cpus in running.items() if cpus}


def _unplaced(pods: tuple[Pod, ...]) -> dict[str, str]:
    return {
        each.id: f"{pod.title} {each.name}"
        for pod in pods
        for each in pod.containers
        if each.state is ContainerState.RUNNING and each.group is None and not each.virtual
    }


def _blocked(found: tuple[overlaps.Overlap, ...]) -> dict[str, str]:
    return {
        each.owner_uid: f"a container of pod {each.title} still holds CPUs {each.cpus}"
        for each in reversed(found)
    }
