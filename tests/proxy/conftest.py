"""A gate with admission, without a relay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.exchanges import Exchange


@pytest.fixture
def exchange(tmp_path: Path) -> Iterator[Exchange]:
    it = Exchange(tmp_path)
    yield it
    it.close()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Exchange]:
    """Its hold time is zero."""
    it = Exchange(tmp_path, hold_seconds=0)
    yield it
    it.close()
