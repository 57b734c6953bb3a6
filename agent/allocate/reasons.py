"""Why a pod is declined, as data: the resource, the requested and the available amount."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Reason(enum.StrEnum):
    """Stable names, for metrics, events and messages."""

    ARCHITECTURE = "architecture"
    """ARM does not have this bind or exclusive policy."""
    CPU_NOT_INTEGER = "cpu-not-integer"
    """CPUs are bound, and the request is not a whole number of CPUs."""
    SMT_ALIGNMENT = "smt-alignment"
    """Whole cores are required, and the request is not a multiple of a core's threads."""
    BIND_POLICY_CONFLICT = "bind-policy-conflict"
    """The pod requires another bind policy than its node."""
    NOT_GUARANTEED = "not-guaranteed"
    """The node allocates only whole cores, and these only to Guaranteed, LSE and LSR pods."""
    NUMA_POLICY_CONFLICT = "numa-policy-conflict"
    """The pod has another NUMA policy than its node."""
    NO_CPU_TOPOLOGY = "no-cpu-topology"
    """CPUs are to be bound, and the node does not report its CPUs."""
    NO_NUMA_RESOURCES = "no-numa-resources"
    """A NUMA policy is in force, and the node does not report the resources of its NUMA nodes."""
    AMPLIFIED_CPU = "amplified-cpu"
    """Bound CPUs cost their amplified amount, and less than that is left."""
    NOT_ENOUGH_CPUS = "not-enough-cpus"
    """Fewer CPUs are free than requested."""
    BIND_POLICY_UNMET = "bind-policy-unmet"
    """Enough CPUs are free, but too few of them suit the required bind policy."""
    NUMA_UNSATISFIED = "numa-unsatisfied"
    """No NUMA nodes have enough of a resource."""
    NUMA_UNALIGNED = "numa-unaligned"
    """The resources have no set of NUMA nodes in common that the policy admits."""
    NUMA_INSUFFICIENT = "numa-insufficient"
    """The NUMA nodes do not have enough of a resource."""
    NUMA_COMPANION = "numa-companion"
    """The NUMA nodes with enough CPU and memory do not have the devices."""
    NO_POOL_FITS = "no-pool-fits"
    """The limit is larger than the shared pools."""


UNRESOLVABLE: Final = frozenset(
    {
        Reason.ARCHITECTURE,
        Reason.CPU_NOT_INTEGER,
        Reason.SMT_ALIGNMENT,
        Reason.BIND_POLICY_CONFLICT,
        Reason.NOT_GUARANTEED,
        Reason.NUMA_POLICY_CONFLICT,
        Reason.NO_CPU_TOPOLOGY,
        Reason.NO_NUMA_RESOURCES,
    }
)
"""Reasons that remain even if all pods leave the node."""


class Rejection(msgspec.Struct, frozen=True):
    """`requested` and `available` in the resource's unit (`cpu` in milli-CPU). `nodes`: the NUMA
    nodes that lack the amount, empty for the whole machine. `detail`: what conflicts with the pod,
    such as the node's policy."""

    reason: Reason
    resource: str = ""
    requested: int | None = None
    available: int | None = None
    nodes: tuple[int, ...] = ()
    detail: str = ""
