"""The values of a node-local decision: the rules of the node, the containers that claim CPUs of
their own, the owners during the decision, and its result by claim and by pod."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from agent.allocate.kubelet.static_policy import AllocationRefused, StaticOptions
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.layout import Layout
from agent.model.cpu.topology import HugePages
from agent.model.snapshot import LocalOwner


class LocalPolicy(enum.StrEnum):
    """How containers get CPUs of their own."""

    NONE = "none"
    """No container owns CPUs."""
    STATIC = "static"
    """Owners keep their CPUs."""
    DYNAMIC = "dynamic"
    """Better CPUs may replace them."""


class LocalRules(msgspec.Struct, frozen=True):
    """The rules, which change only when the settings are loaded again."""

    policy: LocalPolicy
    layout: Layout
    options: StaticOptions = StaticOptions()
    """Checked by the caller (`kubelet.static_policy.check_options`)."""
    reserved: CpuSet = EMPTY
    """CPUs that no container may own; they are shared unless `options.strict_cpu_reservation`."""
    max_moves: int = 1
    """The most containers that a dynamic decision moves to better CPUs."""


class LocalRequest(msgspec.Struct, frozen=True):
    """A container of a Guaranteed pod that requests a whole number of CPUs, at least one."""

    uid: str
    name: str
    created_at: int
    """Orders the claims, the older first."""
    cpus: int
    held: CpuSet | None = None
    """The CPUs of its cgroup, or those that it will start with; None while there are none yet."""
    owned: CpuSet | None = None
    """Its CPUs by the last decision, empty if it got none; None without a last decision, as after a
    restart."""
    original: CpuSet = EMPTY
    """The `LocalAllocation.original` of that decision."""
    ended: bool = False
    """The container does not run (or not yet again) and its pod exists; a container without a pod
    is not a claim."""
    devices: Mapping[int, int] = {}
    """By NUMA node, how many of the devices that the kubelet gave to it are near that node."""
    hugepages: Mapping[int, int] = {}
    """The requested bytes by page size."""

    @property
    def key(self) -> tuple[str, str]:
        """Pod uid and container name."""
        return self.uid, self.name


class Sharing(msgspec.Struct, frozen=True):
    """All other containers of the node."""

    unavailable: CpuSet = EMPTY
    """CPUs that these claims can't own and that are not shared: owned by other pods, isolated, or
    reserved for the node."""
    users: bool = True
    """Containers without a claim run on the shared CPUs, so some CPUs must stay shared."""
    held: CpuSet = EMPTY
    """All CPUs in the cgroups of such containers."""
    hugepages: Mapping[int, tuple[HugePages, ...]] = {}
    """By NUMA node."""


class LocalAllocation(msgspec.Struct, frozen=True):
    """The answer to a claim. The CPUs of an ended container stay with its pod, whose other
    containers may get them too."""

    cpus: CpuSet = EMPTY
    """The container's own CPUs, empty if it shares."""
    original: CpuSet = EMPTY
    """The part of `cpus` that it had before its resize."""
    refused: AllocationRefused | None = None
    """Why it has no CPUs, or too few; None if it has them, or has ended."""


class MoveReason(enum.StrEnum):
    """Why the CPUs of a container change."""

    SHRINK = "it requests fewer CPUs"
    WIDEN = "it requests more CPUs"
    REPLACE = "some of its CPUs became unavailable"
    DEFRAGMENT = "better CPUs are free"
    MAKE_ROOM = "it makes room for another container"


class Move(msgspec.Struct, frozen=True):
    """A change of an owner's CPUs. No CPU of its target is in the source of another owner, so moves
    may be made in any order, also together with the answers to new containers."""

    uid: str
    name: str
    source: CpuSet
    target: CpuSet
    reason: MoveReason


class Alignment(msgspec.Struct, frozen=True):
    """The CPUs of a new owner that has devices or requests huge pages, and the NUMA nodes of all
    three."""

    uid: str
    name: str
    cpus: CpuSet
    nodes: CpuSet
    """The NUMA nodes of its CPUs."""
    devices: CpuSet
    """The NUMA nodes of its devices."""
    hugepages: CpuSet | None = None
    """The NUMA nodes with enough free huge pages for it, None if it requests none."""

    @property
    def text(self) -> str:
        """For the log."""
        wanted = [f"its devices are on {self.devices}"] if self.devices else []
        if self.hugepages is not None:
            wanted.append(f"enough free huge pages are on {self.hugepages or 'none'}")
        return f"CPUs {self.cpus} on NUMA nodes {self.nodes}: {', '.join(wanted)}"


class LocalDecision(msgspec.Struct, frozen=True):
    """A decision about all claims."""

    answers: dict[tuple[str, str], LocalAllocation]
    """One for each claim, by pod uid and container name (none under policy `none`)."""
    pool: CpuSet
    """The shared CPUs."""
    moves: tuple[Move, ...] = ()
    again: bool = False
    """After this decision is applied, another one may be better."""
    alignments: tuple[Alignment, ...] = ()


