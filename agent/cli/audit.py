"""List what Topolet decided and changed on this node, with the reasons: the audit trail of agent,
proxy, NRI plugin and commands, newest last.

The trail is in the state folder, which only root can read. Exit code 0: the trail was read, even if
it has no record of the pod; 1: the trail does not exist; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from agent.cli import audit_trail, options
from agent.model.settings.options import SettingsError
from agent.view import format, history

USAGE = "topolet audit [OPTIONS] [[NAMESPACE/]POD]"
SETTINGS = audit_trail.SETTINGS
SCHEMA_VERSION = 1
"""The version of the JSON output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", nargs="?", metavar="[NAMESPACE/]POD", help="only this pod")
    audit_trail.add_filters(parser)
    parser.add_argument("--container", metavar="NAME", help="only containers of this name")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    if arguments.node:
        return audit_trail.on_node("audit", arguments, "container")
    try:
        settings = options.load(arguments, SETTINGS)
    except SettingsError as error:
        return options.fail(error, 2)
    try:
        found = audit_trail.selected_records(
            arguments, settings.state_dir, arguments.container or ""
        )
    except OSError as error:
        return audit_trail.fail_without_trail(error, settings.state_dir)
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
