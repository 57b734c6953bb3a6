"""List what Topolet decided and changed on this node, with the reasons: the audit trail of agent,
proxy, NRI plugin and commands, newest last.

The trail is in the state folder, which only root can read. Exit code 0: the trail was read, even if
it has no record of the pod; 1: the trail does not exist; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Final

import msgspec

from agent.cli import options
from agent.model import audit
from agent.model.audit import Record
from agent.model.settings.agent import TopologySettings
from agent.model.settings.options import SettingsError
from agent.telemetry.audit import FoundRecords, read
from agent.view import format, history

SETTINGS: Final = TopologySettings
_SINCE: Final = "24h"


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `selected_records`, without the pod."""
    parser.add_argument(
        "--since",
        type=options.duration_seconds,
        default=options.duration_seconds(_SINCE),
        metavar="DURATION",
        help=f"only records of this last time, such as 30m, 1h or 2d ({_SINCE})",
    )
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only pods of this namespace")
    parser.add_argument(
        "--node", metavar="NODE", help="run the command in the agent's pod on that node, by kubectl"
    )
    parser.add_argument(
        "--agent-namespace",
        default="topolet-system",
        metavar="NAME",
        help="with --node: namespace of the agents (topolet-system)",
    )
    parser.add_argument("--context", metavar="NAME", help="with --node: context of the kubeconfig")


def selected_records(
    arguments: argparse.Namespace, state_dir: str, container: str = ""
) -> FoundRecords:
    """The records of the audit trail that the arguments select. Raises OSError."""
    namespace, _, pod = (arguments.pod or "").rpartition("/")
    namespace = arguments.namespace or namespace

    def wanted(record: Record) -> bool:
        return (
            (not pod or record.pod == pod)
            and (not namespace or record.namespace == namespace)
            and (not container or record.container == container)
        )

    found = read(state_dir, audit.stamp(time.time() - arguments.since), wanted)
    if found.unreadable:
        lines = format.count(found.unreadable, "line")
        print(f"topolet: {lines} of the audit trail can't be read", file=sys.stderr)
    return found


def on_node(command: str, arguments: argparse.Namespace, *more: str) -> int:
    """Runs `command` on NODE with the same arguments. Returns the exit code.

    `more`: arguments that only this command has."""
    from agent.cli import remote  # imports modules that a command on the node itself does not need

    flags = [
        f"--{name}={value}"
        for name in ("namespace", "output", *more)
        if (value := getattr(arguments, name))
    ]
    flags += [f"--since={arguments.since:.0f}s", *([arguments.pod] if arguments.pod else [])]
    # For the search of the agent's pod, `namespace` is that of the agents.
    agents = argparse.Namespace(**{**vars(arguments), "namespace": arguments.agent_namespace})
    return remote.run_on_node(command, agents, SETTINGS, *flags)


def fail_without_trail(error: OSError, state_dir: str) -> int:
    """Writes why the audit trail can't be read; returns the exit code."""
    if isinstance(error, FileNotFoundError):
        text = (
            f"{state_dir} has no audit trail: no process of Topolet has written one there "
            "(option state-dir)"
        )
        return options.fail(FileNotFoundError(text))
    return options.fail(error)


USAGE = "topolet audit [OPTIONS] [[NAMESPACE/]POD]"
SCHEMA_VERSION = 1
"""The version of the JSON output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", nargs="?", metavar="[NAMESPACE/]POD", help="only this pod")
    add_filters(parser)
    parser.add_argument("--container", metavar="NAME", help="only containers of this name")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    if arguments.node:
        return on_node("audit", arguments, "container")
    try:
        settings = options.load(arguments, SETTINGS)
    except SettingsError as error:
        return options.fail(error, 2)
    try:
        found = selected_records(arguments, settings.state_dir, arguments.container or "")
    except OSError as error:
        return fail_without_trail(error, settings.state_dir)
    try:
        if arguments.output == "json":
            records = msgspec.to_builtins(found.records)
            json.dump({"schema_version": SCHEMA_VERSION, "records": records}, sys.stdout, indent=1)
            print(flush=True)
        else:
            width = format.columns(1_000)
            text = history.as_table(found.records, width)
            print(format.encodable(text), end="", flush=True)
    except OSError as error:
        return format.unwritten("audit", error)
    return 0
