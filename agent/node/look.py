"""One round of the agent: list the runtime, decide, set the cgroups right, publish, report."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from agent.allocate import pools
from agent.allocate.present import present
from agent.cgroup.controllers import Controllers
from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.outcome import State
from agent.model.doorbell import (
    ContainerComes,
    ContainerFailed,
    Created,
    PodComes,
    PodFailed,
    Resized,
    Ring,
)
from agent.model.exclusion import Patterns, excludes
from agent.model.gpus import GpuReading
from agent.model.gpuusers import GpuUse, users
from agent.model.holding import Grant
from agent.model.pods import ContainerState, Pod
from agent.model.topology import Topology
from agent.node import excluded, overlaps
from agent.node.announced import Announced, AnnouncedContainers
from agent.node.assigned import Assigned
from agent.node.beside import Beside
from agent.node.claims import ClaimView
from agent.node.configured import NodeObject, rules
from agent.node.devices import DeviceView, SeenDevices
from agent.node.enforcement import Enforcement
from agent.node.kubelet import KubeletView
from agent.node.kubeletword import KubeletSays
from agent.node.local import LocalCpus
from agent.node.machine import Machine
from agent.node.notices import Notices
from agent.node.observed import Observer
from agent.node.publisher import Publisher
from agent.node.remembered import Memory
from agent.node.report import Moment, Reporter
from agent.node.running import running_on, settled
from agent.node.sight import UNDECIDED, Sight, SightPolicy, sight
from agent.node.telling import Teller
from agent.node.witness import Witness
from agent.runtime.cri import Cri
from agent.telemetry.metrics import AgentMetrics

if TYPE_CHECKING:
    from agent.node.corrected import CorrectedPodResources

log = logging.getLogger(__name__)


class RoundError(RuntimeError):
    """Something could not be set right; the message names it. Everything else was done."""


class Told(Protocol):
    """Who knows what the cluster says."""

    def now(self) -> Assigned: ...


class Node:
    """The agent's state between rounds is only what makes answers steady; a restart loses nothing
    that the runtime and the cgroups do not tell again."""

    def __init__(
        self,
        machine: Machine,
        cri: Cri,
        observer: Observer,
        hierarchy: Hierarchy,
        controllers: Controllers,
        journal: Journal,
        kubelet: KubeletView,
        assignments: Told,
        memory: Memory,
        node_object: NodeObject,
        beside: Beside,
        publisher: Publisher,
        reporter: Reporter,
        kubelet_says: KubeletSays,
        metrics: AgentMetrics,
        teller: Teller | None = None,
        local: LocalCpus | None = None,
        notices: Notices | None = None,
        devices: DeviceView | None = None,
        sight_policy: SightPolicy | None = None,
        corrected: CorrectedPodResources | None = None,
        *,
        migrate_memory: bool = False,
    ) -> None:
        """Without a teller the runtime is not told what changed in cgroups; without `local` there
        is no node-local policy, without `notices` no container is told its CPUs, without `devices`
        there are none, and without `corrected` nobody asks us what pods have."""
        self._machine = machine
        self._observer = observer
        self._kubelet = kubelet
        self._assignments = assignments
        self._memory = memory
        self._node_object = node_object
        self._beside = beside
        self._publisher = publisher
        self._reporter = reporter
        self._kubelet_says = kubelet_says
        self._metrics = metrics
        self._hierarchy = hierarchy
        self._readings: tuple[GpuReading, ...] = ()
        self._users: tuple[GpuUse, ...] = ()
        self._local = local or LocalCpus()
        self._notices = notices
        self._devices = devices
        self._sight_policy = sight_policy or SightPolicy()
        self._corrected = corrected
        self._claims = ClaimView()
        self._announced = Announced()
        self._announced_containers = AnnouncedContainers()
        self._witness = Witness(metrics)
        self._enforcement = Enforcement(
            hierarchy,
            controllers,
            journal,
            cri,
            teller,
            self._witness,
            migrate_memory=migrate_memory,
        )
        self._rung = True
        self.again = False
        """Whether the next look may do better, though nothing happens."""
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
            elif isinstance(ring, ContainerComes):
                self._announced_containers.add(ring, time.monotonic(), time.time_ns())
            elif isinstance(ring, ContainerFailed):
                self._announced_containers.drop(ring.uid, ring.name)
            elif isinstance(ring, Resized):
                self._observer.changed(ring.container_id)
                self._enforcement.resized(ring.container_id, ring.asked)
            elif isinstance(ring, Created):
                self._enforcement.created(ring)

    def look(self) -> None:
        """Raises RpcError, DiscoveryError, StateFileError or OSError: then the snapshot stays; and
        StoreError or RoundError after the rest is done."""
        looked_at = time.monotonic_ns()
        busy = self._enforcement.pause()
        listed = self._observer.look()
        observed, alone = excluded.part(listed, self.exclude)
        topology = self._machine.topology()
        assigned = self._assignments.now()
        pods = self._pods(observed.pods, assigned)
        # Who is left alone holds devices all the same, and CPUs of claims.
        there = (*pods, *(pod for pod in listed.pods if self._excludes(pod)))
        word = self._kubelet_says.now(topology, there)
        grants = (*word.grants, *observed.grants)
        kubelet = self._claims.beside(self._kubelet.cpus(), grants)
        known = self._memory.known
        configured = self._node_object.configured(known.node, topology)
        configured = self._beside.applied(configured, topology)
        holds = self._enforcement.holds(observed, topology)
        running = running_on(pods, holds)
        cpu_policy = self._local.policy(kubelet.static)
        coming = self._announced_containers.missing_from(pods, time.monotonic())
        local, last = None, self._publisher.local_owners
        if cpu_policy != "none":
            local = self._local.demand(topology, pods, coming, holds, last, kubelet.claimed)
        decision = pools.decide(
            topology, pods, kubelet, self._publisher.owners, running, rules(configured), local
        )
        self.again = decision.again
        self._witness.decided(pods, decision, settled(decision, last), holds)
        self._witness.unplaced(_unplaced(observed.pods), time.monotonic())
        failures = self._enforcement.remember_replaced(observed)
        failures += self._enforcement.give_back(alone)
        freed = self._enforcement.free_cpus(observed, decision)
        if busy or freed.having(State.WRITTEN):
            holds = self._enforcement.holds(observed, topology)
        self._enforcement.prepare_created(observed, decision, holds)
        if self._notices is not None:
            failures += self._notices.tell(decision, dynamic=cpu_policy == "dynamic")
        seen, shown = self._seen(topology, assigned, there, grants)
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
            memory_stays=self._enforcement.memory_stays,
            cpu_policy=cpu_policy,
            sight=shown,
        )
        self._rung = False
        if self._corrected is not None:
            self._corrected.looked(pods, decision.pods, seen, shown)
        failures += self._enforcement.finish(observed, decision, freed)
        self._enforcement.tell(observed, decision)
        self._metrics.snapshot_generation.set(self._publisher.generation)
        self._metrics.decided(decision)
        self._tell_devices(seen, listed.pods)
        if shown is not UNDECIDED:
            self._reporter.report(
                Moment(topology, decision, pods, kubelet, configured, assigned, seen.report, word)
            )
        if failures:
            raise RoundError("; ".join(failures))

    def _pods(self, observed: tuple[Pod, ...], assigned: Assigned) -> tuple[Pod, ...]:
        """Those that the runtime has, those that it is about to get, and those that the cluster
        gave this node."""
        listed = {pod.uid for pod in observed}
        there = observed + self._announced.missing_from(listed, time.monotonic())
        known = self._memory.update(assigned, [pod.uid for pod in there])
        pods = present(assigned.pods.values(), there, known.pods)
        return tuple(pod for pod in pods if not self._excludes(pod))

    def _excludes(self, pod: Pod) -> bool:
        return excludes(self.exclude, pod.namespace, pod.name)

    def _tell_devices(self, seen: SeenDevices, pods: tuple[Pod, ...]) -> None:
        """Processes are looked up again only when a driver told of them anew."""
        if seen.readings is not self._readings:
            self._readings = seen.readings
            self._users = users(seen.readings, pods, self._group_of)
        self._metrics.devices.told(
            seen.report.devices, seen.readings, self._users, seen.missing, seen.fault
        )

    def _group_of(self, pid: int) -> str | None:
        try:
            return self._hierarchy.group_of(pid)
        except CgroupError as error:
            log.debug("%s", error)
            return None

    def _seen(
        self,
        topology: Topology,
        assigned: Assigned,
        pods: tuple[Pod, ...],
        grants: tuple[Grant, ...],
    ) -> tuple[SeenDevices, Sight | None]:
        """The devices, and what of them containers see: nothing, and nothing is reported, before
        PCI could be listed and the numbers are known that they had, from the Device object or from
        our own memory of it."""
        if self._devices is None:
            return SeenDevices(), None
        known = self._memory.known
        published = assigned.devices or known.devices
        seen = self._devices.now(topology, published, known.node, pods, grants)
        if seen is None:
            return SeenDevices(), UNDECIDED
        if published is not None:
            self._memory.remember(self._devices.state, self._devices.files)
        asked = assigned.pods.values()
        before = self._publisher.device_holders
        return seen, sight(pods, asked, seen.files, seen.existing, self._sight_policy, before)


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
