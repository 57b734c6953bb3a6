"""What each of several features may do: one option is the switch of all, and another has a mode for
some, `FEATURE=off|observe|act`, separated by commas, which can only lower it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from agent.model.settings.options import SettingsError


class FeatureMode(StrEnum):
    """What a feature may do, the least first."""

    OFF = "off"
    """It computes nothing, and gives back what it has changed."""
    OBSERVE = "observe"
    """It computes and reports, writes nothing, and gives back what it has changed."""
    ACT = "act"


_ORDER: Final = tuple(FeatureMode)


def modes_of(
    option: str, features: Sequence[str], switch: str, lower: str
) -> Mapping[str, FeatureMode]:
    """The mode of each feature.

    `option`: is the name of the option with modes, for errors.
    `switch`: is the mode of all.
    `lower`: is the option's value.

    Raises SettingsError."""
    modes = dict.fromkeys(features, FeatureMode(switch))
    named: set[str] = set()
    entries = (entry.strip() for entry in lower.split(","))
    for entry in filter(None, entries):
        name, _, text = (part.strip() for part in entry.partition("="))
        if name not in modes:
            raise _error(option, entry, f"{name!r} is none of {', '.join(features)}")
        if text not in _ORDER:
            raise _error(option, entry, f"{text!r} is none of {', '.join(FeatureMode)}")
        if name in named:
            raise _error(option, entry, f"{name!r} has a mode already")
        named.add(name)
        modes[name] = min(modes[name], FeatureMode(text), key=_ORDER.index)
    return modes


def _error(option: str, entry: str, reason: str) -> SettingsError:
    return SettingsError(f"{option}: {entry!r}: {reason}")
