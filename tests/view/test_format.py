from __future__ import annotations

import msgspec
import pytest

from agent.view.format import count, encodable, printable, printable_json, size, table


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


MARKS = (
    *("\x1b[31m", "\r", "\n", "\x9b31m", "\x7f"),
    *("\u202e", "\u2066", "\u061c", "\u2028", "\u200b", "\U000e0001"),
)


@pytest.mark.parametrize("mark", MARKS)
def test_no_character_in_json_acts_on_the_terminal(mark: str) -> None:
    value = {f"é{mark}日": [mark]}
    text = printable_json(msgspec.json.format(msgspec.json.encode(value)).decode())
    assert all(line.isprintable() for line in text.split("\n"))
    assert msgspec.json.decode(text) == value


@pytest.mark.parametrize("mark", [*MARKS, "\ud800"])
def test_no_character_of_a_name_acts_on_the_terminal(mark: str) -> None:
    assert printable(f"é{mark}日").isprintable()
    assert table([("POD",), (f"a{mark}",)], 80)[1].isprintable()
    assert all(line.isprintable() for line in encodable(f"a{mark}\nb").split("\n"))
