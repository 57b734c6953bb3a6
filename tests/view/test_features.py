"""What features do, in words."""

from __future__ import annotations

from agent.model.settings.feature_modes import FeatureMode
from agent.view.features import ShownFeature, lines


def test_each_feature_has_a_line_and_its_changes_and_notes_below() -> None:
    features = (
        ShownFeature("interrupts", FeatureMode.ACT, 1),
        ShownFeature("frequency", FeatureMode.OBSERVE, 4, "", 3, ("/policy0 x: a -> b",), ("why",)),
        ShownFeature("host-slices", FeatureMode.OFF, 0, "told of no feature that is off"),
        ShownFeature("c-states", FeatureMode.ACT, 2, "this machine has no cpuidle"),
        ShownFeature("workqueues", FeatureMode.OBSERVE, 0),
    )
    assert lines(features) == [
        "  interrupts   act      has 1 file",
        "  frequency    observe  would have 4 files; it would write 3 of them:",
        "    /policy0 x: a -> b",
        "    and 2 more",
        "    why",
        "  host-slices  off",
        "  c-states     act      has 2 files; this machine has no cpuidle",
        "  workqueues   observe  nothing",
    ]
    assert lines(()) == []
