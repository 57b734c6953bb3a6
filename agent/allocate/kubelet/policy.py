"""A static policy: what is fixed on a node, and the state it starts from (peers.md §3.1)."""

from __future__ import annotations

import msgspec

from agent.allocate.kubelet import options as option_rules
from agent.allocate.kubelet.options import StartError, StartProblem, StaticOptions
from agent.allocate.kubelet.packed import NotEnoughCpusError
from agent.allocate.kubelet.state import StaticState
from agent.allocate.kubelet.take import take
from agent.allocate.layout import Layout
from agent.model.policies import NumaPolicy


class StaticPolicy(msgspec.Struct, frozen=True):
    """What is fixed while the policy runs. `reserved`: CPUs that no container gets as its own;
    `reserved_cores`: with the siblings of those."""

    layout: Layout
    options: StaticOptions
    reserved: int
    reserved_cores: int

    @property
    def all_cpus(self) -> int:
        """What the default set and the assignments are made of."""
        kept = self.reserved if self.options.strict_cpu_reservation else 0
        return self.layout.cpus & ~kept

    def available(self, state: StaticState) -> int:
        return state.default & ~self.reserved


def make(
    layout: Layout, options: StaticOptions, topology_policy: NumaPolicy, reserved: int
) -> StaticPolicy:
    """A policy with these CPUs reserved. Raises StartError."""
    option_rules.check(options, layout, topology_policy)
    if unknown := reserved & ~layout.cpus:
        raise StartError(StartProblem.RESERVED_UNKNOWN, cpus=unknown)
    return StaticPolicy(layout, options, reserved, layout.expand(layout.touched(reserved)))


def make_with_count(
    layout: Layout, options: StaticOptions, topology_policy: NumaPolicy, count: int
) -> StaticPolicy:
    """A policy that chooses the CPUs to reserve as it chooses others. Raises StartError."""
    option_rules.check(options, layout, topology_policy)
    try:
        reserved = take(layout, layout.cpus, count, options)
    except NotEnoughCpusError as error:
        raise StartError(StartProblem.RESERVED_TOO_MANY, subject=f"{count} CPUs") from error
    return make(layout, options, topology_policy, reserved)


def start(policy: StaticPolicy, found: StaticState) -> StaticState:
    """The state to go on from; `found` is the one that was stored, or EMPTY. Raises StartError."""
    everything = policy.all_cpus
    if not found.default:
        if any(found.assigned.values()):
            raise StartError(StartProblem.DEFAULT_EMPTY)
        return StaticState(everything)
    reserved_shared = found.default & policy.reserved
    if policy.options.strict_cpu_reservation:
        if reserved_shared:
            raise StartError(StartProblem.RESERVED_SHARED, cpus=reserved_shared)
    elif reserved_shared != policy.reserved:
        raise StartError(StartProblem.RESERVED_NOT_SHARED, cpus=policy.reserved & ~found.default)
    known = found.default
    for uid, containers in found.assigned.items():
        mine = 0
        for name, cpus in containers.items():
            subject = f"{uid}/{name}"
            if both := found.default & cpus:
                raise StartError(StartProblem.ASSIGNED_AND_SHARED, cpus=both, subject=subject)
            if twice := known & cpus:
                raise StartError(StartProblem.ASSIGNED_TWICE, cpus=twice, subject=subject)
            mine |= cpus
        known |= mine
    if known != everything:
        raise StartError(StartProblem.OTHER_CPUS, cpus=known ^ everything)
    return StaticState(found.default, found.assigned)
