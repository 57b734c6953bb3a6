"""The annotations of a NodeResourceTopology about a node's CPUs, read back as values.

Their format is Koordinator's (apis/extension/numa_aware.go); `resources` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.annotations import AnnotationError, cpu_list, decoded
from agent.model.cpuset import EMPTY, MAX_ID, CpuSet, CpuSetError
from agent.model.nodetopology import L3_CPUS, NodeTopology
from agent.model.resources import CPU_MANAGER_POLICY, CPU_TOPOLOGY, POD_CPU_ALLOCS, PodCpuAlloc
from agent.model.topology import Cpu


class CpuManager(msgspec.Struct, frozen=True):
    """The kubelet's CPU manager; `reserved`: the CPUs that it keeps from containers of its own."""

    policy: str = ""
    options: dict[str, str] = {}
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")

    def reserved(self) -> CpuSet:
        """Raises AnnotationError."""
        return cpu_list(CPU_MANAGER_POLICY, "reservedCPUs", self.reserved_cpus)

    def static_options(self) -> dict[str, str] | None:
        """None under another policy than static."""
        return self.options if self.policy == "static" else None


def cpus(topology: NodeTopology) -> tuple[Cpu, ...]:
    """Empty when the node does not report them. A core has its socket and number for a name, as
    koordlet and the kernel number the cores of each socket, and its lowest CPU for an id. L3 caches
    are those of our zones. Raises AnnotationError."""
    lists = tuple(zone.attributes.get(L3_CPUS, "") for zone in topology.zones)
    return _cpus(topology.annotations.get(CPU_TOPOLOGY, ""), lists)


def cpu_manager(annotations: Mapping[str, str]) -> CpuManager:
    """Without a policy when the node does not report one. Raises AnnotationError."""
    return (
        decoded(annotations, CPU_MANAGER_POLICY, _cpu_manager, bounds.OBJECT_VALUE_BYTES)
        or CpuManager()
    )


def kubelet_allocated(annotations: Mapping[str, str]) -> dict[str, CpuSet]:
    """By pod uid, the CPUs that the kubelet gave to its containers. Raises AnnotationError."""
    found: dict[str, CpuSet] = {}
    for each in decoded(annotations, POD_CPU_ALLOCS, _allocs, bounds.OBJECT_LIST_BYTES) or ():
        if each.managed_by_kubelet:
            cpus = cpu_list(POD_CPU_ALLOCS, f"cpuset of pod {each.uid[:60]!r}", each.cpuset)
            found[each.uid] = found.get(each.uid, EMPTY) | cpus
    return found


_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class _Detail(msgspec.Struct, frozen=True):
    id: _Id
    core: _Id
    socket: _Id
    node: _Id


class _CpuTopology(msgspec.Struct, frozen=True):
    detail: Annotated[tuple[_Detail, ...], msgspec.Meta(max_length=bounds.MOST_CPUS)] = ()


_cpu_topology: Final = msgspec.json.Decoder(_CpuTopology | None)
_cpu_manager: Final = msgspec.json.Decoder(CpuManager | None)
_allocs: Final = msgspec.json.Decoder(
    Annotated[tuple[PodCpuAlloc, ...], msgspec.Meta(max_length=bounds.MOST_PODS)] | None
)


@lru_cache(maxsize=256)
def _cpus(text: str, caches_of_zones: tuple[str, ...]) -> tuple[Cpu, ...]:
    """Cached: nodes of one model report the same value, and each of them repeats it for every
    pod."""
    detail = decoded({CPU_TOPOLOGY: text}, CPU_TOPOLOGY, _cpu_topology, bounds.OBJECT_LIST_BYTES)
    if detail is None:
        return ()
    leads: dict[tuple[int, int], int] = {}
    for each in detail.detail:
        core = each.socket, each.core
        leads[core] = min(leads.get(core, each.id), each.id)
    if len({each.id for each in detail.detail}) < len(detail.detail):
        raise AnnotationError(CPU_TOPOLOGY, "detail: a CPU is named twice")
    caches = _caches(caches_of_zones)
    return tuple(
        Cpu(
            id=each.id,
            core=leads[each.socket, each.core],
            l3=caches.get(each.id),
            die=None,
            socket=each.socket,
            node=each.node,
        )
        for each in sorted(detail.detail, key=lambda each: each.id)
    )


def _caches(lists: Iterable[str]) -> dict[int, int]:
    """By CPU, the lowest CPU of its L3; none for a list that is none: it only orders CPUs that are
    as good."""
    found: dict[int, int] = {}
    for text in ";".join(lists).split(";"):
        try:
            mine = CpuSet.parse(text)
        except CpuSetError:
            continue
        for cpu in mine:
            found[cpu] = (mine.mask & -mine.mask).bit_length() - 1
    return found
