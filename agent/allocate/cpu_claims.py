"""Admission of CPU claims: their order, and for each claim the CPUs that it takes or the reason of
its refusal.

The CPUs that a pod's resource-status names are a request until they are checked. The kubelet's
assignments come first. Pods that owned their CPUs before, or already run on them, are admitted
next, then the older pods. An owner whose new claim can't be read or honoured claims the CPUs that
it owned instead, and admission is repeated until no claim changes."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import msgspec

from agent.allocate.node_local.claim import LocalInput, LocalOutcome
from agent.allocate.node_local.policy import outcome_by_pod
from agent.allocate.reserved_cpus import KubeletAssignments, KubeletCpus, PoolRules, some_share
from agent.allocate.shares import kubelet_may_own, pool_class, sidecars, whole_cpus
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
from agent.model.pod.qos import CPU_OWNERS, QoS
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


class ClaimProblem(msgspec.Struct, frozen=True):
    """`text` may quote what the pod's author wrote."""

    cause: RefusalCause
    text: str


class ClaimRefusal(msgspec.Struct, frozen=True):
    """A claim that was not honoured as written. `key`: the annotation's key, empty if the claim
    does not come from an annotation. `claimed`: the CPUs that the claim names, "" if it can't be
    read. `held`: the CPUs that the pod owns instead, "" if it shares a pool."""

    uid: str
    title: str
    key: str
    cause: RefusalCause
    reason: str
    claimed: str = ""
    held: str = ""


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
    owned_before = {uid: cpus & known - assigned.named for uid, cpus in owned_before.items()}
    read = _read(topology, pods, assigned, owned_before, running_on)
    claims = read.claims
    served = {owner.uid for owner in assigned.owners}
    claimed = union(union(of_pod.values()) for of_pod in kubelet.claimed.values())
    claimants = {pod.uid for pod, _ in claims}
    all_requested = {pod.uid: requested for pod, requested in claims}
    # Pods that run on a pool and whose claims are refused.
    sharing: set[str] = set()

    def admit() -> tuple[ClaimAdmission, dict[str, ClaimProblem]]:
        admission = ClaimAdmission(topology, assigned, rules, claimed)
        for pod in pods:
            if pod.uid in claimants:
                shares = pod.uid in sharing or bool(sidecars(pod))
            else:
                shares = pod.uid not in served or some_share(pod, kubelet)
            if shares:
                admission.joins_pool(pod, runs=bool(running_on.get(pod.uid)))
        places = _UnownedPools(topology.online, admission.ls, admission.system)
        reasons = {}
        for claim in _in_order(claims, places, pods, owned_before, running_on):
            if reason := admission.claim(claim):
                reasons[claim.pod.uid] = reason
                admission.keep_offline(claim.pod, owned_before.get(claim.pod.uid, EMPTY))
                admission.joins_pool(claim.pod, runs=bool(running_on.get(claim.pod.uid)))
        return admission, reasons

    kept: dict[str, ClaimProblem] = {}
    while True:
        admission, reasons = admit()
        staying = {
            pod.uid
            for pod, requested in claims
            if pod.uid in reasons
            and requested != (before := owned_before.get(pod.uid, EMPTY))
            and before & topology.online
        }
        # A claim that is admitted before these are refused must not empty the pool of these pods.
        stranded = {
            pod.uid
            for pod, _ in claims
            if pod.uid in reasons.keys() - sharing
            and running_on.get(pod.uid)
            and not admission.pool_of(pod)
        }
        sharing |= stranded
        if not staying and not stranded:
            break
        # A pod that can't move still has its CPUs, even if they now belong to another pod.
        kept |= {uid: reasons[uid] for uid in staying}
        claims = [
            (pod, owned_before[pod.uid] if pod.uid in staying else requested)
            for pod, requested in claims
        ]
    for pod, _ in claims:
        if why := kept.get(pod.uid) or reasons.get(pod.uid):
            # The reason names an owner of the CPUs, whatever the order of the claims.
            requested = all_requested[pod.uid]
            if requested <= known and not requested & assigned.named:
                why = admission.conflict(pod, requested) or why
            read.refuse(pod, why)
    return admission, read.refusals


