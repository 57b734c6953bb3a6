"""Decides which pods own which CPUs of a node, which CPUs all other pods share, and what each
container gets.

Every pod whose resource-status names CPUs claims them. A claim is a request until it is checked: it
is refused if it can't be read, names CPUs that do not exist, takes CPUs that already have an owner,
or would empty a shared pool in which containers run. Pods that owned their CPUs before, or already
run on them, are admitted first, then the older pods, so that a restart does not change decisions.
CPUs of an owner that go offline are kept for it; an owner without other CPUs shares a pool.

Under a kubelet with the static policy, its checkpoint decides. The kubelet admits one pod after the
other. It assigns exclusive CPUs to each container of a Guaranteed pod that requests whole CPUs,
before the sandbox is created, and it does not read Topolet's annotation. The CPUs that the
checkpoint names belong to that container, whatever its pod claims. Any other claim gets those of
its CPUs that the kubelet has not assigned, also if the kubelet assigns some later. An owner never
has only reserved CPUs, and it yields the last CPUs of a pool to the pods that run on the pool.

Owned CPUs leave the LS pool; those of LSE pods leave the BE pool too. Neither pool has CPUs that
the kubelet assigned to pods that are not LSR, that ResourceClaims have, that are reserved for
the node or for SYSTEM pods alone, or that the kernel isolates (compare Koordinator:
calCPUSharePools in pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go). A Guaranteed
pod without a Koordinator class is LS, unless a kubelet with the static policy assigned CPUs to it.
If no CPU is left to share, pools are empty, running containers stay where they are, and no
container is created.

A mixed container runs on its pool too, beside the CPUs that it owns. Both are in one cgroup, where
a CPU quota would throttle it on its own CPUs, so it has none: its weight alone bounds it on the
pool.

A container with devices that shares a pool runs on the part of the pool on the NUMA nodes of its
devices (`locality`), unless a scheduler bound its pod to NUMA nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, TypeVar

import msgspec

from agent.allocate.batch import BatchResources, batch_limits, batch_resources, cpu_request_milli
from agent.allocate.cpu_claims import ClaimRefusal, RefusalCause, admit_claims, claim_refusal
from agent.allocate.locality import (
    Distances,
    Key,
    LocalityInput,
    NearContainer,
    NearNodes,
    places,
)
from agent.allocate.node_local.claim import Alignment, LocalInput, LocalOutcome, Move, Share
from agent.allocate.reserved_cpus import (
    DEFAULT_RULES,
    KubeletAssignments,
    KubeletCpus,
    PoolRules,
    kubelet_assignments,
)
from agent.allocate.shares import (
    claims,
    mixing_containers,
    numa_nodes,
    pool_of,
    shared_cpus,
    sharing_containers,
)
from agent.allocate.weights import least_shares
from agent.model.bounds import reason as shortened
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.policies import DeviceLocality
from agent.model.cpu.topology import Topology
from agent.model.dra.node_claims import ContainerClaim, NodeClaims
from agent.model.linux_resources import NO_QUOTA, NO_RESOURCES, LinuxResources
from agent.model.pod.annotations import (
    CRIO_INTERRUPTS,
    DEVICE_LOCALITY,
    EXTENDED_RESOURCE_SPEC,
    HOUSEKEEPING,
    MIXED_CONTAINERS,
    RESOURCE_STATUS,
    AnnotationError,
    device_locality,
    mixed_containers,
)
from agent.model.pod.pods import Pod
from agent.model.pod.qos import (
    DEFAULT_POOL,
    QOS_LABEL,
    Pool,
    Pools,
    QoS,
    pool_cpus,
    pool_of_class,
    usable_pools,
)
from agent.model.snapshot import LocalOwner, Owner, PodWanted, Wanted

_BE: Final = pool_of_class(QoS.BE)
_OF_CONTAINERS: Final = frozenset(
    (CRIO_INTERRUPTS, DEVICE_LOCALITY, EXTENDED_RESOURCE_SPEC, MIXED_CONTAINERS)
)
"""Without these, the containers of a pod that shares all its CPUs have the same values."""


class Decision(msgspec.Struct, frozen=True):
    """The result of one pass."""

    owners: tuple[Owner, ...]
    """They are sorted by pod uid."""
    pools: Pools
    refusals: tuple[ClaimRefusal, ...]
    """They are sorted by pod uid."""
    pods: dict[str, PodWanted]
    """The wanted values of each pod, by its uid."""
    local_owners: tuple[LocalOwner, ...] = ()
    """The containers that own CPUs by a node-local policy; their pods are in `owners` too."""
    moves: tuple[Move, ...] = ()
    """The node-local policy gave these containers other CPUs."""
    again: bool = False
    """Whether another pass may improve the result once this one is in force."""
    alignments: tuple[Alignment, ...] = ()
    """The new owners of a node-local policy that have devices or huge pages."""
    places: Mapping[Key, NearNodes] = {}
    """The NUMA nodes of the containers with devices that share a pool."""
    be_pool: CpuSet = EMPTY
    """The CPUs of the BE pool, also those that suppression takes from it."""
    pauses: CpuSet = EMPTY
    """Where pause containers run; empty where each runs as a container of its pod that is not in
    `containers`."""


def decide(
    topology: Topology,
    pods: tuple[Pod, ...],
    kubelet: KubeletCpus,
    owned_before: Mapping[str, CpuSet],
    running_on: Mapping[str, CpuSet],
    rules: PoolRules = DEFAULT_RULES,
    local: LocalInput | None = None,
    locality: LocalityInput | None = None,
) -> Decision:
    """The decision about all pods. An owner whose new claim can't be read or honoured keeps what it
    owned.

    `owned_before`: by pod uid, the CPUs of owners in the last decision, with the offline ones that
        are kept for them (empty after a reboot).
    `running_on`: by pod uid, the CPUs of its running containers.
    `local`: the claims of a node-local policy, which are admitted after all others. Their owners
        count as LSE: no other pod, not even a BE pod, runs on their CPUs.
    `locality`: the containers with devices; None if no container has some, or the machine has one
        NUMA node."""
    pods = tuple(sorted(pods, key=lambda pod: pod.uid))
    assigned = kubelet_assignments(topology, pods, kubelet)
    admission, refused = admit_claims(
        topology, pods, kubelet, assigned, owned_before, running_on, rules
    )
    refusals = _Refusals(refused)
    outcome = (
        admission.give_local(local)
        if local
        else LocalOutcome({}, admission.pools[DEFAULT_POOL.name])
    )
    owners = _with_local_owners(admission.owners, pods, outcome)
    owners = _with_claims(topology, owners, pods, kubelet.claims)
    batches = {pod.uid: _batch_of(pod, refusals) for pod in pods}
    numa_cpus = _NumaNodes(topology, bind=rules.bind_memory)
    pools = {name: numa_cpus.parts(cpus) for name, cpus in admission.pools.items()}
    with_devices = _with_devices(locality)
    if rules.be_on_reserved:
        reserved_pool = numa_cpus.parts(admission.pools[_BE.name] & rules.kubelet_reserved)
        users = [(pod, batches[pod.uid]) for pod in pods if pool_of(pod) is _BE]
        if _has_room(reserved_pool, users):
            pools[_BE.name] = reserved_pool
    be_pool = pool_cpus(pools[_BE.name])
    if rules.be_cpus is not None and (be_cpus := be_pool & rules.be_cpus):
        pools[_BE.name] = _suppressed(numa_cpus, pools[_BE.name], be_cpus, pods)
    values = _PodValues(
        pools,
        numa_cpus,
        rules.kubelet_memory,
        rules.cpu_normalization_ratio,
        _why_empty(owners, rules),
    )
    sources = _CpuSources(topology, owners, assigned, kubelet, outcome)
    own_cpus = {pod.uid: sources.of(pod) for pod in pods}
    decided = (
        _places(topology, pods, pools, own_cpus, locality)
        if locality and locality.containers
        else {}
    )
    wanted = {}
    for pod in pods:
        cpus = own_cpus[pod.uid]
        alike = cpus is _SHARES_ALL and pod.uid not in with_devices
        if alike and pod.annotations.keys().isdisjoint(_OF_CONTAINERS):
            reason = refusals.reason(pod)
            wanted[pod.uid] = PodWanted(pod.title, pod.qos, values.shared(pod), {}, reason)
            continue
        if not pod.annotations.keys().isdisjoint((DEVICE_LOCALITY, MIXED_CONTAINERS)):
            try:
                device_locality(pod.annotations, DeviceLocality.PREFER)
                mixed_containers(pod.annotations)
            except AnnotationError as error:
                refusals.add(pod, RefusalCause.INVALID, error.reason, error.key)
        for name, reason in cpus.blocked.items():
            if reason:
                refusals.add(pod, RefusalCause.CPU_POLICY, f"container {name}: {reason}", "")
        placed = {
            name: place
            for name in with_devices.get(pod.uid, ())
            if (place := decided.get((pod.uid, name)))
        }
        of_pod = values.of(pod, cpus, batches[pod.uid], refusals.reason(pod), placed)
        if far := {name: text for name, at in placed.items() if (text := at.problem(name))}:
            of_pod = msgspec.structs.replace(of_pod, far=far)
        others = with_devices.get(pod.uid, set()) - placed.keys()
        of_pod = values.told(pod, of_pod, others) if others else of_pod
        if pod.annotations.get(CRIO_INTERRUPTS) == HOUSEKEEPING:
            own = union(owner.cpus for owner in owners if owner.is_of(pod.uid))
            of_pod = _with_housekeeping(topology, of_pod, own)
        wanted[pod.uid] = of_pod
    return Decision(
        owners,
        pools,
        refusals.with_held(owners),
        wanted,
        outcome.owners,
        outcome.moves,
        outcome.again,
        outcome.alignments,
        decided,
        be_pool,
    )


class _Refusals:
    """The refusals of a decision. Only the first one of each pod counts."""

    def __init__(self, of_claims: Mapping[str, ClaimRefusal]) -> None:
        self._by_uid = dict(of_claims)

    def add(self, pod: Pod, cause: RefusalCause, reason: str, key: str) -> None:
        """`key`: the annotation's key, "" if the refusal is not about an annotation."""
        if pod.uid not in self._by_uid:
            self._by_uid[pod.uid] = claim_refusal(pod, cause, reason, key)

    def reason(self, pod: Pod) -> str:
        """Why the pod's claim was refused; empty if it was not."""
        return self._by_uid[pod.uid].reason if pod.uid in self._by_uid else ""

    def with_held(self, owners: tuple[Owner, ...]) -> tuple[ClaimRefusal, ...]:
        """All refusals, sorted by pod uid, with the CPUs that the pods own instead."""
        held = {owner.uid: owner.cpuset for owner in owners}
        return tuple(
            msgspec.structs.replace(refusal, held=held.get(uid, ""))
            for uid, refusal in sorted(self._by_uid.items())
        )


