"""What a node-local decision is made from: the rules of the node, and its containers that want CPUs
of their own."""

from __future__ import annotations

import enum

import msgspec

from agent.allocate.kubelet.options import StaticOptions
from agent.allocate.layout import Layout
from agent.model.cpuset import EMPTY, CpuSet


class LocalPolicy(enum.StrEnum):
    """`none`: nobody owns CPUs; `static`: who owns CPUs keeps them; `dynamic`: they may be replaced
    by better ones."""

    NONE = "none"
    STATIC = "static"
    DYNAMIC = "dynamic"


class LocalRules(msgspec.Struct, frozen=True):
    """What is fixed between two loads of the settings.

    `options`: for the caller to check (`agent.allocate.kubelet.options.check`). `reserved`: CPUs
    that no container gets as its own; they are shared unless `options.strict_cpu_reservation`.
    `max_moves`: how many containers a dynamic decision moves to better CPUs, at most.
    """

    policy: LocalPolicy
    layout: Layout
    options: StaticOptions = StaticOptions()
    reserved: CpuSet = EMPTY
    max_moves: int = 1


class Claim(msgspec.Struct, frozen=True):
    """A container of a Guaranteed pod that requests a whole number of CPUs, at least one.

    `created_at` orders the claims, the older first. `held`: the CPUs of its cgroup, or what it is
    about to start with; None: nothing yet. `owned`: its CPUs by the last decision, empty where it
    got none; None where no last decision is known, as after a restart. `original`: the
    `Answer.original` of that decision. `ended`: it runs no more (or not yet again) and its pod
    lives; a container that is gone with its pod is no claim.
    """

    uid: str
    name: str
    created_at: int
    cpus: int
    held: CpuSet | None = None
    owned: CpuSet | None = None
    original: CpuSet = EMPTY
    ended: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What answers are found by."""
        return self.uid, self.name


class Sharing(msgspec.Struct, frozen=True):
    """What is known of everybody else on the node.

    `unavailable`: CPUs that are neither owned by these claims nor shared: of scheduler-chosen
    pods, isolated, kept by the node. `users`: somebody runs on the shared CPUs, who is none of the
    claims: they are never all given away. `held`: all CPUs in the cgroups of such users.
    """

    unavailable: CpuSet = EMPTY
    users: bool = True
    held: CpuSet = EMPTY
