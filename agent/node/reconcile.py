"""The reconcile loop of a node: one pass brings cgroups, runtime, snapshot and reports in line with
the state of the cluster, the kubelet and the runtime.

A pass is a pipeline. Each stage takes values and returns one:

1. observe: list the runtime; read topology and cluster state.
2. resolve: the pods of this node, the CPUs that the kubelet assigned, the node's configuration, and
   the CPUs that containers hold. The kubelet is read after the runtime was listed, so that its
   state names every listed container.
3. decide: the owners of CPUs, the shared pools, and the NUMA nodes of containers with devices
   (`allocate.pools`); changes nothing. If an owner of the last snapshot is none any more, the
   snapshot blocks its containers first, and stages 1 to 3 are repeated: they observe what a
   frontend has created with the snapshot until then.
4. make room: write the cpusets of running containers, so that the CPUs of new owners become free,
   and those of pods in which the runtime is about to make a sandbox.
5. publish: replace the snapshot. Only from now on frontends may start containers on the CPUs of new
   owners. A pod is blocked in it while another container still runs on its CPUs.
6. apply: write the values that no container waits for: cpusets of sandboxes, limits, and the
   runtime's values.
7. report: log, metrics, Events, PodResources, and the objects of the cluster.

A fault in stages 1 to 3 ends the pass, and the last snapshot stays in force. Later faults are
collected, and the other stages still run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from agent.allocate import pools
from agent.allocate.locality import LocalityInput
from agent.allocate.node_local.claim import LocalInput
from agent.allocate.pools import Decision
from agent.allocate.present import decidable, present
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.allocate.shares import pool_of
from agent.allocate.visibility.pod_devices import DeviceVisibility
from agent.discover.cpus import TopologyView
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Device
from agent.model.notifications import (
    ContainerAnnounced,
    ContainerFailed,
    Created,
    Notification,
    PodAnnounced,
    PodFailed,
    Resized,
    SessionEnded,
    SnapshotRequest,
)
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QoS, pool_of_class
from agent.model.snapshot import CpuPolicy, Patterns, Snapshot, excludes, excludes_any
from agent.node.cluster_view import ClusterCache, ClusterState
from agent.node.device_visibility import DeviceVisibilityView
from agent.node.devices import DeviceState
from agent.node.enforcement import Enforcement, Freed
from agent.node.kubelet_view import KubeletState, KubeletView
from agent.node.locality import LocalityView
from agent.node.node_configuration import (
    NodeObject,
    gives_whole_cores,
    rules,
    rules_of_node,
    strictly_reserved,
)
from agent.node.node_local import NodeLocalCpus
from agent.node.notifications import AnnouncedContainers, AnnouncedPods
from agent.node.publisher import Publisher
from agent.node.report import Reporter, ReportInput
from agent.node.runtime_view import RuntimeState, RuntimeView, without_excluded
from agent.node.violations import (
    ContainerOverlap,
    RefusedLimit,
    Shortfall,
    count_differing,
    find_overlaps,
    find_shortfalls,
    running_on,
    settled,
    without_shares,
)

if TYPE_CHECKING:
    from agent.allocate.dra.offer import OfferedCpus


class ReconcileError(RuntimeError):
    """Some values could not be written; the message names them. All others were written."""


class ClaimMoment(msgspec.Struct, frozen=True):
    """What a pass has left to claims."""

    topology: Topology
    offered: OfferedCpus
    near: Mapping[int, int] = {}
    """By NUMA node, the number of GPUs and other devices there."""
    whole_cores: bool = False
    """Whether the node gives only whole cores."""
    pods: frozenset[str] = frozenset()
    """The uids of the pods that exist."""
    complete: bool = True
    """Whether the state of the cluster was."""
    node_uid: str = ""
    """The Node's uid, "" if it is unknown."""
    counts_claims: bool = False
    """The kubelet declares that it counts claims as requests."""


class ClaimsOfNode(Protocol):
    """The claims of the DRA driver."""

    def with_claims(self, kubelet: KubeletCpus, pods: Collection[ApiPod]) -> KubeletCpus:
        """Adds the CPUs of claims, of the containers that these pods of the API server use them
        for."""

    def follow(self, moment: ClaimMoment) -> None:
        """Takes what a pass has left."""


