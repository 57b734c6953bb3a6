"""Who owns which CPUs of a node, and what the rest share.

Every pod whose resource-status names CPUs claims them. A claim is a request until checked: it is
refused when it can't be read, names CPUs that do not exist, takes CPUs that already have an owner,
or would leave a shared pool empty while containers run in it. Pods that owned their CPUs before, or
run on them already, are admitted first, then the older pods: so a restart does not change
decisions. CPUs of an owner that go offline are kept for it; an owner without other CPUs shares a
pool.

Under a kubelet with the static policy its checkpoint decides: the kubelet admits one pod after the
other and gives each container of whole CPUs of a Guaranteed pod CPUs that no other has, before its
sandbox comes, and it does not know our annotation. What the checkpoint names is that container's
own, whatever its pod claims. Any other claim is honoured for as much of it as the kubelet has not
given away, also when that comes later; an owner has never reserved CPUs alone, and yields the last
CPUs of a pool to those who run on it.

Owned CPUs leave the LS pool; those of LSE pods leave the BE pool too; what the kubelet gave to pods
that are not LSR, what a driver of claims gave away, what the node keeps for itself or for SYSTEM
pods alone, and what the kernel isolates is in neither (compare Koordinator: calCPUSharePools in
pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go). A Guaranteed pod without a class
of ours is LS, unless a kubelet with the static policy gave it CPUs. Where nothing is left to share,
pools are empty, containers that run stay where they are, and no new one is created."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.cpu_claims import ClaimAdmission, UnownedPools, in_order
from agent.allocate.node_local.claim import Demand, LocalOutcome, Move, Share
from agent.allocate.portions import Memory, Portions, of_spec
from agent.allocate.reserved_cpus import DEFAULT_RULES, KubeletCpus, PoolRules, given, some_share
from agent.allocate.shares import sidecars
from agent.model.annotations import (
    RESOURCE_STATUS,
    AnnotationError,
    ResourceStatus,
    resource_status,
    shared_containers,
)
from agent.model.batch import BatchResources, batch_resources, cpu_request_milli
from agent.model.bounds import reason as shortened
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.pods import Pod
from agent.model.qos import QoS
from agent.model.snapshot import LocalOwner, Owner, PodWanted, Pool
from agent.model.topology import Topology


class ClaimRefusal(msgspec.Struct, frozen=True):
    """A claim that was not honoured as it is. `key`: of the annotation, empty where the claim is
    none of an annotation; `claimed`: the CPUs that it names, "" where it can't be read; `held`:
    those that the pod has of its own instead, "" where it shares a pool."""

    uid: str
    title: str
    key: str
    reason: str
    claimed: str = ""
    held: str = ""


class Decision(msgspec.Struct, frozen=True):
    """All answers for one moment; `owners` and `refusals` sorted by pod uid. `system`: where SYSTEM
    pods run, empty: on the LS pool. `local_owners`: what a node-local policy decided, `moves`:
    whose CPUs it changed; `again`: once all this is in force, it may do better."""

    owners: tuple[Owner, ...]
    ls_pools: tuple[Pool, ...]
    be_pools: tuple[Pool, ...]
    refusals: tuple[ClaimRefusal, ...]
    pods: dict[str, PodWanted]
    system: CpuSet = EMPTY
    local_owners: tuple[LocalOwner, ...] = ()
    moves: tuple[Move, ...] = ()
    again: bool = False


def decide(
    topology: Topology,
    pods: tuple[Pod, ...],
    kubelet: KubeletCpus,
    owned_before: Mapping[str, CpuSet],
    running_on: Mapping[str, CpuSet],
    rules: PoolRules = DEFAULT_RULES,
    local: Demand | None = None,
) -> Decision:
    """`owned_before`: by pod uid, what the last decision gave its owners, also what is kept offline
    for them (empty after a reboot); `running_on`: by pod uid, the CPUs that its running containers
    hold now. `local`: the claims of a node-local policy, which are admitted after all others; these
    owners count as LSE: no other pod, not even a BE pod, runs on their CPUs.

    An owner whose new claim can't be read or honoured keeps what it owned."""
    pods = tuple(sorted(pods, key=lambda pod: pod.uid))
    refusals: dict[str, ClaimRefusal] = {}

    claimed_cpus: dict[str, CpuSet] = {}

    def refuse(pod: Pod, reason: str, key: str = RESOURCE_STATUS) -> None:
        named = str(claimed_cpus.get(pod.uid, EMPTY)) if key == RESOURCE_STATUS else ""
        refusals[pod.uid] = ClaimRefusal(pod.uid, pod.title, key, shortened(reason), named)

    claims: list[tuple[Pod, CpuSet]] = []
    known = topology.online | topology.offline
    by_kubelet = given(topology, pods, kubelet)
    served = {owner.uid: owner for owner in by_kubelet.owners}
    owned_before = {uid: cpus & known - by_kubelet.named for uid, cpus in owned_before.items()}
    for pod in pods:
        owned = owned_before.get(pod.uid, EMPTY)
        try:
            status = resource_status(pod.annotations)
            wish = claimed_cpus[pod.uid] = status.cpus()
            if not wish and (reason := _unknown_nodes(status, topology)):
                refuse(pod, reason)
            if owned and (missing := wish - known):
                refuse(pod, f"CPUs {missing} do not exist")
                wish = owned
        except AnnotationError as error:
            refuse(pod, error.reason, error.key)
            wish = owned
        if (owner := served.get(pod.uid)) is not None:
            named = claimed_cpus.get(pod.uid)
            if named and named != owner.claimed:
                refuse(pod, f"the kubelet gave it CPUs {owner.claimed}")
            continue
        if taken := wish & by_kubelet.named:
            refuse(pod, f"CPUs {taken} were given away by the kubelet")
            wish = wish - taken or owned
        if wish:
            claims.append((pod, wish))
            try:
                shared_containers(pod.annotations)
            except AnnotationError as error:
                refuse(pod, error.reason, error.key)

    claimed = union(union(of_pod.values()) for of_pod in kubelet.claimed.values())
    claimants = {pod.uid for pod, _ in claims}
    wishes = {pod.uid: wish for pod, wish in claims}
    # Claimants that run on a pool, and whose claims are refused.
    sharing: set[str] = set()

    def admit() -> tuple[ClaimAdmission, dict[str, str]]:
        ledger = ClaimAdmission(topology, by_kubelet, rules, claimed)
        for pod in pods:
            if pod.uid in claimants:
                shares = pod.uid in sharing or bool(sidecars(pod))
            else:
                shares = pod.uid not in served or some_share(pod, kubelet)
            if shares:
                ledger.joins_pool(pod, runs=bool(running_on.get(pod.uid)))
        places = UnownedPools(topology.online, ledger.ls, ledger.system)
        reasons = {}
        for claim in in_order(claims, places, pods, owned_before, running_on):
            if reason := ledger.claim(claim):
                reasons[claim.pod.uid] = reason
                ledger.keep_offline(claim.pod, owned_before.get(claim.pod.uid, EMPTY))
                ledger.joins_pool(claim.pod, runs=bool(running_on.get(claim.pod.uid)))
        return ledger, reasons

    kept: dict[str, str] = {}
    while True:
        ledger, reasons = admit()
        staying = {
            pod.uid
            for pod, wish in claims
            if pod.uid in reasons
            and wish != (before := owned_before.get(pod.uid, EMPTY))
            and before & topology.online
        }
        # A claim that is granted before theirs is refused must not leave them without CPUs.
        stranded = {
            pod.uid
            for pod, _ in claims
            if pod.uid in reasons.keys() - sharing
            and running_on.get(pod.uid)
            and not ledger.pool_of(pod)
        }
        sharing |= stranded
        if not staying and not stranded:
            break
        # Who can't move has its CPUs still, whoever else was given them meanwhile.
        kept |= {uid: reasons[uid] for uid in staying}
        claims = [
            (pod, owned_before[pod.uid] if pod.uid in staying else wish) for pod, wish in claims
        ]
    for pod, _ in claims:
        if why := kept.get(pod.uid) or reasons.get(pod.uid):
            # An owner of the CPUs is named in whichever order claims were heard.
            wish = wishes[pod.uid]
            contested = wish <= known and not wish & by_kubelet.named
            refuse(pod, (contested and ledger.conflict(pod, wish)) or why)

    outcome = ledger.give_local(local) if local else LocalOutcome({}, ledger.ls)
    for pod in pods:
        if (share := outcome.by_uid.get(pod.uid)) and share.all:
            ledger.owners.append(Owner(pod.uid, pod.title, QoS.LSE, str(share.all)))
    owners = tuple(sorted(ledger.owners, key=lambda owner: owner.uid))
    ls_pools = _by_node(topology, ledger.ls)
    batches: dict[str, dict[str, BatchResources]] = {}
    for pod in pods:
        try:
            batches[pod.uid] = of_spec(pod, batch_resources(pod.annotations))
        except AnnotationError as error:
            batches[pod.uid] = {}
            if pod.uid not in refusals:
                refuse(pod, error.reason, error.key)
    requested_milli = sum(cpu_request_milli(batches[pod.uid]) for pod in pods if pod.qos is QoS.BE)
    be_pools = _by_node(topology, _be_pool(ledger.be, requested_milli, rules))
    portions = Portions(
        ls_pools,
        be_pools,
        ledger.system,
        Memory(topology, bind=rules.bind_memory),
        rules.kubelet_memory,
        rules.cpu_normalization_ratio,
        _whose(owners, rules),
    )
    own_cpus = {
        owner.uid: owner.cpus
        for owner in owners
        if owner.cpuset and owner.uid not in outcome.by_uid and not owner.kubelet
    }
    # An owner that was first, by whatever fault, stays alone.
    free = topology.online - union(owner.claimed for owner in owners)
    wanted = {}
    for pod in pods:
        own = own_cpus.get(pod.uid)
        kubelets: dict[str, CpuSet] | None = None
        if (owner := served.get(pod.uid)) is not None:
            of_pod = kubelet.containers.get(pod.uid, {})
            kubelets = {name: cpus & owner.cpus for name, cpus in of_pod.items()}
        by_claim = {
            name: left
            for name, cpus in kubelet.claimed.get(pod.uid, {}).items()
            if (left := cpus & free)
        }
        share = outcome.by_uid.get(pod.uid, Share())
        for name, reason in share.blocked.items():
            if reason and pod.uid not in refusals:
                refuse(pod, f"container {name}: {reason}", "")
        refused = refusals[pod.uid].reason if pod.uid in refusals else ""
        wanted[pod.uid] = portions.of(
            pod,
            own,
            share.cpus,
            batches[pod.uid],
            refused,
            blocked=share.blocked,
            kubelets=kubelets,
            by_claim=by_claim,
        )
    held = {owner.uid: owner.cpuset for owner in owners}
    told = tuple(
        msgspec.structs.replace(refusals[uid], held=held.get(uid, "")) for uid in sorted(refusals)
    )
    return Decision(
        owners,
        ls_pools,
        be_pools,
        told,
        wanted,
        ledger.system,
        outcome.owners,
        outcome.moves,
        outcome.again,
    )


