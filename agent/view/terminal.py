"""Lines of styled text for a terminal, cut to a width and encoded with escape codes; the rows that
changed between two frames; and the keys in a terminal's input.

Every character of a line takes one column: wide and combining characters are replaced."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from agent.view.format import printable


class Style(msgspec.Struct, frozen=True):
    """How characters look. A colour is a number of the palette of 256, None for the terminal's
    own."""

    front: int | None = None
    back: int | None = None
    bold: bool = False
    reverse: bool = False
    underline: bool = False


PLAIN: Final = Style()
BOLD: Final = Style(bold=True)
FAINT: Final = Style(front=245)
ALARM: Final = Style(front=203, bold=True)
GOOD: Final = Style(front=114)
CHOSEN: Final = Style(reverse=True)


class Piece(msgspec.Struct, frozen=True):
    """Text of one style."""

    text: str
    style: Style = PLAIN


Line = tuple[Piece, ...]
Frame = list[Line]


class Ability(msgspec.Struct, frozen=True):
    """What a terminal can show."""

    unicode: bool = True
    colours: int = 256
    """0, 16 or 256."""


def ability(term: str, encoding: str, no_colour: str) -> Ability:
    """What the terminal can show.

    `term`: the variable TERM.
    `encoding`: the encoding of the output.
    `no_colour`: the variable NO_COLOR; no colours are used if it is not empty (no-color.org)."""
    unicode = encoding.lower().replace("-", "").startswith("utf")
    if no_colour or term in ("", "dumb", "vt100", "vt102", "vt220"):
        return Ability(unicode, 0)
    return Ability(unicode, 256 if "256color" in term or "direct" in term else 16)


def clean(text: str) -> str:
    """The text with one column for each character. Scripts from Hangul on, combining and control
    characters are replaced, since terminals differ about their width."""
    if text.isascii():
        return text if text.isprintable() else printable(text)
    return "".join(map(_clean, text))


@lru_cache(maxsize=256)
def _clean(character: str) -> str:
    one_column = ord(character) < _HANGUL or ord(character) in _PUNCTUATION
    marks = unicodedata.category(character).startswith("M")
    return character if one_column and character.isprintable() and not marks else "?"


_HANGUL: Final = 0x1100
"""The first wide character."""
_PUNCTUATION: Final = range(0x2010, 0x2040)
"""Dashes, quotation marks and the ellipsis."""


def width(line: Iterable[Piece]) -> int:
    return sum(len(each.text) for each in line)


def text(line: Iterable[Piece]) -> str:
    """The text of the line, without trailing blanks."""
    return "".join(each.text for each in line).rstrip()


def cut(line: Iterable[Piece], columns: int) -> Line:
    kept: list[Piece] = []
    for piece in line:
        if len(piece.text) >= columns:
            return (*kept, Piece(piece.text[:columns], piece.style)) if columns > 0 else tuple(kept)
        kept.append(piece)
        columns -= len(piece.text)
    return tuple(kept)


def trimmed(line: Line, columns: int, ability: Ability) -> Line:
    """The line, or, if it is too long, its first columns and an ellipsis."""
    if width(line) <= columns:
        return line
    kept = cut(line, columns - 1)
    return (*kept, Piece("…" if ability.unicode else "~", FAINT)) if columns > 0 else ()


def padded(line: Iterable[Piece], columns: int, style: Style = PLAIN) -> Line:
    """The line cut or filled with blanks of `style` to exactly this width."""
    shown = cut(line, columns)
    left = columns - width(shown)
    return (*shown, Piece(" " * left, style)) if left > 0 else shown


def restyled(line: Iterable[Piece], style: Style) -> Line:
    """The text of the line in one style."""
    return (Piece("".join(each.text for each in line), style),)


def shortened(text: str, columns: int, ability: Ability) -> str:
    """The text, or, if it is too long, its beginning and an ellipsis."""
    if len(text) <= columns:
        return text
    return text[: max(columns - 1, 0)] + ("…" if ability.unicode else "~")[: max(columns, 0)]


_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_DIGITS: Final = ".123456789"


def level(part: float | None, ability: Ability) -> str:
    """One character for a value from 0 to 1, such as the load of a CPU: a block that is filled from
    below, or without Unicode the tenths as a digit; "?" for an unknown value."""
    if part is None:
        return "?"
    if not ability.unicode:
        return _DIGITS[min(int(part * 10), 9)]
    # From 3 % on, at least the lowest block is shown.
    eighths = 0 if part < 0.03 else max(1, round(part * 8))
    return _BLOCKS[min(eighths, 8)]


def bar(part: float, columns: int, ability: Ability) -> str:
    """A horizontal bar of this width, filled from the left."""
    part = min(max(part, 0.0), 1.0)
    if not ability.unicode:
        filled = round(part * columns)
        return "#" * filled + "." * (columns - filled)
    eighths = round(part * columns * 8)
    tip = " ▏▎▍▌▋▊▉"[eighths % 8]
    filled = eighths // 8
    return ("█" * filled + (tip if filled < columns else "")).ljust(columns)[:columns]


def chart(values: Sequence[float | None], rows: int, ability: Ability) -> list[str]:
    """A column for each value from 0 to 1, `rows` high, the top row first; blank for None. Without
    Unicode a chart of one row has digits, as `level`."""
    if rows == 1 and not ability.unicode:
        return ["".join(" " if each is None else level(each, ability) for each in values)]
    lines = []
    for row in reversed(range(rows)):
        parts = (None if value is None else value * rows - row for value in values)
        lines.append("".join(_step(part, row == 0, ability) for part in parts))
    return lines


def _step(part: float | None, lowest: bool, ability: Ability) -> str:
    if part is None:
        return " "
    if not ability.unicode:
        return "#" if part >= 0.5 else "_" if lowest else " "
    return _BLOCKS[min(max(round(part * 8), 1 if lowest else 0), 8)]


_RESET: Final = "\x1b[0m"
_STEPS: Final = (0, 95, 135, 175, 215, 255)
_LEAST_SATURATION: Final = 60


@lru_cache(maxsize=256)
def _basic(colour: int) -> int | None:
    """The ANSI colour of the same hue, None for the greys."""
    if colour < 16:
        return colour % 8
    if colour >= 232:
        return None
    cube = colour - 16
    rgb = (_STEPS[cube // 36], _STEPS[cube // 6 % 6], _STEPS[cube % 6])
    if max(rgb) - min(rgb) < _LEAST_SATURATION:
        return None
    middle = (max(rgb) + min(rgb)) / 2
    return sum(1 << place for place, part in enumerate(rgb) if part >= middle)


@lru_cache(maxsize=1_024)
def _codes(style: Style, colours: int) -> str:
    codes = [
        code
        for code, is_set in (("1", style.bold), ("4", style.underline), ("7", style.reverse))
        if is_set
    ]
    if colours >= 256:
        codes += [f"38;5;{style.front}"] if style.front is not None else []
        codes += [f"48;5;{style.back}"] if style.back is not None else []
    elif colours and style.front is not None and (basic := _basic(style.front)) is not None:
        codes.append(str(30 + basic))
    return f"\x1b[{';'.join(codes)}m" if codes else ""


def encoded(line: Line, colours: int) -> str:
    """The line with escape codes (ECMA-48, SGR). The terminal has its own style again after it."""
    parts = []
    styled = ""
    for each in line:
        codes = _codes(each.style, colours)
        if codes != styled:
            parts.append((_RESET if styled else "") + codes)
            styled = codes
        parts.append(each.text)
    return "".join(parts) + (_RESET if styled else "")


_ERASE: Final = "\x1b[K"


def rows(frame: Frame, columns: int, colours: int) -> list[str]:
    """The lines with escape codes. What is left of a shorter row on the screen is erased, but not
    behind a full row: the cursor stays on its last character, which would go."""
    return [encoded(line, colours) + (_ERASE if width(line) < columns else "") for line in frame]


def changed(before: Sequence[str], after: Sequence[str]) -> str:
    """The output that turns the rows `before` on a terminal into `after`. It writes only rows that
    differ (all, if `before` is empty), each over the old one, so that the screen does not
    flicker."""
    return "".join(
        f"\x1b[{number + 1};1H{row}"
        for number, row in enumerate(after)
        if number >= len(before) or before[number] != row
    )


_SEQUENCES: Final = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "[H": "home",
    "[F": "end",
    "[1~": "home",
    "[4~": "end",
    "[7~": "home",
    "[8~": "end",
    "[5~": "pageup",
    "[6~": "pagedown",
    "[3~": "delete",
    "[Z": "backtab",
}
_CONTROLS: Final = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "interrupt",
    "\x0c": "redraw",
    "\x15": "clear",
}


def keys(received: bytes) -> tuple[list[str], bytes]:
    """The keys, each a name or a character, and the bytes of a key that has not arrived completely.
    Unknown sequences are left out. An escape at the end is incomplete, because a sequence may
    follow."""
    names: list[str] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    characters = decoder.decode(received)
    rest, _ = decoder.getstate()
    place = 0
    while place < len(characters):
        if characters[place] != "\x1b":
            names += _key(characters[place])
            place += 1
            continue
        length = _sequence(characters, place + 1)
        if length is None:
            return names, characters[place:].encode() + rest
        sequence = characters[place + 1 : place + 1 + length].replace("O", "[", 1)
        if name := _SEQUENCES.get(sequence):
            names.append(name)
        elif length == 0:
            names.append("escape")
        place += 1 + length
    return names, rest


def _key(character: str) -> Iterator[str]:
    if name := _CONTROLS.get(character):
        yield name
    elif character.isprintable():
        yield character


def _sequence(characters: str, start: int) -> int | None:
    """The length of a control sequence after its escape; 0 if another key follows, None if its end
    has not arrived."""
    if start >= len(characters):
        return None
    if characters[start] not in "[O":
        return 0
    for place in range(start + 1, len(characters)):
        if "@" <= characters[place] <= "~":
            return place - start + 1
    return None