def _with_housekeeping(topology: Topology, pod: PodWanted, own: CpuSet) -> PodWanted:
    """The values of a pod on whose first own core interrupts stay."""
    from agent.allocate.quiet.interrupts import housekeeping_cpus  # few pods ask for it

    kept = housekeeping_cpus(topology, own)

    def told(wanted: Wanted) -> Wanted:
        return msgspec.structs.replace(wanted, housekeeping=str(kept & wanted.own))

    containers = {name: told(wanted) for name, wanted in pod.containers.items()}
    return msgspec.structs.replace(pod, each=told(pod.each), containers=containers)


def _with_local_owners(
    owners: list[Owner], pods: tuple[Pod, ...], outcome: LocalOutcome
) -> tuple[Owner, ...]:
    """All owners, also those of a node-local policy, sorted by pod uid."""
    if not outcome.by_uid:
        return tuple(sorted(owners, key=lambda owner: owner.uid))
    of_policy = [
        Owner(pod.uid, pod.title, QoS.LSE, str(share.all))
        for pod in pods
        if (share := outcome.by_uid.get(pod.uid)) and share.all
    ]
    return tuple(sorted([*owners, *of_policy], key=lambda owner: owner.uid))


def _with_claims(
    topology: Topology, owners: tuple[Owner, ...], pods: tuple[Pod, ...], claims: NodeClaims
) -> tuple[Owner, ...]:
    """All owners, also those of prepared claims, sorted by pod uid. Of pods that use one claim the
    oldest owns its CPUs. A CPU that has another owner stays with that one."""
    if not claims.containers:
        return owners
    by_uid = {owner.uid: owner for owner in owners}
    taken = union(owner.claimed for owner in owners)
    given: dict[str, CpuSet] = {}
    for pod in sorted(pods, key=lambda pod: (pod.created_at, pod.uid)):
        cpus = claims.of_pod(pod.uid) - taken
        for uid, own in given.items():
            if cpus & own:
                sharers = (*by_uid[uid].sharers, pod.uid)
                by_uid[uid] = msgspec.structs.replace(by_uid[uid], sharers=sharers)
        own = cpus - union(given.values())
        if not own:
            continue
        given[pod.uid] = own
        others = by_uid.get(pod.uid, Owner(pod.uid, pod.title, QoS.LSE, "", claims=True))
        by_uid[pod.uid] = msgspec.structs.replace(
            others,
            cpuset=str(others.cpus | own & topology.online),
            offline=str(CpuSet.parse(others.offline) | own & topology.offline),
        )
    return tuple(by_uid[uid] for uid in sorted(by_uid))