def _unknown_nodes(status: ResourceStatus, topology: Topology) -> str:
    known = {cpu.node for cpu in topology.cpus} | {node.id for node in topology.numa_nodes}
    named = [node for node in status.shared_numa_nodes() if node not in known]
    return f"NUMA nodes {', '.join(map(str, named))} do not exist" if named else ""


def _be_pool(free: CpuSet, requested_milli: int, rules: PoolRules) -> CpuSet:
    reserved = free & rules.reserved
    fits = rules.be_on_reserved and 0 < len(reserved) * 1000 >= requested_milli
    return reserved if fits else free


def _by_node(topology: Topology, cpus: CpuSet) -> tuple[Pool, ...]:
    """By the node that each CPU names: the node of a CPU may be offline, and so in no list. A node
    that spans sockets has the socket of its lowest CPU, whichever CPUs are left in the pool."""
    sockets: dict[int, int] = {}
    parts: dict[int, list[int]] = {}
    for cpu in topology.cpus:
        sockets.setdefault(cpu.node, cpu.socket)
        if cpu.id in cpus:
            parts.setdefault(cpu.node, []).append(cpu.id)
    pools = [Pool(sockets[node], node, str(CpuSet(part))) for node, part in parts.items()]
    return tuple(sorted(pools, key=lambda pool: (pool.socket, pool.node)))


def _whose(owners: tuple[Owner, ...], rules: PoolRules) -> str:
    named = [f"{rules.kept} are kept by the node"] if rules.kept else []
    named += [f"{owner.cpuset} belong to pod {owner.title}" for owner in owners if owner.cpuset]
    return shortened("; ".join(named)) or "every CPU is the kubelet's"
