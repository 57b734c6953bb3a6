"""The options of the static CPU manager policy, as one value (kubelet:
pkg/kubelet/cm/cpumanager/policy_options.go, StaticPolicyOptions)."""

from __future__ import annotations

import enum
from itertools import combinations
from typing import Final

import msgspec

from agent.allocate.layout import Layout
from agent.model.cpuset import CpuSet
from agent.model.policies import NumaPolicy


class StaticOptions(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Named as the kubelet names them (`full-pcpus-only`, ...); all are off unless given."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    distribute_cpus_across_cores: bool = False
    align_by_socket: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False


class StartProblem(enum.StrEnum):
    """Why a policy can't be made, or can't start from the state that it finds."""

    OPTIONS_EXCLUDE_EACH_OTHER = "options exclude each other"
    SINGLE_NUMA_NODE = "align-by-socket excludes the NUMA policy SingleNUMANode"
    MORE_SOCKETS_THAN_NODES = "align-by-socket needs as many NUMA nodes as sockets"
    RESERVED_UNKNOWN = "reserved CPUs do not exist"
    RESERVED_TOO_MANY = "more CPUs are to be reserved than there are"
    DEFAULT_EMPTY = "the default set is empty though CPUs are assigned"
    RESERVED_NOT_SHARED = "reserved CPUs are missing in the default set"
    RESERVED_SHARED = "strictly reserved CPUs are in the default set"
    ASSIGNED_AND_SHARED = "assigned CPUs are in the default set"
    ASSIGNED_TWICE = "assigned CPUs are another pod's too"
    OTHER_CPUS = "the CPUs of the state are not those of the machine"


class PolicyStartError(ValueError):
    """A policy can't be made or started. `cpus`: the CPUs in question; `subject`: what it is about,
    as the options, or the container as `pod/container`."""

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


def check(options: StaticOptions, layout: Layout, topology_policy: NumaPolicy) -> None:
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
