"""The pictures of real machines and of the documents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from docs import pictures as document_pictures
from tests import pictures


@pytest.mark.parametrize("name", pictures.names())
def test_the_picture_of_a_machine_equals_the_stored_one(
    name: str, snapshot: Callable[[str], str]
) -> None:
    """`python -m tests.pictures` updates the files."""
    picture = pictures.drawn(snapshot(name))
    assert picture == (pictures.FOLDER / f"{name}.txt").read_text()
    assert "\x1b" not in picture
    for section in picture.split("$ COLUMNS=")[1:]:
        command, *lines = section.split("\n")
        assert max(map(len, lines)) <= int(command.split()[0])
        assert section.isascii() or "ascii" not in command


def test_there_is_a_picture_for_each_machine() -> None:
    assert {path.stem for path in pictures.FOLDER.iterdir()} == set(pictures.names())


@pytest.mark.parametrize("name", document_pictures.REPRODUCIBLE)
def test_a_picture_of_the_documents_equals_the_output_of_the_tool(name: str) -> None:
    """`make pictures` updates the files."""
    assert document_pictures.REPRODUCIBLE[name]() == (document_pictures.FOLDER / name).read_text()
