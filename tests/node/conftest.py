"""The fixture of a node without a runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
