"""CPUs that are set aside: by a kubelet and drivers of claims for pods, by kubelet and node for
themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.allocate.shares import kubelet_may_own
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.pods import Pod


class KubeletCpus(msgspec.Struct, frozen=True):
    """What a kubelet with the static policy gave away, by pod uid. `containers`: the names of those
    that it gave CPUs to, where they are known; without, a pod's CPUs are all its containers'.
    `claimed`: by pod uid and container, what drivers of claims gave, whatever the kubelet's
    policy."""

    static: bool = False
    by_uid: dict[str, CpuSet] = {}
    containers: dict[str, tuple[str, ...]] = {}
    claimed: Mapping[str, Mapping[str, CpuSet]] = {}


class PoolRules(msgspec.Struct, frozen=True):
    """What is done with CPUs that are set aside.

    `reserved`: by the kubelet; they are shared all the same. `owners_on_reserved`: LSE and LSR pods
    may own them. `be_on_reserved`: BE pods run on them alone while what BE pods request fits there
    (fine-grained CPU orchestration proposal). `node_reserved`: the node's own, nobody's. `system`:
    where SYSTEM pods run, and nobody else if `system_exclusive`. `bind_memory`: pods with CPUs of
    their own, or held to NUMA nodes, get the memory of the nodes that they run on;
    not Guaranteed ones where the kubelet binds theirs (`kubelet_memory`).
    `cpu_normalization_ratio`: see batch_limits.
    """

    reserved: CpuSet = EMPTY
    owners_on_reserved: bool = False
    be_on_reserved: bool = False
    node_reserved: CpuSet = EMPTY
    system: CpuSet = EMPTY
    system_exclusive: bool = True
    bind_memory: bool = False
    kubelet_memory: bool = False
    cpu_normalization_ratio: float = 1.0

    @property
    def kept(self) -> CpuSet:
        """CPUs that are in no shared pool."""
        return self.node_reserved | self.system if self.system_exclusive else self.node_reserved


DEFAULT_RULES: Final = PoolRules()


def kubelet_owned(pods: tuple[Pod, ...], kubelet: KubeletCpus) -> dict[str, CpuSet]:
    """By pod uid, also of pods that are gone: the CPUs that a static kubelet gave away and that are
    left to it."""
    if not kubelet.static:
        return {}
    foreign = {pod.uid for pod in pods if not kubelet_may_own(pod)}
    return {uid: cpus for uid, cpus in kubelet.by_uid.items() if cpus and uid not in foreign}


def given_away(pods: tuple[Pod, ...], kubelet: KubeletCpus) -> dict[str, CpuSet]:
    """By pod uid, what kubelet and drivers of claims gave: schedulers must not give it again."""
    found = kubelet_owned(pods, kubelet)
    for uid, of_pod in kubelet.claimed.items():
        found[uid] = union(of_pod.values()) | found.get(uid, EMPTY)
    return found


def some_share(pod: Pod, kubelet: KubeletCpus) -> bool:
    """Whether the kubelet left a container of the pod on the pool that all share."""
    given = kubelet.containers.get(pod.uid, ())
    return bool(given) and any(each.name not in given for each in pod.containers)
