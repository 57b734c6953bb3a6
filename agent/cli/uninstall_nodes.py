"""Undo everything that Topolet changed, on all nodes. The pre-delete hook of the chart runs this
command.

It deletes the agents' DaemonSets, and starts a pod with `topolet uninstall-node` on each node that
has an agent or labels of one. FILE has the pods, one for each pool of the chart. The command lists
the nodes on which something is left, and what to run for each. It can be repeated. Exit code 0:
nothing is left; 1: something is left on the listed nodes; 2: the command can't begin.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.cli import options
from agent.cli.install_proxy import print_line
from agent.install.nodes import ClusterRemoval, NodePools, NodeProgress, RemovalLimits
from agent.kube.auth import AccessError
from agent.kube.errors import KubeError
from agent.kube.transport import Transport
from agent.model.settings.options import CallerSettings, SettingsError
from agent.view.format import count, printable

USAGE = "topolet uninstall-nodes [OPTIONS] FILE"
SETTINGS = CallerSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pools", metavar="FILE", help="the pools with their pods, in JSON")
    for name, unset, text in (
        ("--nodes-at-once", 20, "number of nodes at the same time"),
        ("--node-deadline-seconds", 120, "longest time of one node"),
        ("--deadline-seconds", 270, "longest time of all nodes together"),
    ):
        parser.add_argument(
            name, type=options.positive, default=unset, metavar="N", help=f"{text} ({unset})"
        )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        pools = msgspec.json.decode(Path(arguments.pools).read_bytes(), type=NodePools)
        access = options.caller_access(settings.kubeconfig)
    except msgspec.DecodeError as error:
        return options.fail(SettingsError(f"{arguments.pools}: {error}"), 2)
    except (SettingsError, AccessError, OSError) as error:
        return options.fail(error, 2)
    limits = RemovalLimits(
        arguments.nodes_at_once, arguments.node_deadline_seconds, arguments.deadline_seconds
    )
    transport = Transport(access, user_agent="topolet-uninstall")
    try:
        removal = ClusterRemoval(transport, pools, limits, print_line)
        done = removal.run()
    except (KubeError, AccessError) as error:
        return options.fail(error)
    finally:
        transport.close()
    if done:
        print_line("nothing of Topolet is left on any node")
        return 0
    for line in listed(removal.left):
        print(printable(line), file=sys.stderr)
    return 1


_COMMANDS: Final = (
    "    topolet uninstall-node --without-cluster",
    "    topolet uninstall-node --node-name=NODE --kubeconfig=FILE --without-proxy",
)


def listed(left: Sequence[NodeProgress]) -> list[str]:
    """Lines about the nodes on which something is left."""
    lines = []
    for each in left:
        lines.append(f"topolet: left on node {each.node}: {each.problem}")
    lines.append(
        f"topolet: something is left on {count(len(left), 'node')}: repeat helm uninstall, which "
        "undoes only these, or run the first command below on each of them and the second one with "
        "a kubeconfig; helm uninstall --no-hooks leaves them as they are"
    )
    lines += _COMMANDS
    return lines
