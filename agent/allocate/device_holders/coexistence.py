"""Which two containers may hold one device at the same time, by one table of the forms in which
they hold it.

The resource names do not matter: a card that is held as nvidia.com/gpu conflicts with the same card
as koordinator.sh/gpu.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Final

import msgspec

from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource


class Rule(enum.StrEnum):
    KEPT = "kept"
    REFUSED = "refused"
    OTHER_PART = "kept with another part"
    OTHER_REPLICA = "kept with another replica of the same resource"
    FITTING = "kept while all shares fit together"
    OTHER_CPUS = "kept with other CPUs"


TABLE: Final[Mapping[frozenset[Form], Rule]] = {
    frozenset({Form.WHOLE}): Rule.REFUSED,
    frozenset({Form.WHOLE, Form.SHARE}): Rule.REFUSED,
    frozenset({Form.WHOLE, Form.REPLICA}): Rule.REFUSED,
    frozenset({Form.WHOLE, Form.INSTANCE}): Rule.REFUSED,
    frozenset({Form.WHOLE, Form.FUNCTION}): Rule.REFUSED,
    frozenset({Form.SHARE}): Rule.FITTING,
    # Time-slicing and MIG guarantee nothing that could be combined with a percentage.
    frozenset({Form.SHARE, Form.REPLICA}): Rule.REFUSED,
    frozenset({Form.SHARE, Form.INSTANCE}): Rule.REFUSED,
    # A scheduler divides the physical function; virtual functions are counted separately.
    frozenset({Form.SHARE, Form.FUNCTION}): Rule.KEPT,
    frozenset({Form.REPLICA}): Rule.OTHER_REPLICA,
    frozenset({Form.REPLICA, Form.INSTANCE}): Rule.REFUSED,
    frozenset({Form.REPLICA, Form.FUNCTION}): Rule.REFUSED,
    frozenset({Form.INSTANCE}): Rule.OTHER_PART,
    frozenset({Form.INSTANCE, Form.FUNCTION}): Rule.REFUSED,
    frozenset({Form.FUNCTION}): Rule.OTHER_PART,
    **{frozenset({Form.OPEN, form}): Rule.KEPT for form in Form},
    # CPUs take nothing of a device, and no owner and no shared pool has them (allocate.pools).
    **{frozenset({Form.CPUS, form}): Rule.KEPT for form in Form},
    frozenset({Form.CPUS}): Rule.OTHER_CPUS,
}
"""The rule for two holders, by the form in which each holds the device. One pod may hold a device
by two names, and two pods may hold one by the same claim."""

_ORDER: Final = {source: place for place, source in enumerate(HoldingSource)}


class Conflict(msgspec.Struct, frozen=True):
    """Two holdings of a device that exclude each other."""

    kept: DeviceHolding
    refused: DeviceHolding
    rule: Rule


def conflicts(
    holdings: Iterable[DeviceHolding], capacities: Mapping[tuple[str, str], Mapping[str, int]]
) -> tuple[Conflict, ...]:
    """The conflicts between two holdings of a device. The one from the less reliable source is
    refused, of equal sources the later one in the given order. If shares exceed the device, the
    last ones are refused.

    `capacities`: by type and id of the device; a resource without an entry has no limit."""
    by_device: dict[tuple[str, str], list[DeviceHolding]] = {}
    for holding in holdings:
        if holding.device or holding.form is Form.CPUS:
            by_device.setdefault((holding.type, holding.device), []).append(holding)
    refusals = []
    for device, held in sorted(by_device.items()):
        held.sort(key=lambda holding: _ORDER[holding.source])
        capacity = capacities.get(device, {})
        for one, other in combinations(held, 2):
            rule = _rule(one, other)
            if (
                rule is not Rule.FITTING
                and not _same_pod_or_claim(one, other)
                and not _allowed(rule, one, other)
            ):
                refusals.append(Conflict(one, other, rule))
        refusals += _overfull(held, capacity)
    return tuple(refusals)


def _same_pod_or_claim(one: DeviceHolding, other: DeviceHolding) -> bool:
    return one.uid == other.uid or one.claim == other.claim != ""


def _rule(one: DeviceHolding, other: DeviceHolding) -> Rule:
    return TABLE[frozenset({one.form, other.form})]


def _allowed(rule: Rule, one: DeviceHolding, other: DeviceHolding) -> bool:
    if rule is Rule.OTHER_PART:
        return _differ(one.part, other.part)
    if rule is Rule.OTHER_REPLICA:
        return one.resource == other.resource and one.part != other.part
    if rule is Rule.OTHER_CPUS:
        return not CpuSet.parse(one.part) & CpuSet.parse(other.part)
    return rule is Rule.KEPT


def _differ(one: str, other: str) -> bool:
    """Whether they are different parts, or different replicas of one part."""
    (part, _, replica), (other_part, _, other_replica) = one.partition("::"), other.partition("::")
    return part != other_part or bool(replica and other_replica and replica != other_replica)


def _fits(shares: Iterable[DeviceHolding], capacity: Mapping[str, int]) -> bool:
    sums: dict[str, int] = {}
    for share in shares:
        for resource, amount in share.amounts.items():
            sums[resource] = sums.get(resource, 0) + amount
    return all(amount <= capacity.get(resource, amount) for resource, amount in sums.items())


def _overfull(held: list[DeviceHolding], capacity: Mapping[str, int]) -> list[Conflict]:
    """The conflict of each share that does not fit together with those before it."""
    kept: list[DeviceHolding] = []
    refusals = []
    for share in held:
        if share.form is Form.SHARE:
            if kept and not _fits((*kept, share), capacity):
                refusals.append(Conflict(kept[0], share, Rule.FITTING))
            else:
                kept.append(share)
    return refusals
