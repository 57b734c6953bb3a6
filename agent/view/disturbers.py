"""What still disturbs the owners of CPUs, and what would take it away; in lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from agent.model.settings.feature_modes import FeatureMode
from agent.usage.contention import PartyKind
from agent.usage.disturbers import Disturber, DisturberKind, Disturbers, Remedy
from agent.view import quiet as quiet_view
from agent.view.features import ShownFeature
from agent.view.format import count, printable
from agent.view.quiet import ShownQuiet

_MICROSECONDS: Final = 1_000_000
_MILLISECOND: Final = 1000
_FEW: Final = 10


class ShownDisturber(msgspec.Struct, frozen=True):
    """Something that ran on the CPUs of an owner, or interrupted them."""

    kind: DisturberKind
    name: str
    remedy: Remedy
    cpus: str
    times: float
    """In a second; of timers: how many wait."""
    microseconds: int = 0
    """Of each second."""
    elsewhere: bool = False
    """Whether a part of that time may have been on other CPUs."""
    threads: int = 0
    interrupts: tuple[int, ...] = ()
    """The numbers of the interrupts of a device."""
    party: str = ""
    """The kind of party whose threads they are."""
    qos: str = ""


class Advice(msgspec.Struct, frozen=True):
    """What would take disturbers away."""

    remedy: Remedy
    allowed: int
    """So many threads of others may run on the owner's CPUs and were not seen there."""
    text: str


class DisturbedOwner(msgspec.Struct, frozen=True):
    """An owner of CPUs, and what disturbed it."""

    pod: str
    cpus: str
    seconds: float
    """How long it was observed."""
    features: tuple[str, ...]
    """Those of quiet CPUs that it asks for."""
    disturbers: tuple[ShownDisturber, ...]
    more: int
    """How many further ones there were."""
    advice: tuple[Advice, ...]
    """For each remedy of them."""


class QuietNow(ShownQuiet, frozen=True):
    """What leaves the CPUs of owners, and what still runs there: the agent does not look for
    it."""

    disturbed: tuple[DisturbedOwner, ...] = ()
    unseen: str = ""
    """Why nobody could look."""


def quiet_now(
    quiet: ShownQuiet | None, disturbed: tuple[DisturbedOwner, ...], unseen: str
) -> QuietNow:
    """`quiet`: is what leaves the CPUs of owners; None if nothing does."""
    fields = msgspec.structs.asdict(quiet or ShownQuiet((), ()))
    return QuietNow(**fields, disturbed=disturbed, unseen=unseen)


def as_text(now: QuietNow) -> str:
    """What leaves the CPUs of owners, then what still runs there."""
    texts = [line for owner in now.disturbed for line in lines(owner)]
    if now.unseen:
        texts.append(printable(f"Who runs on the CPUs of owners is not known: {now.unseen}"))
    return quiet_view.as_text(now) + "".join(f"{text}\n" for text in texts)


def shown(
    disturbers: Disturbers, features: Sequence[ShownFeature] | None, asked: Iterable[str]
) -> DisturbedOwner:
    """What disturbed an owner, for people.

    `features`: are those of quiet CPUs on the node; None if the agent has none.
    `asked`: has the names of those for which the owner asks."""
    asked = tuple(sorted(asked))
    remedies = dict.fromkeys([*(one.remedy for one in disturbers.named), *disturbers.allowed])
    modes = None if features is None else {feature.name: feature.mode for feature in features}
    return DisturbedOwner(
        disturbers.owner.title,
        str(disturbers.owner.cpus),
        round(disturbers.seconds, 3),
        asked,
        tuple(_shown(one) for one in disturbers.named),
        disturbers.more,
        tuple(
            Advice(remedy, disturbers.allowed.get(remedy, 0), _advice(remedy, modes, asked))
            for remedy in remedies
        ),
    )


def lines(owner: DisturbedOwner) -> list[str]:
    """A head, and for each remedy what it would take away, and a line about it."""
    head = f"On {_cpus(owner.cpus)} of {owner.pod}, in {owner.seconds:.1f} s:"
    if not owner.disturbers and not owner.advice:
        return [printable(f"{head} nothing of others")]
    texts = [head]
    for advice in owner.advice:
        texts += [f"  {sentence(one)}" for one in owner.disturbers if one.remedy is advice.remedy]
        if advice.allowed:
            kind = "kernel thread" if advice.remedy in _OF_KERNEL else "thread"
            texts.append(f"  {count(advice.allowed, f'other {kind}')} may run there")
        texts.append(f"    -> {advice.text}")
    if owner.more:
        texts.append(f"  and {owner.more} more")
    return [printable(text) for text in texts]


_OF_KERNEL: Final = (Remedy.THREADS_OF_KERNEL, Remedy.WORKQUEUES)


def sentence(one: ShownDisturber) -> str:
    """Who or what it is, how much, and on which CPUs."""
    return f"{_who(one)}: {', '.join(_amounts(one))} on {_cpus(one.cpus)}"


