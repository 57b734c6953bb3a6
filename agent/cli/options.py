"""Flags made from the settings: `--config FILE` (TOML), then one flag an option wins over it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from agent.model import settings
from agent.model.settings import Settings, SettingsError

if TYPE_CHECKING:
    import argparse


def plain(
    words: Sequence[str], names: Sequence[str], switches: Sequence[str] = ()
) -> SimpleNamespace | None:
    """What argparse would make of `--option VALUE` and `--option=VALUE` for the named options and
    `--config`, and of `--switch`, written in full; None for anything else."""
    flags = {f"--{name.replace('_', '-')}": name for name in (*names, "config")}
    given: dict[str, str | bool | None] = dict.fromkeys(flags.values())
    given |= dict.fromkeys(switches, False)
    rest = iter(words)
    for word in rest:
        if word.startswith("--") and word[2:] in switches:
            given[word[2:]] = True
            continue
        flag, equals, value = word.partition("=")
        if flag not in flags:
            return None
        if not equals:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        given[flags[flag]] = value
    return SimpleNamespace(**given)


def add_arguments(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Adds `--config` and the named options (as in Settings) with their defaults in the help."""
    parser.add_argument("--config", metavar="FILE", help="TOML file of options, flags win over it")
    for field in settings.options():
        if field.name not in names:
            continue
        kind = field.type
        text = ""
        if isinstance(kind, msgspec.inspect.Metadata):
            text, kind = str((kind.extra_json_schema or {}).get("description", "")), kind.type
        parser.add_argument(
            f"--{field.encode_name}", metavar=_metavar(field.name), help=f"{text} ({field.default})"
        )


def load(arguments: argparse.Namespace | SimpleNamespace) -> Settings:
    """Raises SettingsError that names file and option."""
    raw = _read(arguments.config) if arguments.config else {}
    names = Settings.__struct_fields__, Settings.__struct_encode_fields__
    for name, encoded in zip(*names, strict=True):
        given = getattr(arguments, name, None)
        if given is not None:
            raw[encoded] = given
    return settings.parse(raw)


def _read(path: str) -> dict[str, Any]:
    import tomllib  # a megabyte that a proxy without a file need not hold

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error


def fail(error: Exception, code: int = 1) -> int:
    """Says what is wrong on standard error; the exit code for it."""
    print(f"topolet: {error}", file=sys.stderr)
    return code


def _metavar(name: str) -> str:
    if name.endswith("_seconds"):
        return "SECONDS"
    if name == "http" or name.endswith("_http"):
        return "ADDRESS"
    return name.rpartition("_")[2].upper()
