import logging
import sys

import pytest

from agent.telemetry.logs import BURST, PER_SECOND, Logfmt, RateLimit


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


def test_a_flood_of_one_message_is_cut_and_counted() -> None:
    """Another place of the code is not affected."""
    now = [100.0]
    limit = RateLimit(lambda: now[0])

    def lines(count: int, number: int = 1) -> list[str]:
        records = [
            logging.LogRecord("a", logging.WARNING, "f", number, "pod %s", (each,), None)
            for each in range(count)
        ]
        return [Logfmt().format(each) for each in records if limit.filter(each)]

    first = lines(BURST + 1_000)
    assert len(first) == BURST
    assert "left_out" not in first[-1]
    assert len(lines(3, number=2)) == 3
    now[0] += 1
    later = lines(100)
    assert len(later) == PER_SECOND
    assert later[0].endswith('msg="pod 0" left_out=1000')
    assert later[1].endswith('msg="pod 1"')
    now[0] += 3_600
    assert lines(1)[0].endswith('msg="pod 0" left_out=95')
