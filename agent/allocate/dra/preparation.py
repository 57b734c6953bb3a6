"""Which CPUs a claim gets when the kubelet prepares it.

A scheduler has given the claim an amount of each device, or an external allocator has named its
CPUs. The node takes that many of the device's free CPUs with the accumulator by which pods of the
annotations get theirs too, and refuses what it no longer has. What is prepared stays as it is: the
same claim is prepared again after a restart of the kubelet."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from agent.allocate.accumulator import CpuRequest, Shortage, even, take
from agent.allocate.dra.groups import CpuGroup
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.layout import CpuRefCounts, Layout
from agent.model.cpu.policies import BIND_LABEL, BindPolicy, ExclusivePolicy, Strategy
from agent.model.dra.cpu_parameters import ClaimMemoryPolicy, CpuSpread
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup
from agent.model.dra.resource_claim import ClaimedGroup, CpuResourceClaim

_COUNTED: Final = (
    f"; schedulers count CPUs, not whole cores: the label {BIND_LABEL}=FullPCPUsOnly "
    "of the Node makes it offer whole cores alone"
)
_QUOTED: Final = 100
"""The most characters of a list of CPUs in a message."""


class RefusalKind(enum.StrEnum):
    """Why a claim is not prepared."""

    TAKEN = "cpus-taken"
    NO_DEVICE = "no-device"
    NOT_OFFERED = "not-offered"
    NOT_READY = "not-ready"
    CLAIM = "claim"
    """The claim can't be read, or asks for what no node can give."""
    NOT_KEPT = "not-kept"
    """The agent can't write its files."""

    @property
    def elsewhere(self) -> bool:
        """Whether another node may prepare the claim of a successor of the pod."""
        return self in (RefusalKind.TAKEN, RefusalKind.NO_DEVICE, RefusalKind.NOT_OFFERED)


class PreparationError(ValueError):
    """The node can't give the claim what a scheduler allocated; the message names claim, request
    and device."""

    def __init__(self, message: str, kind: RefusalKind = RefusalKind.CLAIM) -> None:
        super().__init__(message)
        self.kind = kind


class PreparationRules(msgspec.Struct, frozen=True):
    """What holds for a claim that says nothing else."""

    bind: BindPolicy = BindPolicy.FULL_PCPUS
    whole_cores: bool = False
    """Whether only whole cores are given, whatever the claim says."""
    bind_memory: bool = False


def prepared(
    claim: CpuResourceClaim,
    node_name: str,
    groups: Mapping[str, CpuGroup],
    layout: Layout,
    counts: CpuRefCounts,
    rules: PreparationRules,
) -> PreparedClaim:
    """The claim with its CPUs. Raises PreparationError.

    `node_name`: the name of the node's pool.
    `groups`: the devices by name, with the CPUs that are free now.
    `counts`: the CPUs that other claims have, by exclusive policy."""
    taken = EMPTY
    of_requests = []
    for claimed, where in _of_node(claim, node_name):
        group = groups.get(claimed.device)
        if group is None:
            raise PreparationError(f"{where} does not exist", RefusalKind.NO_DEVICE)
        cpus = EMPTY
        if not claimed.admin:
            free = group.free - taken
            cpus = _cpus(claimed, group, free, layout, counts, rules, where)
        taken |= cpus
        of_requests.append(_of_request(claimed, cpus, rules))
    identity = claim.uid, claim.namespace, claim.name
    return PreparedClaim(*identity, tuple(of_requests), claim.pod_claim)


