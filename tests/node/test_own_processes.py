from __future__ import annotations

import pytest

from agent.node.own_processes import (
    MetricSeries,
    OwnProcess,
    agent_address,
    command_of,
    page,
    series,
)
from tests.fixtures.ports import free_port


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/bin/topolet", "agent", "--http="], "agent"),
        (["/usr/bin/python3", "/usr/bin/topolet", "proxy"], "proxy"),
        (["python3", "-m", "agent", "nri"], "nri"),
        (["topolet", "doctor"], ""),
        (["topolet"], ""),
        (["vi", "agent"], ""),
    ],
)
def test_processes_of_topolet_are_known_by_their_command_line(
    argv: list[str], command: str
) -> None:
    assert command_of(argv) == command


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ({}, ("127.0.0.1", 9326)),
        ({"http": "0.0.0.0:1234"}, ("127.0.0.1", 1234)),
        ({"http": "127.0.0.1:1234", "state-dir": "/run/topolet"}, ("127.0.0.1", 1234)),
        ({"http": "192.0.2.1:1234"}, None),
        ({"http": ""}, None),
        ({"http": "x:y"}, None),
        ({"state-dir": "/run/other"}, None),
    ],
)
def test_the_agents_address_is_that_of_its_command_line(
    flags: dict[str, str], address: tuple[str, int] | None
) -> None:
    own = [OwnProcess(1, "proxy", {}), OwnProcess(2, "agent", flags)]
    assert agent_address(own, "/run/topolet") == address


def test_series_are_read_with_their_labels() -> None:
    text = '# HELP a b\n# TYPE a gauge\na 1\nb{x="1",y="a \\"q\\" }"} 2.5\nc NaN\nd x\n\n{} 3\n'
    got = list(series(text))
    assert got[:2] == [
        MetricSeries("a", {}, 1.0),
        MetricSeries("b", {"x": "1", "y": 'a \\"q\\" }'}, 2.5),
    ]
    assert [each.name for each in got] == ["a", "b", "c"]


def test_a_port_where_nobody_answers() -> None:
    assert page(("127.0.0.1", free_port())) is None
