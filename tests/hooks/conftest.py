"""Fixtures of admission."""

from __future__ import annotations

import pytest

from tests.hooks.admission_harness import AdmissionHarness


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> AdmissionHarness:
    """Admission with the default failure policy, while no agent has written a snapshot."""
    return AdmissionHarness(monkeypatch)
