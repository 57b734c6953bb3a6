"""The CPUs of ResourceClaims as decisions about all pods read them, on nodes without claims too."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union


class ContainerClaim(msgspec.Struct, frozen=True):
    """What one container has by its claims."""

    cpus: CpuSet
    shared: bool = False
    """Whether it runs on the shared pool too."""
    bind_memory: bool = False


class NodeClaims(msgspec.Struct, frozen=True):
    """The claims of a node, as decisions read them."""

    cpus: CpuSet = EMPTY
    """All prepared claims have these CPUs together, also claims whose pods are not known."""
    containers: Mapping[str, Mapping[str, ContainerClaim]] = {}
    """By pod uid and name, the containers with CPUs of claims."""

    def of_pod(self, uid: str) -> CpuSet:
        """The CPUs of all containers of a pod."""
        return union(claim.cpus for claim in self.containers.get(uid, {}).values())
