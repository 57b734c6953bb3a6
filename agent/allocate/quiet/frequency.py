"""The governors of CPU frequencies (Documentation/admin-guide/pm/cpufreq.rst)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agent.model.cpu.cpuset import CpuSet, union


class FrequencyPolicy(NamedTuple):
    """CPUs whose frequency is one decision."""

    name: str
    cpus: CpuSet
    """They are online."""
    governors: tuple[str, ...]
    """It may have these."""


class GovernorWish(NamedTuple):
    """An owner that asks."""

    cpus: CpuSet
    governor: str


class Governors(NamedTuple):
    """What the policies shall have."""

    wanted: dict[str, str]
    """The governor, by the name of the policy."""
    missing: list[str]
    """Sentences on policies that do not have the governor."""
    notes: list[str]
    """Sentences on policies that are not those of one owner alone."""


def governors(
    policies: Sequence[FrequencyPolicy], wishes: Sequence[GovernorWish], owned: CpuSet
) -> Governors:
    """What the owners ask for.

    `owned`: has the CPUs of all owners."""
    chosen = Governors({}, [], [])
    for name, cpus, available in policies:
        asking = [wish for wish in wishes if wish.cpus & cpus]
        if not asking:
            continue
        asked = union(wish.cpus for wish in asking)
        texts = sorted({wish.governor for wish in asking})
        others = (cpus & owned) - asked
        if len(texts) > 1:
            several = " and ".join(texts)
            chosen.notes.append(f"{name} of CPUs {cpus} stays: owners ask for {several}")
        elif others:
            chosen.notes.append(
                f"{name} of CPUs {cpus} stays: the owner of CPUs {others} does not ask"
            )
        elif texts[0] not in available:
            chosen.missing.append(f"{name} has no governor {texts[0]!r}: {' '.join(available)}")
        else:
            chosen.wanted[name] = texts[0]
            if shared := cpus - asked:
                chosen.notes.append(f"CPUs {shared}, which nobody owns, get {texts[0]} with {name}")
    return chosen
