"""The pictures of real machines, as they were looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import pictures


@pytest.mark.parametrize("name", pictures.names())
def test_a_machine_looks_as_it_was_looked_at(name: str, snapshot: Callable[[str], str]) -> None:
    """`python -m tests.pictures` writes the files again."""
    drawn = pictures.drawn(snapshot(name))
    assert drawn == (pictures.FOLDER / f"{name}.txt").read_text()
    assert "\x1b" not in drawn
    for section in drawn.split("$ COLUMNS=")[1:]:
        command, *lines = section.split("\n")
        assert max(map(len, lines)) <= int(command.split()[0])
        assert section.isascii() or "ascii" not in command


def test_there_is_a_picture_for_each_machine() -> None:
    assert {path.stem for path in pictures.FOLDER.iterdir()} == set(pictures.names())
