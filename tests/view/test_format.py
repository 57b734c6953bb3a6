from __future__ import annotations

import pytest

from agent.view.format import count, size


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2 << 20, "2 MiB"),
        (8_257_945_600, "7.7 GiB"),
        (134_894_530_560, "126 GiB"),
        (1 << 40, "1 TiB"),
        (1 << 62, "4096 PiB"),
    ],
)
def test_size(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_count() -> None:
    assert [count(number, "core") for number in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
