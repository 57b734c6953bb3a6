"""What a pod without CPUs of its own runs on: for agent and proxy, so it imports little."""

from __future__ import annotations

from agent.model.annotations import AnnotationError, resource_status
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.pods import Pod
from agent.model.qos import QOS_LABEL, QoS
from agent.model.snapshot import Pool, pool_cpus


def shared_cpus(
    pod: Pod, ls_pools: tuple[Pool, ...], be_pools: tuple[Pool, ...], system: CpuSet
) -> CpuSet:
    """The pool of a pod without CPUs of its own; empty only when its pools are.

    A pod that is bound to NUMA nodes gets the pools of those; a SYSTEM pod, the CPUs of its class;
    each of them all pools of its kind while there is no such CPU (koordinator.md §2.6).
    """
    try:
        nodes = resource_status(pod.annotations).shared_numa_nodes()
    except AnnotationError:
        nodes = ()
    pools = be_pools if pod.qos is QoS.BE else ls_pools
    bound = pool_cpus(pools, nodes) if nodes else EMPTY
    of_class = system if pod.qos is QoS.SYSTEM else EMPTY
    return bound or of_class or pool_cpus(pools)


def kubelet_may_own(pod: Pod) -> bool:
    """Whether a static kubelet's CPUs are left to this pod: a Guaranteed one that neither belongs
    on a pool by its label nor names CPUs of its own, be it in a way that can't be read."""
    if pod.kube_class != "guaranteed" or pod.labels.get(QOS_LABEL) in (QoS.LS, QoS.BE):
        return False
    try:
        return not resource_status(pod.annotations).cpuset
    except AnnotationError:
        return True
