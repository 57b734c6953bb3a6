"""Admission of CPU claims: their order, and for each claim the CPUs that it takes or the reason of
its refusal.

The CPUs that a pod's resource-status names are a request until they are checked. `admit_claims`
reads all claims and admits them one after the other (`ClaimAdmission.claim`). The kubelet's
assignments come first. Pods that owned their CPUs before, or already run on them, are admitted
next, then the older pods.

A refusal changes what the other claims may take, so admission is repeated from the beginning until
nothing changes: an owner whose new claim is refused claims the CPUs that it owned instead, and a
running pod whose claim is refused uses a pool, which no claim may empty."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping

import msgspec

from agent.allocate.node_local.claim import LocalInput, LocalOutcome
from agent.allocate.reserved_cpus import KubeletAssignments, KubeletCpus, PoolRules, some_share
from agent.allocate.shares import kubelet_may_own, pool_of, sharing_containers, whole_cpus
from agent.model.bounds import reason as shortened
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.pod.annotations import (
    RESOURCE_STATUS,
    AnnotationError,
    ResourceStatus,
    resource_status,
    shared_containers,
)
from agent.model.pod.pods import Pod
from agent.model.pod.qos import (
    CPU_OWNERS,
    DEFAULT_POOL,
    POOLS,
    PoolKind,
    QoS,
    pool_of_class,
    usable_pools,
)
from agent.model.snapshot import Owner


class RefusalCause(enum.StrEnum):
    """The kinds of reasons, as metrics name them."""

    INVALID = "invalid"
    ABSENT = "absent"
    OFFLINE = "offline"
    OWNED = "owned"
    KUBELET = "kubelet"
    RESOURCE_CLAIM = "resource-claim"
    RESERVED = "reserved"
    UNEQUAL = "unequal"
    POOL_EMPTIED = "pool-emptied"
    CPU_POLICY = "cpu-policy"


class ClaimRefusal(msgspec.Struct, frozen=True):
    """A claim that was not honoured as written."""

    uid: str
    title: str
    key: str
    """The annotation's key, empty if the claim does not come from an annotation."""
    cause: RefusalCause
    reason: str
    claimed: str = ""
    """The CPUs that the claim names, "" if it can't be read."""
    held: str = ""
    """The CPUs that the pod owns instead, "" if it shares a pool."""


def claim_refusal(
    pod: Pod, cause: RefusalCause, text: str, key: str = RESOURCE_STATUS
) -> ClaimRefusal:
    """`text` may quote what the pod's author wrote, and is shortened."""
    return ClaimRefusal(pod.uid, pod.title, key, cause, shortened(text))


