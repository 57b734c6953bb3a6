"""Why a pod is not offered a place, as data: what was asked, what there is, of which resource."""

from __future__ import annotations

import enum

import msgspec


class Reason(enum.StrEnum):
    """Stable words for metrics, events and whoever turns them into sentences.

    The NUMA_ ones: the node's NUMA policy is another than the pod's; it has one but no NUMA
    resources; no NUMA nodes have enough of a resource; none have enough of all; those chosen have
    not enough."""

    ANNOTATION = "annotation"
    ARCHITECTURE = "architecture"
    CPU_NOT_INTEGER = "cpu-not-integer"
    SMT_ALIGNMENT = "smt-alignment"
    BIND_POLICY_CONFLICT = "bind-policy-conflict"
    NUMA_POLICY_CONFLICT = "numa-policy-conflict"
    NO_CPU_TOPOLOGY = "no-cpu-topology"
    NO_NUMA_RESOURCES = "no-numa-resources"
    AMPLIFIED_CPU = "amplified-cpu"
    NOT_ENOUGH_CPUS = "not-enough-cpus"
    BIND_POLICY_UNMET = "bind-policy-unmet"
    NUMA_UNSATISFIED = "numa-unsatisfied"
    NUMA_UNALIGNED = "numa-unaligned"
    NUMA_INSUFFICIENT = "numa-insufficient"
    NO_POOL_FITS = "no-pool-fits"


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