class LocalInput(msgspec.Struct, frozen=True):
    """The input of a node-local decision."""

    rules: LocalRules
    claims: tuple[LocalRequest, ...]
    held: CpuSet = EMPTY
    """The CPUs in the cgroups of all containers without a claim."""
    sharing: frozenset[tuple[str, str]] = frozenset()
    """Pod uid and name of containers that qualify for CPUs of their own and can't get any."""
    hugepages: Mapping[int, tuple[HugePages, ...]] = {}
    """By NUMA node."""


class Share(msgspec.Struct, frozen=True):
    """What a pod gets."""

    cpus: Mapping[str, CpuSet] = {}
    """The CPUs of its containers by name."""
    blocked: Mapping[str, str] = {}
    """Why a container must not be created now, by name; empty for one that only shares."""
    all: CpuSet = EMPTY
    """The CPUs on which no other pod may run, also those that ended containers keep for the pod."""


class LocalOutcome(msgspec.Struct, frozen=True):
    """The results of all pods with claims."""

    by_uid: Mapping[str, Share]
    pool: CpuSet
    """The shared CPUs."""
    owners: tuple[LocalOwner, ...] = ()
    """The input of the next decision, also those without CPUs."""
    moves: tuple[Move, ...] = ()
    again: bool = False
    """After this is applied, another decision may be better."""
    alignments: tuple[Alignment, ...] = ()


class OwnedCpus:
    """The CPUs of the owners during a decision, as masks. CPUs of ended containers stay with their
    pod.

    `shared`: all CPUs that are owned or shared."""

    def __init__(self, assignable: int, shared: int) -> None:
        self.withheld = 0
        """CPUs on which a container still runs and which it is about to leave; no other container
        gets them in this decision."""
        self.assignable = assignable
        """CPUs that may be owned."""
        self._shared = shared
        self._own: dict[tuple[str, str], int] = {}
        self._live = 0
        self._live_by_pod: dict[str, int] = {}
        self._ended = 0
        self._ended_by_pod: dict[str, int] = {}

    def own(self, claim: LocalRequest) -> int:
        """The CPUs that the claim owns, 0 for none."""
        return self._own.get(claim.key, 0)

    def assign(self, claim: LocalRequest, cpus: int) -> None:
        """Makes these the CPUs that the claim owns."""
        before = self._own.get(claim.key, 0)
        self._own[claim.key] = cpus
        uid = claim.uid
        if claim.ended:
            self._ended |= cpus
            self._ended_by_pod[uid] = self._ended_by_pod.get(uid, 0) | cpus
        else:
            self._live = self._live & ~before | cpus
            self._live_by_pod[uid] = self._live_by_pod.get(uid, 0) & ~before | cpus

    def untaken(self, claim: LocalRequest) -> int:
        """All assignable CPUs, except those of containers that may not share CPUs with the claim's
        container."""
        live = self._live & ~self._live_by_pod.get(claim.uid, 0) if claim.ended else self._live
        return self.assignable & ~live & ~self.ended_of_others(claim.uid)

    def free(self, claim: LocalRequest) -> int:
        """The CPUs that the claim may get in addition to its own."""
        taken = self._live | self.ended_of_others(claim.uid) | self.withheld
        return self.assignable & ~taken

    def reusable(self, claim: LocalRequest) -> int:
        """The CPUs of ended containers of the claim's pod."""
        return self.free(claim) & self._ended_by_pod.get(claim.uid, 0)

    @property
    def pool(self) -> int:
        return self._shared & ~(self._live | self._ended)

    def empties(self, *changes: tuple[LocalRequest, int]) -> bool:
        """Whether the shared pool would be empty if these claims owned these CPUs instead."""
        live = self._live
        for claim, _ in changes:
            live &= ~self.own(claim)
        for _, cpus in changes:
            live |= cpus
        return bool(self.pool) and not self._shared & ~(live | self._ended)

    def ended_of_others(self, uid: str) -> int:
        """The CPUs that ended containers keep for other pods."""
        return self._ended & ~self._ended_by_pod.get(uid, 0)


class Occupancy:
    """The CPUs in cgroups, and which of them more than one running container has."""

    def __init__(self, claims: Sequence[LocalRequest], sharing: int) -> None:
        self._by_pod: dict[str, int] = {}
        self._any = sharing
        self._many = 0
        self._shared = sharing
        for claim in claims:
            if not claim.ended and claim.held:
                mask = claim.held.mask
                self._many |= self._any & mask
                self._any |= mask
                self._by_pod[claim.uid] = self._by_pod.get(claim.uid, 0) | mask

    def alone(self, claim: LocalRequest) -> bool:
        """Whether no other container runs on the claim's CPUs. For an ended container, others of
        its pod do not count."""
        held = (claim.held or EMPTY).mask
        others = self._many | self._shared
        if claim.ended:
            others |= self._any & ~self._by_pod.get(claim.uid, 0)
        return not held & others
