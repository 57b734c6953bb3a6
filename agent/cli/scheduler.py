"""Run the extender of kube-scheduler: it finds the best node for each pod, and chooses the pod's
CPUs and devices there."""

from __future__ import annotations

import argparse

from agent.cli import options, serving
from agent.model.settings.scheduler import SchedulerSettings

SETTINGS = SchedulerSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    return serving.serve("scheduler", arguments, SETTINGS, _run)


def _run(settings: SchedulerSettings) -> None:
    from agent.scheduler import process

    process.run(settings)