class _PodCpus(msgspec.Struct, frozen=True):
    """The CPUs of one pod that it does not share."""

    own: CpuSet | None
    """The CPUs that the whole pod owns; None if it owns none."""
    by_policy: Mapping[str, CpuSet]
    """By container, its own CPUs by a node-local policy."""
    blocked: Mapping[str, str]
    """By container, why it must not be created; "" for no reason."""
    kubelets: Mapping[str, CpuSet] | None
    """By container, the CPUs that a static kubelet assigned; None if it assigned none to the pod.
    An empty CPU set means that the agent does not write to the container; an empty dict, not to the
    pod."""
    of_dra: Mapping[str, CpuSet]
    """By container, the CPUs that another DRA driver gave. Its limits are the kubelet's."""
    of_claims: Mapping[str, ContainerClaim]
    """By container, the CPUs of the claims that this agent prepared, with those that a static
    kubelet assigned to the container."""


_SHARES_ALL: Final = _PodCpus(None, {}, {}, None, {}, {})
"""A pod that no source names has these."""


class _CpuSources:
    """Finds the CPUs that a pod does not share: those of its claim, of a node-local policy, of a
    static kubelet or of a DRA driver."""

    def __init__(
        self,
        topology: Topology,
        owners: tuple[Owner, ...],
        assigned: KubeletAssignments,
        kubelet: KubeletCpus,
        outcome: LocalOutcome,
    ) -> None:
        self._kubelet = kubelet
        self._outcome = outcome
        self._kubelet_owners = {owner.uid: owner for owner in assigned.owners}
        self._own = {
            owner.uid: own
            for owner in owners
            # Containers that use no claim of their pod do not run on its CPUs.
            if (own := owner.cpus - kubelet.claims.of_pod(owner.uid))
            and owner.uid not in outcome.by_uid
            and not owner.kubelet
            and not owner.claims
        }
        # A container does not get a CPU from a DRA driver if another pod owns it.
        self._unowned = topology.online - union(owner.claimed for owner in owners)
        self._owners = owners
        self._named = {
            *self._own,
            *self._kubelet_owners,
            *kubelet.of_dra,
            *kubelet.claims.containers,
            *outcome.by_uid,
        }

    def of(self, pod: Pod) -> _PodCpus:
        if pod.uid not in self._named:
            return _SHARES_ALL
        kubelets: dict[str, CpuSet] | None = None
        if (owner := self._kubelet_owners.get(pod.uid)) is not None:
            of_pod = self._kubelet.containers.get(pod.uid, {})
            kubelets = {name: cpus & owner.cpus for name, cpus in of_pod.items()}
        of_dra = {
            name: left
            for name, cpus in self._kubelet.of_dra.get(pod.uid, {}).items()
            if (left := cpus & self._unowned)
        }
        share = self._outcome.by_uid.get(pod.uid, Share())
        return _PodCpus(
            self._own.get(pod.uid),
            share.cpus,
            share.blocked,
            kubelets,
            of_dra,
            self._of_claims(pod, kubelets or {}),
        )

    def _of_claims(self, pod: Pod, kubelets: Mapping[str, CpuSet]) -> dict[str, ContainerClaim]:
        """Without containers whose CPUs are offline or have another owner."""
        of_pod = self._kubelet.claims.containers.get(pod.uid)
        if of_pod is None:
            return {}
        own = union(owner.cpus for owner in self._owners if owner.is_of(pod.uid))
        return {
            name: msgspec.structs.replace(claim, cpus=left | kubelets.get(name, EMPTY))
            for name, claim in of_pod.items()
            if (left := claim.cpus & own)
        }


