"""CPUs that are not in the shared pools: those that the kubelet and DRA drivers gave to pods, and
those that the kubelet and the Node object reserve, by id or by an amount. An amount takes the whole
CPUs that the kubelet would take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.allocate.kubelet.static_policy import NotEnoughCpusError
from agent.allocate.shares import shares_by_label
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.layout import Layout
from agent.model.cpu.topology import Topology
from agent.model.dra.node_claims import NodeClaims
from agent.model.nrt.node_annotations import RESERVATION, NodeReservation
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.pods import Pod
from agent.model.pod.qos import PoolKind, QoS
from agent.model.snapshot import Owner


class KubeletCpus(msgspec.Struct, frozen=True):
    """The CPUs that the kubelet and DRA drivers gave to pods."""

    static: bool = False
    """Whether the kubelet has the static policy."""
    by_uid: dict[str, CpuSet] = {}
    """By pod uid, the CPUs that a kubelet with the static policy assigned."""
    containers: dict[str, dict[str, CpuSet]] = {}
    """By pod uid and container, the same CPUs where they are known; otherwise it is unknown which
    containers of a pod have its CPUs."""
    of_dra: Mapping[str, Mapping[str, CpuSet]] = {}
    """By pod uid and container, the CPUs that other DRA drivers gave, under every policy of the
    kubelet."""
    claims: NodeClaims = NodeClaims()
    """The CPUs that this agent gave as a DRA driver."""


class DedicatedCpus(msgspec.Struct, frozen=True):
    """The CPUs that the node's configuration gives to the class of a dedicated pool."""

    cpus: CpuSet
    exclusive: bool = True
    """Whether pods of other classes do not run on them."""


class PoolRules(msgspec.Struct, frozen=True):
    """The use of reserved and dedicated CPUs, and of memory."""

    kubelet_reserved: CpuSet = EMPTY
    """The kubelet reserves these CPUs, and pods share them."""
    owners_on_reserved: bool = False
    """Whether LSE and LSR pods may own CPUs that the kubelet reserves."""
    be_on_reserved: bool = False
    """Whether BE pods run on the kubelet's reserved CPUs alone if their requests fit there
    (fine-grained CPU orchestration proposal: they use the reserved CPUs first). It is False while
    these CPUs are full."""
    node_reserved: CpuSet = EMPTY
    """No pod may use these CPUs."""
    dedicated: Mapping[str, DedicatedCpus] = {}
    """The CPUs of dedicated pools, by the pool's name."""
    bind_memory: bool = False
    """Whether pods that own CPUs or are bound to NUMA nodes get the memory of the nodes that they
    run on."""
    kubelet_memory: bool = False
    """Whether the kubelet binds the memory of Guaranteed pods, so that `bind_memory` does not apply
    to them."""
    cpu_normalization_ratio: float = 1.0
    """`batch_limits` divides quotas by it."""
    be_cpus: CpuSet | None = None
    """BE pods run only on these CPUs of their pool, as long as one of them is left; None: on all of
    it."""

    @property
    def kept(self) -> CpuSet:
        """CPUs that are in no pool, or in a dedicated pool alone."""
        return self.node_reserved | union(
            each.cpus for each in self.dedicated.values() if each.exclusive
        )


DEFAULT_RULES: Final = PoolRules()

_FULL: Final = 0.9
_ROOM: Final = 0.5


def reserved_are_full(reserved: int, busy_cpus: float, be_cpus: float, *, before: bool) -> bool:
    """Whether BE pods need more than this number of reserved CPUs. `busy_cpus`: how many of these
    were busy, on average; `be_cpus`: how many CPUs BE pods used, wherever they ran. They get the
    rest of the BE pool when the reserved CPUs are nearly always busy, and lose it when what both
    used fits into half of the reserved CPUs: between the two, the decision `before` stays."""
    if before:
        return busy_cpus + be_cpus > _ROOM * reserved
    return busy_cpus >= _FULL * reserved


