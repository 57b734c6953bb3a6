"""The kubelet's PodResources API v1 as values.

The API is in Kubernetes: staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto. It has no
uids: pods are identified by namespace and name.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet

PodName = tuple[str, str]
"""Namespace and name."""


class MemoryBlock(msgspec.Struct, frozen=True):
    """Memory of one kind (`memory`, `hugepages-2Mi`) on these NUMA nodes together."""

    kind: str
    size_bytes: int
    nodes: tuple[int, ...]


class PluginDevice(msgspec.Struct, frozen=True):
    """A device of a device plugin."""

    resource: str
    id: str
    nodes: tuple[int, ...] = ()
    """All NUMA nodes that it is near to, ascending; empty if its plugin names none."""


class ClaimedDevice(msgspec.Struct, frozen=True):
    """A device of a claim, identified by driver, pool and device."""

    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()
    """The qualified CDI names that the container gets."""
    share: str | None = None
    """The part of a device that several claims share, None for a whole device."""


class ResourceClaim(msgspec.Struct, frozen=True):
    """A ResourceClaim of the container; other containers and pods may use it too."""

    namespace: str
    name: str
    devices: tuple[ClaimedDevice, ...] = ()


class ContainerResources(msgspec.Struct, frozen=True):
    """What the kubelet has assigned to a container."""

    name: str
    cpus: CpuSet = EMPTY
    """Its exclusive CPUs; old kubelets list shared CPUs here too."""
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[PluginDevice, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()


class PodResources(msgspec.Struct, frozen=True):
    """What the kubelet has assigned to a pod. Those of the containers may be a part of the
    pod-level CPUs and memory."""

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()
    """The app containers and restartable init containers."""
    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()

    @property
    def key(self) -> PodName:
        return self.namespace, self.name


class Allocatable(msgspec.Struct, frozen=True):
    """The kubelet's allocatable resources, assigned or not. CPUs and memory are empty unless the
    policy of their manager is static."""

    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[PluginDevice, ...] = ()
    """The healthy devices."""


class CorrectedDevice(msgspec.Struct, frozen=True):
    """A device that a scheduler allocated."""

    id: str
    nodes: tuple[int, ...] = ()
    """The NUMA nodes that it is near to."""


class ContainerCorrection(msgspec.Struct, frozen=True):
    """The values that replace those of the kubelet's response for a container."""

    cpus: CpuSet | None = None
    """None if those of the response stay."""
    devices: Mapping[str, tuple[CorrectedDevice, ...]] = {}
    """All devices of a type, by UUID or PCI address; for an absent type those of the response
    stay."""


class PodCorrection(msgspec.Struct, frozen=True):
    """The corrections of a pod's containers by name."""

    each: ContainerCorrection = ContainerCorrection()
    """For the containers that are not in `containers`."""
    containers: Mapping[str, ContainerCorrection] = {}

    def of(self, container: str) -> ContainerCorrection:
        return self.containers.get(container, self.each)


Corrections = Mapping[PodName, PodCorrection]
"""For an absent pod the kubelet's response is not changed."""
