"""Show what happened to a pod on this node in the last day, and why: decisions about its CPUs and
devices, moves and refusals, from the audit trail. If the agent samples usage, also its load and
pressure of the last hour, and what it used before and after each change of its CPUs.

The trail is in the state folder, which only root can read. Exit code 0: the records are printed; 1:
the trail does not exist, or has no record of the pod; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from agent.cli import audit, options
from agent.model.settings.options import SettingsError
from agent.node import past_load
from agent.usage.past import PastHour
from agent.view import format, history, past, terminal
from agent.view.history import PodHistory

USAGE = "topolet history [OPTIONS] [NAMESPACE/]POD"
SETTINGS = audit.SETTINGS
SCHEMA_VERSION = 1
"""The version of the JSON output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", metavar="[NAMESPACE/]POD", help="name of the pod")
    audit.add_filters(parser)
    options.add_root(parser)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    if arguments.node:
        return audit.on_node("history", arguments)
    try:
        settings = options.load(arguments, SETTINGS)
    except SettingsError as error:
        return options.fail(error, 2)
    try:
        records = audit.selected_records(arguments, settings.state_dir).records
    except OSError as error:
        return audit.fail_without_trail(error, settings.state_dir)
    histories = history.pod_histories(records)
    hour = past_load.read(arguments.root, settings.state_dir) or PastHour(0.0)
    if not histories and arguments.output == "text":
        return options.fail(
            LookupError(f"the audit trail has no record of pod {arguments.pod} in that time")
        )
    try:
        if arguments.output == "json":
            pods = [_of_pod(pod, hour) for pod in histories]
            json.dump({"schema_version": SCHEMA_VERSION, "pods": pods}, sys.stdout, indent=1)
            print(flush=True)
        else:
            ability = terminal.ability("", sys.stdout.encoding or "ascii", "")
            changes = history.cpu_changes(records)
            width = format.columns(100)
            hours = {
                pod.uid: shown
                for pod in histories
                if (shown := past.beside(pod, changes.get(pod.uid, ()), hour, width, ability))
            }
            print(format.encodable(history.as_text(histories, hours=hours)), end="", flush=True)
    except OSError as error:
        return format.unwritten("history", error)
    return 0 if histories else 1


def _of_pod(pod: PodHistory, hour: PastHour) -> dict[str, object]:
    """The pod as JSON; with its last hour if that is known."""
    values: dict[str, object] = msgspec.to_builtins(pod)
    if load := hour.pods.get(pod.uid):
        values["hour"] = {"begin": hour.begin, "load": msgspec.to_builtins(load)}
    return values
