"""Open the page of the agent in a browser: the machine, its pools, devices and pods, live, and why
each pod has its CPUs. With --scheduler, the page of the cluster: its nodes, pods without a node and
decisions.

The agent serves the page on its HTTP port, only to clients of the same machine. On the machine the
command prints the page's address, and opens it if there is a desktop. With NODE it forwards a port
of this machine to the agent's pod on that node, by kubectl and with the caller's rights (list pods,
and create pods/portforward, in the agent's namespace), until Ctrl-C. The local port is the same for
everybody: a link from the page works for each person who runs the same command. --scheduler does
the same for the scheduler's pod that holds the leader's Lease (get leases and pods, and create
pods/portforward, in its namespace). The printed address contains the holder of the Lease, which
gives access to the names of all pods: share it only with people who may see them.

Exit code 0: done; 1: no agent serves the page; 2: wrong usage, or kubectl failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import webbrowser
from collections.abc import Sequence
from typing import Final

from agent.cli import options, remote
from agent.http.page import PATH
from agent.model.settings.agent import AGENT_PORT, TopologySettings
from agent.model.settings.options import SettingsError
from agent.model.settings.scheduler import SCHEDULER_PORT
from agent.node import own_processes

USAGE = "topolet page [OPTIONS] [NODE]"
SETTINGS = TopologySettings
_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")
_DESKTOPS: Final = ("DISPLAY", "WAYLAND_DISPLAY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_root(parser)
    parser.add_argument(
        "--port",
        type=int,
        metavar="PORT",
        help="with NODE or --scheduler: port of this machine, 0 for any free port (default: "
        f"{AGENT_PORT}, {SCHEDULER_PORT})",
    )
    parser.add_argument(
        "--scheduler", action="store_true", help="open the page of the scheduler that leads"
    )
    parser.add_argument("--no-open", action="store_true", help="only print the page's address")
    text = "open the page of the agent on that node, by kubectl"
    remote.add_arguments(parser, text, "with NODE or --scheduler: ")
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    """Prints the page's address and opens it; with NODE or --scheduler, returns when kubectl
    ends."""
    if arguments.scheduler and arguments.node:
        return options.fail(ValueError("give either NODE or --scheduler"), 2)
    if arguments.node or arguments.scheduler:
        return _forwarded(arguments)
    try:
        settings = options.load(arguments, SETTINGS)
    except SettingsError as error:
        return options.fail(error, 2)
    proc = os.path.join(arguments.root, "proc")
    running = tuple(own_processes.running(proc))
    address = own_processes.address_of("agent", running, proc, settings.state_dir)
    if address is None:
        return options.fail(
            LookupError(
                f"no agent with state-dir {settings.state_dir} serves a page in this network: does "
                "it run, and does its --http listen on a loopback address or on all addresses? An "
                "agent in a pod has its own network: run kubectl topolet page NODE, or "
                "this command in its pod"
            )
        )
    if own_processes.page(address) is None:
        return options.fail(
            ConnectionError(
                f"the agent does not answer at {address[0]}:{address[1]}: run topolet doctor"
            )
        )
    _show(address[1], opens=not arguments.no_open)
    return 0


def _forwarded(arguments: argparse.Namespace) -> int:
    port, path = arguments.port, PATH
    if port is not None and not 0 <= port < 1 << 16:
        return options.fail(ValueError(f"--port: {port} is not a port"), 2)
    found: remote.Agent | remote.LeadingScheduler
    try:
        if arguments.scheduler:
            found = remote.find_leader(arguments)
            default_port = SCHEDULER_PORT
            path = f"{PATH}#holder={urllib.parse.quote(found.holder)}"
        else:
            found, default_port = remote.find_agent(arguments), AGENT_PORT
    except remote.RemoteError as error:
        return options.fail(error, 2)
    ports = f"{(default_port if port is None else port) or ''}:{found.http_port}"
    command = ["port-forward", "-n", found.namespace, f"pod/{found.pod}", ports]
    return forward([*found.kubectl, *command], opens=not arguments.no_open, path=path)


def forward(command: Sequence[str], *, opens: bool, path: str = PATH) -> int:
    """Runs the command (kubectl port-forward) until it ends, or until Ctrl-C or SIGTERM, and shows
    the page when kubectl listens. Returns 0, or 2 if kubectl failed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with subprocess.Popen(
        [*command, "--address=127.0.0.1"], stdout=subprocess.PIPE, text=True
    ) as kubectl:
        assert kubectl.stdout is not None
        try:
            for line in kubectl.stdout:
                if match := _FORWARDING.match(line):
                    _show(int(match[1]), opens=opens, path=path)
            return 2 if kubectl.wait() else 0
        except KeyboardInterrupt:
            return 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                kubectl.terminate()


def _show(port: int, *, opens: bool, path: str = PATH) -> None:
    address = f"http://localhost:{port}{path}"
    print(address, flush=True)
    # Without a desktop, webbrowser would start a browser for terminals, which lacks JavaScript.
    if opens and any(map(os.environ.get, _DESKTOPS)) and not webbrowser.open(address):
        print("topolet page: no browser can be started: open the address", file=sys.stderr)
