"""Run the CRI proxy: every call passes byte for byte, containers are created on the right CPUs."""

from __future__ import annotations

import argparse

from agent.cli import options
from agent.host.listener import ListenError
from agent.model.settings import SettingsError
from agent.proxy import daemon
from agent.telemetry import logs

OPTIONS = ("listen", "runtime_endpoint", "state_dir", "hold_seconds", "proxy_http", "log_level")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments)
    except SettingsError as error:
        return options.fail(error, 2)
    logs.start(settings.log_level)
    try:
        daemon.run(settings)
    except (ListenError, SettingsError, OSError) as error:
        return options.fail(error)
    return 0