class DecisionInput(msgspec.Struct, frozen=True):
    """The arguments of `pools.decide`."""

    topology: Topology
    pods: tuple[Pod, ...]
    kubelet: KubeletCpus
    owned_before: dict[str, CpuSet]
    running_on: dict[str, CpuSet]
    rules: PoolRules
    local: LocalInput | None
    locality: LocalityInput | None


class Observation(msgspec.Struct, frozen=True):
    """The result of the stage "observe"."""

    began_nanoseconds: int
    """On the monotonic clock."""
    listed: RuntimeState
    """All pods of the runtime."""
    managed: RuntimeState
    """All pods without the pods and containers that `exclude` names."""
    unmanaged: tuple[Container, ...]
    """The excluded containers."""
    topology: Topology
    cluster: ClusterState
    update_pending: bool
    """An update of the runtime is in progress, which may still apply CPUs of the last decision."""


class Resolved(msgspec.Struct, frozen=True):
    """The result of the stage "resolve"."""

    pods: tuple[Pod, ...]
    """The pods to decide about."""
    all_pods: tuple[Pod, ...]
    """All pods, also excluded ones, which hold devices and CPUs of claims too."""
    kubelet: KubeletState
    configuration: NodeConfiguration
    cpu_policy: CpuPolicy
    holds: dict[str, CpuSet]
    """By container id, the CPUs that it runs on or will start on."""
    devices: DeviceState
    visibility: DeviceVisibility | None
    """The devices that each container sees; None if the settings switch devices off."""


