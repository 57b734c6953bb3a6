"""Which features of quiet CPUs a node has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.pod.annotations import QUIET_FEATURES
from agent.model.pod.quiet import quiet_features
from agent.model.settings.agent import AgentSettings
from agent.model.settings.feature_modes import FeatureMode
from agent.model.settings.options import SettingsError
from agent.model.settings.quiet import default_features, quiet_modes


def test_the_switch_is_the_mode_of_each_feature_that_is_not_lowered() -> None:
    settings = AgentSettings(quiet="act", quiet_features="frequency=observe,host-slices=off")
    modes = dict(quiet_modes(settings))
    assert modes.pop("frequency") is FeatureMode.OBSERVE
    assert modes.pop("host-slices") is FeatureMode.OFF
    assert set(modes.values()) == {FeatureMode.ACT}
    assert set(quiet_modes(AgentSettings()).values()) == {FeatureMode.OFF}


def test_a_feature_that_is_not_known_is_an_error_of_its_option() -> None:
    with pytest.raises(SettingsError, match=r"^quiet-features: 'cpu-burst=off': 'cpu-burst' is no"):
        quiet_modes(AgentSettings(quiet_features="cpu-burst=off"))
    with pytest.raises(SettingsError, match=r"^quiet-owners: feature: 'irqs' is not one of all, "):
        default_features(AgentSettings(quiet_owners="irqs"))


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("", ()),
        ("none", ()),
        ("all", QUIET_FEATURES),
        (" interrupts , ,c-states", ("interrupts", "c-states")),
        ("interrupts,interrupts", ("interrupts",)),
    ],
)
def test_a_list_names_features(text: str, features: tuple[str, ...]) -> None:
    assert default_features(AgentSettings(quiet_owners=text)) == frozenset(features)


@given(st.sets(st.sampled_from(QUIET_FEATURES)))
def test_each_set_of_features_has_a_list(features: set[str]) -> None:
    assert quiet_features(",".join(features)) == features