def restored(claim: CpuResourceClaim, told: PreparedClaim, node_name: str) -> PreparedClaim:
    """The claim with the CPUs that its containers were told. Raises PreparationError if these are
    not what a scheduler allocated.

    `told`: of its requests, the devices and the CPUs."""
    left: dict[tuple[str, str], list[CpuSet]] = {}
    for group in told.groups:
        left.setdefault((group.base_request, group.device), []).append(group.cpu_set)
    taken = EMPTY
    of_requests = []
    for claimed, where in _of_node(claim, node_name):
        cpus = EMPTY
        if not claimed.admin:
            request, _, _ = claimed.request.partition("/")
            of_device = left.get((request, claimed.device))
            cpus = of_device.pop(0) if of_device else EMPTY
            milli = claimed.cpu_milli
            if not cpus or cpus & taken or (milli is not None and len(cpus) != -(-milli // 1000)):
                raise PreparationError(f"{where}: its files do not have its CPUs")
        taken |= cpus
        of_requests.append(_of_request(claimed, cpus, PreparationRules()))
    identity = claim.uid, claim.namespace, claim.name
    return PreparedClaim(*identity, tuple(of_requests), claim.pod_claim)


def _of_node(claim: CpuResourceClaim, node_name: str) -> Iterator[tuple[ClaimedGroup, str]]:
    """What the claim has of devices, each with its title in messages. Raises PreparationError for
    a device of another node."""
    for claimed in claim.groups:
        where = f"ResourceClaim {claim.title}, request {claimed.request}"
        if claimed.pool != node_name:
            raise PreparationError(f"{where}: pool {claimed.pool} is not of this node")
        yield claimed, f"{where}: device {claimed.device}"


def _of_request(claimed: ClaimedGroup, cpus: CpuSet, rules: PreparationRules) -> PreparedGroup:
    parameters = claimed.parameters
    # Whoever takes memory of a NUMA node wants it from there.
    bind_memory = rules.bind_memory or any(claimed.amounts.values())
    if parameters.memory_policy is not None:
        bind_memory = parameters.memory_policy is ClaimMemoryPolicy.BIND
    return PreparedGroup(
        claimed.request,
        claimed.pool,
        claimed.device,
        str(cpus),
        claimed.share,
        parameters.cpu_exclusive_policy or ExclusivePolicy.NONE,
        bool(parameters.shared),
        bind_memory,
        claimed.amounts,
        bool(parameters.cpus),
    )


def _cpus(
    claimed: ClaimedGroup,
    group: CpuGroup,
    free: CpuSet,
    layout: Layout,
    counts: CpuRefCounts,
    rules: PreparationRules,
    where: str,
) -> CpuSet:
    """`free`: the CPUs of the device that nobody has. Raises PreparationError."""
    parameters = claimed.parameters
    count = len(group.cpus) if claimed.cpu_milli is None else -(-claimed.cpu_milli // 1000)
    if parameters.cpus:
        named = _named(parameters.cpu_set, count, group, free, where)
        if rules.whole_cores and layout.expand(layout.touched(named.mask)) != named.mask:
            text = f"{where}: the claim names CPUs {_quoted(named)}, which split a core"
            raise PreparationError(text)
        return named
    bind = parameters.cpu_bind_policy or BindPolicy.DEFAULT
    request = CpuRequest(
        count,
        rules.bind if rules.whole_cores or bind is BindPolicy.DEFAULT else bind,
        parameters.cpu_exclusive_policy or ExclusivePolicy.NONE,
        Strategy.MOST_ALLOCATED,
        required=rules.whole_cores or bind is not BindPolicy.DEFAULT,
        prefer_l3=parameters.spread is not CpuSpread.EVENLY,
    )
    if parameters.spread is CpuSpread.EVENLY:
        return _evenly(layout, free, counts, request, where)
    return _taken(layout, free, counts, request, where)


def _named(named: CpuSet, count: int, group: CpuGroup, free: CpuSet, where: str) -> CpuSet:
    """The CPUs that an external allocator chose. Raises PreparationError."""
    if outside := named - group.cpus:
        text = f"{where} has no CPUs {_quoted(outside)}, which the claim names"
        raise PreparationError(text, RefusalKind.TAKEN)
    if len(named) != count:
        text = f"{where}: the claim names {len(named)} CPUs ({_quoted(named)}), and has {count}"
        raise PreparationError(text)
    if others := named - free:
        text = f"{where}: CPUs {_quoted(others)}, which the claim names, are not free"
        raise PreparationError(text, RefusalKind.TAKEN)
    return named


def _evenly(
    layout: Layout, free: CpuSet, counts: CpuRefCounts, request: CpuRequest, where: str
) -> CpuSet:
    """An equal part on each L3 cache, in whole cores where these are wanted. Raises
    PreparationError."""
    full = request.bind is BindPolicy.FULL_PCPUS
    unit = layout.threads if full and request.count % layout.threads == 0 else 1
    caches = [free & CpuSet.from_int(cache.cpus) for cache in layout.caches]
    caches = [cpus for cpus in caches if cpus]
    rooms = [
        layout.expand(layout.whole(cpus.mask)).bit_count() // unit if unit > 1 else len(cpus)
        for cpus in caches
    ]
    if sum(rooms) * unit < request.count:
        return _taken(layout, free, counts, request, where)
    chosen = EMPTY
    shares = even(rooms, request.count // unit)
    left = request.count
    for cpus, share in zip(caches, shares, strict=True):
        part = msgspec.structs.replace(request, count=min(left, share * unit))
        left -= part.count
        chosen |= _taken(layout, cpus, counts, part, where)
    return chosen


def _taken(
    layout: Layout, free: CpuSet, counts: CpuRefCounts, request: CpuRequest, where: str
) -> CpuSet:
    """Raises PreparationError."""
    cpus = take(layout, free.mask, counts, request)
    if isinstance(cpus, Shortage):
        needs, remedy = f"{cpus.requested} CPUs", ""
        if cpus.fitting < cpus.free:
            needs += f" by {request.bind}"
            remedy = _COUNTED if request.bind is BindPolicy.FULL_PCPUS else ""
        left = f"{cpus.fitting} are free ({_quoted(free)})"
        text = f"{where}: the claim needs {needs}, and {left}{remedy}"
        raise PreparationError(text, RefusalKind.TAKEN)
    return CpuSet.from_int(cpus.cpus)


def _quoted(cpus: CpuSet) -> str:
    """The list, or its beginning: an allocator may have named each second of thousands of CPUs."""
    text = str(cpus)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED].rpartition(',')[0]},..."


def counted(claims: Mapping[str, PreparedClaim]) -> CpuRefCounts:
    """The CPUs that these claims have, by exclusive policy."""
    counts = CpuRefCounts()
    for claim in claims.values():
        for group in claim.groups:
            counts = counts.adding(group.cpu_set.mask, group.exclusive)
    return counts
