"""What each feature of quiet CPUs may do: `quiet` is the switch of all, and `quiet-features` lowers
some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from agent.model.bounds import unknown_value
from agent.model.settings.feature_modes import FeatureMode, modes_of
from agent.model.settings.options import SettingsError

QUIET_FEATURES: Final = (
    "partitions",
    "interrupts",
    "host-slices",
    "workqueues",
    "packet-steering",
    "c-states",
    "frequency",
)
"""The names of the features of `node.quiet`."""


class QuietOptions(Protocol):
    """The options."""

    @property
    def quiet(self) -> str: ...

    @property
    def quiet_features(self) -> str: ...

    @property
    def quiet_owners(self) -> str: ...


def quiet_modes(settings: QuietOptions) -> Mapping[str, FeatureMode]:
    """The mode of each of QUIET_FEATURES. Raises SettingsError."""
    return modes_of("quiet-features", QUIET_FEATURES, settings.quiet, settings.quiet_features)


def quiet_features(text: str) -> frozenset[str]:
    """The features that a list names. Raises ValueError."""
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if words == ["all"]:
        return frozenset(QUIET_FEATURES)
    if words == ["none"]:
        return frozenset()
    for word in words:
        if word not in QUIET_FEATURES:
            raise ValueError(unknown_value("feature", word, ("all", "none", *QUIET_FEATURES)))
    return frozenset(words)


def default_features(settings: QuietOptions) -> frozenset[str]:
    """The features of owners that do not ask. Raises SettingsError."""
    try:
        return quiet_features(settings.quiet_owners)
    except ValueError as error:
        raise SettingsError(f"quiet-owners: {error}") from None
