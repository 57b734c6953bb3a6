"""Which CPUs of a node claims may have: one ledger for all who give CPUs.

A CPU is offered to claims unless it is offline, reserved, or given by somebody else: by an
annotation, also one whose pod is only bound, by the kubelet's static policy, or by another DRA
driver. Under a static kubelet every unreserved CPU may be given at any time, so claims have what is
reserved, if the kubelet keeps its own pods off it (`strict-cpu-reservation`)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.snapshot import Owner


class OfferedCpus(msgspec.Struct, frozen=True):
    """The CPUs that claims may have, also those that claims have."""

    cpus: CpuSet = EMPTY
    pool_left: bool = True
    """Whether the shared pool has CPUs beside them."""
    reason: str = ""
    """Why there are none, "" if there are some."""


def offered(
    topology: Topology,
    owners: Iterable[Owner],
    bound: CpuSet,
    kubelet: KubeletCpus,
    rules: PoolRules,
    *,
    strict_reservation: bool,
) -> OfferedCpus:
    """What the node offers.

    `owners`: those of CPUs, without claims.
    `bound`: the CPUs that annotations of pods name that are bound to the node.
    `strict_reservation`: whether a static kubelet keeps pods off what it reserves."""
    if kubelet.of_dra:
        return OfferedCpus(reason="another DRA driver gives CPUs of this node")
    others = union(owner.claimed for owner in owners) | bound | rules.kept
    reserved = rules.kubelet_reserved & topology.online
    if kubelet.static:
        if not strict_reservation:
            return OfferedCpus(
                reason="the kubelet has the static policy, and its pods share what it reserves: "
                "set its option strict-cpu-reservation, or its policy to none"
            )
        cpus = reserved - others
        return OfferedCpus(cpus, reason="" if cpus else "the kubelet reserves no CPU that is free")
    cpus = topology.online - others - reserved
    pool_left = bool(reserved - others)
    return OfferedCpus(cpus, pool_left, "" if cpus else "other pods own all CPUs")