class LastPass(msgspec.Struct, frozen=True):
    """The results of the last pass, for the node's page. It shares its values with the pass."""

    topology: Topology
    snapshot: Snapshot | None
    devices: tuple[Device, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    refused: tuple[RefusedLimit, ...] = ()


class Reconciler:
    """Runs passes. Its state between passes only keeps decisions stable: after a restart the
    runtime and the cgroups show everything else again.

    `node_local`: None without a node-local policy.
    `devices`: None without devices.
    `claims`: those of the DRA driver; None without it."""

    def __init__(
        self,
        topology: TopologyView,
        runtime: RuntimeView,
        cluster: ClusterCache,
        node_object: NodeObject,
        kubelet: KubeletView,
        enforcement: Enforcement,
        publisher: Publisher,
        reporter: Reporter,
        node_local: NodeLocalCpus | None = None,
        devices: DeviceVisibilityView | None = None,
        locality: LocalityView | None = None,
        claims: ClaimsOfNode | None = None,
    ) -> None:
        self._topology = topology
        self._runtime = runtime
        self._cluster = cluster
        self._node_object = node_object
        self._kubelet = kubelet
        self._enforcement = enforcement
        self._publisher = publisher
        self._reporter = reporter
        self._node_local = node_local or NodeLocalCpus()
        self._devices = devices or DeviceVisibilityView(None)
        self._locality = locality or LocalityView()
        self._claims = claims
        self._announced = AnnouncedPods()
        self._announced_containers = AnnouncedContainers()
        self._notified = True
        self._decided: tuple[DecisionInput, Decision] | None = None
        self.last: LastPass | None = None
        self.again = False
        """Whether the next pass may find a better decision without any event."""
        self.exclude: Patterns = ()
        """Pods and containers that the agent does not manage. It may change between passes."""

    def notified(self, notifications: Sequence[Notification | SessionEnded]) -> None:
        """Handles the notifications of frontends; the next pass answers them with a snapshot."""
        for notification in notifications:
            self._notified = True
            kind = type(notification).__struct_config__.tag
            self._reporter.metrics.notifications.inc(str(kind))
            if isinstance(notification, PodAnnounced):
                self._announced.add(notification, time.monotonic(), time.time_ns())
            elif isinstance(notification, PodFailed):
                self._announced.drop(notification.uid)
            elif isinstance(notification, SnapshotRequest):
                self._announced.drop(notification.sandbox_uid)
            elif isinstance(notification, ContainerAnnounced):
                self._announced_containers.add(notification, time.monotonic(), time.time_ns())
            elif isinstance(notification, ContainerFailed):
                self._announced_containers.drop(notification.uid, notification.name)
            elif isinstance(notification, SessionEnded):
                self._announced.session_ended(notification.session)
                self._announced_containers.session_ended(notification.session)
            elif isinstance(notification, Resized):
                self._runtime.changed(notification.container_id)
                self._enforcement.originals.resized(
                    notification.container_id, notification.requested
                )
            elif isinstance(notification, Created):
                self._enforcement.originals.created(notification)

    def reconcile(self) -> None:
        """Runs a pass. Raises RpcError, DiscoveryError, StateFileError or OSError, after which the
        last snapshot stays in force; at the end of the pass StoreError or ReconcileError."""
        seen, resolved, decision = self._considered()
        # A frontend may have created a container for a dropped owner since the runtime was listed.
        while self._publisher.revoke(decision.owners):
            seen, resolved, decision = self._considered()
        self._follow(seen, resolved, decision)
        try:
            freed = self._make_room(seen, resolved, decision)
            self._publish(seen, resolved, decision, freed)
            failures, refused = self._apply(seen, decision, freed)
        finally:
            self._reporter.audit.end(seen.managed.pods, decision.pods)
        self._report(seen, resolved, decision, freed, refused)
        if failures:
            raise ReconcileError("; ".join(failures))

    def failed(self, problem: str) -> None:
        """Reports that a pass failed with this problem. To be called after `reconcile` has raised
        an error."""
        self._reporter.failed(self._cluster.now().node, problem)

    def _considered(self) -> tuple[Observation, Resolved, Decision]:
        seen = self._observe()
        resolved = self._resolve(seen)
        return seen, resolved, self._decide(seen, resolved)

    def _observe(self) -> Observation:
        began = time.monotonic_ns()
        pending = self._enforcement.pause()
        listed = self._runtime.observe()
        managed, unmanaged = without_excluded(listed, self.exclude)
        topology = self._topology.topology()
        cluster = self._cluster.now()
        return Observation(began, listed, managed, unmanaged, topology, cluster, pending)

    def _resolve(self, seen: Observation) -> Resolved:
        pods, seen_uids = self._pods(seen.managed.pods, seen.cluster)
        all_pods = (*pods, *(pod for pod in seen.listed.pods if self._excludes(pod)))
        kubelet = self._kubelet.state(seen.topology, all_pods, seen.managed.devices)
        if self._claims is not None:
            cpus = self._claims.with_claims(kubelet.cpus, seen.cluster.pods.values())
            kubelet = msgspec.structs.replace(kubelet, cpus=cpus)
        static = kubelet.cpus.static
        pods = decidable(pods, seen_uids, static=static)
        of_node = self._node_object.configuration(self._cluster.known.node, seen.topology)
        configuration = self._kubelet.configure(of_node, seen.topology, kubelet)
        self._cluster.store_kubelet(self._kubelet.configuration)
        holds = self._enforcement.holds(seen.managed, seen.topology)
        policy = self._node_local.check_policy(static)
        devices, visibility = self._devices.observe(
            seen.topology,
            seen.cluster,
            self._cluster,
            all_pods,
            kubelet.reported_devices,
            self._publisher.device_holders,
        )
        return Resolved(pods, all_pods, kubelet, configuration, policy, holds, devices, visibility)

    def _decide(self, seen: Observation, resolved: Resolved) -> Decision:
        cpus, last = resolved.kubelet.cpus, self._publisher.local_owners
        own_holds = without_shares(resolved.holds, self._publisher.last)
        of_plugins = self._kubelet.device_nodes(resolved.kubelet)
        announced = self._announced_containers.missing_from(resolved.pods, time.monotonic())
        local = None
        if resolved.cpu_policy != "none":
            local = self._node_local.decision_input(
                seen.topology,
                resolved.pods,
                announced,
                own_holds,
                last,
                {**cpus.of_dra, **cpus.claims.containers},
                of_plugins,
            )
        locality = self._locality.decision_input(
            seen.topology,
            resolved.pods,
            seen.cluster.pods.values(),
            of_plugins,
            resolved.kubelet.resources.claimed,
            resolved.devices,
            resolved.visibility,
            resolved.holds,
            self._publisher.last,
            self.exclude,
        )
        decision_input = DecisionInput(
            topology=seen.topology,
            pods=resolved.pods,
            kubelet=cpus,
            owned_before=self._publisher.scheduled_owners,
            running_on=running_on(resolved.pods, own_holds),
            rules=self._rules(resolved, seen.topology),
            local=local,
            locality=locality,
        )
        # Most passes find nothing new, and equal inputs have equal decisions.
        if self._decided is not None and self._decided[0] == decision_input:
            decision = self._decided[1]
        else:
            decision = pools.decide(**msgspec.structs.asdict(decision_input))
        pauses = self._enforcement.pause_cpus(resolved.pods, seen.topology, decision)
        if pauses != decision.pauses:
            decision = msgspec.structs.replace(decision, pauses=pauses)
        self._decided = decision_input, decision
        return decision

    def _follow(self, seen: Observation, resolved: Resolved, decision: Decision) -> None:
        """Tells the others what the pass has decided."""
        self._locality.decided(decision.places)
        if self._claims is not None:
            self._claims.follow(self._left_to_claims(seen, resolved, decision))
        self.again = decision.again
        owners = settled(decision, self._publisher.all_owners)
        self._reporter.changes.decided(resolved.pods, decision, owners, resolved.holds)
        self._reporter.changes.without_cgroup(_without_cgroup(seen.managed.pods), time.monotonic())

    def _left_to_claims(
        self, seen: Observation, resolved: Resolved, decision: Decision
    ) -> ClaimMoment:
        from agent.allocate.dra.offer import offered  # most nodes have no claims

        configuration, node = resolved.configuration, seen.cluster.node
        near = Counter(
            device.topology.node
            for device in resolved.devices.report.devices
            if device.topology is not None and device.topology.node >= 0
        )
        cpus = resolved.kubelet.cpus
        if configuration.kubelet_policy == "static":
            # A kubelet that begins has not written its state yet.
            cpus = msgspec.structs.replace(cpus, static=True)
        return ClaimMoment(
            seen.topology,
            offered(
                seen.topology,
                decision.owners,
                cpus,
                rules(configuration),
                strictly_reserved(configuration),
                rules_of_node(configuration).kept,
            ),
            near,
            gives_whole_cores(node),
            frozenset(pod.uid for pod in resolved.all_pods),
            seen.cluster.complete,
            node.uid if node is not None else "",
            node is not None and node.counts_claims,
        )

    def _rules(self, resolved: Resolved, topology: Topology) -> PoolRules:
        """The rules of the pools, by the load of the reserved CPUs too."""
        cpu_rules = msgspec.structs.replace(
            rules(resolved.configuration), be_cpus=self._enforcement.be_cpus()
        )
        reserved = cpu_rules.kubelet_reserved & topology.online
        if not cpu_rules.be_on_reserved or not reserved:
            return cpu_rules
        of_be = pool_of_class(QoS.BE)
        groups = {
            each.group
            for pod in resolved.pods
            if pool_of(pod) is of_be
            for each in pod.containers
            if each.group is not None
        }
        full = self._enforcement.reserved_load.full(reserved, groups)
        return msgspec.structs.replace(cpu_rules, be_on_reserved=not full)

    def _make_room(self, seen: Observation, resolved: Resolved, decision: Decision) -> Freed:
        self._enforcement.before(resolved.pods, seen.topology, decision)
        freed = self._enforcement.make_room(
            seen.managed,
            seen.unmanaged,
            decision,
            seen.topology,
            resolved.holds,
            pending=seen.update_pending,
            dynamic=resolved.cpu_policy == "dynamic",
            announced=self._announced_parents(resolved.pods),
            before_wait=lambda: self._publisher.announce(self._announced.cgroup_parents),
        )
        self._reporter.audit.written(freed.writes, freed.created)
        return freed

    def _announced_parents(self, pods: tuple[Pod, ...]) -> dict[str, str]:
        """By uid, the cgroup_parent of announced pods, without pods with excluded containers, which
        may start on any CPU."""
        parents = self._announced.cgroup_parents
        return {
            pod.uid: parents[pod.uid]
            for pod in pods
            if pod.uid in parents and not excludes_any(self.exclude, pod.namespace, pod.name)
        }

    def _publish(
        self, seen: Observation, resolved: Resolved, decision: Decision, freed: Freed
    ) -> None:
        before = self._publisher.last
        self._publisher.publish(
            decision,
            resolved.pods,
            _blocked(find_overlaps(resolved.pods, decision.owners, freed.holds)),
            resolved.kubelet.cpus.static,
            seen.began_nanoseconds,
            fresh=self._notified,
            excluded=self.exclude,
            excluded_ids=[each.id for each in seen.unmanaged],
            memory_stays=self._enforcement.memory_stays,
            cpu_policy=resolved.cpu_policy,
            visibility=resolved.visibility,
            announced=self._announced.cgroup_parents,
            places_devices=self._locality.decides(seen.topology),
            unplaced=self._locality.unplaced,
            gives_claims=self._claims is not None,
        )
        self._notified = False
        self._reporter.audit.decided(before, self._publisher.last, decision.moves)
        self._reporter.metrics.snapshot_generation.set(self._publisher.generation)

    def _apply(
        self, seen: Observation, decision: Decision, freed: Freed
    ) -> tuple[list[str], tuple[RefusedLimit, ...]]:
        applied = self._enforcement.apply(seen.managed, decision, freed)
        self._reporter.audit.written(applied.writes)
        failed = self._reporter.changes.written(applied.cpusets, applied.values, applied.titles)
        return [*freed.failures, *applied.failures, *failed], applied.refused

    def _report(
        self,
        seen: Observation,
        resolved: Resolved,
        decision: Decision,
        freed: Freed,
        refused: tuple[RefusedLimit, ...],
    ) -> None:
        devices = resolved.devices
        moment = ReportInput(
            seen.topology,
            decision,
            resolved.pods,
            resolved.kubelet.cpus,
            resolved.configuration,
            seen.cluster,
            devices.report,
            resolved.kubelet.resources,
            self._node_object.faults,
            self._kubelet.configuration,
        )
        short = find_shortfalls(resolved.pods, decision, resolved.kubelet.cpus, freed.holds)
        self.last = LastPass(
            seen.topology, self._publisher.last, devices.report.devices, short, refused
        )
        self._reporter.changes.differing(
            count_differing(resolved.pods, decision, resolved.kubelet.cpus, freed.holds)
        )
        self._reporter.report(
            moment, short, devices, resolved.visibility, seen.listed.pods, refused
        )

    def _pods(
        self, managed: tuple[Pod, ...], cluster: ClusterState
    ) -> tuple[tuple[Pod, ...], frozenset[str]]:
        """The pods that the runtime lists, that were announced, or that the cluster assigned to
        this node, without excluded ones; and the uids of those listed or announced."""
        listed = {pod.uid for pod in managed}
        if cluster.pods_listed:
            self._announced.in_api(cluster.pods)
        here = managed + self._announced.missing_from(listed, time.monotonic())
        updated = self._cluster.update(cluster, [pod.uid for pod in here])
        pods = present(cluster.pods.values(), here, updated.pods)
        uids = frozenset(pod.uid for pod in here)
        return tuple(pod for pod in pods if not self._excludes(pod)), uids

    def _excludes(self, pod: Pod) -> bool:
        return excludes(self.exclude, pod.namespace, pod.name)


def _without_cgroup(pods: tuple[Pod, ...]) -> dict[str, str]:
    """By id, the titles of running containers whose cgroup is not known."""
    return {
        container.id: f"{pod.title} {container.name}"
        for pod in pods
        for container in pod.containers
        if container.state is ContainerState.RUNNING
        and container.group is None
        and not container.virtual
    }


def _blocked(overlaps: tuple[ContainerOverlap, ...]) -> dict[str, str]:
    """By pod uid, why its containers must not start yet."""
    return {
        overlap.owner_uid: f"a container of pod {overlap.title} still holds CPUs {overlap.cpus}"
        for overlap in reversed(overlaps)
    }
