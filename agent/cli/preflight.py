"""Check that an agent with these options can run on this node, before it is installed: that the
container runtime answers on its socket, that the kubelet's folder is the right one, that cgroups
are usable, and that the options are valid and do not contradict the kubelet's configuration. The
chart runs the command on some nodes of each pool before it changes anything. It changes nothing.
Exit code 0: the agent can run; 1: it can't, for the reasons that are printed; 2: wrong usage, or an
option that is not valid."""

from __future__ import annotations

import argparse
import importlib
import os

from agent.cli import options
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.node import preflight
from agent.node.preflight import Mode
from agent.view.format import printable

SETTINGS = AgentSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=tuple(Mode),
        default=Mode.RECONCILE,
        help="what gives containers their CPUs: the agent alone (reconcile), a proxy that runs "
        "already (proxy), or the NRI plugin (nri); default: reconcile",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        # As the agent itself, which is not started here.
        importlib.import_module("agent.cli.agent").check(settings)
        found = list(preflight.problems(settings, Mode(arguments.mode)))
    except SettingsError as error:
        return options.fail(error, 2)
    node = settings.node_name or os.uname().nodename
    for each in found:
        options.fail(RuntimeError(printable(f"node {node}: {each}")))
    if found:
        return 1
    print(f"node {node}: an agent with these options can run")
    return 0
