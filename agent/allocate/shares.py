"""The CPUs of a pod that owns none, and which pods may own CPUs under a node-local policy. The
proxy uses this module too, so it imports few modules."""

from __future__ import annotations

from typing import Final

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.linux_resources import LEAST_SHARES, MAX_SHARES
from agent.model.pod.annotations import (
    RESOURCE_STATUS,
    AnnotationError,
    mixed_containers,
    resource_status,
    shared_containers,
)
from agent.model.pod.pods import Pod
from agent.model.pod.qos import (
    DEFAULT_POOL,
    POOLS,
    QOS_LABEL,
    PoolKind,
    Pools,
    QoS,
    pool_cpus,
    pool_of_class,
    usable_pools,
)
from agent.model.quantities import cpu


def pool_of(pod: Pod) -> PoolKind:
    """The pool that the pod uses while it owns no CPUs. A BestEffort pod without the label BE that
    has CPU of NUMA nodes got it as batch CPU, and shares the default pool."""
    qos = pod.qos
    unlabelled = qos is QoS.BE and pod.labels.get(QOS_LABEL) != QoS.BE
    unlabelled_with_numa_nodes = unlabelled and numa_nodes(pod)
    return DEFAULT_POOL if unlabelled_with_numa_nodes else pool_of_class(qos)


def shared_cpus(pod: Pod, pools: Pools, near: tuple[int, ...] = ()) -> CpuSet:
    """The pool of a pod that owns no CPUs; empty only if all pools that it may use are empty. A pod
    that is bound to NUMA nodes gets the part of its pool on these nodes, not of a dedicated pool
    (Koordinator: pkg/koordlet/runtimehooks/hooks/cpuset/rule.go, getContainerCPUSet). If this part
    is empty, it gets the whole pool.

    `near`: the NUMA nodes of a container of the pod, which count if the pod is bound to none."""
    usable, nodes = usable_pools(pool_of(pod)), numa_nodes(pod) or near
    for kind in usable if nodes else ():
        if not kind.dedicated and (cpus := pool_cpus(pools.get(kind.name, ()), nodes)):
            return cpus
    for kind in usable:
        if cpus := pool_cpus(pools.get(kind.name, ())):
            return cpus
    return EMPTY


def kubelet_may_own(pod: Pod) -> bool:
    """Whether a static kubelet may have assigned CPUs to the pod: it is Guaranteed and does not
    share by its label."""
    return pod.kube_class == "guaranteed" and not shares_by_label(pod)


def shares_by_label(pod: Pod) -> bool:
    """Whether the pod's label, LS or BE, puts it on a pool, even if a static kubelet assigned CPUs
    to it. A pod with a readable CPU claim does not share."""
    return pod.labels.get(QOS_LABEL) in _SHARING_LABELS and not claims(pod)


_SHARING_LABELS: Final = {kind.qos.value for kind in POOLS.values() if not kind.dedicated}


def claims(pod: Pod) -> bool:
    """Whether the pod has a CPU claim that can be read."""
    try:
        return bool(resource_status(pod.annotations).cpus())
    except AnnotationError:
        return False


def sharing_containers(pod: Pod) -> tuple[str, ...]:
    """The pod's containers that share the pool while the pod owns CPUs; none if the annotation
    can't be read."""
    try:
        return shared_containers(pod.annotations)
    except AnnotationError:
        return ()


def mixing_containers(pod: Pod) -> tuple[str, ...]:
    """The pod's containers that run on its pool beside the CPUs that they own; none if the
    annotation can't be read."""
    try:
        return mixed_containers(pod.annotations)
    except AnnotationError:
        return ()


def numa_nodes(pod: Pod) -> tuple[int, ...]:
    """The NUMA nodes whose pools the pod is bound to; none if its annotation can't be read."""
    if RESOURCE_STATUS not in pod.annotations:
        return ()
    try:
        return resource_status(pod.annotations).shared_numa_nodes()
    except AnnotationError:
        return ()


_SHARES_PER_CPU: Final = 1024


def whole_cpus(shares: int | None) -> int:
    """The CPU request of a container, computed from its cpu shares; 0 unless it is a whole number.
    The kubelet rounds milli * 1024 / 1000 down, so that only whole CPUs are multiples of 1024. A
    container without requests in a pod with pod-level resources has the minimum of shares, and
    shares at their upper bound do not show the request.
    """
    if shares is None or not 0 <= shares < MAX_SHARES:
        return 0
    cpus, rest = divmod(shares, _SHARES_PER_CPU)
    return 0 if rest else cpus


def unequal_resources(shares: int, quota_microseconds: int, period_microseconds: int) -> str:
    """How the CPU limit of a pod differs from its request, by the sums that the kubelet sets for
    the sandbox (kubelet: pkg/kubelet/kuberuntime, calculateSandboxResources). "" if they are equal,
    or if the sandbox does not have both: a kubelet that sets no CFS quotas sets no period, and the
    quota of a pod to which the kubelet assigned CPUs is -1."""
    if shares <= 0 or quota_microseconds < 0 or period_microseconds <= 0:
        return ""
    limit_milli = quota_microseconds * 1000 // period_microseconds
    of_limit = max(LEAST_SHARES, limit_milli * _SHARES_PER_CPU // 1000)
    if min(of_limit, MAX_SHARES) == shares:
        return ""
    requested_milli = -(-shares * 1000 // _SHARES_PER_CPU)
    limit = cpu(limit_milli) if limit_milli else "not set"
    return f"its sandbox: requests.cpu is {cpu(requested_milli)}, limits.cpu is {limit}"


def may_own(pod: Pod) -> bool:
    """Whether containers of the pod may own CPUs under a node-local policy: the pod is Guaranteed,
    no scheduler chose its CPUs, and its label does not put it on a pool."""
    return kubelet_may_own(pod) and not claims(pod) and not pool_of_class(pod.qos).dedicated
