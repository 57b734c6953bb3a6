"""Which containers of a pod get exclusive CPUs from a kubelet with the static CPU manager policy
(kubelet: pkg/kubelet/cm/cpumanager, policy_static.go, guaranteedCPUs and podGuaranteedCPUs).

Containers of Guaranteed pods that request whole CPUs get exclusive ones; all others share, and so
do the containers of a pod with resources as a whole (`spec.resources`): the kubelet's feature gate
PodLevelResourceManagers, which is off unless it is set, is not followed.
"""

from __future__ import annotations

import enum

import msgspec

from agent.model.pod.annotations import shared_containers
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.numa_request import kube_class_of
from agent.model.pod.qos import KubeClass
from agent.model.quantities import cpu


class ContainerCpu(msgspec.Struct, frozen=True):
    """A container's CPU request."""

    name: str
    cpu_milli: int
    sidecar: bool = False
    """It is an init container that keeps running."""


class PodCpu(msgspec.Struct, frozen=True):
    """The fields of a pod that matter for exclusive CPUs."""

    uid: str
    kube_class: KubeClass
    containers: tuple[ContainerCpu, ...]
    init: tuple[ContainerCpu, ...] = ()
    """In start order."""
    pod_level: bool = False
    """The pod has resources as a whole."""


class SharedReason(enum.StrEnum):
    """Why a container runs on the shared CPUs."""

    NOT_GUARANTEED = "the pod is not Guaranteed"
    POD_LEVEL = "the pod has resources as a whole (spec.resources)"
    NO_REQUEST = "the container requests no CPU"
    FRACTION = "the container does not request a whole number of CPUs"


def exclusive_cpus(pod: PodCpu, container: ContainerCpu) -> int | SharedReason:
    """The number of exclusive CPUs of a container, at least 1, or why it has none."""
    if pod.kube_class != "guaranteed":
        return SharedReason.NOT_GUARANTEED
    if pod.pod_level:
        return SharedReason.POD_LEVEL
    if container.cpu_milli <= 0:
        return SharedReason.NO_REQUEST
    cpus, fraction = divmod(container.cpu_milli, 1000)
    return SharedReason.FRACTION if fraction else cpus


def cpus_of(pod: PodCpu, container: ContainerCpu) -> int:
    """The number of exclusive CPUs of a container, 0 if it has none."""
    requested = exclusive_cpus(pod, container)
    return requested if isinstance(requested, int) else 0


def shared_reason(pod: ApiPod) -> str:
    """Why a static kubelet assigns no exclusive CPUs to one of the pod's containers that keep
    running, "" if it assigns some to each. A container that the pod's annotation leaves on the
    shared CPUs needs none."""
    kube_class = pod.kube_class or kube_class_of(pod)
    sharing = shared_containers(pod.annotations)
    sidecars = [each for each in pod.init_containers if each.sidecar]
    for each in (*pod.containers, *sidecars):
        cpu_milli = each.requests.get("cpu", each.limits.get("cpu", 0))
        container = ContainerCpu(each.name, cpu_milli)
        of_pod = PodCpu(pod.uid, kube_class, (container,), pod_level=pod.pod_level)
        why = exclusive_cpus(of_pod, container)
        if why in (SharedReason.NOT_GUARANTEED, SharedReason.POD_LEVEL):
            return str(why)
        if isinstance(why, SharedReason) and each.name not in sharing:
            return f"container {each.name} requests {cpu(cpu_milli)} CPU"
    return ""
