"""Run the companion of kube-scheduler: an extender that finds the best node and gives each pod its
CPUs and devices."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import TypeVar

from agent.cli import options
from agent.model.settings.options import SettingsError
from agent.model.settings.scheduler import SchedulerSettings, WebhookSettings
from agent.telemetry import logs

SETTINGS = SchedulerSettings


Kind = TypeVar("Kind", SchedulerSettings, WebhookSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    return serve(arguments, SETTINGS, "scheduler", _run)


def _run(settings: SchedulerSettings) -> None:
    from agent.scheduler import process

    process.run(settings)


def serve(
    arguments: argparse.Namespace, kind: type[Kind], name: str, process: Callable[[Kind], None]
) -> int:
    """The exit code. `process` imports what it needs when it is called, ends with SIGTERM, and
    raises AccessError, FaultError, SettingsError and StartError."""
    try:
        settings = options.load(arguments, kind)
        if importlib.util.find_spec("cheroot") is None:
            raise SettingsError(f"the {name} needs cheroot: pip install 'topolet[scheduler]'")
    except SettingsError as error:
        return options.fail(error, 2)
    logs.start(settings.log_level)
    from agent.host.daemon import FaultError
    from agent.kube.auth import AccessError
    from agent.scheduler.connections import StartError

    try:
        process(settings)
    except SettingsError as error:
        return options.fail(error, 2)
    except (AccessError, FaultError, StartError) as error:
        return options.fail(error)
    return 0
