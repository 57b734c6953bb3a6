"""Differences between what pods were promised and what they have:

* overlaps: containers that run on another pod's CPUs;
* shortfalls: containers that own fewer CPUs than the annotation of their pod, or the checkpoint of
  a kubelet with the static policy, promises; and containers that run on other CPUs than these;
* LSE and LSR pods to which neither a scheduler nor the node allocated CPUs;
* limits that the state of a pod's cgroup does not allow.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Container, Iterable, Mapping

import msgspec

from agent.allocate.cpu_claims import ClaimRefusal
from agent.allocate.pools import Decision
from agent.allocate.reserved_cpus import KubeletCpus
from agent.allocate.shares import sharing_containers
from agent.cgroup.order import ValueChange, parent
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.pod.annotations import (
    EXTENDED_RESOURCE_SPEC,
    RESOURCE_STATUS,
    AnnotationError,
    resource_status,
)
from agent.model.pod.pods import ContainerState, Pod
from agent.model.pod.qos import CPU_OWNERS, QoS, pool_of_class
from agent.model.snapshot import Owner, Snapshot


class ContainerOverlap(msgspec.Struct, frozen=True):
    """A container on CPUs that the pod `owner` owns."""

    container_id: str
    title: str
    """The title of the container's pod."""
    owner: str
    owner_uid: str
    cpus: str

    @property
    def text(self) -> str:
        return f"pod {self.title} runs on CPUs {self.cpus} of pod {self.owner}"


def find_overlaps(
    pods: tuple[Pod, ...], owners: tuple[Owner, ...], holds: Mapping[str, CpuSet]
) -> tuple[ContainerOverlap, ...]:
    """The containers that hold CPUs of `owners`.

    `holds`: by container id, the CPUs that it holds or will start with; containers that are missing
        there are ignored."""
    owned = [(owner, owner.cpus) for owner in owners]
    overlaps = []
    for pod in pods:
        for container in pod.containers:
            cpus = holds.get(container.id)
            if cpus is None:
                continue
            for owner, own in owned:
                if may_hold(pod.uid, pod.qos, owner):
                    continue
                if common := cpus & own:
                    overlaps.append(
                        ContainerOverlap(
                            container.id, pod.title, owner.title, owner.uid, str(common)
                        )
                    )
    return tuple(overlaps)


def may_hold(uid: str, qos: QoS, owner: Owner) -> bool:
    """Whether a pod may run on an owner's CPUs."""
    return owner.is_of(uid) or owner.qos not in pool_of_class(qos).excluded


def started(pods: tuple[Pod, ...]) -> frozenset[str]:
    """The uids of pods with a running container."""
    return frozenset(
        pod.uid
        for pod in pods
        if any(each.state is ContainerState.RUNNING for each in pod.containers)
    )


def settled(decision: Decision, before: Mapping[str, CpuSet]) -> tuple[Owner, ...]:
    """The owners without the CPUs that this decision adds to running pods: other containers may
    still run there. A new owner has its CPUs before it starts, except under a node-local policy.

    `before`: by pod uid, the CPUs of the last decision's owners."""
    local = {owner.uid for owner in decision.local_owners}
    owners = []
    for owner in decision.owners:
        first = EMPTY if owner.uid in local else owner.cpus
        cpus = owner.cpus & before.get(owner.uid, first)
        owners.append(msgspec.structs.replace(owner, cpuset=str(cpus)))
    return tuple(owners)


def without_shares(holds: Mapping[str, CpuSet], last: Snapshot | None) -> Mapping[str, CpuSet]:
    """By container id, the CPUs that it holds, without the share of a mixed container in the last
    decision."""
    shares = {
        container_id: CpuSet.parse(wanted.shared)
        for container_id, wanted in (last.containers.items() if last else ())
        if wanted.shared
    }
    return {**holds, **{id_: holds[id_] - cpus for id_, cpus in shares.items() if id_ in holds}}


