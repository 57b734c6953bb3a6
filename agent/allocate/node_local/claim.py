"""The values of a node-local decision: the rules of the node, the containers that claim CPUs of
their own, the owners during the decision, and its result by claim and by pod."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from agent.allocate.kubelet.static_policy import AllocationRefused, StaticOptions
from agent.allocate.layout import Layout
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import HugePages
from agent.model.snapshot import LocalOwner


class LocalPolicy(enum.StrEnum):
    """`none`: no container owns CPUs; `static`: owners keep their CPUs; `dynamic`: better CPUs may
    replace them."""

    NONE = "none"
    STATIC = "static"
    DYNAMIC = "dynamic"


class LocalRules(msgspec.Struct, frozen=True):
    """The rules, which change only when the settings are loaded again.

    `options`: checked by the caller (`kubelet.static_policy.check_options`). `reserved`: CPUs that
    no container may own; they are shared unless `options.strict_cpu_reservation`. `max_moves`: the
    most containers that a dynamic decision moves to better CPUs.
    """

    policy: LocalPolicy
    layout: Layout
    options: StaticOptions = StaticOptions()
    reserved: CpuSet = EMPTY
    max_moves: int = 1


class LocalRequest(msgspec.Struct, frozen=True):
    """A container of a Guaranteed pod that requests a whole number of CPUs, at least one.
    `created_at` orders the claims, the older first. `held`: the CPUs of its cgroup, or those that
    it will start with; None: none yet. `owned`: its CPUs by the last decision, empty if it got
    none; None without a last decision, as after a restart. `original`: `LocalAllocation.original`
    of that decision. `ended`: the container does not run (or not yet again) and its pod exists; a
    container without a pod is not a claim. `devices`: by NUMA node, how many of the devices that
    the kubelet gave to it are near that node. `hugepages`: by page size, the requested bytes."""

    uid: str
    name: str
    created_at: int
    cpus: int
    held: CpuSet | None = None
    owned: CpuSet | None = None
    original: CpuSet = EMPTY
    ended: bool = False
    devices: Mapping[int, int] = {}
    hugepages: Mapping[int, int] = {}

    @property
    def key(self) -> tuple[str, str]:
        """Pod uid and container name."""
        return self.uid, self.name


class Sharing(msgspec.Struct, frozen=True):
    """All other containers of the node. `unavailable`: CPUs that these claims can't own and that
    are not shared: owned by other pods, isolated, or reserved for the node. `users`: containers
    without a claim run on the shared CPUs, so some CPUs must stay shared. `held`: all CPUs in the
    cgroups of such containers. `hugepages`: by NUMA node."""

    unavailable: CpuSet = EMPTY
    users: bool = True
    held: CpuSet = EMPTY
    hugepages: Mapping[int, tuple[HugePages, ...]] = {}


class LocalAllocation(msgspec.Struct, frozen=True):
    """`cpus`: the container's own CPUs, empty if it shares. The CPUs of an ended container stay
    with its pod, whose other containers may get them too. `original`: those of `cpus` that it had
    before its resize. `refused`: why it has no CPUs, or too few; None: it has them, or it ended."""

    cpus: CpuSet = EMPTY
    original: CpuSet = EMPTY
    refused: AllocationRefused | None = None


class MoveReason(enum.StrEnum):
    """Why the CPUs of a container change."""

    SHRINK = "it requests fewer CPUs"
    WIDEN = "it requests more CPUs"
    REPLACE = "some of its CPUs became unavailable"
    DEFRAGMENT = "better CPUs are free"
    MAKE_ROOM = "it makes room for another container"


class Move(msgspec.Struct, frozen=True):
    """A change of an owner's CPUs. No CPU of `target` is in the `source` of another owner, so moves
    may be made in any order, also together with the answers to new containers."""

    uid: str
    name: str
    source: CpuSet
    target: CpuSet
    reason: MoveReason


class Alignment(msgspec.Struct, frozen=True):
    """The CPUs of a new owner that has devices or requests huge pages, as NUMA nodes: `nodes` have
    its CPUs, `devices` its devices, `hugepages` enough free huge pages for it; None: it requests
    none."""

    uid: str
    name: str
    cpus: CpuSet
    nodes: CpuSet
    devices: CpuSet
    hugepages: CpuSet | None = None

    @property
    def text(self) -> str:
        """For the log."""
        wanted = [f"its devices are on {self.devices}"] if self.devices else []
        if self.hugepages is not None:
            wanted.append(f"enough free huge pages are on {self.hugepages or 'none'}")
        return f"CPUs {self.cpus} on NUMA nodes {self.nodes}: {', '.join(wanted)}"


class LocalDecision(msgspec.Struct, frozen=True):
    """`answers`: one for each claim, by pod uid and container name (none under policy `none`).
    `pool`: the shared CPUs. `again`: after this decision is applied, another one may be better."""

    answers: dict[tuple[str, str], LocalAllocation]
    pool: CpuSet
    moves: tuple[Move, ...] = ()
    again: bool = False
    alignments: tuple[Alignment, ...] = ()


class LocalInput(msgspec.Struct, frozen=True):
    """The input of a node-local decision. `held`: the CPUs in the cgroups of all containers without
    a claim. `sharing`: pod uid and name of containers that qualify for CPUs of their own and can't
    get any. `hugepages`: as in Sharing."""

    rules: LocalRules
    claims: tuple[LocalRequest, ...]
    held: CpuSet = EMPTY
    sharing: frozenset[tuple[str, str]] = frozenset()
    hugepages: Mapping[int, tuple[HugePages, ...]] = {}


class Share(msgspec.Struct, frozen=True):
    """The result of a pod. `cpus`: the CPUs of its containers by name. `blocked`: by name, why a
    container must not be created now, "" for one that only shares. `all`: the CPUs on which no
    other pod may run, also those that ended containers keep for the pod."""

    cpus: Mapping[str, CpuSet] = {}
    blocked: Mapping[str, str] = {}
    all: CpuSet = EMPTY


class LocalOutcome(msgspec.Struct, frozen=True):
    """`by_uid`: the results of pods with claims. `pool`: the shared CPUs. `owners`: the input of
    the next decision, also those without CPUs. `again`: after this is applied, another decision may
    be better."""

    by_uid: Mapping[str, Share]
    pool: CpuSet
    owners: tuple[LocalOwner, ...] = ()
    moves: tuple[Move, ...] = ()
    again: bool = False
    alignments: tuple[Alignment, ...] = ()


class OwnedCpus:
    """The CPUs of the owners during a decision, as masks. `assignable`: CPUs that may be owned;
    `shared`: all CPUs that are owned or shared. CPUs of ended containers stay with their pod.
    `withheld`: CPUs on which a container still runs and which it is about to leave; no other
    container gets them in this decision."""

    def __init__(self, assignable: int, shared: int) -> None:
        self.withheld = 0
        self.assignable = assignable
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
        """The shared CPUs."""
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