def admit_claims(
    topology: Topology,
    pods: Collection[Pod],
    kubelet: KubeletCpus,
    assigned: KubeletAssignments,
    owned_before: Mapping[str, CpuSet],
    running_on: Mapping[str, CpuSet],
    rules: PoolRules,
) -> tuple[ClaimAdmission, dict[str, ClaimRefusal]]:
    """The owners and pools after all claims are admitted or refused, and the refusals by pod uid.
    `assigned`: the assignments of a static kubelet. `owned_before` and `running_on`: see
    `pools.decide`."""
    known = topology.online | topology.offline
    owned_before = {
        uid: cpus & known - assigned.named - kubelet.claims.of_pod(uid)
        for uid, cpus in owned_before.items()
    }
    read = _read_claims(topology, pods, assigned, owned_before, running_on)
    claims = read.claims
    kubelet_owners = {owner.uid for owner in assigned.owners}
    of_dra = union(union(of_pod.values()) for of_pod in kubelet.of_dra.values())
    of_dra |= kubelet.claims.cpus
    claimants = {pod.uid for pod, _ in claims}
    all_requested = {pod.uid: requested for pod, requested in claims}
    # Running pods whose claims were refused: they use a pool, which no claim may empty.
    sharing: set[str] = set()

    def admit() -> tuple[ClaimAdmission, dict[str, ClaimRefusal]]:
        admission = ClaimAdmission(topology, assigned, rules, of_dra)
        for pod in pods:
            if pod.uid in claimants:
                shares = pod.uid in sharing or bool(sharing_containers(pod))
            else:
                shares = pod.uid not in kubelet_owners or some_share(pod, kubelet)
            if shares:
                admission.joins_pool(pod, runs=bool(running_on.get(pod.uid)))
        refusals = {}
        for claim in _in_order(
            claims, topology.online, admission.shared_cpus, pods, owned_before, running_on
        ):
            if refusal := admission.claim(claim):
                refusals[claim.pod.uid] = refusal
                admission.keep_offline(claim.pod, owned_before.get(claim.pod.uid, EMPTY))
                admission.joins_pool(claim.pod, runs=bool(running_on.get(claim.pod.uid)))
        return admission, refusals

    first_refusals: dict[str, ClaimRefusal] = {}
    while True:
        admission, refusals = admit()
        falling_back = {
            pod.uid
            for pod, requested in claims
            if pod.uid in refusals
            and requested != (before := owned_before.get(pod.uid, EMPTY))
            and before & topology.online
        }
        # Claims that were admitted before the refusal of these pods emptied their pool.
        without_cpus = {
            pod.uid
            for pod, _ in claims
            if pod.uid in refusals.keys() - sharing
            and running_on.get(pod.uid)
            and not admission.shared_cpus(pod)
        }
        sharing |= without_cpus
        if not falling_back and not without_cpus:
            break
        # The refusal of the claim in the annotation, not of the one that takes its place.
        first_refusals |= {uid: refusals[uid] for uid in falling_back}
        claims = [
            (pod, owned_before[pod.uid] if pod.uid in falling_back else requested)
            for pod, requested in claims
        ]
    for pod, _ in claims:
        if refusal := first_refusals.get(pod.uid) or refusals.get(pod.uid):
            # If the CPUs have an owner, the refusal names it, whatever the order of the claims.
            requested = all_requested[pod.uid]
            if requested <= known:
                refusal = admission.conflict(pod, requested) or refusal
            read.refuse(refusal)
    return admission, read.refusals


class _Claims(msgspec.Struct):
    """The claims in pods' annotations."""

    claims: list[tuple[Pod, CpuSet]] = []
    named: dict[str, CpuSet] = {}
    """By pod uid, the CPUs that its annotation names."""
    refusals: dict[str, ClaimRefusal] = {}
    """By pod uid."""

    def refuse(self, refusal: ClaimRefusal) -> None:
        claimed = self.named.get(refusal.uid, EMPTY) if refusal.key == RESOURCE_STATUS else ""
        self.refusals[refusal.uid] = msgspec.structs.replace(refusal, claimed=str(claimed))


def _read_claims(
    topology: Topology,
    pods: Collection[Pod],
    assigned: KubeletAssignments,
    owned_before: Mapping[str, CpuSet],
    running_on: Mapping[str, CpuSet],
) -> _Claims:
    """The claims of the annotations; of an owner whose annotation can't be read, the CPUs that it
    owned."""
    found = _Claims()
    known = topology.online | topology.offline
    numa_nodes = {cpu.node for cpu in topology.cpus} | {node.id for node in topology.numa_nodes}
    kubelet_owners = {owner.uid: owner for owner in assigned.owners}
    claimless = {""}  # texts that claim no CPUs and name NUMA nodes of the machine, if any
    for pod in pods:
        owned = owned_before.get(pod.uid, EMPTY)
        annotation = pod.annotations.get(RESOURCE_STATUS, "")
        if not owned and annotation in claimless:
            continue
        try:
            status = resource_status(pod.annotations)
            requested = found.named[pod.uid] = status.cpus()
            if not requested and (refusal := _unknown_nodes(pod, status, numa_nodes)):
                found.refuse(refusal)
            elif not requested:
                claimless.add(annotation)
            if owned and (missing := requested - known):
                text = f"CPUs {missing} do not exist"
                found.refuse(claim_refusal(pod, RefusalCause.ABSENT, text))
                requested = owned
        except AnnotationError as error:
            found.refuse(claim_refusal(pod, RefusalCause.INVALID, error.reason, error.key))
            requested = owned
        if (owner := kubelet_owners.get(pod.uid)) is not None:
            named = found.named.get(pod.uid)
            if named and named != owner.claimed:
                found.refuse(_assigned(pod, owner.claimed))
            continue
        if taken := requested & assigned.named:
            text = f"CPUs {taken} are assigned by the kubelet"
            found.refuse(claim_refusal(pod, RefusalCause.KUBELET, text))
            requested = requested - taken or owned
        if (
            assigned.static
            and owned
            and owned != requested
            and owned == running_on.get(pod.uid)
            and _had_kubelet_cpus(pod)
        ):
            found.refuse(_assigned(pod, owned))
            requested = owned
        if requested:
            found.claims.append((pod, requested))
            try:
                shared_containers(pod.annotations)
            except AnnotationError as error:
                found.refuse(claim_refusal(pod, RefusalCause.INVALID, error.reason, error.key))
    return found


