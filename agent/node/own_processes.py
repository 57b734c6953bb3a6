"""Topolet's processes on a node, as the kernel shows them, and what the agent's HTTP port says."""

from __future__ import annotations

import http.client
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from agent.host import processes
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.model.settings.agent import AgentSettings
from agent.model.settings.frontends import NriSettings, ProxySettings
from agent.model.settings.options import STATE_DIR, Options

COMMANDS: Final[Mapping[str, type[Options]]] = {
    "agent": AgentSettings,
    "proxy": ProxySettings,
    "nri": NriSettings,
}
"""The processes of a node, with their options."""
_SECONDS: Final = 3.0
_MAX_BYTES: Final = 8 << 20
_HOSTS: Final = ("0.0.0.0", "[::]", "", "127.0.0.1", "localhost")
"""No others: any process may have the command line of an agent."""
_SERIES: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class OwnProcess(msgspec.Struct, frozen=True):
    """`flags`: its options, by name with dashes."""

    pid: int
    command: str
    flags: dict[str, str]


class MetricSeries(msgspec.Struct, frozen=True):
    """One series of a page of metrics."""

    name: str
    labels: dict[str, str]
    value: float


class AgentPage(msgspec.Struct, frozen=True):
    """What the agent's port answers. `ready`: "" if the agent is Ready, else why not."""

    ready: str = ""
    series: tuple[MetricSeries, ...] = ()


def running(proc: str) -> Iterator[OwnProcess]:
    """Topolet's processes below a procfs."""
    for pid, argv in command_lines(proc):
        if command := command_of(argv):
            names = set(COMMANDS[command].__struct_encode_fields__)
            pairs = [each.removeprefix("--").partition("=") for each in argv]
            flags = {name: value for name, equals, value in pairs if equals and name in names}
            yield OwnProcess(pid, command, flags)


def command_lines(proc: str) -> Iterator[tuple[int, list[str]]]:
    """Of all processes that can be read."""
    try:
        pids = processes.pids(proc)
    except OSError:
        return
    for pid in pids:
        try:
            with Process(proc, pid) as process:
                argv = process.argv()
        except (ProcessGoneError, UnreadableError):
            continue
        yield pid, argv


def command_of(argv: Sequence[str]) -> str:
    """The subcommand of a process of Topolet, "" for other processes."""
    for place, word in enumerate(argv[:3]):
        after = argv[place + 1 : place + 3]
        if os.path.basename(word) == "topolet" and after[:1]:
            return after[0] if after[0] in COMMANDS else ""
        if word == "-m" and after[:1] == ["agent"] and len(after) > 1:
            return after[1] if after[1] in COMMANDS else ""
    return ""


def agent_address(own: Sequence[OwnProcess], state_dir: str) -> tuple[str, int] | None:
    """Where the agent with this state folder serves HTTP for this machine; None if it does not."""
    for each in own:
        flags = each.flags
        if each.command == "agent" and flags.get("state-dir", STATE_DIR) == state_dir:
            host, _, port = flags.get("http", AgentSettings().http).rpartition(":")
            local = host in _HOSTS and port.isdecimal() and len(port) < 6
            return ("127.0.0.1", int(port)) if local else None
    return None


def page(address: tuple[str, int]) -> AgentPage | None:
    """None if nobody answers there: the port may be in another network namespace."""
    try:
        status, text = _get(address, "/readyz")
        ready = "" if status == http.HTTPStatus.OK else text.strip() or f"status {status}"
        _, metrics = _get(address, "/metrics")
    except (OSError, http.client.HTTPException):
        return None
    return AgentPage(ready, tuple(series(metrics)))


def series(text: str) -> Iterator[MetricSeries]:
    """The series of a page in Prometheus' text format; other lines are left out."""
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield MetricSeries(match[1], dict(_LABEL.findall(match[2] or "")), value)


def _get(address: tuple[str, int], path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=_SECONDS)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read(_MAX_BYTES).decode(errors="replace")
    finally:
        connection.close()
