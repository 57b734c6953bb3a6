"""Check that the parts of an installed release are Ready: the agents of each pool, and the
scheduler, its kube-scheduler and the webhook where the release has them. `helm test` runs this
command. It waits for them. Exit code 0: all are Ready; 1: those that are printed are not; 2: they
can't be read."""

from __future__ import annotations

import argparse
import time
from typing import Any, Final

import msgspec

from agent.cli import options
from agent.cli.install_proxy import print_line
from agent.kube import wire
from agent.kube.auth import AccessError
from agent.kube.errors import KubeError
from agent.kube.transport import Transport, segment
from agent.model.settings.options import CallerSettings, SettingsError
from agent.view.format import count

_SELECTOR: Final = {"labelSelector": "app.kubernetes.io/name=topolet"}
_AGENT: Final = ("app.kubernetes.io/component", "agent")


class ReleasePart(msgspec.Struct, frozen=True):
    """A DaemonSet or Deployment."""

    kind: str
    name: str
    wanted: int
    problem: str
    """Why it is not Ready in its present version, "" if it is."""
    agents: bool = False
    """Its pods are agents."""


def parts(transport: Transport, namespace: str) -> list[ReleasePart]:
    """Sorted by kind and name. Raises KubeError, AccessError."""
    found: list[ReleasePart] = []
    for kind, plural in (("DaemonSet", "daemonsets"), ("Deployment", "deployments")):
        path = f"/apis/apps/v1/namespaces/{segment(namespace)}/{plural}"
        listed = wire.listed(path, _SELECTOR, transport.get, msgspec.json.decode).found
        found += sorted((part_of(kind, each) for each in listed), key=lambda each: each.name)
    return found


def part_of(kind: str, body: dict[str, Any]) -> ReleasePart:
    """The part that an object of the API server describes."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    agents = (metadata.get("labels") or {}).get(_AGENT[0]) == _AGENT[1]
    if kind == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        ready, new = status.get("numberReady", 0), status.get("updatedNumberScheduled", 0)
        on_delete = (spec.get("updateStrategy") or {}).get("type") == "OnDelete"
    else:
        wanted = spec.get("replicas", 1)
        ready, new = status.get("readyReplicas", 0), status.get("updatedReplicas", 0)
        on_delete = False
    problem = ""
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        problem = "its controller has not seen its last change"
    elif new < wanted and not on_delete:
        problem = f"{new} of {wanted} pods have the version of the release"
    elif ready < wanted:
        problem = f"{ready} of {wanted} pods are Ready"
    return ReleasePart(kind, metadata["name"], wanted, problem, agents)


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
            found = parts(transport, arguments.namespace)
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


def _ready(part: ReleasePart) -> str:
    return f"{count(part.wanted, 'pod')}, all Ready"
