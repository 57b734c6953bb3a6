"""The pictures of real machines and of the documents."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

import pyte
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


def test_a_slow_emulator_reads_all_output_of_an_ended_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyte.ByteStream, "feed", lambda stream, data: time.sleep(0.06))
    command = [sys.executable, "-c", "print('x' * 20_000)"]
    assert document_pictures.terminal_output(command, 100, 30).count("x") == 20_000


def test_colours_of_a_terminal_become_those_of_the_picture() -> None:
    picture = document_pictures.as_svg(
        "a \x1b[31mred\x1b[0m b\x1b[7m<&>\x1b[27;2m x\n", "title <1>"
    )
    assert "<title>title &lt;1&gt;</title>" in picture
    words = re.findall(r'x="([0-9.]+)" .* fill="(#[0-9a-f]+)">([^<]+)</text>', picture)
    assert [(each, text) for _, each, text in words] == [
        ("#d7dae0", "a"),
        ("#ef6b73", "red"),
        ("#d7dae0", "b"),
        ("#16191f", "&lt;&amp;&gt;"),
        ("#6b7280", "x"),
    ]
    assert [float(at) for at, _, _ in words] == [16.0, 32.8, 66.4, 74.8, 108.4]


@pytest.mark.parametrize(
    ("number", "colour"), [(1, "#ef6b73"), (16, "#000000"), (208, "#ff8700"), (255, "#eeeeee")]
)
def test_the_256_colours_of_xterm(number: int, colour: str) -> None:
    assert f'fill="{colour}">x<' in document_pictures.as_svg(f"\x1b[38;5;{number}mx", "")
