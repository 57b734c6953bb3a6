"""Seconds that pass when a test says so."""

from __future__ import annotations

import pytest


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """For the folder's conftest."""
    return Clock()
