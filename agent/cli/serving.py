"""Starts the processes that serve HTTP to the cluster: the scheduler and the webhook."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from agent.cli import options
from agent.model.settings.options import SettingsError
from agent.model.settings.scheduler import SchedulerSettings, WebhookSettings
from agent.telemetry import logs

Kind = TypeVar("Kind", SchedulerSettings, WebhookSettings)


def serve(
    command: str, arguments: argparse.Namespace, kind: type[Kind], process: Callable[[Kind], None]
) -> int:
    """Loads the settings of the command and calls `process` with them; returns the exit code.
    `process` imports its modules when it is called, returns after SIGTERM, and may raise
    AccessError, CertificateError, FaultError, HttpListenError and SettingsError."""
    try:
        settings = options.load(arguments, kind)
    except SettingsError as error:
        return options.fail(error, 2)
    logs.start(settings.log_level, settings.log_format)
    logs.announce(command, settings)
    from agent.host.daemon import FaultError
    from agent.http.certificates import CertificateError
    from agent.http.server import HttpListenError
    from agent.kube.auth import AccessError

    try:
        process(settings)
    except SettingsError as error:
        return options.fail(error, 2)
    except (AccessError, CertificateError, FaultError, HttpListenError) as error:
        return options.fail(error)
    return 0
