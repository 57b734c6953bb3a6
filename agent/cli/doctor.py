"""Compare the CPUs that every container should have with those that it has, and list the drift.

The columns are the pod's annotation, the kubelet's checkpoint, the agent's decision, the cgroup and
the processes in it. The command changes nothing. Exit code 0: no drift; 1: drift; 2: the node can't
be examined.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any

import msgspec

from agent.cgroup.hierarchy import CgroupError
from agent.cli import options
from agent.model.cpu.cpuset import CpuSet
from agent.model.settings.agent import DoctorSettings
from agent.model.settings.options import SettingsError
from agent.node import doctor
from agent.node.doctor import Examination, Finding
from agent.rpc.grpc import RpcError
from agent.view import format
from agent.view.format import count

SETTINGS = DoctorSettings

_HEAD = ("CONTAINER", "QOS", "ANNOTATION", "KUBELET", "AGENT", "CGROUP", "PROCESSES", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        examined = doctor.examine(options.load(arguments, SETTINGS))
    except (SettingsError, CgroupError, RpcError) as error:
        return options.fail(error, 2)
    try:
        if arguments.output == "json":
            json.dump(body(examined), sys.stdout, indent=1)
            print(flush=True)
        else:
            width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 200
            print(format.encodable(described(examined, width)), end="", flush=True)
    except OSError as error:
        return format.unwritten("doctor", error)
    return 1 if examined.findings else 0


def described(examined: Examination, width: int) -> str:
    """A row for each container, then a line for each finding."""
    lines = list(examined.remarks)
    wrong = {finding.container for finding in examined.findings}
    rows = [
        (
            each.title,
            each.qos.value,
            *(_cpus(cpus) for cpus in (each.claimed, each.kubelet, each.wanted, each.group)),
            _cpus(each.processes),
            "<- drift" if each.title in wrong else "",
        )
        for each in examined.seen
    ]
    lines += format.table([_HEAD, *rows], width) if rows else ["No containers run."]
    lines.append("")
    lines += [_sentence(finding) for finding in examined.findings]
    containers = count(len(examined.seen), "container")
    lines.append(f"{containers}, {count(len(examined.findings), 'finding')}")
    return "\n".join(lines) + "\n"


def body(examined: Examination) -> dict[str, Any]:
    """The examination as JSON values: CPU sets as Linux lists, null for an unknown set."""

    def listed(value: Any) -> Any:
        if isinstance(value, CpuSet):
            return str(value)
        raise NotImplementedError(type(value))

    built: dict[str, Any] = msgspec.to_builtins(examined, enc_hook=listed)
    return built


def _cpus(cpus: CpuSet | None) -> str:
    return "-" if cpus is None else str(cpus)


def _sentence(finding: Finding) -> str:
    parts = [f"{finding.container}: {finding.kind}"]
    if finding.expected:
        parts.append(f"should be {finding.expected}")
    if finding.found:
        parts.append(f"is {finding.found}")
    if finding.detail:
        parts.append(finding.detail)
    return ", ".join(parts)
