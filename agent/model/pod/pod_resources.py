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
    """A device of a device plugin. `nodes`: all NUMA nodes that it is near to, ascending, empty if
    its plugin names none."""

    resource: str
    id: str
    nodes: tuple[int, ...] = ()


class ClaimedDevice(msgspec.Struct, frozen=True):
    """A device of a claim, identified by driver, pool and device. `cdi`: the qualified CDI names
    that the container gets. `share`: the part of a device that several claims share."""

    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()
    share: str | None = None


class ResourceClaim(msgspec.Struct, frozen=True):
    """A ResourceClaim of the container; other containers and pods may use it too."""

    namespace: str
    name: str
    devices: tuple[ClaimedDevice, ...] = ()


class ContainerResources(msgspec.Struct, frozen=True):
    """`cpus`: the container's exclusive CPUs; old kubelets list shared CPUs here too."""

    name: str
    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[PluginDevice, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()


class PodResources(msgspec.Struct, frozen=True):
    """`containers`: the app containers and restartable init containers. `cpus` and `memory`: the
    pod-level resources; those of the containers may be part of them."""

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()
    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()

    @property
    def key(self) -> PodName:
        return self.namespace, self.name


class Allocatable(msgspec.Struct, frozen=True):
    """The kubelet's allocatable resources, assigned or not.

    `cpus` is empty unless the CPU manager's policy is static, `memory` unless the memory manager's
    is. `devices`: the healthy ones.
    """

    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[PluginDevice, ...] = ()


class CorrectedDevice(msgspec.Struct, frozen=True):
    """A device that a scheduler allocated. `nodes`: the NUMA nodes that it is near to."""

    id: str
    nodes: tuple[int, ...] = ()


class ContainerCorrection(msgspec.Struct, frozen=True):
    """`cpus` None: those of the kubelet's response stay. `devices`: all devices of a type, by UUID
    or PCI address; for an absent type those of the kubelet's response stay."""

    cpus: CpuSet | None = None
    devices: Mapping[str, tuple[CorrectedDevice, ...]] = {}


class PodCorrection(msgspec.Struct, frozen=True):
    """`containers`: corrections by container name; `each`: for all others."""

    each: ContainerCorrection = ContainerCorrection()
    containers: Mapping[str, ContainerCorrection] = {}

    def of(self, container: str) -> ContainerCorrection:
        """The correction of the container with that name."""
        return self.containers.get(container, self.each)


Corrections = Mapping[PodName, PodCorrection]
"""For an absent pod the kubelet's response is not changed."""
