"""Who disturbs a pod: who took its CPU time, presses on its memory and disks, or shares its cores
and graphics cards; in sentences and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from agent.usage.contention import CoreSharing, CpuWait, Party, PartyKind
from agent.usage.pressure import MEMORY, CacheUse, Pressure, SharedCard
from agent.view import disturbers
from agent.view.disturbers import DisturbedOwner
from agent.view.format import printable, printable_json

SCHEMA_VERSION: Final = 1
"""The version of the JSON output."""
_MOST_TAKERS: Final = 3
_PREFIX: Final = {
    PartyKind.KERNEL_THREAD: "kernel thread ",
    PartyKind.INTERRUPTS: "interrupts of ",
}


class ShownTaker(msgspec.Struct, frozen=True):
    """Somebody who took CPU time."""

    kind: str
    name: str
    qos: str
    milliseconds: int
    """Of each second, as all times here."""


class ShownAmount(msgspec.Struct, frozen=True):
    """Somebody with bytes a second, or bytes above what he requests."""

    kind: str
    name: str
    qos: str
    bytes: int


class ShownPressure(msgspec.Struct, frozen=True):
    """A pod that is stalled for memory or disks."""

    resource: str
    stalled_milliseconds: int
    """0 where the kernel does not say it (PSI)."""
    faults: int
    """Accesses to memory that waited for a disk, in a second."""
    takers: tuple[ShownAmount, ...]
    above: tuple[ShownAmount, ...]


class ShownSharing(msgspec.Struct, frozen=True):
    """A pod that shares its cores."""

    siblings: str
    shared_milliseconds: int
    sharers: tuple[ShownTaker, ...]


class ShownWait(msgspec.Struct, frozen=True):
    """The wait of a pod."""

    pod: str
    seconds: float
    """How long it was observed."""
    cpus: str
    waited_milliseconds: int
    """The sum of the parts."""
    throttled_milliseconds: int
    own_milliseconds: int
    usual_milliseconds: int | None
    """The 95th percentile of its waits in the last hour; None if that is not known."""
    takers: tuple[ShownTaker, ...]


class Disturbance(msgspec.Struct, frozen=True):
    """All that disturbs a pod."""

    cpu: ShownWait
    pressures: tuple[ShownPressure, ...] = ()
    cores: ShownSharing | None = None
    """None if it shares none for long."""
    cards: tuple[SharedCard, ...] = ()
    caches: tuple[CacheUse, ...] = ()
    """Of the whole machine: which pods are in a group of resctrl is not known here."""
    own_cpus: DisturbedOwner | None = None
    """What disturbs it on the CPUs that it owns; None if it owns none, or nobody looked."""
    schema_version: int = SCHEMA_VERSION


def shown(wait: CpuWait, seconds: float, usual: float | None = None) -> ShownWait:
    """The wait in whole milliseconds.

    `seconds`: how long it was observed.
    `usual`: the 95th percentile of the pod's waits; None if it is not known."""
    takers = _takers(wait.takers)
    throttled, own = _milliseconds(wait.throttled), _milliseconds(wait.own)
    return ShownWait(
        wait.pod.name,
        round(seconds, 3),
        str(wait.cpus),
        throttled + own + sum(taker.milliseconds for taker in takers),
        throttled,
        own,
        None if usual is None else _milliseconds(usual),
        takers,
    )


def sentence(wait: ShownWait) -> str:
    """The wait and its parts, the largest first."""
    if not wait.waited_milliseconds:
        return f"{wait.pod} did not wait for CPUs{f' {wait.cpus}' if wait.cpus else ''}"
    parts = [(taker.milliseconds, _who(taker)) for taker in wait.takers[:_MOST_TAKERS]]
    parts += [
        (wait.throttled_milliseconds, "its own quota"),
        (wait.own_milliseconds, "its own threads"),
    ]
    parts.sort(key=lambda part: -part[0])
    rest = sum(taker.milliseconds for taker in wait.takers[_MOST_TAKERS:])
    texts = [f"{milliseconds} ms {who}" for milliseconds, who in parts if milliseconds]
    texts += [f"{rest} ms others"] if rest else []
    usual = ""
    if wait.usual_milliseconds is not None:
        usual = f" (usually {wait.usual_milliseconds})"
    return printable(
        f"{wait.pod} waited {wait.waited_milliseconds} ms of each second{usual} for CPUs "
        f"{wait.cpus}: {', '.join(texts)}"
    )


def shown_pressure(pressure: Pressure) -> ShownPressure:
    return ShownPressure(
        pressure.resource,
        _milliseconds(pressure.stalled),
        round(pressure.faults),
        _amounts(pressure.takers),
        _amounts(pressure.above),
    )


