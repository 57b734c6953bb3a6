"""Undo everything that Topolet changed on this node. Stop the agent first.

The command restores the kubelet's runtime endpoint and the values of cgroups. It removes the proxy,
the labels and extended resources of the Node, Topolet's part of the NodeResourceTopology and the
Device, and Topolet's files. It keeps what others wrote, and can be repeated. Exit code 0: nothing
is left; 1: the command lists what is left; 2: wrong usage, or no credentials for the API server,
and nothing is changed.
"""

from __future__ import annotations

import argparse
import os
import sys

from agent.cli import options
from agent.cli.install_proxy import fail_on_signals, print_line
from agent.install.proxy import ProxyInstallation
from agent.install.uninstall import NodeRemoval
from agent.kube import auth
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.objects import Objects
from agent.kube.transport import Transport
from agent.model.settings.agent import UninstallSettings
from agent.model.settings.options import SettingsError
from agent.view.format import printable

SETTINGS = UninstallSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--without-cluster",
        action="store_true",
        help="do not change objects of the cluster",
    )
    parser.add_argument(
        "--without-proxy",
        action="store_true",
        help="do not change the proxy of this host and the kubelet's runtime endpoint",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    objects: Objects | None = None
    try:
        settings = options.load(arguments, SETTINGS)
        name = settings.node_name or os.uname().nodename
        if not arguments.without_cluster:
            # First of all: later imports may fail, because the removed files may contain this
            # program.
            access = auth.access(settings.kubeconfig)
            objects = Cluster(Transport(access), name)
    except AccessError as error:
        text = (
            "nothing is changed; with --without-cluster a later run, on any machine, undoes the "
            "changes of objects"
        )
        return options.fail(AccessError(f"{error}: {text}"), 2)
    except SettingsError as error:
        return options.fail(error, 2)
    fail_on_signals()
    installation = None if arguments.without_proxy else ProxyInstallation(settings, print_line)
    removal = NodeRemoval(settings, name, objects, installation, print_line)
    if removal.run():
        print_line(f"node {name}: nothing of Topolet is left")
        return 0
    for line in removal.left:
        print(printable(f"topolet: left on node {name}: {line}"), file=sys.stderr)
    return 1
