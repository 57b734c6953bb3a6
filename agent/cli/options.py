"""Flags made from the options of a process: `--config FILE` (TOML), and one flag for each option,
which overrides the file. One file may hold the options of all processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from agent.model.settings import options
from agent.model.settings.options import Kind, Options, SettingsError

if TYPE_CHECKING:
    import argparse


def plain(
    words: Sequence[str], kind: type[Options], switches: Sequence[str] = ()
) -> SimpleNamespace | None:
    """The values that argparse would return for `--option VALUE` and `--option=VALUE` of these
    options and `--config`, and for `--switch`, written in full; None for anything else."""
    flags = {f"--{encoded}": name for name, encoded in _names(kind)} | {"--config": "config"}
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


def add_arguments(parser: argparse.ArgumentParser, kind: type[Options]) -> None:
    """Adds `--config` and the options with their defaults in the help."""
    parser.add_argument("--config", metavar="FILE", help="TOML file of options; flags override it")
    for field in options.options(kind):
        text = ""
        if isinstance(field.type, msgspec.inspect.Metadata):
            text = str((field.type.extra_json_schema or {}).get("description", ""))
        parser.add_argument(
            f"--{field.encode_name}", metavar=_metavar(field.name), help=f"{text} ({field.default})"
        )


def load(arguments: argparse.Namespace | SimpleNamespace, kind: type[Kind]) -> Kind:
    """Raises SettingsError that names file and option."""
    raw = _of_process(_read(arguments.config), kind) if arguments.config else {}
    for name, encoded in _names(kind):
        given = getattr(arguments, name, None)
        if given is not None:
            raw[encoded] = given
    return options.parse(raw, kind)


def _names(kind: type[Options]) -> list[tuple[str, str]]:
    """The field name and the written name of each option."""
    return list(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


def _of_process(raw: dict[str, Any], kind: type[Options]) -> dict[str, Any]:
    """The options of this process. Those of other processes are checked. Raises SettingsError."""
    own = {name: value for name, value in raw.items() if name in kind.__struct_encode_fields__}
    rest = raw.keys() - own.keys()
    if not rest:
        return own
    from agent.model.settings import agent, frontends, scheduler

    for other in (
        agent.AgentSettings,
        frontends.ProxySettings,
        frontends.NriSettings,
        scheduler.SchedulerSettings,
        scheduler.WebhookSettings,
    ):
        of_other = rest & set(other.__struct_encode_fields__)
        options.parse({name: raw[name] for name in of_other}, other)
        rest -= of_other
    # An option that no process knows is reported as unknown to this one.
    return own | {name: raw[name] for name in rest}


def _read(path: str) -> dict[str, Any]:
    import tomllib  # a megabyte that a proxy without a file does not need

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error


def usual_kubeconfig() -> str:
    """As for kubectl; "" if there is none."""
    path = os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
    usual = os.path.expanduser("~/.kube/config")
    return path or (usual if os.path.exists(usual) else "")


def fail(error: Exception, code: int = 1) -> int:
    """Writes the error to standard error; returns the exit code."""
    print(f"topolet: {error}", file=sys.stderr)
    return code


def _metavar(name: str) -> str:
    if name.endswith("_seconds"):
        return "SECONDS"
    if name == "http" or name.endswith("_http"):
        return "ADDRESS"
    return name.rpartition("_")[2].upper()