class _Claims(msgspec.Struct):
    """The claims in pods' annotations. `named`: the CPUs that an annotation names, by pod uid."""

    claims: list[tuple[Pod, CpuSet]] = []
    named: dict[str, CpuSet] = {}
    refusals: dict[str, ClaimRefusal] = {}

    def refuse(self, pod: Pod, reason: ClaimProblem, key: str = RESOURCE_STATUS) -> None:
        named = str(self.named.get(pod.uid, EMPTY)) if key == RESOURCE_STATUS else ""
        self.refusals[pod.uid] = ClaimRefusal(
            pod.uid, pod.title, key, reason.cause, shortened(reason.text), named
        )


def _read(
    topology: Topology,
    pods: Collection[Pod],
    assigned: KubeletAssignments,
    owned_before: Mapping[str, CpuSet],
    running_on: Mapping[str, CpuSet],
) -> _Claims:
    found = _Claims()
    cause = RefusalCause
    known = topology.online | topology.offline
    served = {owner.uid: owner for owner in assigned.owners}
    for pod in pods:
        owned = owned_before.get(pod.uid, EMPTY)
        try:
            status = resource_status(pod.annotations)
            requested = found.named[pod.uid] = status.cpus()
            if not requested and (reason := _unknown_nodes(status, topology)):
                found.refuse(pod, reason)
            if owned and (missing := requested - known):
                found.refuse(pod, ClaimProblem(cause.ABSENT, f"CPUs {missing} do not exist"))
                requested = owned
        except AnnotationError as error:
            found.refuse(pod, ClaimProblem(cause.INVALID, error.reason), error.key)
            requested = owned
        if (owner := served.get(pod.uid)) is not None:
            named = found.named.get(pod.uid)
            if named and named != owner.claimed:
                found.refuse(pod, _assigned(owner.claimed))
            continue
        if taken := requested & assigned.named:
            text = f"CPUs {taken} are assigned by the kubelet"
            found.refuse(pod, ClaimProblem(cause.KUBELET, text))
            requested = requested - taken or owned
        if (
            assigned.static
            and owned
            and owned != requested
            and owned == running_on.get(pod.uid)
            and _kubelet_served(pod)
        ):
            found.refuse(pod, _assigned(owned))
            requested = owned
        if requested:
            found.claims.append((pod, requested))
            try:
                shared_containers(pod.annotations)
            except AnnotationError as error:
                found.refuse(pod, ClaimProblem(cause.INVALID, error.reason), error.key)
    return found


def _assigned(cpus: CpuSet) -> ClaimProblem:
    return ClaimProblem(RefusalCause.KUBELET, f"the kubelet assigned it CPUs {cpus}")


def _kubelet_served(pod: Pod) -> bool:
    """Whether a static kubelet assigned CPUs to a container that runs. It does so before the
    container starts, so that a pod without an assignment is one that it stops: it releases the CPUs
    of a pod that it deems terminated while containers still run (kubelet: removeStaleState in
    pkg/kubelet/cm/cpumanager)."""
    return kubelet_may_own(pod) and any(whole_cpus(each.shares) for each in pod.containers)


def _unknown_nodes(status: ResourceStatus, topology: Topology) -> ClaimProblem | None:
    known = {cpu.node for cpu in topology.cpus} | {node.id for node in topology.numa_nodes}
    named = [node for node in status.shared_numa_nodes() if node not in known]
    text = f"NUMA nodes {', '.join(map(str, named))} do not exist"
    return ClaimProblem(RefusalCause.ABSENT, text) if named else None


class _CpuClaim(msgspec.Struct, frozen=True):
    """`keeps`: the pod owned these CPUs, or runs on exactly these and no other pod runs there that
    could not share them. `keeps_reserved`: the same, unless these CPUs are just the pool that the
    pod would share. `stays`: the same, and a container of the pod runs."""

    pod: Pod
    requested: CpuSet
    keeps: bool
    keeps_reserved: bool
    stays: bool


