"""Run the webhook: pods with GPUs are bound by configured accounts only."""

from __future__ import annotations

import argparse
import importlib.util

from agent.cli import options
from agent.model.settings import SettingsError
from agent.telemetry import logs

OPTIONS = (
    "webhook_https",
    "tls_certificate_file",
    "tls_key_file",
    "binders_file",
    "webhook_failure_policy",
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
            raise SettingsError("the webhook needs cheroot: pip install 'topolet[scheduler]'")
    except SettingsError as error:
        return options.fail(error, 2)
    logs.start(settings.log_level)
    from agent.kube.auth import AccessError
    from agent.scheduler import admission
    from agent.scheduler.certificates import CertificateError
    from agent.scheduler.server import ServerError

    try:
        admission.run(settings)
    except SettingsError as error:
        return options.fail(error, 2)
    except (AccessError, admission.AccountsError, CertificateError, ServerError) as error:
        return options.fail(error)
    return 0
