"""Run the companion of kube-scheduler: an extender that finds the best node and gives each pod its
CPUs and devices."""

from __future__ import annotations

import argparse

from agent.cli import options, serving
from agent.model.settings import Settings

OPTIONS = (
    "extender_address",
    "tls_certificate_file",
    "tls_key_file",
    "client_ca_file",
    "client_names",
    "scheduler_http",
    "scheduler_name",
    "scheduler_args_file",
    "gpu_shares",
    "agent_selector",
    "agent_namespace",
    "best_node_only",
    "group_seconds",
    "evict",
    "lease_namespace",
    "lease_name",
    "lease_seconds",
    "watch_stale_seconds",
    "kubeconfig",
    "service_account_dir",
    "log_level",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    return serving.run(arguments, "scheduler", _run)


def _run(settings: Settings) -> None:
    from agent.scheduler import process

    process.run(settings)
