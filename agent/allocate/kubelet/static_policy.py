"""Options of the kubelet's static CPU manager policy, and why it refuses to start or to assign CPUs
(kubelet: pkg/kubelet/cm/cpumanager, policy_static.go, policy_options.go). Which containers get
exclusive CPUs is in `model.pod_request`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import combinations
from typing import Final

import msgspec

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import NumaPolicy
from agent.model.pod.numa_request import PartKind, PodPart


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
    """A policy can't be created or started."""

    def __init__(self, problem: StartProblem, *, cpus: int = 0, subject: str = "") -> None:
        self.problem = problem
        self.cpus = cpus
        """The CPUs in question, a mask."""
        self.subject = subject
        """The options in question, or the container as `pod/container`."""
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


class RefusalReason(enum.StrEnum):
    """Why a container can't be placed."""

    NOT_ENOUGH_CPUS = "not enough CPUs are free"
    NO_WHOLE_CORES = "the request is not a whole number of cores"
    NOT_ENOUGH_CORES = "not enough whole cores are free"
    DEFAULT_EMPTIED = "no CPU would be left to share"


class NotEnoughCpusError(ValueError):
    """More CPUs were requested than are free."""

    def __init__(self, requested: int, free: int) -> None:
        self.requested = requested
        self.free = free
        super().__init__(f"{requested} CPUs were requested and {free} are free")


class AllocationRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The container gets no CPUs. The state does not change."""

    reason: RefusalReason
    requested: int
    available: int
    """The number of available CPUs, of whole cores if these are required."""
    threads: int
    """The CPUs of a core."""
    held: int = 0
    """The number of CPUs that the container already has and keeps."""


def smt_refusal(
    requested: int, available: int, threads: int, held: int = 0
) -> AllocationRefused | None:
    """Why full-pcpus-only refuses a container, None if it does not.

    `available`: the CPUs of free cores, without those of the pod's ended init containers, although
        it may get these."""
    if requested % threads:
        reason = RefusalReason.NO_WHOLE_CORES
    elif requested > available:
        reason = RefusalReason.NOT_ENOUGH_CORES
    else:
        return None
    return AllocationRefused(reason, requested, available, threads, held)


class WholeCores(msgspec.Struct, frozen=True):
    """The cores of a machine that full-pcpus-only assigns, which are those without a reserved
    CPU."""

    cpus: int
    """The number of their CPUs."""
    threads: int
    """The CPUs of each core."""

    def refused(
        self, parts: Iterable[PodPart], taken: int = 0
    ) -> tuple[PodPart, AllocationRefused] | None:
        """The first container of a pod that the kubelet refuses, and why; None if it admits the
        pod.

        `parts`: in the order of their admission; each gets the CPUs of ended init containers before
            others.
        `taken`: the number of CPUs that other pods have."""
        available, reusable = self.cpus - taken, 0
        for part in parts:
            requested = part.exclusive_milli // 1000
            if not requested:
                continue
            if refusal := smt_refusal(requested, available, self.threads):
                return part, refusal
            reused = min(requested, reusable)
            available -= requested - reused
            ends = part.kind is PartKind.INIT
            reusable = max(reusable, requested) if ends else reusable - reused
        return None