def _batch_of(pod: Pod, refusals: _Refusals) -> dict[str, BatchResources]:
    """By container, the batch resources of the pod's annotation; none if it is refused."""
    if EXTENDED_RESOURCE_SPEC not in pod.annotations and not pod.batch_excess:
        return {}
    try:
        named = of_spec(pod, batch_resources(pod.annotations))
    except AnnotationError as error:
        refusals.add(pod, RefusalCause.INVALID, error.reason, error.key)
        return {}
    if pod.batch_excess:
        refusals.add(pod, RefusalCause.INVALID, pod.batch_excess, EXTENDED_RESOURCE_SPEC)
        return {}
    return named


def _with_devices(locality: LocalityInput | None) -> dict[str, set[str]]:
    """By pod uid, the names of containers with devices."""
    names: dict[str, set[str]] = {}
    for each in locality.containers if locality else ():
        names.setdefault(each.uid, set()).add(each.name)
    return names


def _places(
    topology: Topology,
    pods: tuple[Pod, ...],
    pools: Pools,
    own_cpus: Mapping[str, _PodCpus],
    locality: LocalityInput,
) -> dict[Key, NearNodes]:
    """The places of containers with devices that share a pool and are bound to no NUMA nodes."""
    of_pool: dict[str, list[NearContainer]] = {}
    by_uid = {pod.uid: pod for pod in pods}
    for container in locality.containers:
        pod = by_uid.get(container.uid)
        if pod is None or numa_nodes(pod) or not _shares(pod, own_cpus[pod.uid], container.name):
            continue
        used = next((each for each in usable_pools(pool_of(pod)) if pools[each.name]), None)
        if used is not None and not used.dedicated:
            of_pool.setdefault(used.name, []).append(container)
    distances = Distances(topology)
    memory_bytes = {
        node.id: node.memory_bytes - sum(each.size_bytes * each.total for each in node.hugepages)
        for node in topology.numa_nodes
    }
    decided: dict[Key, NearNodes] = {}
    for name, containers in of_pool.items():
        cpus = {pool.node: pool.cpus for pool in pools[name]}
        wanted = msgspec.structs.replace(locality, containers=tuple(containers))
        decided |= places(distances, cpus, wanted, memory_bytes)
    return decided