def shown_sharing(sharing: CoreSharing) -> ShownSharing:
    sharers = _takers(sharing.sharers)
    return ShownSharing(str(sharing.siblings), _milliseconds(sharing.shared), sharers)


def sentences(of: Disturbance, *, also_without_wait: bool = True) -> list[str]:
    """One for each kind of disturbance.

    `also_without_wait`: also if it did not wait for CPUs."""
    lines = [sentence(of.cpu)] if also_without_wait or of.cpu.waited_milliseconds else []
    pod = of.cpu.pod
    lines += [_about_pressure(pod, pressure) for pressure in of.pressures]
    if of.cores is not None:
        lines.append(
            f"{pod} shares its cores: while it ran, others ran "
            f"{of.cores.shared_milliseconds} ms of each second on the sibling CPUs "
            f"{of.cores.siblings}: {_listed(map(_part, of.cores.sharers))}"
        )
    lines += [_about_card(card) for card in of.cards]
    if lines and of.caches:
        lines.append(f"on this machine {_listed(map(_about_cache, of.caches))}")
    return [printable(line) for line in lines]


def as_text(of: Disturbance) -> str:
    own = () if of.own_cpus is None else disturbers.lines(of.own_cpus)
    return "".join(f"{line}\n" for line in (*sentences(of), *own))


def as_json(of: Disturbance) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(of)).decode()) + "\n"


def _about_pressure(pod: str, pressure: ShownPressure) -> str:
    what = "memory" if pressure.resource == MEMORY else "disks"
    stalled = f"was stalled {pressure.stalled_milliseconds} ms of each second for {what}"
    if not pressure.stalled_milliseconds:
        stalled = f"had to read memory from disks {pressure.faults} times a second"
    verb = "grew by" if pressure.resource == MEMORY else "moved"
    takers = (f"{_self(pod, taker)} {verb} {_megabytes(taker)}/s" for taker in pressure.takers)
    above = (
        f"{_self(pod, taker)} is {_megabytes(taker)} above its request" for taker in pressure.above
    )
    nobody = "nobody grew" if pressure.resource == MEMORY else "nobody used them much"
    parts = ", ".join(filter(None, (_listed(takers), _listed(above))))
    return f"{pod} {stalled}: {parts or nobody}"


def _about_card(card: SharedCard) -> str:
    others = (
        f"{other or 'processes outside of pods'}{'' if percent is None else f' ({percent} %)'}"
        for other, percent in card.others
    )
    return (
        f"{card.pod} shares GPU {card.uuid}, which is {card.busy_percent} % busy, with "
        f"{_listed(others)}"
    )


def _about_cache(use: CacheUse) -> str:
    held = f" and holds {use.held_bytes / (1 << 20):.0f} MiB of it" if use.held_bytes else ""
    return (
        f"resctrl group {use.group} moves {use.memory_bytes / (1 << 20):.0f} MiB/s through L3 "
        f"cache {use.cache_id}{held}"
    )


def _listed(parts: Iterable[str]) -> str:
    """The first ones, and the number of the others."""
    texts = list(parts)
    more = [f"{len(texts) - _MOST_TAKERS} more"] if len(texts) > _MOST_TAKERS else []
    return ", ".join([*texts[:_MOST_TAKERS], *more])


def _part(taker: ShownTaker) -> str:
    return f"{taker.milliseconds} ms {_who(taker)}"


def _self(pod: str, taker: ShownAmount) -> str:
    return "the pod itself" if taker.name == pod else _who(taker)


def _megabytes(taker: ShownAmount) -> str:
    return f"{taker.bytes / (1 << 20):.0f} MiB"


def _takers(parties: Iterable[tuple[Party, float]]) -> tuple[ShownTaker, ...]:
    return tuple(
        ShownTaker(party.kind.value, _name(party), party.qos, milliseconds)
        for party, seconds in parties
        if (milliseconds := _milliseconds(seconds))
    )


def _amounts(parties: Iterable[tuple[Party, float]]) -> tuple[ShownAmount, ...]:
    return tuple(
        ShownAmount(party.kind.value, _name(party), party.qos, round(amount))
        for party, amount in parties
    )


def _who(taker: ShownTaker | ShownAmount) -> str:
    prefix = _PREFIX.get(PartyKind(taker.kind), "")
    return f"{prefix}{taker.name}{f' ({taker.qos})' if taker.qos else ''}"


def _name(party: Party) -> str:
    return printable(party.name)


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
