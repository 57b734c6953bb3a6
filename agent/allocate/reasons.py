"""Why a pod is not offered a place, as data: what was asked, what there is, of which resource."""

from __future__ import annotations

import enum

import msgspec


class Reason(enum.StrEnum):
    """Stable words, for people, metrics and events."""

    ANNOTATION = "annotation can't be read"
    ARCHITECTURE = "policy is not supported on ARM"
    CPU_NOT_INTEGER = "requested CPUs must be integer"
    SMT_ALIGNMENT = "requested CPUs are no multiple of the threads of a core"
    BIND_POLICY_CONFLICT = "the node's CPU bind policy differs from the one the pod requires"
    NUMA_POLICY_CONFLICT = "the node's NUMA policy differs from the pod's"
    NO_CPU_TOPOLOGY = "the node's CPU topology is unknown"
    NO_NUMA_RESOURCES = "the node's NUMA resources are unknown"
    AMPLIFIED_CPU = "not enough amplified CPU"
    NOT_ENOUGH_CPUS = "not enough free CPUs"
    BIND_POLICY_UNMET = "free CPUs can't meet the required bind policy"
    NUMA_UNSATISFIED = "no NUMA nodes have enough"
    NUMA_UNALIGNED = "resources can't be on the same NUMA nodes"
    NUMA_INSUFFICIENT = "the chosen NUMA nodes have not enough"
    NO_POOL_FITS = "no shared pool of NUMA nodes fits the limit"


class Rejection(msgspec.Struct, frozen=True):
    """`asked` and `available` in the resource's unit (`cpu` in milli-CPU). `nodes`: the NUMA nodes
    it is about, empty for the whole machine. `detail`: the other party, such as the policy that
    stands against the pod's."""

    reason: Reason
    resource: str = ""
    asked: int | None = None
    available: int | None = None
    nodes: tuple[int, ...] = ()
    detail: str = ""
