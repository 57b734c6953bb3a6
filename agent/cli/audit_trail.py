"""The records of the audit trail that `topolet audit` and `topolet history` show."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from agent.cli import options
from agent.model import audit
from agent.model.audit import Record
from agent.model.settings.agent import TopologySettings
from agent.telemetry.audit import FoundRecords, read
from agent.view import format

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
