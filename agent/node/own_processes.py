"""Topolet's processes on a node, by the procfs, and the answers of their HTTP ports."""

from __future__ import annotations

import http.client
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from agent.host import processes
from agent.host.locks import AGENT_LOCK, FRONTEND_LOCK
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.kubelet.configuration import flags
from agent.model.settings.agent import AGENT_PORT, AgentSettings
from agent.model.settings.frontends import NRI_PORT, PROXY_PORT, NriSettings, ProxySettings
from agent.model.settings.options import HTTP, Options, SettingsError, pages_address

COMMANDS: Final[Mapping[str, type[Options]]] = {
    "agent": AgentSettings,
    "proxy": ProxySettings,
    "nri": NriSettings,
}
"""The processes of a node, with their options."""
_PROGRAMS: Final = ("topolet", "topolet.py")
_WORDS: Final = 8
"""Loader and interpreter come before the program, each with flags (`install.folder`)."""
_SECONDS: Final = 3.0
_MAX_BYTES: Final = 8 << 20


class _Port(NamedTuple):
    """The port of `http` without one, and the lock that the process holds in its state folder."""

    number: int
    lock: str


_PORTS: Final = {
    "agent": _Port(AGENT_PORT, AGENT_LOCK),
    "nri": _Port(NRI_PORT, FRONTEND_LOCK),
    "proxy": _Port(PROXY_PORT, FRONTEND_LOCK),
}
_HOSTS: Final = ("0.0.0.0", "::", "127.0.0.1", "localhost")
_SERIES: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class OwnProcess(msgspec.Struct, frozen=True):
    """A process of Topolet."""

    pid: int
    command: str
    flags: dict[str, str]
    """The options in its command line that have a value, by name with dashes."""


class MetricSeries(msgspec.Struct, frozen=True):
    """One series of a page of metrics."""

    name: str
    labels: dict[str, str]
    value: float


class ProcessPage(msgspec.Struct, frozen=True):
    """The answers of a process's HTTP port."""

    ready: str = ""
    """Why it is not Ready, empty if it is."""
    series: tuple[MetricSeries, ...] = ()


def running(proc: str) -> Iterator[OwnProcess]:
    """Topolet's processes below a procfs."""
    for pid, argv in command_lines(proc):
        if command := command_of(argv):
            names = COMMANDS[command].__struct_encode_fields__
            given = {
                name: value
                for name, value in flags(argv).items()
                if name in names and (value or f"--{name}=" in argv)
            }
            yield OwnProcess(pid, command, given)


def command_lines(proc: str) -> Iterator[tuple[int, list[str]]]:
    """Pid and arguments of all processes that can be read."""
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
    for place, word in enumerate(argv[:_WORDS]):
        after = argv[place + 1 : place + 3]
        if word == "-m" and after[:1] == ["agent"]:
            after = after[1:]
        elif os.path.basename(word) not in _PROGRAMS:
            continue
        return after[0] if after and after[0] in COMMANDS else ""
    return ""


def runs(command: str, proc: str, state_dir: str) -> bool:
    """Whether a process of this command holds the lock of the state folder."""
    locked_by = processes.lock_holders(os.path.join(state_dir, _PORTS[command].lock), proc)
    return any(each.command == command and each.pid in locked_by for each in running(proc))


def page_of(command: str, proc: str, state_dir: str) -> ProcessPage | None:
    """What the process with this state folder answers; None without an answer."""
    address = address_of(command, tuple(running(proc)), proc, state_dir)
    return page(address) if address else None


def address_of(
    command: str, own: Sequence[OwnProcess], proc: str, state_dir: str
) -> tuple[str, int] | None:
    """Where the process with this state folder serves HTTP; None if it does not run, or does not
    serve on this machine's addresses. Only the process that holds the lock of the state folder
    counts, which takes root: any process may have such a command line, and may listen on the
    address of one that is in a pod.

    `own`: Topolet's processes in the procfs."""
    locked_by = processes.lock_holders(os.path.join(state_dir, _PORTS[command].lock), proc)
    return http_address(command, own, {pid for pid in locked_by if _in_own_network(proc, pid)})


def http_address(
    command: str, own: Sequence[OwnProcess], locked_by: Collection[int]
) -> tuple[str, int] | None:
    """Where one of the processes `locked_by` serves HTTP as this command, by its command line; None
    if none serves on an address of this machine."""
    for each in own:
        if each.command == command and each.pid in locked_by:
            try:
                served = pages_address(each.flags.get("http", HTTP), _PORTS[command].number)
            except SettingsError:
                return None
            return ("127.0.0.1", served[1]) if served and served[0] in _HOSTS else None
    return None


def _in_own_network(proc: str, pid: int) -> bool:
    """Whether a process is in this process's network namespace. False if this process may not
    know."""
    try:
        with Process(proc, pid) as process:
            return process.namespace("net") == os.readlink("/proc/self/ns/net")
    except (ProcessGoneError, UnreadableError, OSError):
        return False


def page(address: tuple[str, int]) -> ProcessPage | None:
    """The answers of the process, None if nobody answers there: the port may be in another network
    namespace."""
    try:
        status, text = _get(address, "/readyz")
        ready = "" if status == http.HTTPStatus.OK else text.strip() or f"status {status}"
        _, metrics = _get(address, "/metrics")
    except (OSError, http.client.HTTPException):
        return None
    return ProcessPage(ready, tuple(series(metrics)))


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


def answer(address: tuple[str, int], path: str) -> str | None:
    """What the process answers to a GET of the path; None if it has no such answer."""
    try:
        status, text = _get(address, path)
    except (OSError, http.client.HTTPException):
        return None
    return text if status == http.HTTPStatus.OK else None


def _get(address: tuple[str, int], path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=_SECONDS)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read(_MAX_BYTES).decode(errors="replace")
    finally:
        connection.close()
