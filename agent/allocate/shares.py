"""The CPUs of a pod that owns none, and which pods may own CPUs under a node-local policy. The
proxy uses this module too, so it imports few modules."""

from __future__ import annotations

from typing import Final, Literal

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.pod.annotations import AnnotationError, resource_status, shared_containers
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.quantities import cpu
from agent.model.snapshot import Pool, pool_cpus


def pool_class(pod: Pod) -> Literal[QoS.LS, QoS.BE, QoS.SYSTEM]:
    """The class whose pool the pod uses while it owns no CPUs. A BestEffort pod with allocated CPU
    of NUMA nodes requests batch CPU: only its label makes it BE."""
    if pod.qos is QoS.SYSTEM:
        return QoS.SYSTEM
    by_label = pod.labels.get(QOS_LABEL) == QoS.BE
    return QoS.BE if pod.qos is QoS.BE and (by_label or not numa_nodes(pod)) else QoS.LS


def shared_cpus(
    pod: Pod, ls_pools: tuple[Pool, ...], be_pools: tuple[Pool, ...], system: CpuSet
) -> CpuSet:
    """The pool of a pod that owns no CPUs; empty only if all pools for its class are empty. A pod
    that is bound to NUMA nodes gets the pools of these nodes, a SYSTEM pod the CPUs of its class
    (Koordinator: pkg/koordlet/runtimehooks/hooks/cpuset/rule.go, getContainerCPUSet). If these are
    empty, it gets all pools for its class.
    """
    of_class = pool_class(pod)
    pools = be_pools if of_class is QoS.BE else ls_pools
    nodes = numa_nodes(pod)
    bound = pool_cpus(pools, nodes) if nodes else EMPTY
    return bound or (system if of_class is QoS.SYSTEM else EMPTY) or pool_cpus(pools)


def kubelet_may_own(pod: Pod) -> bool:
    """Whether a static kubelet may have assigned CPUs to the pod: it is Guaranteed and does not
    share by its label."""
    return pod.kube_class == "guaranteed" and not shares_by_label(pod)


def shares_by_label(pod: Pod) -> bool:
    """Whether the pod's label, LS or BE, puts it on a pool, even if a static kubelet assigned CPUs
    to it. A pod with a readable CPU claim does not share."""
    return pod.labels.get(QOS_LABEL) in (QoS.LS, QoS.BE) and not claims(pod)


def claims(pod: Pod) -> bool:
    """Whether the pod has a CPU claim that can be read."""
    try:
        return bool(resource_status(pod.annotations).cpus())
    except AnnotationError:
        return False


def sidecars(pod: Pod) -> tuple[str, ...]:
    """The pod's containers that share the pool while the pod owns CPUs; none if the annotation
    can't be read."""
    try:
        return shared_containers(pod.annotations)
    except AnnotationError:
        return ()


def numa_nodes(pod: Pod) -> tuple[int, ...]:
    """The NUMA nodes whose pools the pod is bound to; none if its annotation can't be read."""
    try:
        return resource_status(pod.annotations).shared_numa_nodes()
    except AnnotationError:
        return ()


_SHARES_PER_CPU: Final = 1024
_LEAST_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
"""The kubelet's upper bound of cpu shares; shares at this bound do not show the request."""


def whole_cpus(shares: int) -> int:
    """The CPU request of a container, computed from its cpu shares; 0 unless it is a whole number.
    The kubelet rounds milli * 1024 / 1000 down, so that only whole CPUs are multiples of 1024. A
    container without requests in a pod with pod-level resources has the minimum of shares.
    """
    cpus, rest = divmod(shares, _SHARES_PER_CPU)
    return 0 if rest or shares < 0 or shares >= _MAX_SHARES else cpus


def unequal_resources(shares: int, quota_microseconds: int, period_microseconds: int) -> str:
    """How the CPU limit of a pod differs from its request, by the sums that the kubelet sets for
    the sandbox (kubelet: pkg/kubelet/kuberuntime, calculateSandboxResources). "" if they are equal,
    or if the sandbox does not have both: a kubelet that sets no CFS quotas sets no period, and the
    quota of a pod to which the kubelet assigned CPUs is -1."""
    if shares <= 0 or quota_microseconds < 0 or period_microseconds <= 0:
        return ""
    limit_milli = quota_microseconds * 1000 // period_microseconds
    of_limit = max(_LEAST_SHARES, limit_milli * _SHARES_PER_CPU // 1000)
    if min(of_limit, _MAX_SHARES) == shares:
        return ""
    requested_milli = -(-shares * 1000 // _SHARES_PER_CPU)
    limit = cpu(limit_milli) if limit_milli else "not set"
    return f"its sandbox: requests.cpu is {cpu(requested_milli)}, limits.cpu is {limit}"


def may_own(pod: Pod) -> bool:
    """Whether containers of the pod may own CPUs under a node-local policy: the pod is Guaranteed,
    no scheduler chose its CPUs, and its label does not put it on a pool."""
    return kubelet_may_own(pod) and not claims(pod) and pod.qos is not QoS.SYSTEM
