"""The modes of features, by those of colocation."""

from __future__ import annotations

import pytest

from agent.model.settings.agent import AgentSettings
from agent.model.settings.colocation import FEATURES, feature_modes
from agent.model.settings.feature_modes import FeatureMode
from agent.model.settings.options import SettingsError


@pytest.mark.parametrize(
    ("switch", "features", "burst", "others"),
    [
        ("off", "", "off", "off"),
        ("off", "cpu-burst=act", "off", "off"),
        ("observe", "", "observe", "observe"),
        ("observe", "cpu-burst=act", "observe", "observe"),
        ("observe", "cpu-burst=off", "off", "observe"),
        ("act", "", "act", "act"),
        ("act", "cpu-burst=act", "act", "act"),
        ("act", " cpu-burst = observe , ", "observe", "act"),
        ("act", "cpu-burst=off", "off", "act"),
    ],
)
def test_a_feature_can_do_less_than_the_switch_says(
    switch: str, features: str, burst: str, others: str
) -> None:
    modes = feature_modes(AgentSettings(colocation=switch, colocation_features=features))  # type: ignore[arg-type]
    expected = dict.fromkeys(FEATURES, FeatureMode(others))
    assert modes == {**expected, "cpu-burst": FeatureMode(burst)}


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ("cpu-bursts=off", "'cpu-bursts=off': 'cpu-bursts' is none of cpu-priority, "),
        ("cpu-burst", "'cpu-burst': '' is none of off, observe, act"),
        ("cpu-burst=on", "'on' is none of off, observe, act"),
        ("cpu-burst=off,cpu-burst=act", "'cpu-burst' has a mode already"),
    ],
)
def test_what_names_no_feature_or_no_mode_is_an_error(features: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=r"^colocation-features: ") as raised:
        feature_modes(AgentSettings(colocation_features=features))
    assert reason in str(raised.value)
