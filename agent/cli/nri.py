"""Run the NRI plugin: the runtime calls it for each container, and it sets the container's CPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent.cli import options
from agent.host.locks import LockedError
from agent.model.settings import frontends
from agent.model.settings.frontends import NRI_PORT, NriSettings
from agent.model.settings.options import SettingsError, pages_address, socket_path
from agent.telemetry import logs

if TYPE_CHECKING:
    import argparse

SETTINGS = NriSettings
SWITCHES = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    from agent.nri import daemon
    from agent.nri.daemon import LaunchError, launched

    try:
        settings = options.load(arguments, SETTINGS)
        check(settings)
    except SettingsError as error:
        return options.fail(error, 2)
    logs.start(settings.log_level, settings.log_format)
    logs.announce("nri", settings)
    try:
        daemon.run(settings, launched(os.environ))
    except (LockedError, LaunchError, OSError) as error:
        return options.fail(error)
    return 0


def check(settings: NriSettings) -> None:
    """Raises SettingsError."""
    frontends.failure_policies(settings)
    socket_path(settings.nri_socket)
    pages_address(settings.http, NRI_PORT)
