"""Fixtures of admission."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.admission_harness import AdmissionHarness


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AdmissionHarness:
    """Admission with the default failure policy, while no agent has written a snapshot. Its state
    folder is the test's folder."""
    return AdmissionHarness(monkeypatch, state_dir=str(tmp_path))
