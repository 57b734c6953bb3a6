"""What the containers of a pod get, once it is decided who owns which CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.allocate.batch import batch_limits
from agent.allocate.memory import Memory
from agent.allocate.shares import numa_nodes, pool_class, shared_cpus
from agent.model.annotations import shared_containers
from agent.model.batch import BatchResources
from agent.model.cpuset import CpuSet
from agent.model.limits import UNLIMITED, Limits
from agent.model.pods import Pod
from agent.model.snapshot import Pool
from agent.model.wanted import NO_LIMITS, PodWanted, Wanted

_NOBODY: Final[Mapping[str, str]] = {}
_NO_CLAIM: Final[Mapping[str, CpuSet]] = {}


class Portions(msgspec.Struct, frozen=True):
    """`nobody_left`: why somebody has no CPU, if so. `cpu_normalization_ratio`: see
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
            known = Wanted(str(cpus) or None, limits=Limits(mems=mems), blocked=blocked)
            self._shared[key] = known
        return known

    def own(self, pod: Pod, cpus: CpuSet) -> Wanted:
        """What a container gets that has CPUs of its own."""
        return Wanted(str(cpus), exclusive=True, limits=Limits(mems=self._memory(pod, cpus)))

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
        kubelets: tuple[str, ...] | None,
        by_claim: Mapping[str, CpuSet] = _NO_CLAIM,
    ) -> PodWanted:
        """`own`: the pod's CPUs, `by_container` those of single ones. `blocked`: by name, why a
        container must not be created, "" for no reason. `kubelets`: the kubelet placed these
        containers (none named: all), hands off; None: it placed none. `by_claim`: containers that a
        driver of claims gave CPUs to; their limits are the kubelet's."""
        shared = Wanted() if kubelets == () else self.shared(pod)
        each = shared if own is None else self.own(pod, own)
        named = {} if own is None else dict.fromkeys(shared_containers(pod.annotations), shared)
        named |= {name: self.own(pod, cpus) for name, cpus in by_container.items()}
        named |= dict.fromkeys(kubelets or (), Wanted())
        named |= {name: Wanted(str(cpus)) for name, cpus in by_claim.items()}
        for name, reason in blocked.items():
            wanted = named.get(name, each)
            named[name] = msgspec.structs.replace(wanted, blocked=reason or wanted.blocked)
        group = Limits(quota_microseconds=UNLIMITED) if own or by_container else NO_LIMITS
        limited = batch_limits(pod.qos, batch, self.cpu_normalization_ratio)
        if limited is not None:
            group = limited.pod
            named |= {
                name: _limited(named.get(name, each), limits)
                for name, limits in limited.containers.items()
            }
        return PodWanted(pod.title, pod.qos, each, named, refused, group)


def _limited(wanted: Wanted, limits: Limits) -> Wanted:
    limits = msgspec.structs.replace(limits, mems=wanted.limits.mems)
    return msgspec.structs.replace(wanted, limits=limits)
