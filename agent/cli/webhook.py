"""Run the webhook: pods with GPUs are bound by configured accounts only."""

from __future__ import annotations

import argparse

from agent.cli import options, serving
from agent.model.settings import Settings

OPTIONS = (
    "webhook_https",
    "tls_certificate_file",
    "tls_key_file",
    "webhook_failure_policy",
    "kubeconfig",
    "service_account_dir",
    "log_level",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    return serving.run(arguments, "webhook", _run)


def _run(settings: Settings) -> None:
    from agent.scheduler import webhook

    webhook.run(settings)