def kubelet_owned(pods: tuple[Pod, ...], kubelet: KubeletCpus) -> dict[str, CpuSet]:
    """By pod uid, also for removed pods: the CPUs in a static kubelet's checkpoint, even if the pod
    claims others."""
    if not kubelet.static:
        return {}
    sharing = {pod.uid for pod in pods if shares_by_label(pod)}
    return {uid: cpus for uid, cpus in kubelet.by_uid.items() if cpus and uid not in sharing}


class KubeletAssignments(msgspec.Struct, frozen=True):
    """The CPUs that a kubelet assigned."""

    static: bool
    """Whether the kubelet assigns CPUs."""
    owners: tuple[Owner, ...]
    """The pods that exist, sorted by uid."""
    all: CpuSet
    """The CPUs of owners, and of removed pods that are still in the kubelet's file."""
    named: CpuSet
    """All CPUs in the kubelet's file. Pods that share by their label do not own theirs: these are
    in the pools."""

    def excluded_from(self, kind: PoolKind) -> CpuSet:
        """The CPUs of `all` that are not in the pool."""
        return self.all - union(
            each.claimed for each in self.owners if each.qos not in kind.excluded
        )


def kubelet_assignments(
    topology: Topology, pods: tuple[Pod, ...], kubelet: KubeletCpus
) -> KubeletAssignments:
    """Pods own the CPUs that a static kubelet assigned to them: LSR pods as LSR, all others as LSE.
    The kubelet assigns each CPU once; if its file names one twice, the older pod has it."""
    owned = kubelet_owned(pods, kubelet)
    owners = []
    taken = EMPTY
    assigned = [pod for pod in pods if pod.uid in owned]
    for pod in sorted(assigned, key=lambda pod: (pod.created_at, pod.uid)):
        if mine := owned[pod.uid] - taken:
            taken |= mine
            of_class = QoS.LSR if pod.qos is QoS.LSR else QoS.LSE
            online, offline = str(mine & topology.online), str(mine & topology.offline)
            owners.append(Owner(pod.uid, pod.title, of_class, online, offline, kubelet=True))
    owners.sort(key=lambda owner: owner.uid)
    return KubeletAssignments(
        kubelet.static,
        tuple(owners),
        union(owned.values()),
        union(kubelet.by_uid.values()) if kubelet.static else EMPTY,
    )


def cpus_outside_scheduling(pods: tuple[Pod, ...], kubelet: KubeletCpus) -> dict[str, CpuSet]:
    """By pod uid, the CPUs that the kubelet and DRA drivers gave to pods; a scheduler must not
    allocate them."""
    found = kubelet_owned(pods, kubelet)
    for uid, of_pod in kubelet.of_dra.items():
        found[uid] = union(of_pod.values()) | found.get(uid, EMPTY)
    for uid in kubelet.claims.containers:
        found[uid] = kubelet.claims.of_pod(uid) | found.get(uid, EMPTY)
    return found


def some_share(pod: Pod, kubelet: KubeletCpus) -> bool:
    """Whether the kubelet left a container of the pod on its shared pool."""
    given = kubelet.containers.get(pod.uid, {})
    return bool(given) and any(each.name not in given for each in pod.containers)


def cpus_for(layout: Layout, cpu_milli: int) -> CpuSet:
    """The CPUs for an amount, of all CPUs of the machine. Raises NotEnoughCpusError."""
    if not cpu_milli:
        return EMPTY
    from agent.allocate.kubelet.cpu_assignment import take_packed  # many nodes reserve none

    return CpuSet.from_int(take_packed(layout, layout.cpus, -(-cpu_milli // 1000)))


def reserved_cpus(layout: Layout, reservation: NodeReservation) -> CpuSet:
    """The CPUs that the reservation names, else those for its amount. Raises AnnotationError."""
    if named := reservation.cpus():
        return named
    try:
        return cpus_for(layout, reservation.cpu_milli())
    except NotEnoughCpusError as error:
        raise AnnotationError(RESERVATION, f"resources.cpu: {error}") from None
