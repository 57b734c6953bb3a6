from __future__ import annotations

import pytest

from agent.node.reserved_load import cpu_times

STAT = """cpu  9 9 9 9 9 9 9 9 9 9
cpu0 10 5 5 70 10 0 0 0 3 0
cpu11 0 0 0 100 0 0 0 0 0 0
intr 1 2 3
"""


def test_times_of_proc_stat() -> None:
    assert cpu_times(STAT) == {0: (20, 100), 11: (0, 100)}


@pytest.mark.parametrize("line", ["cpu1", "cpu1 a b c d", "cpux 1 2 3 4", "cpu1 1 2 3", ""])
def test_lines_without_times_are_left_out(line: str) -> None:
    assert cpu_times(line) == {}
