"""Run the companion of kube-scheduler: an extender that finds the best node and gives each pod its
CPUs and devices."""

from __future__ import annotations

import argparse
import importlib.util

from agent.cli import options
from agent.model.settings import SettingsError
from agent.telemetry import logs

OPTIONS = (
    "extender_address",
    "tls_certificate_file",
    "tls_key_file",
    "client_ca_file",
    "client_names",
    "scheduler_http",
    "scheduler_name",
    "scheduler_args_file",
    "zone_strategy",
    "gpu_shares",
    "agent_selector",
    "best_node_only",
    "group_seconds",
    "evict",
    "lease_namespace",
    "lease_name",
    "lease_seconds",
    "kubeconfig",
    "service_account_dir",
    "log_level",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments)
        if importlib.util.find_spec("cheroot") is None:
            raise SettingsError("the scheduler needs cheroot: pip install 'topolet[scheduler]'")
    except SettingsError as error:
        return options.fail(error, 2)
    logs.start(settings.log_level)
    from agent.kube.auth import AccessError
    from agent.scheduler import process
    from agent.scheduler.certificates import CertificateError
    from agent.scheduler.server import ServerError

    try:
        process.run(settings)
    except SettingsError as error:
        return options.fail(error, 2)
    except (AccessError, CertificateError, ServerError) as error:
        return options.fail(error)
    return 0
