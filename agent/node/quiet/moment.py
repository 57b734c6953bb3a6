"""What the features of quiet CPUs decide by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import msgspec

from agent.allocate.cpu_claims import ClaimRefusal, RefusalCause, claim_refusal
from agent.allocate.pools import Decision
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.pod.pods import Pod
from agent.model.pod.quiet import QuietWishes, quiet_wishes


class QuietOwner(msgspec.Struct, frozen=True):
    """A pod that owns CPUs and asks for at least one feature."""

    uid: str
    title: str
    cpus: CpuSet
    wishes: QuietWishes
    alone: bool
    """Whether no other pod runs on its CPUs: BE pods do on those of LSR pods."""
    pod: Pod
    containers: Mapping[str, CpuSet]
    """The CPUs of each of its containers that runs on CPUs of its own alone, by name: mixed ones
    are not here."""


class QuietMoment(msgspec.Struct, frozen=True, dict=True):
    """The owners and the machine of one second.

    `pods`: are all pods that the agent manages.
    `decision`: is that of the last pass; None for the moment of a feature that is off.
    `chain`: has the CPUs that a chain of partitions takes from the host; empty without one."""

    owners: tuple[QuietOwner, ...] = ()
    topology: Topology | None = None
    decision: Decision | None = None
    pods: tuple[Pod, ...] = ()
    chain: CpuSet = EMPTY

    def asking(self, feature: str) -> Iterator[QuietOwner]:
        """The owners that ask for a feature."""
        return (owner for owner in self.owners if feature in owner.wishes.features)

    def quiet(self, feature: str) -> CpuSet:
        """The CPUs of the owners that ask for a feature."""
        return union(owner.cpus for owner in self.asking(feature))

    @cached_property
    def unowned(self) -> CpuSet:
        """The online CPUs that no pod owns."""
        if self.topology is None or self.decision is None:
            return EMPTY
        return self.topology.online - union(owner.cpus for owner in self.decision.owners)

    def left(self, feature: str) -> CpuSet:
        """Where what disturbs these owners goes: the CPUs that nobody owns, if there are some
        without those that the kernel isolates, else those of owners that do not ask for the
        feature; empty if there are none."""
        if self.topology is None:
            return EMPTY
        unowned = self.unowned
        not_asking = self.topology.online - self.quiet(feature)
        return unowned - self.topology.isolated or unowned or not_asking


def quiet_owners(
    pods: Iterable[Pod], decision: Decision, default: frozenset[str]
) -> tuple[tuple[QuietOwner, ...], tuple[ClaimRefusal, ...]]:
    """The owners that ask for something, and the annotations of owners that can't be read.

    `default`: has the features of an owner that does not ask."""
    by_uid = {pod.uid: pod for pod in pods}
    owners = []
    refusals: list[ClaimRefusal] = []
    for owner in decision.owners:
        for uid in (owner.uid, *owner.sharers):
            pod = by_uid.get(uid)
            if pod is None:
                continue
            wishes, errors = quiet_wishes(pod.annotations, default)
            invalid = RefusalCause.INVALID
            refusals += (claim_refusal(pod, invalid, error.reason, error.key) for error in errors)
            if wishes.features:
                wanted = decision.pods.get(uid)
                containers = {
                    each.name: of.own
                    for each in pod.containers
                    if wanted is not None
                    and (of := wanted.of(each.name)).exclusive
                    and of.shared is None
                }
                alone = not owner.cpus & decision.be_pool
                owners.append(
                    QuietOwner(uid, pod.title, owner.cpus, wishes, alone, pod, containers)
                )
    return tuple(owners), tuple(refusals)
