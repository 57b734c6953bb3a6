"""Run the CRI proxy: it relays calls byte for byte, and sets the CPUs of containers."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from agent.cli import options
from agent.host.listener import ActivationError, Listener, ListenError, inherited
from agent.host.locks import LockedError
from agent.model.settings import frontends
from agent.model.settings.frontends import PROXY_PORT, ProxySettings
from agent.model.settings.options import SettingsError, pages_address, proxy_socket, socket_path
from agent.telemetry import logs

if TYPE_CHECKING:
    import argparse

log = logging.getLogger(__name__)

SETTINGS = ProxySettings
SWITCHES = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        check(settings)
    except SettingsError as error:
        return options.fail(error, 2)
    logs.start(settings.log_level, settings.log_format)
    logs.announce("proxy", settings)
    try:
        served = inherited(os.environ) or _listen(settings)
    except (ActivationError, ListenError, OSError) as error:
        return options.fail(error)
    # A kubelet that connects now waits for the imports instead of failing.
    from agent.proxy import daemon

    try:
        daemon.run(settings, served)
    except (LockedError, OSError) as error:
        return options.fail(error)
    finally:
        if isinstance(served, Listener):
            served.close()
    return 0


def check(settings: ProxySettings) -> None:
    """Raises SettingsError."""
    frontends.failure_policies(settings)
    runtime = socket_path(settings.runtime_endpoint)
    if os.path.realpath(proxy_socket(settings.state_dir)) == os.path.realpath(runtime):
        raise SettingsError(f"runtime-endpoint is the proxy's own socket, {runtime}")
    pages_address(settings.http, PROXY_PORT)


def _listen(settings: ProxySettings) -> Listener:
    folder = settings.state_dir
    if not os.path.isdir(folder):
        os.makedirs(folder, mode=0o755, exist_ok=True)
        log.info("%s did not exist: the proxy created it for its socket", folder)
    return Listener(proxy_socket(folder))
