"""What a claim's status says about its devices, for people: the CPUs by id, and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.dra.claim_devices import READY
from agent.model.dra.names import DRIVER
from agent.model.dra.prepared_claim import PreparedClaim

_SHARES_POOL: Final = "shared"


def devices(claim: PreparedClaim, topology: Topology) -> tuple[Mapping[str, Any], ...]:
    """The entries of `status.devices` (resource.k8s.io/v1, AllocatedDeviceStatus), whose conditions
    have no time. A device that is only looked at has none."""
    entries = []
    for group in claim.groups:
        cpus = group.cpu_set
        if not cpus:
            continue
        lost = cpus & topology.offline
        shown: dict[str, Any] = {"cpus": group.cpus, "numaNodes": str(_nodes(cpus, topology))}
        if group.shared:
            shown[_SHARES_POOL] = True
        entry = {
            "driver": DRIVER,
            "pool": group.pool,
            "device": group.device,
            "conditions": [
                {
                    "type": READY,
                    "status": "False" if lost else "True",
                    "reason": "CPUsOffline" if lost else "Prepared",
                    "message": f"CPUs {lost} are offline" if lost else "",
                }
            ],
            "data": shown,
        }
        if group.share is not None:
            entry["shareID"] = group.share
        entries.append(entry)
    return tuple(entries)


def _nodes(cpus: CpuSet, topology: Topology) -> CpuSet:
    """The NUMA nodes of these CPUs, as far as they are online."""
    return CpuSet(node.id for node in topology.numa_nodes if node.cpus & cpus)
