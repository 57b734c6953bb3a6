"""The kubelet's PodResources API v1 as values.

The API is in Kubernetes: staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto. It has no
uid: a pod is known by namespace and name.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet

PodName = tuple[str, str]
"""Namespace and name."""


class MemoryBlock(msgspec.Struct, frozen=True):
    """Memory of one kind (`memory`, `hugepages-2Mi`), from these NUMA nodes together."""

    kind: str
    size_bytes: int
    nodes: tuple[int, ...]


class GivenDevice(msgspec.Struct, frozen=True):
    """A device of a device plugin, once; `nodes`: all NUMA nodes that it is near to, ascending,
    empty where its plugin names none."""

    resource: str
    id: str
    nodes: tuple[int, ...] = ()


class ClaimedDevice(msgspec.Struct, frozen=True):
    """A device of a claim: the first three name it on the node. `cdi`: CDI's qualified names of
    what the container gets; `share`: which part of a device that several claims share."""

    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()
    share: str | None = None


class ResourceClaim(msgspec.Struct, frozen=True):
    """A ResourceClaim that the container uses; other containers and pods may use it too."""

    namespace: str
    name: str
    devices: tuple[ClaimedDevice, ...] = ()


class ContainerResources(msgspec.Struct, frozen=True):
    """`cpus` are the container's own, save from kubelets that name the shared ones too."""

    name: str
    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[GivenDevice, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()


class PodResources(msgspec.Struct, frozen=True):
    """`containers`: the app containers and restartable init containers. `cpus` and `memory` are
    given to the pod as a whole; what its containers list may be part of that."""

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()
    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()

    @property
    def key(self) -> PodName:
        return self.namespace, self.name


class Allocatable(msgspec.Struct, frozen=True):
    """What the kubelet could give to pods, given or not.

    `cpus` is empty unless its CPU manager's policy is static, `memory` unless its memory manager's
    is; `devices` are the healthy ones.
    """

    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[GivenDevice, ...] = ()


class OwnDevice(msgspec.Struct, frozen=True):
    """`nodes`: the NUMA nodes that it is near to."""

    id: str
    nodes: tuple[int, ...] = ()


class ContainerCorrection(msgspec.Struct, frozen=True):
    """`cpus` None: those of the kubelet's answer. `devices`: all of a type, by UUID or PCI address;
    a type that is absent keeps those of the kubelet's answer."""

    cpus: CpuSet | None = None
    devices: Mapping[str, tuple[OwnDevice, ...]] = {}


class PodCorrection(msgspec.Struct, frozen=True):
    """`each` for containers that are not in `containers`, by name."""

    each: ContainerCorrection = ContainerCorrection()
    containers: Mapping[str, ContainerCorrection] = {}

    def of(self, container: str) -> ContainerCorrection:
        """The corrections of the container of that name."""
        return self.containers.get(container, self.each)


Corrections = Mapping[PodName, PodCorrection]
"""A pod that is absent keeps the kubelet's answer."""
