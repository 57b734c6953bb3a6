"""The parts of L3 caches and of memory bandwidth for the QoS classes and for single pods, as groups
of resctrl (Koordinator: pkg/koordlet/qosmanager/plugins/resctrl; pkg/koordlet/util/system,
resctrl.go; Linux: Documentation/filesystems/resctrl.rst).

The machine bounds what a group may have: fewest ways, smallest bandwidth, steps, and the number of
groups. A group gets at least its part, so koordlet's empty masks, which the kernel refuses, become
the fewest ways."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.model.node_slo import ResctrlQos
from agent.model.pod.qos import QoS

POD_PREFIX: Final = "koordlet-"
"""The names of the groups of pods begin as koordlet's, so that groups that it left are found and
kept."""
CLASS_GROUPS: Final[Mapping[QoS, str]] = {
    QoS.LSE: "LSR",
    QoS.LSR: "LSR",
    QoS.LS: "LS",
    QoS.BE: "BE",
}
"""Koordinator's names of the groups. Other pods are in the root group."""


class ResctrlError(ValueError):
    """A part that no group can have; the message names the fields."""


class CacheWays(msgspec.Struct, frozen=True):
    """The L3 caches of the machine."""

    domains: tuple[int, ...]
    """The ids of the caches."""
    mask: int
    """All ways: `cbm_mask`."""
    least_ways: int = 1
    """`min_cbm_bits`."""


class MemoryBandwidth(msgspec.Struct, frozen=True):
    """The memory bandwidth of the machine, in the units of its schemata: percent, or on AMD eighths
    of a GB/s."""

    domains: tuple[int, ...]
    """The ids of the L3 caches that it is limited behind."""
    unlimited: int = 100
    """The value of a group without a limit."""
    least: int = 10
    """`min_bandwidth`."""
    step: int = 10
    """`bandwidth_gran`."""
    whole: int | None = 100
    """What 100 percent stands for; None if that is not known, and no bandwidth can be limited."""


AMD_WHOLE: Final = 160
"""koordlet's assumption about every AMD processor: 20 GB/s behind each L3 cache."""


_WHOLE: Final = (0, 100)


class ResctrlMachine(msgspec.Struct, frozen=True):
    """What resctrl can do on a machine."""

    caches: Mapping[str, CacheWays] = {}
    """By the name in schemata: L3, or L3CODE and L3DATA where code and data have parts of their
    own."""
    bandwidth: MemoryBandwidth | None = None
    groups: int = 1
    """The most groups, with the root group: the smallest `num_closids`."""


class ResctrlParts(msgspec.Struct, frozen=True):
    """The parts of a group, in percent. What has no part is not limited."""

    cache: tuple[int, int] | None = None
    """Begin and end of the part of each cache."""
    caches: Mapping[int, tuple[int, int]] = {}
    """By the id of a cache, what it has instead."""
    bandwidth: int | None = None
    bandwidths: Mapping[int, int] = {}


class ResctrlPod(msgspec.Struct, frozen=True):
    uid: str
    title: str
    qos: QoS
    own: ResctrlParts | None = None
    """The parts that an annotation gives to the pod alone; None for those of its class."""


class ResctrlGroups(msgspec.Struct, frozen=True):
    """The groups that a machine should have."""

    schemata: Mapping[str, str] = {}
    """By group, as `text` gives them."""
    members: Mapping[str, str] = {}
    """By uid of a pod, its group. Other pods are in the root group."""
    faults: tuple[str, ...] = ()
    """Sentences about groups that can't be."""


def wanted(
    machine: ResctrlMachine,
    classes: Mapping[str, ResctrlQos],
    pods: Iterable[ResctrlPod],
    *,
    present: Collection[str] = (),
    others: int = 0,
) -> ResctrlGroups:
    """The groups of the classes that are enabled, and as many groups of single pods as the machine
    has room for: the groups that exist already come first. A pod without room is in the group of
    its class.

    `classes`: by group.
    `present`: the groups that exist.
    `others`: the number of groups that other programs have made."""
    schemata: dict[str, str] = {}
    members: dict[str, str] = {}
    faults: list[str] = []
    room = machine.groups - 1 - others

    def add(group: str, of: str, parts: ResctrlParts) -> None:
        if len(schemata) >= room:
            faults.append(
                f"{of} gets no group of resctrl: the machine has room for {max(0, room)}."
            )
            return
        try:
            schemata[group] = text(machine, parts)
        except ResctrlError as error:
            faults.append(f"{of} gets no group of resctrl: {error}.")
        else:
            faults.extend(f"{of} gets no {lack}." for lack in _lacks(machine, parts))

    for group, qos in sorted(classes.items()):
        if qos.enable:
            add(group, f"Class {group}", of_class(qos))
    by_age = sorted(pods, key=lambda pod: (f"{POD_PREFIX}{pod.uid}" not in present, pod.uid))
    for pod in by_age:
        group = f"{POD_PREFIX}{pod.uid}"
        if pod.own is not None:
            add(group, f"Pod {pod.title}", pod.own)
        if group not in schemata:
            group = CLASS_GROUPS.get(pod.qos, "")
        if group in schemata:
            members[pod.uid] = group
    return ResctrlGroups(schemata, members, tuple(faults))


