from __future__ import annotations

import json
import logging
import sys

import pytest

from agent import VERSION
from agent.host.log_once import about, of_title
from agent.model.settings.agent import AgentSettings
from agent.telemetry import logs
from agent.telemetry.logs import BURST, PER_SECOND, Json, Logfmt, RateLimit


def record(
    message: str, *arguments: object, error: BaseException | None = None, **fields: str
) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    log_record = logging.LogRecord("a", logging.WARNING, "f", 1, message, arguments, info)
    log_record.created, log_record.msecs = 1_700_000_000.25, 250
    vars(log_record).update(fields)
    return log_record


def line(message: str, *arguments: object, error: BaseException | None = None) -> str:
    return Logfmt().format(record(message, *arguments, error=error))


def test_fields_of_a_pod() -> None:
    log_record = record("pod %s", "x", **about("ns/web", "main", "over lap"))
    assert Logfmt("node-1").format(log_record) == (
        'time=2023-11-14T22:13:20.250Z level=warning msg="pod x" node=node-1 namespace=ns pod=web '
        'container=main reason="over lap"'
    )
    assert of_title("ns/web main") == about("ns/web", "main")
    hostile = Logfmt().format(record("x", pod='a"\n b=c'))
    assert hostile.endswith(r'msg="x" pod="a\"\n b=c"')


def test_json() -> None:
    log_record = record('text "x"\n\udcff', **about("ns/web"))
    assert json.loads(Json("n").format(log_record)) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "msg": 'text "x"\n\\udcff',
        "node": "n",
        "namespace": "ns",
        "pod": "web",
    }
    assert "\n" not in Json().format(log_record)


def test_a_process_logs_its_version_and_options_at_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    configz = "https://me:s3cret@node:10250/configz"
    settings = AgentSettings(log_format="json", kubelet_configz=configz, devices=False)
    logs.announce("agent", settings)
    logs.announce("agent", AgentSettings())
    first, second = (each.getMessage() for each in caplog.records)
    assert first == (
        f"topolet agent {VERSION} starts with --kubelet-configz=https://node:10250/configz "
        "--devices=False --log-format=json"
    )
    assert second == f"topolet agent {VERSION} starts with all defaults"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain é", "plain é"),
        ('text "x"', r"text \"x\""),
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


def test_a_repeated_message_is_limited_and_counted() -> None:
    """Messages of other lines of code are not limited."""
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
