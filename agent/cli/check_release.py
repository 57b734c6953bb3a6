"""Check that the parts of an installed release are Ready: the agents of each pool, and the
scheduler, its kube-scheduler and the webhook where the release has them. `helm test` runs this
command. It waits for them. Exit code 0: all are Ready; 1: those that are printed are not; 2: they
can't be read."""

from __future__ import annotations

import argparse
import time
from typing import Final

from agent.cli import options
from agent.cli.install_proxy import print_line
from agent.install import release
from agent.kube.auth import AccessError
from agent.kube.errors import KubeError
from agent.kube.transport import Transport
from agent.model.settings.options import CallerSettings, SettingsError
from agent.view.format import count

SETTINGS = CallerSettings
READY_SECONDS: Final = 120.0
"""The longest wait until all parts are Ready."""
_POLL_SECONDS: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namespace",
        default="topolet-system",
        help="namespace of the release (default: topolet-system)",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        access = options.caller_access(settings.kubeconfig)
    except (SettingsError, AccessError, OSError) as error:
        return options.fail(error, 2)
    transport = Transport(access, user_agent="topolet-check-release")
    until = time.monotonic() + READY_SECONDS
    try:
        while True:
            found = release.parts(transport, arguments.namespace)
            ready = any(each.agents for each in found) and not any(each.problem for each in found)
            if ready or time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS)
    except (KubeError, AccessError) as error:
        return options.fail(error, 2)
    finally:
        transport.close()
    for each in found:
        print_line(f"{each.kind} {each.name}: {each.problem or _ready(each)}")
    if not any(each.agents for each in found):
        print_line(f"namespace {arguments.namespace}: it has no DaemonSet of agents")
    return 0 if ready else 1


def _ready(part: release.ReleasePart) -> str:
    return f"{count(part.wanted, 'pod')}, all Ready"
