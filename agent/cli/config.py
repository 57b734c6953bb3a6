"""Check a file of options, or the settings in values of the Helm chart: that each option exists,
and that its process can use the value. Exit code 0: the file is valid; 2: it is not."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from agent.cli import options, processes
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import Options, SettingsError, parse, unknown
from agent.model.settings.scheduler import SchedulerSettings
from agent.view.format import count, printable

OWN_OPTIONS: Final = frozenset(
    {
        *("node-name", "root", "cgroup-root", "kubelet-dir"),
        *("runtime-endpoint", "kubelet-configz", "http", "node-addresses"),
        *("state-dir", "kubeconfig"),
        *("https", "scheduler-name", "tls-dir"),
        *("client-ca-file", "client-names", "release-namespace"),
        "evict",
    }
)
"""The templates set these options, or they have no effect in a pod."""


USAGE = "topolet config check [FILE | --chart VALUES]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check",), metavar="check")
    text = f"TOML file of options ({options.CONFIG})"
    parser.add_argument("file", nargs="?", metavar="FILE", default=options.CONFIG, help=text)
    parser.add_argument(
        "--chart",
        metavar="VALUES",
        help="YAML file with values for the chart, instead of FILE: the settings of its pools and "
        "of the scheduler (Helm checks all other values)",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.chart is not None:
        return _check_chart(arguments.chart)
    path: str = arguments.file
    try:
        raw = options.read(path)
    except SettingsError as error:
        return options.fail(error, 2)
    if problems := list(options.problems(raw, path)) or list(dict.fromkeys(_refusals(path))):
        for each in problems:
            options.fail(SettingsError(each))
        return 2
    print(f"{path}: {count(len(raw), 'option')}, all valid")
    return 0


def _refusals(path: str) -> Iterator[str]:
    """Why processes refuse their options of a file in which none is wrong by itself."""
    for name in ("agent", "proxy", "nri"):
        process = processes.SUBCOMMANDS[name]
        try:
            process.check(options.load(argparse.Namespace(config=path), process.SETTINGS))
        except SettingsError as error:
            yield str(error)


def _check_chart(path: str) -> int:
    try:
        found = list(_settings_in(_values(path)))
    except SettingsError as error:
        return options.fail(SettingsError(f"{path}: {error}"), 2)
    problems = [problem for where, kind, raw in found for problem in _problems(where, kind, raw)]
    for each in problems:
        options.fail(SettingsError(printable(f"{path}: {each}")))
    if problems:
        return 2
    print(f"{path}: {count(sum(len(raw) for _, _, raw in found), 'option')}, all valid")
    return 0


def _values(path: str) -> Mapping[str, Any]:
    """Raises SettingsError."""
    try:
        return _mapping(documents.read(path), "the file")
    except OSError as error:
        raise SettingsError(error.strerror) from error
    except DocumentError as error:
        raise SettingsError(str(error)) from error


Settings = tuple[str, type[Options], Mapping[str, Any]]
"""Where settings are in the values, the options of their process, and the settings."""


def _settings_in(values: Mapping[str, Any]) -> Iterator[Settings]:
    """The settings as the chart gives them to processes: a canary also has those of its pool.
    Raises SettingsError."""
    pools = values.get("pools")
    if not isinstance(pools, list | None):
        raise SettingsError("pools: it is not a list")
    for number, each in enumerate(pools or ()):
        where = f"pools[{number}]"
        pool = _mapping(each, where)
        settings = _mapping(pool.get("settings"), f"{where}.settings")
        yield f"{where}.settings", AgentSettings, settings
        if canary := _mapping(pool.get("canary"), f"{where}.canary"):
            more = _mapping(canary.get("settings"), f"{where}.canary.settings")
            yield f"{where}.canary.settings", AgentSettings, {**settings, **more}
    scheduler = _mapping(values.get("scheduler"), "scheduler")
    settings = _mapping(scheduler.get("settings"), "scheduler.settings")
    yield "scheduler.settings", SchedulerSettings, settings


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    """The value, an empty mapping for none. Raises SettingsError."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise SettingsError(f"{name}: it is not a mapping of texts to values")
    return value


def _as_flag(value: object) -> object:
    """The value as the chart writes it behind a flag."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _problems(where: str, kind: type[Options], raw: Mapping[str, Any]) -> Iterator[str]:
    """Each wrong setting; only if none is wrong by itself, the first that its process refuses."""
    raw = {name: _as_flag(value) for name, value in raw.items()}
    names = set(kind.__struct_encode_fields__) - OWN_OPTIONS
    right = True
    for name, value in raw.items():
        try:
            if name in kind.__struct_encode_fields__ and name not in names:
                raise SettingsError(f"{where}.{name}: the chart sets this option itself")
            if name not in names:
                raise SettingsError(f"{where}.{unknown(name, names)}")
            parse({name: value}, kind, {name: f"{where}.{name}"})
        except SettingsError as error:
            right = False
            yield str(error)
    if right and kind is AgentSettings:
        try:
            processes.AGENT.check(parse(raw, AgentSettings))
        except SettingsError as error:
            yield f"{where}: {error}"
