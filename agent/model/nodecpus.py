"""What a NodeResourceTopology's annotations tell of a node's CPUs, read back as values (shapes:
Koordinator's, koordinator.md §1.3; `resources` writes them)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from agent.model.annotations import AnnotationError, cpu_list, decoded
from agent.model.cpuset import MAX_ID, CpuSet, CpuSetError, union
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
    """Empty where the node does not tell. A core is named by socket and number, as koordlet and
    the kernel number them anew in each socket, and gets its lowest CPU for an id. L3 caches are
    those that our zones tell of. Raises AnnotationError."""
    lists = tuple(zone.attributes.get(L3_CPUS, "") for zone in topology.zones)
    return _cpus(topology.annotations.get(CPU_TOPOLOGY, ""), lists)


def cpu_manager(annotations: Mapping[str, str]) -> CpuManager:
    """One without a policy where the node does not tell. Raises AnnotationError."""
    return decoded(annotations, CPU_MANAGER_POLICY, _cpu_manager) or CpuManager()


def kubelet_allocated(annotations: Mapping[str, str]) -> CpuSet:
    """The CPUs that the kubelet gave to containers of its own. Raises AnnotationError."""
    allocs = decoded(annotations, POD_CPU_ALLOCS, _allocs) or ()
    return union(
        cpu_list(POD_CPU_ALLOCS, f"cpuset of pod {each.uid[:60]!r}", each.cpuset)
        for each in allocs
        if each.managed_by_kubelet
    )


_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class _Detail(msgspec.Struct, frozen=True):
    id: _Id
    core: _Id
    socket: _Id
    node: _Id


class _CpuTopology(msgspec.Struct, frozen=True):
    detail: tuple[_Detail, ...] = ()


_cpu_topology: Final = msgspec.json.Decoder(_CpuTopology | None)
_cpu_manager: Final = msgspec.json.Decoder(CpuManager | None)
_allocs: Final = msgspec.json.Decoder(tuple[PodCpuAlloc, ...] | None)


@lru_cache(maxsize=256)
def _cpus(text: str, caches_of_zones: tuple[str, ...]) -> tuple[Cpu, ...]:
    """Nodes of one model tell the same, and each of them again with every pod."""
    detail = decoded({CPU_TOPOLOGY: text}, CPU_TOPOLOGY, _cpu_topology)
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
