import logging
import sys

import pytest

from agent.telemetry.logs import Logfmt


def line(message: str, *arguments: object, error: BaseException | None = None) -> str:
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("a", logging.WARNING, "f", 1, message, arguments, info)
    record.created, record.msecs = 1_700_000_000.25, 250
    return Logfmt().format(record)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain é", "plain é"),
        ('say "x"', r"say \"x\""),
        ("a\\n", r"a\\n"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("\x1b[31mred\x00\x7f\x9b", r"\x1b[31mred\x00\x7f\x9b"),
    ],
)
def test_escapes(text: str, escaped: str) -> None:
    assert line("%s", text) == f'time=2023-11-14T22:13:20.250Z level=warning msg="{escaped}"'


def test_a_traceback_is_part_of_the_line() -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        text = line("failed", error=sys.exc_info()[1])
    assert "\n" not in text
    assert text.endswith('ValueError: bad\\nthing"')
