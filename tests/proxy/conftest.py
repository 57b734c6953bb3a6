"""A gate with admission, without a relay."""

from __future__ import annotations

import pytest

from tests.proxy.harness import GateHarness


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> GateHarness:
    return GateHarness(monkeypatch)
