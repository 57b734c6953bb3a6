"""A clock that a test advances."""

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
