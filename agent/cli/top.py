"""Show the node live: each CPU with its owner and load, the pools over time, the devices, the pods
and what happens to them, with the reasons.

The key ? lists all keys, and q ends the command. With --once, in a pipe, or on a terminal without
cursor movement (TERM=dumb), the command prints one picture. It reads loads only while it runs. With
NODE it runs in the agent's pod on that node, by kubectl and with the caller's rights. Exit code 0:
done; 1: the machine can't be read; 2: wrong usage; 128 and more: ended by a signal.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.cgroup.hierarchy import CgroupError
from agent.cli import devices, options, remote
from agent.cli.screen import Screen, TerminalGoneError
from agent.cri.client import Cri
from agent.discover.gpuwatcher import GpuSession, SessionError
from agent.discover.sysfs import DiscoveryError
from agent.host.daemon import FaultError, Faults
from agent.model.devices.gpus import GpuReport
from agent.model.settings.agent import DevicesSettings, GpuDriverRoot, NodeName, RestoreSettings
from agent.model.settings.options import SettingsError, socket_path
from agent.node import past_load
from agent.node.sampler import NodeSampler, PodReader
from agent.rpc.grpc import RpcError
from agent.usage.past import PastHour
from agent.view import devices as devices_view
from agent.view import format, terminal
from agent.view.devices import DeviceSources, ShownDevice
from agent.view.terminal import Ability
from agent.view.top import lists
from agent.view.top.frame import frame
from agent.view.top.values import (
    SORTS,
    SORTS_OF_USAGE,
    NodeObservation,
    Opened,
    ScreenState,
    Usage,
    as_json,
    pressed,
)


class TopSettings(RestoreSettings, frozen=True):
    """`topolet top`."""

    gpu_driver_root: GpuDriverRoot = ""
    node_name: NodeName = ""


USAGE = "topolet top [OPTIONS] [NODE]"
SETTINGS = TopSettings
_LEAST_SECONDS, _MOST_SECONDS = 0.1, 3_600.0
_SECONDS: Final = {"pods": 10.0, "devices": 10.0, "gpus": 2.0, "hour": 15.0}
"""The time between two readings of each source. Pods are also read after each decision."""
_ANSWER_SECONDS: Final = 5.0
_ONCE_SECONDS: Final = 0.5
_ONCE_ROWS: Final = 2_000
_STANDARD_INPUT: Final = 0
"""The descriptor: without standard input, `sys.stdin` is None."""
_TERM: Final = re.compile(r"[A-Za-z0-9+._-]{1,64}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time between two updates of the screen (default: 1)",
    )
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    parser.add_argument(
        "-o",
        "--output",
        choices=("picture", "json"),
        default="picture",
        help="json: print the values once and end",
    )
    remote.add_arguments(parser)
    options.add_arguments(parser, SETTINGS)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r:.40} is not a number of seconds from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}"
        )
    return seconds


def run(arguments: argparse.Namespace) -> int:
    if arguments.node:
        return _on_node(arguments)
    try:
        settings = options.load(arguments, SETTINGS)
        runtime = socket_path(settings.runtime_endpoint)
    except SettingsError as error:
        return options.fail(error, 2)
    term = os.environ.get("TERM", "")
    encoding = sys.stdout.encoding or "ascii"
    ability = terminal.ability(term, encoding, os.environ.get("NO_COLOR", ""))
    name = settings.node_name or socket.gethostname()
    sampler = NodeSampler(name, settings.root, settings.state_dir)
    reader = _Reader(settings, runtime, sampler)
    # Log lines would damage the screen, which shows the problems itself.
    logging.disable(logging.CRITICAL)
    try:
        if arguments.output == "json":
            return _once(sampler, reader, None)
        if arguments.once or not sys.stdout.isatty() or term in ("", "dumb"):
            return _once(sampler, reader, ability)
        return _live(sampler, reader, ability, encoding, arguments.every)
    except (DiscoveryError, FaultError) as error:
        return options.fail(error)
    except OSError as error:
        return format.unwritten("top", error)
    except KeyboardInterrupt:  # The screen, once it is shown, reads Ctrl-C as a key.
        return 128 + signal.SIGINT
    finally:
        logging.disable(logging.NOTSET)


def _on_node(arguments: argparse.Namespace) -> int:
    """Runs the command on NODE, with the abilities of the caller's terminal."""
    json = arguments.output == "json"
    once = arguments.once or json
    flags = [f"--every={arguments.every:g}"]
    flags += ["--output=json"] if json else []
    flags += ["--once"] if once else []
    try:
        agent = remote.find_agent(arguments)
    except remote.RemoteError as error:
        return options.fail(error, 2)
    arguments.node_name = arguments.node_name or arguments.node
    term = os.environ.get("TERM", "")
    variables = [f"TERM={term}"] if _TERM.fullmatch(term) else []
    variables += ["NO_COLOR=1"] if os.environ.get("NO_COLOR") else []
    command = ["env", *variables, *remote.command_line("top", arguments, SETTINGS, *flags)]
    return remote.run(agent, command, terminal=not once)