def _who(one: ShownDisturber) -> str:
    match one.kind:
        case DisturberKind.TASKS:
            prefix = {PartyKind.POD: "pod ", PartyKind.PROCESSES: "process "}
            text = f"{prefix.get(PartyKind(one.party), '')}{one.name}"
            text += f" ({one.qos})" if one.qos else ""
            return text if one.threads == 1 else f"{text}, {one.threads} threads"
        case DisturberKind.KERNEL_THREADS:
            return f"kernel thread {one.name}"
        case DisturberKind.INTERRUPTS:
            return f"{one.name} (IRQ {', '.join(map(str, one.interrupts))})"
        case DisturberKind.SOFTIRQS:
            return f"softirq {one.name}"
        case DisturberKind.TIMERS:
            return f"timer {one.name}"
        case DisturberKind.TICKS | DisturberKind.KERNEL_INTERRUPTS:
            return one.name


def _amounts(one: ShownDisturber) -> Iterator[str]:
    if one.kind is DisturberKind.TIMERS:
        yield f"{one.times:.0f} wait{'s' if one.times == 1 else ''}"
        return
    if one.kind not in (DisturberKind.TASKS, DisturberKind.KERNEL_THREADS):
        yield f"{_number(one.times)} a second"
        return
    most = "at most " if one.elsewhere else ""
    yield f"{most}{_number(one.microseconds / _MILLISECOND)} ms of each second"
    if one.times:
        number = _number(one.times)
        yield f"{number} {'run' if number == '1' else 'runs'} a second"


def _number(number: float) -> str:
    return f"{number:.0f}" if number >= _FEW else f"{number:.2g}"


def _cpus(cpus: str) -> str:
    return f"CPU {cpus}" if cpus.isdecimal() else f"CPUs {cpus}"


class _Way(NamedTuple):
    text: str
    feature: str = ""
    """The feature of quiet CPUs that does it; "" for none."""
    left: str = ""
    """Why the feature left these, if it acts for the owner."""


_WAYS: Final = {
    Remedy.HOST_SLICES: _Way(
        "would keep units of the host and pause containers away",
        "host-slices",
        "topolet explain node quiet says what it can't move",
    ),
    Remedy.PARTITIONS: _Way(
        "would take these CPUs from the load balancer, and on cgroup v2 from all other groups",
        "partitions",
        "on cgroup v2 only the kernel's own work stays, unless topolet doctor reports an invalid "
        "partition",
    ),
    Remedy.WORKQUEUES: _Way(
        "would keep unbound workers away",
        "workqueues",
        "these workers began before, or are of a queue with CPUs of its own",
    ),
    Remedy.INTERRUPTS: _Way(
        "would move these, but not those that the kernel manages itself",
        "interrupts",
        "the kernel manages these itself, other CPUs have no room for them, they leave when they "
        "next occur, or the pod keeps them on its first core",
    ),
    Remedy.PACKET_STEERING: _Way(
        "would keep packets away that other CPUs steer here; the rest goes with the interrupts of "
        "network devices",
        "packet-steering",
        "these packets come with interrupts of network devices, or from the owner itself",
    ),
    Remedy.WAKEUPS: _Way(
        "would keep the load balancer's away; those that wake the owner's own threads stay",
        "partitions",
        "these wake the owner's own threads",
    ),
    Remedy.DEVICES: _Way("these go with the interrupts of devices"),
    Remedy.BE_PODS: _Way("BE pods may use the CPUs of LSR pods, and not those of LSE pods"),
    Remedy.PODS: _Way("these pods should have other CPUs: topolet doctor says more"),
    Remedy.TICKS: _Way(
        "no feature stops the tick; the boot option nohz_full= does while one thread runs"
    ),
    Remedy.THREADS_OF_KERNEL: _Way(
        "no feature moves threads of the kernel; the boot option nohz_full= keeps most away, and "
        "taskset moves most"
    ),
    Remedy.BOUND: _Way(
        "nothing moves them: each CPU has its own, for what interrupts, timers and threads there "
        "leave to do"
    ),
    Remedy.CALLS: _Way(
        "nothing removes them: other CPUs have changed memory or code that this CPU knows too"
    ),
    Remedy.CALLBACKS: _Way("no feature moves them; the boot option rcu_nocbs= does"),
    Remedy.TIMERS: _Way(
        "nothing moves them: they were armed on these CPUs, also by the owner's own threads"
    ),
    Remedy.WATCHDOG: _Way(
        "no feature stops it; the sysctl kernel.watchdog_cpumask without these CPUs does"
    ),
    Remedy.NOTHING: _Way("nothing removes these"),
}


def _advice(remedy: Remedy, modes: dict[str, FeatureMode] | None, asked: Sequence[str]) -> str:
    """`modes`: has those of the features of the node; None if the agent has none."""
    way = _WAYS[remedy]
    if not way.feature:
        return way.text
    mode = FeatureMode.OFF if modes is None else modes.get(way.feature, FeatureMode.OFF)
    if mode is FeatureMode.ACT and way.feature in asked:
        return f"{way.feature} acts: {way.left}"
    if mode is FeatureMode.ACT:
        state = "the pod does not ask for it (annotation topolet.io/quiet)"
    elif mode is FeatureMode.OBSERVE:
        state = "it only observes on this node (--quiet)"
    else:
        state = "it is off on this node (--quiet)"
    return f"{way.feature} {way.text}; {state}"


def _shown(one: Disturber) -> ShownDisturber:
    return ShownDisturber(
        one.kind,
        printable(one.name),
        one.remedy,
        str(one.cpus),
        round(one.times, 3),
        round(_MICROSECONDS * one.ran_seconds),
        one.elsewhere,
        one.threads,
        one.numbers,
        "" if one.party is None else one.party.kind.value,
        "" if one.party is None else one.party.qos,
    )
