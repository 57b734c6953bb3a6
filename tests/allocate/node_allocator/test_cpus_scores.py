from __future__ import annotations

import pytest

from agent.allocate.node_allocator.cpus import MaskScores
from agent.model.cpu.policies import Strategy

FOUR = {0: {"cpu": 4000, "memory": 16}}


@pytest.mark.parametrize(
    ("strategy", "mask", "request_cpu", "expected"),
    [
        (Strategy.LEAST_ALLOCATED, 0b01, 1000, (50 + 100) // 2),
        (Strategy.MOST_ALLOCATED, 0b01, 1000, (50 + 0) // 2),
        (Strategy.LEAST_ALLOCATED, 0b11, 3000, (50 + 100) // 2),
        (Strategy.LEAST_ALLOCATED, 0b01, 4000, (0 + 100) // 2),
        (Strategy.MOST_ALLOCATED, 0b01, 4000, (100 + 0) // 2),
        (Strategy.LEAST_ALLOCATED, 0b100, 1000, 0),
    ],
)
def test_scores(strategy: Strategy, mask: int, request_cpu: int, expected: int) -> None:
    available = {0: {"cpu": 3000, "memory": 16}, 1: {"cpu": 4000, "memory": 16}}
    total = {node: {"cpu": 4000, "memory": 16} for node in (0, 1)}
    weights = {"cpu": 1, "memory": 1}
    request = {"cpu": request_cpu}
    assert MaskScores(request, available, total, strategy, weights).of(mask) == expected


def test_scores_weigh_resources() -> None:
    scores = MaskScores(
        {"cpu": 1000, "memory": 16},
        FOUR,
        FOUR,
        Strategy.MOST_ALLOCATED,
        {"cpu": 3, "memory": 1},
    )
    assert scores.of(1) == (3 * 25 + 100) // 4
