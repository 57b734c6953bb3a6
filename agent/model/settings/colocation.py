"""What each feature of colocation may do: `colocation` is the switch of all, and
`colocation-features` has a mode for some, `FEATURE=off|observe|act`, separated by commas, which can
only lower it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

from agent.model.settings.options import SettingsError

FEATURES: Final = (
    "cpu-priority",
    "cpu-suppression",
    "cpu-burst",
    "memory-qos",
    "evictions",
    "resctrl",
    "disk-qos",
    "oom-score",
    "core-scheduling",
    "network-qos",
    "system",
)
"""The names of the features of `node.colocation`."""


class FeatureMode(StrEnum):
    """What a feature may do, the least first."""

    OFF = "off"
    """It computes nothing, and gives back what it has changed."""
    OBSERVE = "observe"
    """It computes and reports, writes nothing, and gives back what it has changed."""
    ACT = "act"


_ORDER: Final = tuple(FeatureMode)


class ColocationModes(Protocol):
    """The options about modes."""

    @property
    def colocation(self) -> str: ...

    @property
    def colocation_features(self) -> str: ...


def feature_modes(settings: ColocationModes) -> Mapping[str, FeatureMode]:
    """The mode of each of FEATURES. Raises SettingsError."""
    modes = dict.fromkeys(FEATURES, FeatureMode(settings.colocation))
    named: set[str] = set()
    entries = (entry.strip() for entry in settings.colocation_features.split(","))
    for entry in filter(None, entries):
        name, _, text = (part.strip() for part in entry.partition("="))
        if name not in modes:
            raise _error(entry, f"{name!r} is none of {', '.join(FEATURES)}")
        if text not in _ORDER:
            raise _error(entry, f"{text!r} is none of {', '.join(FeatureMode)}")
        if name in named:
            raise _error(entry, f"{name!r} has a mode already")
        named.add(name)
        modes[name] = min(modes[name], FeatureMode(text), key=_ORDER.index)
    return modes


def _error(entry: str, reason: str) -> SettingsError:
    return SettingsError(f"colocation-features: {entry!r}: {reason}")
