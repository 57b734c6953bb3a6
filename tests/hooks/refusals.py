"""Checks of a refusal of devices, for the tests of their visibility."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.hooks.visibility import RefusedError


@contextmanager
def refused(reason: str, match: str | None = None) -> Iterator[None]:
    """The block raises a RefusedError for this reason, one of FailureReason."""
    with pytest.raises(RefusedError, match=match) as error:
        yield
    assert error.value.reason == reason