def _once(sampler: NodeSampler, reader: _Reader, ability: Ability | None) -> int:
    """Prints one picture without colours, or without an ability the values as JSON. Loads need two
    readings, some time apart."""
    sampler.observe()
    reader.read()
    time.sleep(_ONCE_SECONDS)
    reader.read()
    reader.close()
    if ability is None:
        print(as_json(reader.observed()), flush=True)
        return 0
    columns, _ = shutil.get_terminal_size((100, 24))
    plain = msgspec.structs.replace(ability, colours=0)
    state = ScreenState(focus="")
    drawn = frame(reader.observed(), None, state, columns, _ONCE_ROWS, plain)
    lines = [terminal.text(line) for line in drawn[:-1]]
    print(format.encodable("\n".join(lines).rstrip()), flush=True)
    return 0


def _live(
    sampler: NodeSampler, reader: _Reader, ability: Ability, encoding: str, every: float
) -> int:
    # Before the screen is shown, so that an error of the machine stays readable.
    observed = reader.observed()
    state = ScreenState()
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        screen.wake()

    try:
        with (
            Faults(fail),
            Screen(_STANDARD_INPUT, sys.stdout.fileno(), encoding) as screen,
            _Background(reader, screen.wake, every) as background,
        ):
            due = time.monotonic() + min(every, _ONCE_SECONDS)
            while not (screen.ended or state.ended or failed.is_set()):
                columns, rows = screen.size
                drawn = frame(observed, background.opened, state, columns, rows, ability)
                screen.show(terminal.rows(drawn, columns, ability.colours))
                sorts = SORTS_OF_USAGE if observed.hour else SORTS
                state = msgspec.structs.replace(state, sorts=sorts)
                entries = lists.keys(observed, state)
                for key in screen.keys(max(due - time.monotonic(), 0.0)):
                    state = pressed(key, state, entries, max(rows // 2, 1))
                    entries = lists.keys(observed, state)
                background.open(lists.pod_of(state.opened, observed))
                if time.monotonic() >= due:
                    due = time.monotonic() + every
                    observed = observed if state.frozen else reader.observed()
    except TerminalGoneError:
        return 0
    return 0 if screen.ended in (0, signal.SIGINT) else 128 + screen.ended


class _Reader:
    """The sources that may take long to answer: runtime and devices. One thread calls `read` and
    `opened`; another calls `observed`, which adds the last answers to the node's state."""

    def __init__(self, settings: TopSettings, runtime: str, sampler: NodeSampler) -> None:
        self._settings = settings
        self._sampler = sampler
        self._cri = Cri(runtime, _ANSWER_SECONDS)
        self._pods: PodReader | None = None
        self._gpus = _Gpus()
        self._sources: DeviceSources | None = None
        self._due: dict[str, float] = {}
        self._generation = 0
        self._name_of = devices.names(settings.root)
        self._devices: tuple[ShownDevice, ...] = ()
        self._usage: dict[str, Usage] = {}
        self._problems: dict[str, str] = {}
        self._hour: PastHour | None = None

    def observed(self) -> NodeObservation:
        """The node now, with the last answers. Raises DiscoveryError, OSError."""
        problems = tuple(self._problems.values())
        return self._sampler.observe(self._devices, self._usage, problems, self._hour)

    def read(self) -> None:
        """Reads each source whose time has come."""
        try:
            self._read_pods()
            self._problems.pop("pods", None)
        except (RpcError, CgroupError) as error:
            self._problems = {**self._problems, "pods": f"the use of pods is unknown: {error}"}
        try:
            self._read_devices()
            self._problems.pop("devices", None)
        except (DiscoveryError, OSError) as error:
            self._problems = {**self._problems, "devices": f"the devices are unknown: {error}"}
        if self._is_due("hour"):
            self._hour = past_load.read(self._settings.root, self._settings.state_dir)

    def opened(self, uid: str) -> Opened:
        """What the runtime and the cgroups report of a pod."""
        try:
            return self._pod_reader().opened(uid)
        except CgroupError as error:
            return Opened(uid, str(error))

    def close(self) -> None:
        self._gpus.close()
        self._cri.close()

    def _pod_reader(self) -> PodReader:
        if self._pods is None:
            proc = os.path.join(self._settings.root, "proc")
            self._pods = PodReader(self._cri, self._settings.cgroup_root, proc)
        return self._pods

    def _read_pods(self) -> None:
        pods = self._pod_reader()
        generation = self._sampler.generation
        if "pods" in self._problems or generation != self._generation or self._is_due("pods"):
            pods.observe()
            self._generation = generation
        self._usage = pods.usage()

    def _read_devices(self) -> None:
        settings, found = self._settings, self._sources
        if found is None or self._is_due("devices"):
            wanted = DevicesSettings(settings.state_dir, settings.gpu_driver_root)
            root, topology = settings.root, self._sampler.topology
            found = devices.read(root, topology, wanted, self._gpus.report)
        elif found.gpus is not None and self._is_due("gpus"):
            report = self._gpus.report(settings.gpu_driver_root)
            found = msgspec.structs.replace(found, gpus=report)
        if found is not self._sources:
            self._sources = found
            self._devices = devices_view.shown(found, self._name_of)

    def _is_due(self, what: str) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + _SECONDS[what]
        return True


class _Gpus:
    """Keeps a session with NVIDIA's driver open, because its start takes half a second."""

    def __init__(self) -> None:
        self._session: GpuSession | None = None

    def report(self, driver_root: str) -> GpuReport:
        try:
            if self._session is None:
                self._session = GpuSession(driver_root)
            return self._session.report(_ANSWER_SECONDS)
        except SessionError as error:
            self.close()
            return GpuReport(error.fault, error.message)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class _Background:
    """A thread that calls the reader, each `every` seconds and when a pod is opened."""

    def __init__(self, reader: _Reader, wake: Callable[[], None], every: float) -> None:
        self._reader = reader
        self._wake = wake
        self._every = every
        self._due = threading.Event()
        self._uid = ""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="reads", daemon=True)
        self.opened: Opened | None = None
        """What was read of the pod that was opened last, None before that."""

    def __enter__(self) -> _Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._due.set()
        # Not for longer: a runtime that does not answer must not delay the end of the command.
        self._thread.join(_ONCE_SECONDS)

    def open(self, uid: str) -> None:
        """A pod is opened, or closed if `uid` is ""."""
        if uid != self._uid:
            self._uid = uid
            self._due.set()

    def _run(self) -> None:
        while not self._stopped:
            if self._uid:
                opened = self._reader.opened(self._uid)
                if opened != self.opened:
                    self.opened = opened
                    self._wake()
            self._reader.read()
            self._due.wait(self._every)
            self._due.clear()
        self._reader.close()
