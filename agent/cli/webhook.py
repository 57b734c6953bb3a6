"""Run the admission webhook: it allows only configured accounts to bind pods with GPUs."""

from __future__ import annotations

import argparse

from agent.cli import options, serving
from agent.model.settings.scheduler import WebhookSettings

SETTINGS = WebhookSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    return serving.serve("webhook", arguments, SETTINGS, _run)


def _run(settings: WebhookSettings) -> None:
    from agent.scheduler import webhook

    webhook.run(settings)