def of_koordlet(names: Collection[str]) -> frozenset[str]:
    """The groups with these names that a koordlet has made: it makes those of all classes, wanted
    or not."""
    classes = frozenset(CLASS_GROUPS.values())
    of_classes = classes if classes <= frozenset(names) else frozenset()
    return of_classes | {name for name in names if name.startswith(POD_PREFIX)}


def of_class(qos: ResctrlQos) -> ResctrlParts:
    cache = qos.cat_range_start_percent, qos.cat_range_end_percent
    return ResctrlParts(cache, bandwidth=qos.mba_percent)


def text(machine: ResctrlMachine, parts: ResctrlParts) -> str:
    """The lines of `schemata` for a group with these parts, with spaces between them: every cache
    and domain of the machine, so that nothing is left of parts that it had before. Raises
    ResctrlError."""
    lines = []
    for name, ways in sorted(machine.caches.items()):
        masks = {}
        for domain in ways.domains:
            part = parts.caches.get(domain, parts.cache)
            masks[domain] = f"{ways.mask if part is None else cache_mask(ways, *part):x}"
        lines.append(_line(name, masks))
    bandwidth = machine.bandwidth
    if bandwidth is not None:
        values = {}
        for domain in bandwidth.domains:
            limit = bandwidth_limit(bandwidth, parts.bandwidths.get(domain, parts.bandwidth))
            values[domain] = str(bandwidth.unlimited if limit is None else limit)
        lines.append(_line("MB", values))
    return " ".join(lines)


def _lacks(machine: ResctrlMachine, parts: ResctrlParts) -> Iterator[str]:
    """What the parts name and the machine can't give."""
    domains = {domain for ways in machine.caches.values() for domain in ways.domains}
    if not domains and (parts.caches or parts.cache not in (None, _WHOLE)):
        yield "part of the L3 cache, which this machine can't divide"
    elif unknown := sorted(parts.caches.keys() - domains):
        yield f"part of the L3 cache {_numbers(unknown)}, which this machine does not have"
    bandwidth = machine.bandwidth
    limited = {*parts.bandwidths.values(), parts.bandwidth} - {None, 0, 100}
    if limited and (bandwidth is None or bandwidth.whole is None):
        yield "limit of memory bandwidth, which this machine does not have in percent"
    elif bandwidth and (unknown := sorted(parts.bandwidths.keys() - {*bandwidth.domains})):
        yield f"memory bandwidth of the cache {_numbers(unknown)}, which this machine does not have"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _line(name: str, values: Mapping[int, str]) -> str:
    return f"{name}:{';'.join(f'{domain}={value}' for domain, value in values.items())}"


def cache_mask(ways: CacheWays, begin_percent: int, end_percent: int) -> int:
    """The ways of a part, at least the fewest that the machine accepts. Raises ResctrlError."""
    number = ways.mask.bit_length()
    if not number or ways.mask != (1 << number) - 1:
        raise ResctrlError(f"the mask {ways.mask:x} of the machine is not an unbroken row of ways")
    if not 0 <= begin_percent < end_percent <= 100:
        raise ResctrlError(
            f"{begin_percent} to {end_percent} percent of the L3 cache is not a range of 0 to 100"
        )
    least = min(ways.least_ways, number)
    begin, end = (-(-number * percent // 100) for percent in (begin_percent, end_percent))
    end = min(number, max(end, begin + least))
    begin = min(begin, end - least)
    return (1 << end) - (1 << begin)


def bandwidth_limit(bandwidth: MemoryBandwidth, percent: int | None) -> int | None:
    """The value of a part, rounded up to a step of the machine; None for a part that is none."""
    if percent is None or bandwidth.whole is None or not 1 <= percent <= 100:
        return None
    if percent == 100:
        return bandwidth.unlimited
    amount = bandwidth.whole * percent // 100
    stepped = -(-amount // bandwidth.step) * bandwidth.step
    return min(max(stepped, bandwidth.least), bandwidth.unlimited)