def _shares(pod: Pod, cpus: _PodCpus, name: str) -> bool:
    """Whether the container shares a pool, and the agent writes its CPUs."""
    if name in cpus.by_policy or name in cpus.of_dra or name in cpus.of_claims:
        return False
    if cpus.kubelets is not None and (not cpus.kubelets or name in cpus.kubelets):
        return False
    return cpus.own is None or name in sharing_containers(pod)


def _has_room(
    pools: tuple[Pool, ...], pods: Collection[tuple[Pod, Mapping[str, BatchResources]]]
) -> bool:
    """Whether the requests of the pods fit into the pools, and every pod that is bound to NUMA
    nodes has a pool there."""
    requested_milli = sum(cpu_request_milli(batch) for _, batch in pods)
    bound = [nodes for pod, _ in pods if (nodes := numa_nodes(pod))]
    fits = 0 < len(pool_cpus(pools)) * 1000 >= requested_milli
    return fits and all(pool_cpus(pools, nodes) for nodes in bound)


def _suppressed(
    numa_cpus: _NumaNodes, be_pool: tuple[Pool, ...], be_cpus: CpuSet, pods: Collection[Pod]
) -> tuple[Pool, ...]:
    """The pool with the CPUs that are left, and one more for BE pods that are bound to NUMA nodes
    where none is left: they would share the pool of others there."""
    for pod in pods:
        nodes = numa_nodes(pod) if pool_of(pod) is _BE else None
        if nodes and not pool_cpus(numa_cpus.parts(be_cpus), nodes):
            be_cpus |= CpuSet(islice(pool_cpus(be_pool, nodes), 1))
    return numa_cpus.parts(be_cpus)


