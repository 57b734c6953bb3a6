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
    kubelet: KubeletCpus,
    rules: PoolRules,
    strictly_reserved: CpuSet,
    of_node: CpuSet = EMPTY,
) -> OfferedCpus:
    """What the node offers.

    `owners`: all owners of CPUs, also pods that are only bound to the node.
    `strictly_reserved`: the CPUs that a static kubelet reserves and keeps its pods off.
    `of_node`: those that the Node's annotations reserve, or give to SYSTEM pods alone."""
    if kubelet.of_dra:
        return OfferedCpus(reason="another DRA driver gives CPUs of this node")
    # A pod may have CPUs by an annotation beside those of its claims.
    others = union(owner.claimed for owner in owners) - kubelet.claims.cpus
    if kubelet.static:
        if not strictly_reserved:
            return OfferedCpus(
                reason="the kubelet has the static policy, and its pods share what it reserves: "
                "set its option strict-cpu-reservation, or its policy to none"
            )
        cpus = strictly_reserved & topology.online - others - of_node
        taken = "other pods, or annotations of the Node, have what the kubelet reserves"
        return OfferedCpus(cpus, reason="" if cpus else taken)
    others |= rules.kept
    reserved = rules.kubelet_reserved & topology.online
    cpus = topology.online - others - reserved
    pool_left = bool(reserved - others)
    return OfferedCpus(cpus, pool_left, "" if cpus else "other pods own all CPUs")
