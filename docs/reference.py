"""Writes the options in docs/configuration.md from agent.model.settings and the commands, and the
metrics in docs/monitoring.md from those that the processes declare; `--check` only compares."""

from __future__ import annotations

import argparse
import pathlib
import sys

import msgspec

from agent.cli import options as flags
from agent.cli.commands import COMMANDS, subcommand
from agent.koordinator import server as hook_server
from agent.model.settings import options
from agent.model.settings.agent import AgentSettings, UninstallSettings
from agent.model.settings.frontends import NriGuardSettings, NriSettings, ProxySettings
from agent.model.settings.scheduler import ExplainSettings, SchedulerSettings, WebhookSettings
from agent.node import koordlet_metrics, nri_guard
from agent.nri import daemon as nri
from agent.proxy import daemon as proxy
from agent.telemetry import dra_metrics, metrics, quiet_metrics, schedulermetrics, usage_metrics

HERE = pathlib.Path(__file__).parent
MARK = "<!-- The rest of this page is written by docs/reference.py. -->\n"
"""The line of a page below which everything is generated."""

PROCESSES = {
    "Agent (`--http`, port 9326)": (
        *metrics.DECLARED,
        *usage_metrics.DECLARED,
        *quiet_metrics.DECLARED,
    ),
    "Metrics of koordlet (agent with `--koordlet-metrics`)": koordlet_metrics.DECLARED,
    "DRA driver (agent with `--dra`)": dra_metrics.DECLARED,
    "Koordinator's hook server (on the agent's page)": hook_server.DECLARED,
    "Guard of the NRI plugin (on the agent's page)": nri_guard.DECLARED,
    "Proxy (`--http`, port 9327)": proxy.DECLARED,
    "NRI plugin (`--http`, port 9328)": nri.DECLARED,
    "Scheduler (`--http`, port 9329)": schedulermetrics.DECLARED,
}
"""The metrics that each process declares."""


def metrics_section() -> str:
    """All metrics of all processes."""
    lines: list[str] = []
    for title, declared in PROCESSES.items():
        lines += [
            "",
            f"### {title}",
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{each.name}` | {each.kind} | {', '.join(f'`{name}`' for name in each.labels)} "
            f"| {each.text} |"
            for each in declared
        ]
    return "\n".join(lines) + "\n"


def options_section() -> str:
    """All options of all commands."""
    lines: list[str] = []
    kinds = (
        UninstallSettings,
        AgentSettings,
        ProxySettings,
        NriSettings,
        NriGuardSettings,
        SchedulerSettings,
        ExplainSettings,
        WebhookSettings,
    )
    fields = {field.name: field for kind in kinds for field in options.options(kind)}
    groups: dict[str, list[msgspec.inspect.Field]] = {}
    for field in fields.values():
        groups.setdefault(flags.group(field.name), []).append(field)
    for group, of_group in groups.items():
        lines += ["", f"### {group[0].upper()}{group[1:]} options", ""]
        lines += ["| option | values | default | commands | meaning |", "|---|---|---|---|---|"]
        lines += map(_row, of_group)
    return "\n".join(lines) + "\n"


def _row(field: msgspec.inspect.Field) -> str:
    names = ", ".join(name for name in COMMANDS if field.name in _options(name))
    default = f"`{flags.default(field)}`" if field.default != "" else "empty"
    values = ", ".join(options.choices(field.type))
    text = flags.description(field)
    return f"| `--{field.encode_name}` | {values} | {default} | {names} | {text} |"


def _options(command: str) -> tuple[str, ...]:
    kind = getattr(subcommand(command), "SETTINGS", None)
    return kind.__struct_fields__ if kind else ()


def main() -> int:
    """Exit code 1 when `--check` finds a page out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, section in SECTIONS.items():
        path = HERE / name
        present = path.read_text()
        wanted = present.partition(MARK)[0] + MARK + section()
        if not check:
            path.write_text(wanted)
        elif present != wanted:
            stale.append(name)
    for name in stale:
        print(f"docs/{name} is out of date: python docs/reference.py")
    return 1 if stale else 0


SECTIONS = {"configuration.md": options_section, "monitoring.md": metrics_section}
"""The last section of each page with a generated one."""


if __name__ == "__main__":
    sys.exit(main())