def _why_empty(owners: tuple[Owner, ...], rules: PoolRules) -> str:
    """Why a pool has no CPU, for messages."""
    named = [f"{rules.kept} are reserved for the node"] if rules.kept else []
    named += [f"{owner.cpuset} belong to pod {owner.title}" for owner in owners if owner.cpuset]
    return shortened("; ".join(named)) or "the kubelet assigned every CPU"


T = TypeVar("T")

MAX_COMING: Final = 32
"""The number of a pod's containers, in the order of its spec, that are decided before the runtime
has them. A kubelet creates one after the other, and existing ones are always decided."""


def of_spec(pod: Pod, named: Mapping[str, T]) -> dict[str, T]:
    """The entries of containers that are in the pod's spec; all, if the spec is not known."""
    if pod.named is None:
        return dict(named)
    there = {*pod.named, *_present(pod)}
    return {name: value for name, value in named.items() if name in there}


def decided_names(pod: Pod, names: Collection[str]) -> set[str]:
    """The containers of `names` that the pod has, and the next ones that the kubelet will create.
    This bounds the entries in the snapshot: annotations may name any number of containers."""
    if not names:
        return set()
    present = _present(pod)
    in_order = names if pod.named is None else pod.named
    coming = (name for name in in_order if name in names and name not in present)
    return {*islice(coming, MAX_COMING), *(name for name in names if name in present)}


def _present(pod: Pod) -> set[str]:
    return {each.name for each in pod.containers} | {each.name for each in pod.ended}


