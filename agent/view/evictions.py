"""Evictions of a node: what they look at, who is next and why, and which pods never leave; and what
an agent that starts again has to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.host import files
from agent.model import bounds
from agent.view.format import printable, printable_json

SCHEMA_VERSION: Final = 1
"""The version of the JSON output."""
_MAX_BYTES: Final = 4 << 20


class ShownEvictionFeature(msgspec.Struct, frozen=True):
    """A feature that the settings turn on."""

    name: str
    level: str
    """A sentence with the present amount and its thresholds."""
    candidates: int = 0
    """So many pods it may take; 0 while it wants nothing."""
    wants: bool = False


class ShownEvictions(msgspec.Struct, frozen=True):
    """What the agent tells people, and keeps for its next start. Times are seconds of the monotonic
    clock of one boot."""

    acts: bool
    kills: bool = False
    """Pods are deleted, whatever their budgets say."""
    problem: str = ""
    """Why no pod leaves now."""
    features: tuple[ShownEvictionFeature, ...] = ()
    next_pod: str = ""
    """The title of the pod that leaves next; "" if none has to."""
    next_reason: str = ""
    pods: Mapping[str, str] = {}
    """By title, a sentence about whether the pod may be evicted."""
    refused: Mapping[str, str] = {}
    """By title, why the API server did not evict the pod lately."""
    boot: str = ""
    """The kernel's id of the boot."""
    cooling_until: float = 0.0
    asked: Mapping[str, float] = {}
    """By uid, when the agent asked for the eviction of a pod."""
    schema_version: int = SCHEMA_VERSION


_evictions: Final = msgspec.json.Decoder(ShownEvictions)


def read(path: str) -> ShownEvictions:
    """What the agent wrote last. Raises OSError and JsonError."""
    return bounds.decode(_evictions, files.read(path, _MAX_BYTES))


def as_text(evictions: ShownEvictions) -> str:
    """A line for each feature, then the pod that is next."""
    lines = ["Evictions:" if evictions.acts else "Evictions, which the agent only observes:"]
    if evictions.kills:
        lines.append("  pods are deleted, whatever their disruption budgets say")
    if evictions.problem:
        lines.append(f"  no pod leaves now: {evictions.problem}")
    lines += [f"  {feature.name}: {feature.level}" for feature in evictions.features]
    if evictions.next_pod:
        lines.append(f"  next is pod {evictions.next_pod}: {evictions.next_reason}")
    lines += [f"  pod {title} stays: {reason}" for title, reason in evictions.refused.items()]
    return "\n".join(map(printable, lines)) + "\n"


def of_pod(evictions: ShownEvictions, title: str) -> str:
    """Whether the pod with this title may be evicted, as a sentence; "" if that is not known."""
    sentence = evictions.pods.get(title, "")
    if sentence and (refused := evictions.refused.get(title)):
        sentence += f" It was not evicted lately: {refused}."
    return sentence


def as_json(evictions: ShownEvictions) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(evictions)).decode()) + "\n"
