"""Enforces a decision: writes the cgroups first, then updates the runtime, which would otherwise
restore the values that it stores of a container."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from agent.allocate.pools import Decision
from agent.allocate.weights import pod_shares
from agent.cgroup import limits as limit_files
from agent.cgroup import names, writer
from agent.cgroup.hierarchy import MEMS, CgroupError, Controllers, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.order import ValueOutcome, WriteOutcome, WriteState, parent
from agent.cri.client import Cri
from agent.host.log_once import about
from agent.model.audit import AuditEvent, Record, WriteReason
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.cpu.topology import Topology
from agent.model.linux_resources import NO_RESOURCES, LinuxResources
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import DEFAULT_POOL, pool_cpus
from agent.model.snapshot import Wanted
from agent.node.audit import Written
from agent.node.cpu_notices import CpuNotices
from agent.node.originals import AnnouncedPodGroups, OriginalValues
from agent.node.reserved_load import ReservedLoad
from agent.node.runtime_updater import RuntimeUpdater, stores
from agent.node.runtime_view import RuntimeState
from agent.node.violations import RefusedLimit, find_overlaps, find_refused_limits
from agent.rpc.grpc import RpcError

log = logging.getLogger(__name__)


class Freed(msgspec.Struct, frozen=True):
    """The result of the stage "make room"."""

    outcomes: tuple[WriteOutcome, ...]
    """What was written to the cpusets of running containers and announced pods."""
    holds: dict[str, CpuSet]
    """By container id, the CPUs that it runs on afterwards, or will start on."""
    failures: tuple[str, ...] = ()
    """The failures that `outcomes` does not have."""
    titles: Mapping[str, str] = {}
    """The titles of announced pods by group."""
    writes: tuple[Written, ...] = ()
    """All writes, also to excluded containers."""
    created: tuple[Record, ...] = ()
    """Records of created containers that will start with other values."""


class Applied(msgspec.Struct, frozen=True):
    """The result of the stages "make room" and "apply"."""

    cpusets: tuple[WriteOutcome, ...]
    """What was written to cpusets."""
    values: ValueOutcome
    """What was written to other files."""
    titles: Mapping[str, str]
    """Pod and container by group."""
    failures: tuple[str, ...] = ()
    """The failures of this stage that `cpusets` and `values` do not have."""
    refused: tuple[RefusedLimit, ...] = ()
    """Limits that pods' own cgroups do not accept."""
    writes: tuple[Written, ...] = ()
    """The writes of this stage only."""