class _NumaNodes:
    """The NUMA nodes of CPUs, and those whose memory belongs to CPUs."""

    def __init__(self, topology: Topology, *, bind: bool) -> None:
        """`bind`: whether memory is bound."""
        self._bind = bind
        self._sockets: dict[int, int] = {}
        self._masks: dict[int, int] = {}
        for cpu in topology.cpus:
            self._sockets.setdefault(cpu.node, cpu.socket)
            self._masks[cpu.node] = self._masks.get(cpu.node, 0) | 1 << cpu.id
        self._with_memory = CpuSet(node.id for node in topology.numa_nodes if node.memory_bytes)

    def of(self, cpus: CpuSet) -> CpuSet:
        return CpuSet(node for node, mask in self._masks.items() if mask & cpus.mask)

    def parts(self, cpus: CpuSet) -> tuple[Pool, ...]:
        """The CPUs by the NUMA node that each names: it may be offline, and then
        `Topology.numa_nodes` does not have it. A node that spans sockets has the socket of its
        lowest CPU, whichever CPUs are left."""
        pools = [
            Pool(self._sockets[node], node, str(CpuSet.from_int(part)))
            for node, mask in self._masks.items()
            if (part := mask & cpus.mask)
        ]
        return tuple(sorted(pools, key=lambda pool: (pool.socket, pool.node)))

    def memory(self, cpus: CpuSet) -> CpuSet | None:
        """The memory nodes for these CPUs. None (any node) if memory is not bound, or if one of the
        nodes has no memory of its own."""
        nodes = self.with_memory(cpus) if self._bind else EMPTY
        return nodes or None

    def with_memory(self, cpus: CpuSet) -> CpuSet:
        """The memory nodes for these CPUs; none if one of the nodes has no memory of its own."""
        nodes = self.of(cpus)
        return nodes if nodes <= self._with_memory else EMPTY


_OWNERS: Final = (QoS.LSE, QoS.LSR)


