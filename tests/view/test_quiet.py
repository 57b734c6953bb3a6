"""What people are told about quiet CPUs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agent.model.bounds import JsonError
from agent.model.settings.feature_modes import FeatureMode
from agent.view.features import ShownFeature
from agent.view.quiet import ShownQuiet, ShownQuietOwner, as_json, as_text, read

QUIET = ShownQuiet(
    (
        ShownFeature("interrupts", FeatureMode.ACT, 12, "", 0, (), ("irq 24 is managed",)),
        ShownFeature("frequency", FeatureMode.OFF, 0),
    ),
    (ShownQuietOwner("ns/own", "2-3", ("c-states", "interrupts")),),
    ("/24 irq.affinity: why",),
    ("pod ns/bad: annotation x: \x1b[31mvalue",),
)


def test_features_owners_and_faults_are_told() -> None:
    assert as_text(QUIET) == (
        "Quiet CPUs on this node:\n"
        "  interrupts  act  has 12 files\n"
        "    irq 24 is managed\n"
        "  frequency   off\n"
        "Owners that ask for them:\n"
        "  ns/own  CPUs 2-3  c-states, interrupts\n"
        "Annotations that can't be read:\n"
        "  pod ns/bad: annotation x: ?[31mvalue\n"
        "Not written:\n"
        "  /24 irq.affinity: why\n"
    )
    assert json.loads(as_json(QUIET))["owners"][0]["cpus"] == "2-3"


def test_a_node_where_nobody_asks_says_so() -> None:
    quiet = ShownQuiet((ShownFeature("interrupts", FeatureMode.ACT, 0),), ())
    assert as_text(quiet) == (
        "Quiet CPUs on this node:\n  interrupts  act  nothing\nNo owner asks for them.\n"
    )


def test_the_file_of_the_agent_is_read_and_another_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "quiet.json"
    path.write_bytes(msgspec.json.encode(QUIET))
    assert read(str(path)) == QUIET
    path.write_text('{"features": 3}')
    with pytest.raises(JsonError, match="features"):
        read(str(path))
    with pytest.raises(OSError, match="No such file"):
        read(str(tmp_path / "other"))