class Enforcement:
    """Writes cgroups and updates the runtime.

    `updater`: None if the runtime is not updated.
    `notices`: None if no container gets a file with its CPUs.
    `migrate_memory`: pages of running containers move to their new NUMA nodes."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        controllers: Controllers,
        journal: Journal,
        cri: Cri,
        updater: RuntimeUpdater | None = None,
        notices: CpuNotices | None = None,
        *,
        migrate_memory: bool = False,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wait = wait
        self._hierarchy = hierarchy
        self._controllers = controllers
        self._journal = journal
        self._cri = cri
        self._updater = updater
        self._notices = notices
        self._migrate_memory = migrate_memory
        self.originals = OriginalValues(hierarchy, controllers, journal)
        self.reserved_load = ReservedLoad(hierarchy.proc, controllers)
        self._announced = AnnouncedPodGroups(hierarchy, journal)
        self._restored: dict[str, dict[str, str]] = {}
        self.held: Callable[[], Collection[tuple[str, str]]] = tuple
        """Returns the files, by group and name, that strategies have: passes leave them alone."""
        self.before: Callable[[tuple[Pod, ...], Topology, Decision], None] = _nothing
        """Is called with the managed pods before a pass writes cpusets."""
        self.be_cpus: Callable[[], CpuSet | None] = lambda: None
        """Returns the CPUs that suppression leaves to BE pods; None for all of their pool."""
        self.pause_cpus: Callable[[tuple[Pod, ...], Topology, Decision], CpuSet] = _no_cpus
        """Returns where pause containers run; empty where they run as other containers do."""

    def pause(self) -> bool:
        """Drops the queued updates of the runtime, which the next decision may contradict. Returns
        whether a call is in progress, which may still take effect."""
        return self._updater is not None and self._updater.pause()

    def holds(self, runtime: RuntimeState, topology: Topology) -> dict[str, CpuSet]:
        """By container id, the CPUs that it runs on or will start on, and those of an update in
        progress, which the runtime may apply at any moment."""
        holds = {}
        updating = self._updater.in_progress() if self._updater else {}
        for container in _containers(runtime):
            if container.state is ContainerState.CREATED:
                holds[container.id] = _starting(runtime, container, topology)
            elif container.group is not None:
                try:
                    holds[container.id] = self._hierarchy.effective_cpus(container.group)
                except CgroupError as error:
                    log.debug("%s", error)
            if container.id in updating and container.id in holds:
                holds[container.id] |= updating[container.id]
        return holds

    def make_room(
        self,
        runtime: RuntimeState,
        unmanaged: tuple[Container, ...],
        decision: Decision,
        topology: Topology,
        holds: dict[str, CpuSet],
        *,
        pending: bool,
        dynamic: bool,
        announced: Mapping[str, str] = {},
        before_wait: Callable[[], None] = lambda: None,
    ) -> Freed:
        """Moves containers off the CPUs that the decision gives to others. Restores the original
        values of `unmanaged` containers.

        `holds`: the CPUs of containers before.
        `pending`: an update of the runtime was in progress.
        `dynamic`: containers read their CPUs in a file, which is written before a snapshot gives
            the CPUs to others.
        `announced`: the cgroup_parent of announced pods by uid.
        `before_wait`: is called before a wait for containers that are warned, when the cgroups of
            announced pods have no CPUs of others."""
        groups = announced_groups(announced)
        # First: the journal marks the pods' cgroups before anything is written to them.
        narrowed, failures = self._announced.narrow(cpus_of_others(groups, decision))
        sandboxes = sandbox_cpusets(runtime.pods, decision)
        # Before the containers: a pod's cgroup must contain the CPUs that they get.
        placed, widened, failed = self._announced.widen(sandboxes, narrowed)
        failures += failed
        # Before the next writes: the values that a frontend replaced are the original ones.
        failures += self.originals.record(_containers(runtime))
        # Before the others get their CPUs: an excluded container leaves none of the agent's values.
        excluded, failed = self.originals.restore_excluded(unmanaged)
        failures += failed
        early, failed = self._warn(runtime, decision, narrowed, before_wait)
        failures += failed
        cpusets = {**wanted_cpusets(runtime.pods, decision), **narrowed}
        outcome = writer.apply(self._hierarchy, self._journal, cpusets)
        # A created owner gets only CPUs that no container holds after these writes.
        if pending or outcome.having(WriteState.WRITTEN):
            holds = self.holds(runtime, topology)
        holds, created = self._update_created(runtime, decision, holds)
        # Before the snapshot gives the CPUs to others: containers read which ones they still have.
        if self._notices is not None:
            failures += self._notices.write(decision, dynamic=dynamic)
        titles = {group: decision.pods[uid].title for group, uid in groups.items()}
        of_announced, of_others = _parted(outcome, groups)
        writes = (
            Written(WriteReason.DECISION, placed),
            Written(WriteReason.SANDBOX_MADE, widened),
            excluded,
            Written(WriteReason.DECISION, of_others),
            Written(WriteReason.SANDBOX_ANNOUNCED, early),
            Written(WriteReason.SANDBOX_ANNOUNCED, of_announced),
        )
        return Freed((placed, early, outcome), holds, tuple(failures), titles, writes, created)

    def _warn(
        self,
        runtime: RuntimeState,
        decision: Decision,
        narrowed: Mapping[str, CpuSet],
        before_wait: Callable[[], None],
    ) -> tuple[WriteOutcome, list[str]]:
        """Warns containers that are about to lose CPUs, and waits after writing `narrowed`. Returns
        what was written, and the failures."""
        if self._notices is None:
            return WriteOutcome(), []
        seconds, failures = self._notices.warn(decision, _running(runtime.pods))
        if not seconds:
            return WriteOutcome(), failures
        early = writer.apply(self._hierarchy, self._journal, narrowed)
        before_wait()
        self._wait(seconds)
        return early, failures

    def apply(self, runtime: RuntimeState, decision: Decision, freed: Freed) -> Applied:
        """Writes the values that no container waits for (the cpusets of sandboxes and the limits),
        and updates the runtime. The result includes `freed`."""
        sandboxes = sandbox_cpusets(runtime.pods, decision)
        outcome = writer.apply(self._hierarchy, self._journal, sandboxes)
        ended = self._restore_sandboxes(runtime, sandboxes)
        limits = wanted_limits(runtime.pods, decision)
        if self.memory_stays:
            limits = {group: of_group.without("mems") for group, of_group in limits.items()}
        batch = {group for group, each in limits.items() if each.shares is not None}
        limits = self._with_weights(runtime.pods, decision, limits)
        held = self.held()
        limits = {
            group: of_group.without(*_held_fields(group, held))
            for group, of_group in limits.items()
        }
        others = limit_files.apply(
            self._controllers, self._journal, limits, migrate=self._migrate_memory
        )
        titles = {
            group: title
            for pod in runtime.pods
            for each in (*pod.sandboxes, *pod.containers)
            if each.group is not None
            for group, title in (
                (parent(each.group), pod.title),
                (each.group, f"{pod.title} {each.name or 'sandbox'}"),
            )
        }
        titles |= freed.titles
        restored = self._restore_limits(runtime, limits)
        failures = tuple(
            f"{each.group} {each.file}: {each.note}"
            for each in restored.having(WriteState.FAILED)
            if not each.refused
        )
        refused = find_refused_limits(runtime.pods, (*others.changes, *restored.changes), batch)
        self._update_runtime(runtime, decision, limits)
        writes = (
            Written(WriteReason.DECISION, outcome, others),
            Written(WriteReason.LIMIT_ENDED, ended, restored),
        )
        cpusets = (*freed.outcomes, outcome, ended)
        return Applied(cpusets, others, titles, failures, refused, writes)

    @property
    def memory_stays(self) -> bool:
        """Whether the memory nodes of running containers must not change: cgroup v2 migrates their
        pages then, which needs the setting; v1 leaves the pages where they are."""
        return not self._migrate_memory and self._controllers.version("cpuset") != 1

    def _with_weights(
        self, pods: tuple[Pod, ...], decision: Decision, limits: dict[str, LinuxResources]
    ) -> dict[str, LinuxResources]:
        """The limits, with the weights of containers with CPUs of claims and of their pods. A group
        that has more shares keeps them: the kubelet may have resized the pod."""
        least = least_weights(pods, decision)
        if not least:
            return limits
        file = limit_files.weight_file(self._controllers)
        weighed = dict(limits)
        for group, shares in least.items():
            others = limits.get(group, NO_RESOURCES)
            present = others.shares
            if present is None:
                with contextlib.suppress(CgroupError):  # its write says why
                    text = self._controllers.read(group, file) or ""
                    present = limit_files.parsed(self._controllers, group, {file: text}).shares
            weighed[group] = msgspec.structs.replace(others, shares=max(present or 0, shares))
        return weighed

    def _restore_sandboxes(
        self, runtime: RuntimeState, wanted: Mapping[str, CpuSet]
    ) -> WriteOutcome:
        """Restores the cpusets of pause containers that have none to get any more."""
        ended = {
            sandbox.group
            for pod in runtime.pods
            for sandbox in pod.sandboxes
            if sandbox.group is not None
            and sandbox.group not in wanted
            and sandbox.group in self._journal
        }
        if not ended:
            return WriteOutcome()
        return writer.restore(self._hierarchy, self._journal, only=ended)

    def _restore_limits(
        self, runtime: RuntimeState, wanted: Mapping[str, LinuxResources]
    ) -> ValueOutcome:
        held = self.held()
        present = {
            group
            for pod in runtime.pods
            for each in (*pod.containers, *pod.sandboxes)
            if each.group is not None
            for group in (each.group, parent(each.group))
        } | {
            group for group, file in self._journal.values if limit_files.concerns_more(group, file)
        }
        ended = {
            (group, file)
            for group, file in self._journal.values
            if group in present
            and (group, file) not in held
            and (file != MEMS or not self.memory_stays)
            and file
            not in limit_files.files(
                self._controllers, wanted.get(group, NO_RESOURCES), migrate=self._migrate_memory
            )
        }
        if not ended:
            return ValueOutcome()
        outcome = limit_files.restore(self._controllers, self._journal, ended)
        for change in outcome.having(WriteState.WRITTEN):
            log.info("%s: %s restored to %s", change.group, change.file, change.new)
            self._restored.setdefault(change.group, {})[change.file] = change.new or ""
        return outcome

    def _update_runtime(
        self, runtime: RuntimeState, decision: Decision, limits: Mapping[str, LinuxResources]
    ) -> None:
        """Queues an update for each running container whose values in the runtime differ.

        `limits`: the values of groups."""
        if self._updater is None:
            return
        groups = {each.id: each.group for each in _containers(runtime) if each.group is not None}
        for gone in self._restored.keys() - groups.values():
            del self._restored[gone]
        self._updater.update(
            {
                each.id: wanted.without("mems") if self.memory_stays else wanted
                for pod in runtime.pods
                for of_pod in (decision.pods[pod.uid],)
                for each in pod.containers
                if each.state is ContainerState.RUNNING and not each.virtual
                for of_container in (with_weight(each.group, of_pod.of(each.name), limits),)
                for wanted in (self._with_restored(each.group, of_container),)
            },
            runtime.statuses,
            groups,
        )

    def _with_restored(self, group: str | None, wanted: Wanted) -> LinuxResources:
        """The wanted values, with the original limits that were restored: the runtime still stores
        the agent's values, and would write them again with every update. If the container owns CPUs
        now, its restored limits are forgotten: the agent sets its limits again."""
        texts = self._restored.get(group or "")
        if not texts or wanted.unmanaged:
            return wanted.resources
        if wanted.exclusive or group is None:
            del self._restored[group or ""]
            return wanted.resources
        try:
            originals = limit_files.parsed(self._controllers, group, texts)
        except CgroupError:
            return wanted.resources
        return wanted.resources.over(originals)

    def _update_created(
        self, runtime: RuntimeState, decision: Decision, holds: Mapping[str, CpuSet]
    ) -> tuple[dict[str, CpuSet], tuple[Record, ...]]:
        """Changes the values with which created containers will start. They do not have a cgroup
        yet: the runtime changes the values. Returns `holds` after the changes, and their
        records."""
        after = dict(holds)
        records = []
        statuses = dict(runtime.statuses)
        created = [
            (pod, container, decision.pods[pod.uid].of(container.name))
            for pod in runtime.pods
            for container in pod.containers
            if container.state is ContainerState.CREATED and not container.virtual
        ]
        # Two rounds, each with the containers that share CPUs first. An owner gets only CPUs that
        # no other container holds: in the first round it leaves the CPUs of others, in the second
        # it gets those that became free. So no two owners wait for each other's CPUs.
        created.sort(key=lambda each: each[2].exclusive)
        for pod, container, wanted in (*created, *created):
            status = statuses[container.id]
            possible = wanted.over(status.resources)
            if not stores(status, possible) and wanted.exclusive:
                owner = tuple(each for each in decision.owners if each.uid == pod.uid)
                overlaps = find_overlaps(runtime.pods, owner, after)
                occupied = union(CpuSet.parse(each.cpus) for each in overlaps)
                present = after[container.id]
                possible = _without(possible, occupied - present, present, pod.uid, decision)
            if stores(status, possible):
                continue
            try:
                # Skips a removed container: see agent.node.runtime_updater.
                self._cri.container_status(container.id)
                self._cri.update(container.id, possible)
                updated = self._cri.container_status(container.id)
            except RpcError as error:
                title, fields = pod.title, about(pod.title, container.name, "update_failed")
                text = "%s %s: the runtime could not update it: %s"
                log.warning(text, title, container.name, error, extra=fields)
                continue
            statuses[container.id], cpuset = updated, updated.resources.cpuset or ""
            records.append(
                Record(
                    event=AuditEvent.START_CHANGED,
                    namespace=pod.namespace,
                    pod=pod.name,
                    uid=pod.uid,
                    container=container.name,
                    field="cpus",
                    before=status.resources.cpuset or "",
                    after=cpuset,
                )
            )
            # The runtime may store others: an NRI plugin applies the last snapshot until it reads
            # the next.
            if cpuset and possible.cpuset == cpuset:
                after[container.id] = CpuSet.parse(cpuset)
                fields = about(pod.title, container.name)
                log.info("%s %s: will start on %s", pod.title, container.name, cpuset, extra=fields)
        return after, tuple(records)


def _nothing(pods: tuple[Pod, ...], topology: Topology, decision: Decision) -> None:
    """A pass without quiet CPUs prepares nothing."""


def _held_fields(group: str, held: Collection[tuple[str, str]]) -> Iterator[str]:
    """The values of a group that are not the pass's. The kernel refuses any weight of a group that
    is idle."""
    if (group, limit_files.IDLE) in held:
        yield "shares"
    if (group, limit_files.QUOTA) in held or (group, limit_files.MAX) in held:
        yield "quota"


def _parted(outcome: WriteOutcome, groups: Collection[str]) -> tuple[WriteOutcome, WriteOutcome]:
    """The part of the outcome about these groups, and the rest."""
    of_groups = tuple(change for change in outcome.changes if change.group in groups)
    others = tuple(change for change in outcome.changes if change.group not in groups)
    return WriteOutcome(of_groups), msgspec.structs.replace(outcome, changes=others)


def _containers(runtime: RuntimeState) -> Iterable[Container]:
    """Containers that run on this kernel."""
    return (each for pod in runtime.pods for each in pod.containers if not each.virtual)


def _running(pods: Iterable[Pod]) -> set[tuple[str, str]]:
    """The running containers by pod uid and name."""
    return {
        (pod.uid, each.name)
        for pod in pods
        for each in pod.containers
        if each.state is ContainerState.RUNNING
    }


def _starting(runtime: RuntimeState, container: Container, topology: Topology) -> CpuSet:
    try:
        cpuset = runtime.statuses[container.id].resources.cpuset
        return CpuSet.parse(cpuset or "") or topology.online
    except (KeyError, CpuSetError):
        return topology.online


def _without(
    wanted: LinuxResources, gained_occupied: CpuSet, present: CpuSet, uid: str, decision: Decision
) -> LinuxResources:
    """The wanted values of a created owner without `gained_occupied`, the CPUs on which other
    containers still run, and it would not: nothing delays its start until they are free. If no CPU
    is left, it keeps those of its `present` CPUs that no other pod owns, otherwise it gets the LS
    pool."""
    if not gained_occupied:
        return wanted
    owned = union(owner.cpus for owner in decision.owners if not owner.is_of(uid))
    cpus = (
        CpuSet.parse(wanted.cpuset or "") - gained_occupied
        or present - owned
        or pool_cpus(decision.pools.get(DEFAULT_POOL.name, ()))
        or present
    )
    return msgspec.structs.replace(wanted, cpuset=str(cpus) or None)


def wanted_cpusets(pods: tuple[Pod, ...], decision: Decision) -> dict[str, CpuSet]:
    """By group: the cpusets of running containers that the agent sets."""
    wanted = {}
    for pod in pods:
        of_pod = decision.pods[pod.uid]
        for container in pod.containers:
            cpus = _parsed(of_pod.of(container.name).cpuset)
            if container.group is not None and cpus is not None:
                wanted[container.group] = cpus
    return wanted


def _no_cpus(pods: tuple[Pod, ...], topology: Topology, decision: Decision) -> CpuSet:
    return EMPTY


def sandbox_cpusets(pods: tuple[Pod, ...], decision: Decision) -> dict[str, CpuSet]:
    """By group: the cpusets of pause containers."""
    return {
        sandbox.group: cpus
        for pod in pods
        if (cpus := decision.pauses or _parsed(decision.pods[pod.uid].each.cpuset)) is not None
        for sandbox in pod.sandboxes
        if sandbox.group is not None
    }


def announced_groups(cgroup_parents: Mapping[str, str]) -> dict[str, str]:
    """By group: the uids of announced pods, without those whose sandbox has another parent."""
    return {
        group: uid
        for uid, cgroup_parent in cgroup_parents.items()
        if (group := names.pod_group(cgroup_parent, uid)) is not None
    }


def cpus_of_others(groups: Mapping[str, str], decision: Decision) -> dict[str, CpuSet]:
    """By group of an announced pod: the CPUs that other pods own or have from a DRA driver, without
    the CPUs that the pod itself may use. Omits pods with a container whose cpuset the agent does
    not set."""
    pools = union(pool_cpus(of_name) for of_name in decision.pools.values())
    apart = {
        uid: union(_parsed(each.cpuset) or EMPTY for each in of_pod.containers.values()) - pools
        for uid, of_pod in (decision.pods.items() if groups else ())
    }
    taken = {}
    for group, uid in groups.items():
        of_pod = decision.pods[uid]
        cpusets = [_parsed(each.cpuset) for each in (of_pod.each, *of_pod.containers.values())]
        if (own := union(each for each in cpusets if each)) and None not in cpusets:
            owned = union(owner.cpus for owner in decision.owners if not owner.is_of(uid))
            others = union(apart[other] for other in apart.keys() - {uid})
            taken[group] = (owned | others) - own
    return taken


def wanted_limits(pods: tuple[Pod, ...], decision: Decision) -> dict[str, LinuxResources]:
    """By group: the values of pods, their running containers and sandboxes."""
    wanted = {}
    for pod in pods:
        of_pod = decision.pods[pod.uid]
        for container in (*pod.containers, *pod.sandboxes):
            if container.group is None:
                continue
            resources = of_pod.of(container.name).resources
            if resources != NO_RESOURCES and container.name:  # a sandbox has no name
                wanted[container.group] = resources
            elif resources.mems is not None:
                wanted[container.group] = LinuxResources(mems=resources.mems)
            above = parent(container.group)
            if of_pod.group != NO_RESOURCES and _is_of_pod(above, pod):
                wanted[above] = of_pod.group
    return wanted


def with_weight(group: str | None, wanted: Wanted, limits: Mapping[str, LinuxResources]) -> Wanted:
    """The values for the runtime of a container whose group gets the shares of its claim. One that
    has more has them of its request, and the runtime keeps that."""
    least, of_group = wanted.least_shares, limits.get(group or "", NO_RESOURCES)
    if not least or of_group.shares != least:
        return wanted
    resources = msgspec.structs.replace(wanted.resources, shares=least)
    return msgspec.structs.replace(wanted, resources=resources)


def least_weights(pods: tuple[Pod, ...], decision: Decision) -> dict[str, int]:
    """By group: the fewest shares of containers with CPUs of claims, and of their pods."""
    least = {}
    for pod in pods:
        of_pod = decision.pods[pod.uid]
        of_group = pod_shares(pod.containers, of_pod)
        for container in pod.containers if of_group else ():
            if container.group is None:
                continue
            if shares := of_pod.of(container.name).least_shares:
                least[container.group] = shares
            if _is_of_pod(above := parent(container.group), pod):
                least[above] = of_group
    return least


def _is_of_pod(group: str, pod: Pod) -> bool:
    """Whether this is the pod's own group. The systemd driver writes the uid with "_", since "-"
    separates slices."""
    return pod.uid.replace("-", "_") in group.replace("-", "_")


@lru_cache(maxsize=1_024)  # hundreds of containers share a handful of cpusets
def _parsed(cpuset: str | None) -> CpuSet | None:
    """The CPUs, None when the agent does not set the cpuset."""
    return None if cpuset is None else CpuSet.parse(cpuset)
