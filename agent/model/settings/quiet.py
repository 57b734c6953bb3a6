"""What each feature of quiet CPUs may do: `quiet` is the switch of all, and `quiet-features` lowers
some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agent.model.pod.annotations import QUIET_FEATURES
from agent.model.pod.quiet import quiet_features
from agent.model.settings.feature_modes import FeatureMode, modes_of
from agent.model.settings.options import SettingsError


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


def default_features(settings: QuietOptions) -> frozenset[str]:
    """The features of owners that do not ask. Raises SettingsError."""
    try:
        return quiet_features(settings.quiet_owners)
    except ValueError as error:
        raise SettingsError(f"quiet-owners: {error}") from None
