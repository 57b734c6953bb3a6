"""Take back everything that Topolet changed on this node. Stop the agent first.

The kubelet's endpoint and the proxy, the values of cgroups, the labels and extended resources of
the Node, Topolet's part of the NodeResourceTopology and the Device, and the files. What others
wrote stays. It can be repeated. Exit code 0: nothing is left; 1: what is left is listed; 2: wrong
usage, or no credentials for the API server, and nothing is changed.
"""

from __future__ import annotations

import argparse
import os
import sys

from agent.cli import options
from agent.cli.install_proxy import ended_by_signal, say
from agent.install.proxy import ProxyInstallation
from agent.install.uninstall import NodeRemoval
from agent.kube import auth
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.objects import Objects
from agent.kube.transport import Transport
from agent.model.settings.agent import UninstallSettings
from agent.model.settings.options import SettingsError

SETTINGS = UninstallSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--without-cluster",
        action="store_true",
        help="leave the objects of the cluster as they are",
    )
    parser.add_argument(
        "--without-proxy",
        action="store_true",
        help="leave the proxy of this host, if there is one, and the kubelet's endpoint",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    objects: Objects | None = None
    try:
        settings = options.load(arguments, SETTINGS)
        name = settings.node_name or os.uname().nodename
        if not arguments.without_cluster:
            # Before anything is changed: the program may be a part of what is removed.
            access = auth.access(settings.kubeconfig, settings.service_account_dir)
            objects = Cluster(Transport(access), name)
    except AccessError as error:
        text = "nothing is changed; --without-cluster leaves the objects to a later run, elsewhere"
        return options.fail(AccessError(f"{error}: {text}"), 2)
    except SettingsError as error:
        return options.fail(error, 2)
    ended_by_signal()
    installation = None if arguments.without_proxy else ProxyInstallation(settings, say)
    removal = NodeRemoval(settings, name, objects, installation, say)
    if removal.run():
        say(f"node {name}: nothing of Topolet is left")
        return 0
    for line in removal.left:
        print(f"topolet: left on node {name}: {line}", file=sys.stderr)
    return 1