class _UnownedPools(msgspec.Struct, frozen=True):
    """The CPUs on which pods run while no CPU has an owner. `shared`: for all pods except SYSTEM
    pods; `system`: for SYSTEM pods (empty: the same CPUs)."""

    online: CpuSet
    shared: CpuSet
    system: CpuSet

    def of(self, pod: Pod) -> CpuSet:
        """The CPUs on which the pod runs."""
        return (self.system if pod.qos is QoS.SYSTEM else EMPTY) or self.shared


def _in_order(
    claims: Collection[tuple[Pod, CpuSet]],
    places: _UnownedPools,
    pods: Collection[Pod],
    owned_before: Mapping[str, CpuSet],
    running_on: Mapping[str, CpuSet],
) -> list[_CpuClaim]:
    """Pods that owned their CPUs or some of them before, or already run on them, come first, then
    the older pods."""
    online = places.online

    def ranked(
        pod: Pod, requested: CpuSet
    ) -> tuple[tuple[bool, bool, bool, bool, int, str], _CpuClaim]:
        owned = requested & online <= owned_before.get(pod.uid, EMPTY)
        runs = running_on.get(pod.uid) == requested & online
        alone = runs and not requested & union(
            running_on.get(other.uid, EMPTY)
            for other in pods
            if other.uid != pod.uid and (other.qos is not QoS.BE or pod.qos is QoS.LSE)
        )
        proven = owned or (alone and not shares(pod, requested & online))
        had = bool(requested & owned_before.get(pod.uid, EMPTY))
        rank = (not owned, not had, not alone, not runs, pod.created_at, pod.uid)
        stays = proven and bool(running_on.get(pod.uid))
        return rank, _CpuClaim(pod, requested, owned or alone, proven, stays)

    def shares(pod: Pod, place: CpuSet) -> bool:
        """Whether the pod would also run on these CPUs if it owned none."""
        owned = union(
            requested
            for other, requested in claims
            if running_on.get(other.uid) == requested & online and not requested & place
            if pod.qos is not QoS.BE or other.qos is QoS.LSE
        )
        return place == places.of(pod) - owned

    ordered = sorted((ranked(*claim) for claim in claims), key=lambda each: each[0])
    return [claimant for _, claimant in ordered]


