"""Rules of the kubelet's static CPU manager policy: its options, which containers get exclusive
CPUs, and why it refuses (kubelet: pkg/kubelet/cm/cpumanager, policy_static.go, policy_options.go).

Containers of Guaranteed pods that request whole CPUs get exclusive ones; all others share, and so
do the containers of a pod with resources as a whole (`spec.resources`): the kubelet's feature gate
PodLevelResourceManagers, which is off unless it is set, is not followed.
"""

from __future__ import annotations

import enum
from itertools import combinations
from typing import Final

import msgspec

from agent.allocate.layout import Layout
from agent.model.apiobjects import ApiPod
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import NumaPolicy
from agent.model.pod.annotations import shared_containers
from agent.model.pod.qos import KubeClass
from agent.model.quantities import cpu


class StaticOptions(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Named as the kubelet names them (`full-pcpus-only`, ...); all are off unless given."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    distribute_cpus_across_cores: bool = False
    align_by_socket: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False


class StartProblem(enum.StrEnum):
    """Why a policy can't be created, or can't start from the existing state."""

    OPTIONS_EXCLUDE_EACH_OTHER = "options exclude each other"
    SINGLE_NUMA_NODE = "align-by-socket excludes the NUMA policy SingleNUMANode"
    MORE_SOCKETS_THAN_NODES = "align-by-socket needs as many NUMA nodes as sockets"
    RESERVED_UNKNOWN = "reserved CPUs do not exist"
    RESERVED_TOO_MANY = "more CPUs are to be reserved than exist"
    DEFAULT_EMPTY = "the default set is empty though CPUs are assigned"
    RESERVED_NOT_SHARED = "reserved CPUs are missing in the default set"
    RESERVED_SHARED = "strictly reserved CPUs are in the default set"
    ASSIGNED_AND_SHARED = "assigned CPUs are in the default set"
    ASSIGNED_TWICE = "assigned CPUs are another pod's too"
    OTHER_CPUS = "the CPUs of the state are not those of the machine"


class PolicyStartError(ValueError):
    """A policy can't be created or started. `cpus`: the CPUs in question; `subject`: the options in
    question, or the container as `pod/container`."""

    def __init__(self, problem: StartProblem, *, cpus: int = 0, subject: str = "") -> None:
        self.problem = problem
        self.cpus = cpus
        self.subject = subject
        parts = (subject, problem.value, str(CpuSet.from_int(cpus)))
        super().__init__(": ".join(part for part in parts if part))


_PLACEMENTS: Final = (
    "distribute_cpus_across_numa",
    "distribute_cpus_across_cores",
    "prefer_align_cpus_by_uncorecache",
)
_CONFLICTS: Final = (
    *combinations(_PLACEMENTS, 2),
    ("full_pcpus_only", "distribute_cpus_across_cores"),
)


def check_options(options: StaticOptions, layout: Layout, topology_policy: NumaPolicy) -> None:
    """Raises PolicyStartError for options that a kubelet refuses on this machine."""
    for pair in _CONFLICTS:
        if all(getattr(options, name) for name in pair):
            subject = " and ".join(name.replace("_", "-") for name in pair)
            raise PolicyStartError(StartProblem.OPTIONS_EXCLUDE_EACH_OTHER, subject=subject)
    if options.align_by_socket:
        if topology_policy is NumaPolicy.SINGLE_NUMA_NODE:
            raise PolicyStartError(StartProblem.SINGLE_NUMA_NODE)
        if len(layout.sockets) > len(layout.nodes):
            raise PolicyStartError(StartProblem.MORE_SOCKETS_THAN_NODES)


class ContainerCpu(msgspec.Struct, frozen=True):
    """A container's CPU request. `sidecar`: an init container that keeps running."""

    name: str
    cpu_milli: int
    sidecar: bool = False


class PodCpu(msgspec.Struct, frozen=True):
    """The fields of a pod that matter for exclusive CPUs; `init` in start order. `pod_level`: it
    has resources as a whole."""

    uid: str
    kube_class: KubeClass
    containers: tuple[ContainerCpu, ...]
    init: tuple[ContainerCpu, ...] = ()
    pod_level: bool = False

    def container(self, name: str) -> ContainerCpu:
        """Raises KeyError if the pod has no such container."""
        for each in (*self.init, *self.containers):
            if each.name == name:
                return each
        raise KeyError(f"pod {self.uid} has no container {name}")

    def ends_before_others(self, name: str) -> bool:
        """Whether it is a plain init container, whose CPUs the next ones may have."""
        return any(each.name == name and not each.sidecar for each in self.init)


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


def pod_cpus(pod: PodCpu) -> int:
    """The most exclusive CPUs that the pod holds at one time: each plain init container runs
    together with the sidecars before it, the containers together with all sidecars."""
    sidecars = most = 0
    for container in pod.init:
        requested = cpus_of(pod, container)
        if container.sidecar:
            sidecars += requested
        else:
            most = max(most, sidecars + requested)
    return max(most, sidecars + sum(cpus_of(pod, each) for each in pod.containers))


def unserved(pod: ApiPod) -> str:
    """Why a static kubelet assigns no exclusive CPUs to one of the pod's containers that keep
    running, "" if it assigns some to each. A container that the pod's annotation leaves on the
    shared CPUs needs none."""
    kube_class = pod.kube_class or "besteffort"
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


class RefusalReason(enum.StrEnum):
    """Why a container can't be placed."""

    NOT_ENOUGH_CPUS = "not enough CPUs are free"
    NO_WHOLE_CORES = "the request is not a whole number of cores"
    NOT_ENOUGH_CORES = "not enough whole cores are free"
    DEFAULT_EMPTIED = "no CPU would be left to share"


class AllocationRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The state does not change. `available`: the number of available CPUs (those of whole cores,
    if these are required); `threads`: CPUs of a core; `held`: the number of CPUs that the container
    already has and keeps."""

    reason: RefusalReason
    requested: int
    available: int
    threads: int
    held: int = 0
