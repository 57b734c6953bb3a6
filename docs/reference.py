"""Writes docs/options.md from agent.model.settings and the commands; `--check` only compares."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys

import msgspec

from agent.cli.main import COMMANDS
from agent.model.settings import options
from agent.model.settings.agent import AgentSettings
from agent.model.settings.frontends import NriSettings, ProxySettings
from agent.model.settings.scheduler import SchedulerSettings, WebhookSettings

PAGE = pathlib.Path(__file__).with_name("options.md")


def page() -> str:
    """The whole page."""
    lines = [
        "# Options",
        "",
        "Every option of every command, made by `docs/reference.py` from `agent.model.settings`.",
        "In a TOML file (`--config FILE`) the names are the same without the dashes in front;",
        "a flag wins over the file.",
        "",
        "| option | default | commands | what it is |",
        "|---|---|---|---|",
    ]
    kinds = (AgentSettings, ProxySettings, NriSettings, SchedulerSettings, WebhookSettings)
    fields = {field.name: field for kind in kinds for field in options.options(kind)}
    for field in fields.values():
        kind = field.type
        text = ""
        if isinstance(kind, msgspec.inspect.Metadata):
            text = str((kind.extra_json_schema or {}).get("description", ""))
        names = ", ".join(name for name in COMMANDS if field.name in _options(name))
        default = f"`{field.default}`" if field.default != "" else "empty"
        lines.append(f"| `--{field.encode_name}` | {default} | {names} | {text} |")
    return "\n".join(lines) + "\n"


def _options(command: str) -> tuple[str, ...]:
    module = importlib.import_module(f"agent.cli.{command.replace('-', '_')}")
    kind = getattr(module, "SETTINGS", None)
    return kind.__struct_fields__ if kind else ()


def main() -> int:
    """Exit code 1 when `--check` finds the page out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        print("docs/options.md is what the settings give")
        return 0
    print("docs/options.md is out of date: python docs/reference.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