class _PodValues(msgspec.Struct, frozen=True):
    """Makes the wanted values of a pod and its containers from the pools and the pod's own CPUs."""

    pools: Pools
    numa_nodes: _NumaNodes
    kubelet_memory: bool
    """Whether the kubelet binds the memory of Guaranteed pods."""
    cpu_normalization_ratio: float
    """`batch_limits` divides quotas by it."""
    why_empty: str
    """The reason why no CPU is left for a container, for messages."""

    _shared: dict[object, Wanted] = {}
    """A cache: many pods share the same CPUs."""

    def shared(self, pod: Pod, place: NearNodes | None = None) -> Wanted:
        """The values of a container that shares CPUs.

        `place`: None for a container without devices."""
        at = (place.nodes, place.memory) if place else None
        qos, status = pod.labels.get(QOS_LABEL), pod.annotations.get(RESOURCE_STATUS)
        key = qos, pod.kube_class, status, at
        if (wanted := self._shared.get(key)) is None:
            nodes = numa_nodes(pod)
            cpus = shared_cpus(pod, self.pools, tuple(place.nodes) if place else ())
            mems = self._mems(pod, cpus) if nodes else None
            if place and place.memory and not self._kubelet_binds(pod):
                mems = str(place.memory)
            blocked = "" if cpus else f"no CPU is left for it: {self.why_empty}"
            wanted = Wanted(
                LinuxResources(str(cpus) or None, mems),
                blocked=blocked,
                numa_nodes=str(self.numa_nodes.of(cpus)) if place else "",
            )
            self._shared[key] = wanted
        return wanted

    def told(self, pod: Pod, wanted: PodWanted, with_devices: Collection[str]) -> PodWanted:
        """Adds the NUMA nodes of the CPUs of containers with devices that have no place."""
        told = {}
        for name in decided_names(pod, with_devices):
            of_container = wanted.of(name)
            nodes = self.numa_nodes.of(CpuSet.parse(of_container.cpuset or ""))
            told[name] = msgspec.structs.replace(of_container, numa_nodes=str(nodes))
        containers = dict(sorted((wanted.containers | told).items()))
        return msgspec.structs.replace(wanted, containers=containers)

    def own(self, pod: Pod, cpus: CpuSet) -> Wanted:
        """The values of a container that owns CPUs. It has no quota, which would throttle it
        there."""
        resources = LinuxResources(str(cpus), self._mems(pod, cpus), quota=NO_QUOTA)
        return Wanted(resources, exclusive=True)

    def claimed(self, pod: Pod, claim: ContainerClaim) -> Wanted:
        """The values of a container with CPUs of a claim."""
        mems = self._claimed_mems(pod, claim.cpus) if claim.bind_memory else None
        return Wanted(
            LinuxResources(str(claim.cpus), mems, quota=NO_QUOTA),
            exclusive=True,
            least_shares=least_shares(claim.cpus),
        )

    def mixed(self, pod: Pod, wanted: Wanted) -> Wanted:
        """The values of a container with CPUs of its own that runs on its pool too."""
        own, pool = wanted.own, shared_cpus(pod, self.pools)
        resources = msgspec.structs.replace(
            wanted.resources, cpuset=str(own | pool), quota=NO_QUOTA
        )
        return msgspec.structs.replace(wanted, resources=resources, shared=str(pool - own))

    def _claimed_mems(self, pod: Pod, cpus: CpuSet) -> str | None:
        if self._kubelet_binds(pod):
            return None
        nodes = self.numa_nodes.with_memory(cpus)
        return str(nodes) if nodes else None

    def given(self, pod: Pod, cpus: CpuSet) -> Wanted:
        """The values of a container to which a static kubelet assigned CPUs. Its limits are the
        kubelet's, except in LSE and LSR pods and pods with a claim."""
        if pod.qos in _OWNERS or claims(pod):
            return msgspec.structs.replace(self.own(pod, cpus), kubelet=True)
        return Wanted(LinuxResources(str(cpus)), exclusive=True, kubelet=True)

    def _kubelet_binds(self, pod: Pod) -> bool:
        return self.kubelet_memory and pod.kube_class == "guaranteed"

    def _mems(self, pod: Pod, cpus: CpuSet) -> str | None:
        if self._kubelet_binds(pod):
            return None
        nodes = self.numa_nodes.memory(cpus)
        return None if nodes is None else str(nodes)

    def of(
        self,
        pod: Pod,
        cpus: _PodCpus,
        batch: Mapping[str, BatchResources],
        refused: str,
        placed: Mapping[str, NearNodes],
    ) -> PodWanted:
        """The values of the pod.

        `refused`: why the pod does not have what it claims, "" without a refusal.
        `placed`: by name, the places of containers with devices."""
        own, kubelets = cpus.own, cpus.kubelets
        sharing = set() if own is None else decided_names(pod, sharing_containers(pod))
        some_share = kubelets != {} and (own is None or sharing)
        shared = self.shared(pod) if some_share else Wanted()
        each = shared if own is None else self.own(pod, own)
        named = dict.fromkeys(sharing, shared)
        named |= {name: self.shared(pod, placed[name]) for name in decided_names(pod, placed)}
        named |= {name: self.own(pod, each_own) for name, each_own in cpus.by_policy.items()}
        named |= {name: self.claimed(pod, claim) for name, claim in cpus.of_claims.items()}
        for name, assigned in (kubelets or {}).items():
            if name not in cpus.of_claims:
                named[name] = self.given(pod, assigned) if assigned else Wanted()
        mixing = decided_names(pod, mixing_containers(pod))
        mixing |= {name for name, claim in cpus.of_claims.items() if claim.shared}
        for name in mixing:
            if (wanted := named.get(name, each)).exclusive:
                named[name] = self.mixed(pod, wanted)
        lifted = any(of.resources.quota is not None for of in (each, *named.values()))
        named |= {name: Wanted(LinuxResources(str(given))) for name, given in cpus.of_dra.items()}
        for name, reason in cpus.blocked.items():
            wanted = named.get(name, each)
            named[name] = msgspec.structs.replace(wanted, blocked=reason or wanted.blocked)
        group = LinuxResources(quota=NO_QUOTA) if lifted else NO_RESOURCES
        limited = batch_limits(pod.qos, batch, self.cpu_normalization_ratio)
        if limited is not None:
            group = limited.pod
            named |= {
                name: _limited(named.get(name, each), limited.containers[name])
                for name in decided_names(pod, limited.containers)
            }
        return PodWanted(pod.title, pod.qos, each, dict(sorted(named.items())), refused, group)


def _limited(wanted: Wanted, limits: LinuxResources) -> Wanted:
    return msgspec.structs.replace(wanted, resources=limits.over(wanted.resources))
