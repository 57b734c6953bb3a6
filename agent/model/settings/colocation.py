"""What each feature of colocation may do: `colocation` is the switch of all, and
`colocation-features` lowers some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from agent.model.settings.feature_modes import FeatureMode, modes_of

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


class ColocationModes(Protocol):
    """The options about modes."""

    @property
    def colocation(self) -> str: ...

    @property
    def colocation_features(self) -> str: ...


def feature_modes(settings: ColocationModes) -> Mapping[str, FeatureMode]:
    """The mode of each of FEATURES. Raises SettingsError."""
    return modes_of(
        "colocation-features", FEATURES, settings.colocation, settings.colocation_features
    )