def _assigned(pod: Pod, cpus: CpuSet) -> ClaimRefusal:
    return claim_refusal(pod, RefusalCause.KUBELET, f"the kubelet assigned it CPUs {cpus}")


def _had_kubelet_cpus(pod: Pod) -> bool:
    """Whether a static kubelet assigned CPUs to a container that runs. It does so before the
    container starts. If the pod has no assignment now, the kubelet stops the pod: it releases the
    CPUs of a pod that it deems terminated while containers still run (kubelet: removeStaleState in
    pkg/kubelet/cm/cpumanager)."""
    return kubelet_may_own(pod) and any(whole_cpus(each.shares) for each in pod.containers)


def _unknown_nodes(
    pod: Pod, status: ResourceStatus, numa_nodes: Collection[int]
) -> ClaimRefusal | None:
    named = [node for node in status.shared_numa_nodes() if node not in numa_nodes]
    text = f"NUMA nodes {', '.join(map(str, named))} do not exist"
    return claim_refusal(pod, RefusalCause.ABSENT, text) if named else None


class _CpuClaim(msgspec.Struct, frozen=True):
    """A claim that is not admitted or refused yet."""

    pod: Pod
    requested: CpuSet
    keeps: bool
    """The pod owned these CPUs, or runs on exactly these and no other pod runs there that could not
    share them."""
    keeps_reserved: bool
    """It is `keeps`, but False if the pod runs on the CPUs only because they are the pool that it
    would share."""
    stays: bool
    """It is `keeps_reserved`, but False if no container of the pod runs."""


def _in_order(
    claims: Collection[tuple[Pod, CpuSet]],
    online: CpuSet,
    unowned: Callable[[Pod], CpuSet],
    pods: Collection[Pod],
    owned_before: Mapping[str, CpuSet],
    running_on: Mapping[str, CpuSet],
) -> list[_CpuClaim]:
    """Pods that owned their CPUs or some of them before, or already run on them, come first, then
    the older pods. `unowned` returns the CPUs on which a pod runs while no CPU has an owner."""

    run_on: dict[QoS, tuple[int, int]] = {}
    """By class of the claimant, the masks of CPUs on which at least one, and at least two, pods run
    that could not share them with it."""

    def others_run_on(pod: Pod) -> CpuSet:
        """The CPUs on which other pods run that could not share them with this one."""
        if pod.qos not in run_on:
            once = twice = 0
            for other in pods:
                if pod.qos in pool_of_class(other.qos).excluded and other.uid in running_on:
                    mask = running_on[other.uid].mask
                    twice |= once & mask
                    once |= mask
            run_on[pod.qos] = once, twice
        once, twice = run_on[pod.qos]
        if pod.qos in pool_of_class(pod.qos).excluded:  # it counts among these pods
            once = twice | once & ~running_on[pod.uid].mask
        return CpuSet.from_int(once)

    def ranked(
        pod: Pod, requested: CpuSet
    ) -> tuple[tuple[bool, bool, bool, bool, int, str], _CpuClaim]:
        owned = requested & online <= owned_before.get(pod.uid, EMPTY)
        runs = running_on.get(pod.uid) == requested & online
        alone = runs and not requested & others_run_on(pod)
        keeps_reserved = owned or (alone and not shares(pod, requested & online))
        owned_some = bool(requested & owned_before.get(pod.uid, EMPTY))
        rank = (
            not owned,  # it owned all of the CPUs: a restart does not change decisions
            not owned_some,  # an owner with a new claim loses no CPU to a new owner
            not alone,  # it already has the CPUs for itself
            not runs,  # no container has to move
            pod.created_at,
            pod.uid,  # a total order
        )
        stays = keeps_reserved and bool(running_on.get(pod.uid))
        return rank, _CpuClaim(pod, requested, owned or alone, keeps_reserved, stays)

    def shares(pod: Pod, cpus: CpuSet) -> bool:
        """Whether the pod would also run on these CPUs if it owned none."""
        owned = union(
            requested
            for other, requested in claims
            if running_on.get(other.uid) == requested & online and not requested & cpus
            if other.qos in pool_of_class(pod.qos).excluded
        )
        return cpus == unowned(pod) - owned

    ordered = sorted((ranked(*claim) for claim in claims), key=lambda each: each[0])
    return [claim for _, claim in ordered]


