"""Fixtures of a gate with admission, without a relay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.harness import GateHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GateHarness]:
    it = GateHarness(tmp_path)
    yield it
    it.close()