def running_on(pods: tuple[Pod, ...], holds: Mapping[str, CpuSet]) -> dict[str, CpuSet]:
    """By pod uid, the CPUs of its running containers, without those that share a pool.

    `holds`: by container id, without shares of mixed containers."""
    running = {}
    for pod in pods:
        sharing = sharing_containers(pod)
        running[pod.uid] = union(
            holds[each.id]
            for each in pod.containers
            if each.state is ContainerState.RUNNING
            and each.id in holds
            and each.name not in sharing
        )
    return {uid: cpus for uid, cpus in running.items() if cpus}


class Shortfall(msgspec.Struct, frozen=True):
    """A container without the CPUs that its pod was promised."""

    uid: str
    title: str
    container: str
    promised: str
    """A CPU list."""
    held: str
    """The promised CPUs that it has for itself, a CPU list."""
    reason: str
    by_kubelet: bool = False
    """The kubelet promised them, not the annotation."""

    @property
    def text(self) -> str:
        """A message that does not name the pod."""
        by = "the kubelet gave" if self.by_kubelet else f"annotation {RESOURCE_STATUS} claims"
        held = f"CPUs {self.held}" if self.held else "no CPUs"
        return (
            f"{by} CPUs {self.promised}, container {self.container} has {held} of its own: "
            f"{self.reason}"
        )


def find_shortfalls(
    pods: tuple[Pod, ...],
    decision: Decision,
    kubelet: KubeletCpus,
    holds: Mapping[str, CpuSet],
) -> tuple[Shortfall, ...]:
    """Shortfalls of existing containers, in the order of `pods`.

    `holds`: by container id, the CPUs that it holds or will start with."""
    refused = {refusal.uid: refusal.reason for refusal in decision.refusals}
    offline = {owner.uid: owner.offline for owner in decision.owners if owner.offline}
    owned = {owner.uid: owner.cpus for owner in decision.owners}
    shortfalls = []
    for pod in pods:
        claimed = _claimed(pod)
        given = kubelet.containers.get(pod.uid, {}) if kubelet.static else {}
        sharing = sharing_containers(pod)
        for container in pod.containers:
            if container.state is ContainerState.ENDED or container.virtual:
                continue
            wanted = decision.pods[pod.uid].of(container.name)
            by_kubelet = container.name in given and (wanted.kubelet or wanted.unmanaged)
            promised = given[container.name] if by_kubelet else claimed
            if not promised or (container.name in sharing and not by_kubelet):
                continue
            own = wanted.own
            if wanted.unmanaged:
                # The state does not show to which containers of the pod the kubelet gave CPUs.
                own = owned.get(pod.uid, EMPTY)
            held = own & holds.get(container.id, own)
            if len(held) >= len(promised):
                continue
            reason = refused.get(pod.uid) or wanted.blocked
            if pod.uid in offline:
                reason = reason or f"CPUs {offline[pod.uid]} are offline"
            if len(own) >= len(promised):
                reason = f"its cgroup lacks CPUs {own - held}"
            shortfalls.append(
                Shortfall(
                    pod.uid,
                    pod.title,
                    container.name,
                    str(promised),
                    str(held),
                    reason or "the agent decided otherwise",
                    by_kubelet,
                )
            )
    return tuple(shortfalls)


class RefusedLimit(msgspec.Struct, frozen=True):
    """A limit that the state of a pod's own cgroup does not allow, such as less memory than the pod
    uses."""

    uid: str
    title: str
    container: str
    """Empty for the whole pod."""
    key: str
    file: str
    reason: str

    @property
    def text(self) -> str:
        """A message that does not name the pod."""
        of_container = f"container {self.container}: " if self.container else ""
        by = f"annotation {self.key}: " if self.key else ""
        return f"{by}{of_container}{self.file} is not set: {self.reason}"


def find_refused_limits(
    pods: tuple[Pod, ...], changes: Iterable[ValueChange], batch: Container[str]
) -> tuple[RefusedLimit, ...]:
    """The refused limits among the changes of the pods' cgroups, in the order of `changes`.

    `batch`: the groups whose limits extended-resource-spec names."""
    refused = [change for change in changes if change.refused]
    if not refused:
        return ()
    places = {
        group: (pod, name)
        for pod in pods
        for container in (*pod.sandboxes, *pod.containers)
        if container.group is not None
        for group, name in (
            (parent(container.group), ""),
            (container.group, container.name or "sandbox"),
        )
    }
    return tuple(
        RefusedLimit(
            pod.uid,
            pod.title,
            name,
            EXTENDED_RESOURCE_SPEC if change.group in batch else "",
            change.file,
            change.note or "",
        )
        for change in refused
        if change.group in places
        for pod, name in (places[change.group],)
    )