class ClaimAdmission:
    """The owners and the pools while claims are admitted one after the other."""

    def __init__(
        self,
        topology: Topology,
        given: KubeletAssignments,
        rules: PoolRules,
        claimed: CpuSet = EMPTY,
    ) -> None:
        """`given`: the CPUs that a static kubelet assigned; `claimed`: those that DRA drivers gave
        for ResourceClaims."""
        self._online = topology.online
        self._offline = topology.offline
        unbound = topology.online - topology.isolated or topology.online
        self.ls = unbound - given.all - claimed - rules.kept
        self.be = unbound - (given.all - given.with_be) - claimed - rules.kept
        self.system = rules.system & topology.online - given.all - claimed
        self.owners = list(given.owners)
        self._kubelets = given.named
        self._claimed = claimed
        self._static = given.static
        self._never_alone = rules.reserved if given.static else EMPTY
        kubelet_reserved = EMPTY if rules.owners_on_reserved else rules.reserved
        self._reserved = (
            (kubelet_reserved, "are reserved by the kubelet"),
            (rules.node_reserved, "are reserved by the node"),
            (rules.system if rules.system_exclusive else EMPTY, "belong to SYSTEM pods"),
        )
        self._users: dict[QoS, str] = {}
        self._running: dict[QoS, str] = {}

    def joins_pool(self, pod: Pod, *, runs: bool) -> None:
        """The pod uses a pool, which no claim may empty from now on."""
        self._users.setdefault(self._class_of(pod), pod.title)
        if runs:
            self._running.setdefault(self._class_of(pod), pod.title)

    def pool_of(self, pod: Pod) -> CpuSet:
        """The pool that the pod uses if it owns no CPUs."""
        pools = {QoS.BE: self.be, QoS.SYSTEM: self.system}
        return pools.get(self._class_of(pod), self.ls)

    def _class_of(self, pod: Pod) -> QoS:
        of_class = pool_class(pod)
        return QoS.LS if of_class is QoS.SYSTEM and not self.system else of_class

    def claim(self, claim: _CpuClaim) -> ClaimProblem | None:
        """Admits the claim with its online CPUs, or returns the reason of its refusal."""
        pod, requested, cause = claim.pod, claim.requested, RefusalCause
        if missing := requested - self._online - self._offline:
            return ClaimProblem(cause.ABSENT, f"CPUs {missing} do not exist")
        if taken := requested & self._kubelets:
            return ClaimProblem(cause.KUBELET, f"CPUs {taken} are assigned by the kubelet")
        if reason := self.conflict(pod, requested):
            return reason
        if not claim.keeps and (taken := requested & self._claimed):
            text = f"CPUs {taken} are allocated by a ResourceClaim"
            return ClaimProblem(cause.RESOURCE_CLAIM, text)
        if pod.unequal and pod.qos in CPU_OWNERS and not claim.stays:
            text = f"{pod.unequal}: {pod.qos} pods need equal amounts"
            return ClaimProblem(cause.UNEQUAL, text)
        if requested & self._online and requested & self._online <= self._never_alone:
            text = f"CPUs {requested & self._online} are reserved by the kubelet"
            return ClaimProblem(cause.RESERVED, text)
        if not claim.keeps_reserved:
            for cpus, why in self._reserved:
                if taken := requested & cpus:
                    return ClaimProblem(cause.RESERVED, f"CPUs {taken} {why}")
        offline = requested - self._online
        requested &= self._online
        if not requested:
            return ClaimProblem(cause.OFFLINE, f"CPUs {offline} are offline")
        # An owner keeps its CPUs, unless a static kubelet assigned the rest of a pool.
        kept_from = self._running if self._static else {}
        if user := self._left_with_nothing(
            pod, requested, kept_from if claim.keeps else self._users
        ):
            text = f"CPUs {requested} are all that pod {user} and others share"
            return ClaimProblem(cause.POOL_EMPTIED, text)
        self.ls -= requested
        self.system -= requested
        if pod.qos is QoS.LSE:
            self.be -= requested
        self.owners.append(Owner(pod.uid, pod.title, pod.qos, str(requested), str(offline)))
        return None

    def conflict(self, pod: Pod, requested: CpuSet) -> ClaimProblem | None:
        """Names another pod that owns some of the CPUs, if there is one. Of several owners it
        names the one with the lowest uid, so that the order of claims does not change the text."""
        for owner in sorted(self.owners, key=lambda owner: owner.uid):
            if owner.uid != pod.uid and (taken := requested & owner.claimed):
                text = f"CPUs {taken} belong to pod {owner.title}"
                return ClaimProblem(RefusalCause.OWNED, text)
        return None

    def keep_offline(self, pod: Pod, owned: CpuSet) -> None:
        """The pod keeps the offline CPUs that it owned, unless another pod got them."""
        others = self._kubelets | union(owner.claimed for owner in self.owners)
        kept = owned & self._offline - others
        if kept:
            self.owners.append(Owner(pod.uid, pod.title, pod.qos, "", str(kept)))

    def give_local(self, local: LocalInput) -> LocalOutcome:
        """Admits the claims of a node-local policy."""
        owners = {owner.uid for owner in self.owners}
        others = msgspec.structs.replace(
            local,
            claims=tuple(each for each in local.claims if each.uid not in owners),
            sharing=frozenset(each for each in local.sharing if each[0] not in owners),
        )
        outcome = outcome_by_pod(others, self.ls)
        gone = self.ls - outcome.pool
        self.ls -= gone
        self.be -= gone
        self.system -= gone
        return outcome

    def _left_with_nothing(
        self, pod: Pod, requested: CpuSet, users: Mapping[QoS, str]
    ) -> str | None:
        """One of these users of pools whose pool the claim would empty, if any."""
        on_system = users.get(QoS.SYSTEM)
        pools = [
            (self.ls, users.get(QoS.LS) or (None if self.system else on_system)),
            (self.be, users.get(QoS.BE) if pod.qos is QoS.LSE else None),
            (self.system, on_system),
        ]
        return next((user for pool, user in pools if user and pool and pool <= requested), None)
