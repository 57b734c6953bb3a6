"""What a pod without CPUs of its own runs on: for agent and proxy, so it imports little."""

from __future__ import annotations

from collections.abc import Mapping

from agent.model.annotations import AnnotationError, resource_status
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.pods import Pod
from agent.model.qos import KubeClass, QoS, labelled
from agent.model.snapshot import Pool, pool_cpus


def shared_cpus(pod: Pod, ls_pools: tuple[Pool, ...], be_pools: tuple[Pool, ...]) -> CpuSet:
    """The pool of a pod without CPUs of its own; empty only when its pools are.

    A pod that is bound to NUMA nodes gets the pools of those, all of them while those have no CPU.
    """
    try:
        nodes = resource_status(pod.annotations).shared_numa_nodes()
    except AnnotationError:
        nodes = ()
    pools = be_pools if pod.qos is QoS.BE else ls_pools
    bound = pool_cpus(pools, nodes) if nodes else EMPTY
    return bound or pool_cpus(pools)


def kubelet_may_own(labels: Mapping[str, str], kube_class: KubeClass | None) -> bool:
    """Whether a static kubelet's CPUs are left to this pod: Guaranteed, without a class of ours."""
    return kube_class == "guaranteed" and not labelled(labels)