class CpuSource(enum.StrEnum):
    """Who names the CPUs of a container: the annotation of its pod, the checkpoint of a static
    kubelet, as far as the agent follows it, or the agent's decision."""

    ANNOTATION = "annotation"
    CHECKPOINT = "checkpoint"
    DECISION = "decision"


def count_differing(
    pods: tuple[Pod, ...],
    decision: Decision,
    kubelet: KubeletCpus,
    holds: Mapping[str, CpuSet],
) -> Counter[CpuSource]:
    """By source, the number of running containers whose CPUs are not those that it names.

    `holds`: by container id, the CPUs in the kernel's files; containers that are missing there are
        ignored."""
    differing: Counter[CpuSource] = Counter()
    for pod in pods:
        claimed = _claimed(pod)
        given = kubelet.containers.get(pod.uid, {}) if kubelet.static else {}
        sharing = sharing_containers(pod) if claimed else ()
        for container in pod.containers:
            cpus = holds.get(container.id)
            if cpus is None or container.state is not ContainerState.RUNNING:
                continue
            wanted = decision.pods[pod.uid].of(container.name)
            alone = cpus - CpuSet.parse(wanted.shared or "")
            if claimed and container.name not in sharing:
                differing[CpuSource.ANNOTATION] += alone != claimed
            if container.name in given and (wanted.kubelet or wanted.unmanaged):
                differing[CpuSource.CHECKPOINT] += alone != given[container.name]
            if wanted.cpuset is not None:
                differing[CpuSource.DECISION] += cpus != CpuSet.parse(wanted.cpuset)
    return differing


class Unallocated(msgspec.Struct, frozen=True):
    """A pod of a class that owns CPUs, to which neither a scheduler nor the node allocated any."""

    uid: str
    title: str
    qos: QoS

    @property
    def text(self) -> str:
        """A message that does not name the pod."""
        return f"no scheduler allocated CPUs to this {self.qos} pod, so it shares the pool"


def find_unallocated(
    pods: tuple[Pod, ...], decision: Decision, kubelet: KubeletCpus
) -> tuple[Unallocated, ...]:
    """The unallocated pods that have a container, in the order of `pods`. Omits pods whose
    annotation names NUMA nodes, which they got instead of CPUs, and pods whose annotation can't be
    read, which are reported as refusals."""
    served = {owner.uid for owner in decision.owners} | kubelet.of_dra.keys()
    served |= kubelet.claims.containers.keys()
    served |= {uid for uid, cpus in kubelet.by_uid.items() if cpus and kubelet.static}
    served |= {each.uid for each in decision.refusals if each.key in (RESOURCE_STATUS, "")}
    return tuple(
        Unallocated(pod.uid, pod.title, pod.qos)
        for pod in pods
        if pod.qos in CPU_OWNERS and pod.containers and pod.uid not in served
        if not _names_numa_nodes(pod)
    )


def unmet(decision: Decision) -> tuple[ClaimRefusal, ...]:
    """The refused CPU claims, without those of pods to which a static kubelet assigned other CPUs
    in the same number: the scheduler corrects these annotations."""
    kubelets = {owner.uid for owner in decision.owners if owner.kubelet}

    def replaced(each: ClaimRefusal) -> bool:
        number = len(CpuSet.parse(each.claimed))
        return each.uid in kubelets and 0 < number <= len(CpuSet.parse(each.held))

    return tuple(
        each for each in decision.refusals if each.key == RESOURCE_STATUS and not replaced(each)
    )


def _names_numa_nodes(pod: Pod) -> bool:
    try:
        return bool(resource_status(pod.annotations).shared_numa_nodes())
    except AnnotationError:
        return True


def _claimed(pod: Pod) -> CpuSet:
    try:
        return resource_status(pod.annotations).cpus()
    except AnnotationError:
        return EMPTY  # reported as a refusal
