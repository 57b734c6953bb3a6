from __future__ import annotations

import pytest

from agent.model.settings.agent import AgentSettings
from agent.node.triggers import cooldown


@pytest.mark.parametrize(("took", "seconds"), [(0.001, 0.02), (0.05, 0.05), (10.0, 0.5)])
def test_cooldown_is_as_long_as_the_pass_within_bounds(took: float, seconds: float) -> None:
    assert cooldown(AgentSettings(period_seconds=0.5), took) == seconds
