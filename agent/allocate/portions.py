"""What the containers of a pod get, once the owners of CPUs are decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, TypeVar

import msgspec

from agent.allocate.batch import batch_limits
from agent.allocate.shares import claims, numa_nodes, pool_class, shared_cpus, sidecars
from agent.model.batch import BatchResources
from agent.model.cpuset import CpuSet
from agent.model.pods import Pod
from agent.model.qos import QoS
from agent.model.snapshot import NO_LIMITS, UNLIMITED, CgroupLimits, PodWanted, Pool, Wanted
from agent.model.topology import Topology

T = TypeVar("T")

MOST_COMING: Final = 32
"""Of the containers of a pod that the runtime does not have, as many are decided about ahead, in
the order of its spec: a kubelet makes one after the other, and one that it made counts."""


def of_spec(pod: Pod, named: Mapping[str, T]) -> dict[str, T]:
    """Without containers that are not in the pod's spec, where that is known."""
    if pod.named is None:
        return dict(named)
    there = {*pod.named, *_present(pod)}
    return {name: value for name, value in named.items() if name in there}


def counting(pod: Pod, names: Collection[str]) -> set[str]:
    """Of these names, the containers that the pod has, and the next ones that the kubelet will
    create.

    A pod may name any number of containers, and each that counts has an entry in the snapshot."""
    present = _present(pod)
    to_come = names if pod.named is None else pod.named
    coming = (name for name in to_come if name in names and name not in present)
    return {*islice(coming, MOST_COMING), *(name for name in names if name in present)}


def _present(pod: Pod) -> set[str]:
    return {each.name for each in pod.containers} | {each.name for each in pod.ended}


class Memory:
    """Of one machine; nothing where memory is not bound."""

    def __init__(self, topology: Topology, *, bind: bool) -> None:
        self._node_of = {cpu.id: cpu.node for cpu in topology.cpus} if bind else {}
        self._with_memory = CpuSet(
            node.id for node in topology.numa_nodes if bind and node.memory_bytes
        )

    def of(self, cpus: CpuSet) -> CpuSet | None:
        """The nodes; None (any) where memory is not bound, or some node has none of its own: its
        CPUs would have none near."""
        nodes = CpuSet(self._node_of[cpu] for cpu in cpus if cpu in self._node_of)
        return nodes if nodes and nodes <= self._with_memory else None


_NOBODY: Final[Mapping[str, str]] = {}
_NO_CLAIM: Final[Mapping[str, CpuSet]] = {}
_OWNERS: Final = (QoS.LSE, QoS.LSR)


class Portions(msgspec.Struct, frozen=True):
    """`nobody_left`: why a container has no CPU, if so. `cpu_normalization_ratio`: see
    batch_limits."""

    ls_pools: tuple[Pool, ...]
    be_pools: tuple[Pool, ...]
    system: CpuSet
    memory: Memory
    kubelet_memory: bool
    cpu_normalization_ratio: float
    nobody_left: str

    _shared: dict[object, Wanted] = {}
    """Many pods share alike."""

    def shared(self, pod: Pod) -> Wanted:
        """What a container gets that shares."""
        nodes = numa_nodes(pod)
        key = pool_class(pod), nodes, pod.kube_class == "guaranteed"
        if (known := self._shared.get(key)) is None:
            cpus = shared_cpus(pod, self.ls_pools, self.be_pools, self.system)
            mems = self._memory(pod, cpus) if nodes else None
            blocked = "" if cpus else f"no CPU is left for it: {self.nobody_left}"
            known = Wanted(str(cpus) or None, limits=CgroupLimits(mems=mems), blocked=blocked)
            self._shared[key] = known
        return known

    def own(self, pod: Pod, cpus: CpuSet) -> Wanted:
        """What a container gets that has CPUs of its own."""
        return Wanted(str(cpus), exclusive=True, limits=CgroupLimits(mems=self._memory(pod, cpus)))

    def given(self, pod: Pod, cpus: CpuSet) -> Wanted:
        """What a container gets that a static kubelet gave CPUs: but for LSE and LSR pods, and
        those with a claim, the kubelet's limits with them."""
        if pod.qos in _OWNERS or claims(pod):
            return msgspec.structs.replace(self.own(pod, cpus), kubelet=True)
        return Wanted(str(cpus), exclusive=True, kubelet=True, keeps_quota=True)

    def _memory(self, pod: Pod, cpus: CpuSet) -> CpuSet | None:
        kubelets = self.kubelet_memory and pod.kube_class == "guaranteed"
        return None if kubelets else self.memory.of(cpus)

    def of(
        self,
        pod: Pod,
        own: CpuSet | None,
        by_container: Mapping[str, CpuSet],
        batch: Mapping[str, BatchResources],
        refused: str,
        *,
        blocked: Mapping[str, str] = _NOBODY,
        kubelets: Mapping[str, CpuSet] | None,
        by_claim: Mapping[str, CpuSet] = _NO_CLAIM,
    ) -> PodWanted:
        """`own`: the pod's CPUs, `by_container` those of single ones. `blocked`: by name, why a
        container must not be created, "" for no reason. `kubelets`: what the kubelet gave to
        containers, hands off one of which no CPU is left, and all of the pod where none is named;
        None: it gave none. `by_claim`: containers that a driver of claims gave CPUs to; their
        limits are the kubelet's."""
        shared = Wanted() if kubelets == {} else self.shared(pod)
        each = shared if own is None else self.own(pod, own)
        named = {} if own is None else dict.fromkeys(counting(pod, sidecars(pod)), shared)
        named |= {name: self.own(pod, cpus) for name, cpus in by_container.items()}
        lifted = bool(own or by_container)
        for name, cpus in (kubelets or {}).items():
            named[name] = self.given(pod, cpus) if cpus else Wanted()
            lifted = lifted or named[name].lifts_quota
        named |= {name: Wanted(str(cpus)) for name, cpus in by_claim.items()}
        for name, reason in blocked.items():
            wanted = named.get(name, each)
            named[name] = msgspec.structs.replace(wanted, blocked=reason or wanted.blocked)
        group = CgroupLimits(quota_microseconds=UNLIMITED) if lifted else NO_LIMITS
        limited = batch_limits(pod.qos, batch, self.cpu_normalization_ratio)
        if limited is not None:
            group = limited.pod
            named |= {
                name: _limited(named.get(name, each), limited.containers[name])
                for name in counting(pod, limited.containers)
            }
        return PodWanted(pod.title, pod.qos, each, dict(sorted(named.items())), refused, group)


def _limited(wanted: Wanted, limits: CgroupLimits) -> Wanted:
    limits = msgspec.structs.replace(limits, mems=wanted.limits.mems)
    return msgspec.structs.replace(wanted, limits=limits)
