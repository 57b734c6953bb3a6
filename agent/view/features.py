"""Features that write files of the machine each second (`node.features`), in words."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent.model.settings.feature_modes import FeatureMode
from agent.view.format import count


class ShownFeature(msgspec.Struct, frozen=True):
    """A feature."""

    name: str
    mode: FeatureMode
    files: int
    """So many files have, or would have, a value of it."""
    problem: str = ""
    would_write: int = 0
    """So many of them have other contents, if the feature only observes."""
    first: tuple[str, ...] = ()
    """The first of these, as group, file, present and wanted content."""
    notes: tuple[str, ...] = ()
    """What else it says about them."""


def lines(features: Sequence[ShownFeature]) -> list[str]:
    """A line for each feature, and below it what it would write, and its notes."""
    lines = []
    width = max((len(feature.name) for feature in features), default=0)
    modes = max((len(feature.mode) for feature in features), default=0)
    for feature in features:
        verb = "has" if feature.mode is FeatureMode.ACT else "would have"
        about = f"{verb} {count(feature.files, 'file')}" if feature.files else "nothing"
        if feature.mode is FeatureMode.OFF:
            about = ""
        elif feature.problem:
            about += f"; {feature.problem}"
        if feature.would_write:
            about += f"; it would write {feature.would_write} of them:"
        lines.append(f"  {feature.name:<{width}}  {feature.mode:<{modes}}  {about}".rstrip())
        lines += [f"    {change}" for change in feature.first]
        if (more := feature.would_write - len(feature.first)) > 0:
            lines.append(f"    and {more} more")
        lines += [f"    {note}" for note in feature.notes]
    return lines
