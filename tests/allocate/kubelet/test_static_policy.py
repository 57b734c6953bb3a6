from __future__ import annotations

import pytest

from agent.allocate.kubelet.static_policy import pod_cpus
from tests.allocate.kubelet.nodes import pod


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ((), (), 0),
        (("2", "3"), (), 5),
        (("2", "1.5"), (), 2),
        (("2",), ("4", "3"), 4),
        (("2",), ("4", "3s"), 5),
        (("2",), ("3s", "4"), 7),
        (("2",), ("1s", "2s", "1"), 5),
        (("2",), ("3.5s", "4"), 4),
    ],
)
def test_the_most_that_runs_at_one_time(
    containers: tuple[str, ...], init: tuple[str, ...], expected: int
) -> None:
    assert pod_cpus(pod("a", *containers, init=init)) == expected
