"""What containers really have where the kubelet can't know it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.cpuset import CpuSet
from agent.model.podresources import PodName


class OwnDevice(msgspec.Struct, frozen=True):
    """`nodes`: the NUMA nodes that it is near to."""

    id: str
    nodes: tuple[int, ...] = ()


class ContainerCorrection(msgspec.Struct, frozen=True):
    """`cpus` None: those that the kubelet says. `devices`: all of a type, by UUID or PCI address;
    of a type that is absent, those that the kubelet says."""

    cpus: CpuSet | None = None
    devices: Mapping[str, tuple[OwnDevice, ...]] = {}


class PodCorrection(msgspec.Struct, frozen=True):
    """`each` for containers that are not in `containers`, by name."""

    each: ContainerCorrection = ContainerCorrection()
    containers: Mapping[str, ContainerCorrection] = {}

    def of(self, container: str) -> ContainerCorrection:
        """What is said of the container of that name."""
        return self.containers.get(container, self.each)


Corrections = Mapping[PodName, PodCorrection]
"""A pod that is absent has what the kubelet says."""