class ClaimAdmission:
    """The owners, and the CPUs that are left in the pools, while claims are admitted one after the
    other."""

    def __init__(
        self,
        topology: Topology,
        assigned: KubeletAssignments,
        rules: PoolRules,
        of_dra: CpuSet = EMPTY,
    ) -> None:
        """`assigned`: the CPUs that a static kubelet assigned; `of_dra`: the CPUs that DRA drivers
        gave for ResourceClaims."""
        self._online = topology.online
        self._offline = topology.offline
        unbound = (topology.online - topology.isolated or topology.online) - rules.kept
        dedicated = {name: each.cpus & topology.online for name, each in rules.dedicated.items()}
        self.pools = {
            name: (dedicated.get(name, EMPTY) if kind.dedicated else unbound)
            - assigned.excluded_from(kind)
            - of_dra
            for name, kind in POOLS.items()
        }
        self.owners = list(assigned.owners)
        self._claimed = union(owner.claimed for owner in self.owners)
        self._kubelets = assigned.named
        self._of_dra = of_dra
        self._static = assigned.static
        self._never_alone = rules.kubelet_reserved if assigned.static else EMPTY
        kubelet_reserved = EMPTY if rules.owners_on_reserved else rules.kubelet_reserved
        self._reserved = (
            (kubelet_reserved, "are reserved by the kubelet"),
            (rules.node_reserved, "are reserved by the node"),
            *(
                (each.cpus, f"belong to {POOLS[name].qos} pods")
                for name, each in rules.dedicated.items()
                if each.exclusive
            ),
        )
        self._users: dict[str, str] = {}
        self._running: dict[str, str] = {}

    def joins_pool(self, pod: Pod, *, runs: bool) -> None:
        """The pod uses a pool, which no claim may empty from now on."""
        name = self._used(pool_of(pod)).name
        if name not in self._users:
            self._users[name] = pod.title
        if runs and name not in self._running:
            self._running[name] = pod.title

    def shared_cpus(self, pod: Pod) -> CpuSet:
        """The CPUs on which the pod runs if it owns none."""
        return self.pools[self._used(pool_of(pod)).name]

    def _used(self, kind: PoolKind) -> PoolKind:
        """The pool that pods of this one use: the first with CPUs, otherwise the last."""
        if self.pools[kind.name]:
            return kind
        usable = usable_pools(kind)
        return next((each for each in usable if self.pools[each.name]), usable[-1])

    def _take(self, cpus: CpuSet, qos: QoS) -> None:
        """Removes the CPUs of an owner of this class from the pools that lack them."""
        for name, kind in POOLS.items():
            if qos in kind.excluded:
                self.pools[name] -= cpus

    def claim(self, claim: _CpuClaim) -> ClaimRefusal | None:
        """Admits the claim with its online CPUs, or returns its refusal. The claim has no CPU that
        a static kubelet assigned."""
        pod, requested = claim.pod, claim.requested
        if missing := requested - self._online - self._offline:
            return claim_refusal(pod, RefusalCause.ABSENT, f"CPUs {missing} do not exist")
        if refusal := self.conflict(pod, requested):
            return refusal
        if not claim.keeps and (taken := requested & self._of_dra):
            text = f"CPUs {taken} are allocated by a ResourceClaim"
            return claim_refusal(pod, RefusalCause.RESOURCE_CLAIM, text)
        if pod.unequal and pod.qos in CPU_OWNERS and not claim.stays:
            text = f"{pod.unequal}: {pod.qos} pods need equal amounts"
            return claim_refusal(pod, RefusalCause.UNEQUAL, text)
        if requested & self._online and requested & self._online <= self._never_alone:
            text = f"CPUs {requested & self._online} are reserved by the kubelet"
            return claim_refusal(pod, RefusalCause.RESERVED, text)
        if not claim.keeps_reserved:
            for cpus, why in self._reserved:
                if taken := requested & cpus:
                    return claim_refusal(pod, RefusalCause.RESERVED, f"CPUs {taken} {why}")
        offline = requested - self._online
        requested &= self._online
        if not requested:
            return claim_refusal(pod, RefusalCause.OFFLINE, f"CPUs {offline} are offline")
        # An owner keeps its CPUs, unless a static kubelet assigned the rest of a pool.
        protected = self._users
        if claim.keeps:
            protected = self._running if self._static else {}
        if user := self._emptied_for(pod, requested, protected):
            text = f"CPUs {requested} are all that pod {user} and others share"
            return claim_refusal(pod, RefusalCause.POOL_EMPTIED, text)
        self._take(requested, pod.qos)
        self._owns(pod, requested, offline)
        return None

    def conflict(self, pod: Pod, requested: CpuSet) -> ClaimRefusal | None:
        """Names another pod that owns some of the CPUs, if there is one. Of several owners it
        names the one with the lowest uid, so that the order of claims does not change the text."""
        if not requested & self._claimed:
            return None
        for owner in sorted(self.owners, key=lambda owner: owner.uid):
            if owner.uid != pod.uid and (taken := requested & owner.claimed):
                text = f"CPUs {taken} belong to pod {owner.title}"
                return claim_refusal(pod, RefusalCause.OWNED, text)
        return None

    def keep_offline(self, pod: Pod, owned: CpuSet) -> None:
        """The pod keeps the offline CPUs that it owned, unless another pod got them."""
        kept = owned & self._offline - (self._kubelets | self._claimed)
        if kept:
            self._owns(pod, EMPTY, kept)

    def _owns(self, pod: Pod, online: CpuSet, offline: CpuSet) -> None:
        self.owners.append(Owner(pod.uid, pod.title, pod.qos, str(online), str(offline)))
        self._claimed |= online | offline

    def give_local(self, local: LocalInput) -> LocalOutcome:
        """Admits the claims of a node-local policy."""
        from agent.allocate.node_local.policy import outcome_by_pod  # most nodes have none: 0.2 MB

        owners = {owner.uid for owner in self.owners}
        others = msgspec.structs.replace(
            local,
            claims=tuple(each for each in local.claims if each.uid not in owners),
            sharing=frozenset(each for each in local.sharing if each[0] not in owners),
        )
        shared = self.pools[DEFAULT_POOL.name]
        outcome = outcome_by_pod(others, shared)
        self._take(shared - outcome.pool, QoS.LSE)
        return outcome

    def _emptied_for(self, pod: Pod, requested: CpuSet, users: Mapping[str, str]) -> str | None:
        """The title of a pod in `users` whose pool the claim would empty; None if there is none.
        `users` has one title for each pool."""
        for name, kind in POOLS.items():
            cpus = self.pools[name]
            if pod.qos in kind.excluded and cpus and cpus <= requested:
                for used_by in POOLS.values():
                    if used_by.name in users and self._used(used_by) is kind:
                        return users[used_by.name]
        return None
