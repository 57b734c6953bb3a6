"""Who took the CPU time of a pod, in one sentence and as JSON."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.usage.contention import CpuWait, Party, PartyKind
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
    schema_version: int = SCHEMA_VERSION


def shown(wait: CpuWait, seconds: float, usual: float | None = None) -> ShownWait:
    """The wait in whole milliseconds.

    `seconds`: how long it was observed.
    `usual`: the 95th percentile of the pod's waits; None if it is not known."""
    takers = tuple(
        ShownTaker(party.kind.value, _name(party), party.qos, milliseconds)
        for party, of_party in wait.takers
        if (milliseconds := _milliseconds(of_party))
    )
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
        (wait.own_milliseconds, "its own threads, which are more than its CPUs can run at once"),
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


def as_json(wait: ShownWait) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(wait)).decode()) + "\n"


def _who(taker: ShownTaker) -> str:
    prefix = _PREFIX.get(PartyKind(taker.kind), "")
    return f"{prefix}{taker.name}{f' ({taker.qos})' if taker.qos else ''}"


def _name(party: Party) -> str:
    return printable(party.name)


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
