"""The options of a process. Their values come from, in rising precedence, their defaults, a TOML
file (`--config FILE`), the environment variables `TOPOLET_OPTION`, and a flag for each option. One
file may hold the options of all processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agent.model.settings import options
from agent.model.settings.options import Kind, Options, SettingsError

if TYPE_CHECKING:
    import argparse

    from agent.kube.auth import Access

CONFIG: Final = "/etc/topolet/config.toml"
"""The file of options without `--config` and TOPOLET_CONFIG, if it exists."""
_VARIABLE: Final = "TOPOLET_"

_GROUPS: Final = {
    "API server": ("kubeconfig", "managed_by"),
    "kubelet": ("kubelet_", "corrected_"),
    "CPUs and memory": ("cpu_", "reserved_", "owners_", "be_on_", "bind_", "migrate_"),
    "devices": ("devices", "gpu_", "unrequested_", "hami_"),
    "hooks": ("hold_", "hook_"),
    "HTTP": ("http", "https", "node_addresses", "tls_", "client_"),
    "expert": ("root", "cgroup_root", "period_", "lease_"),
}
"""The headings of the help, each with the first parts of the names of its options. All other
options are basic."""
_BASIC: Final = "basic"
_MAX_QUOTED: Final = 80


def plain(
    words: Sequence[str], kind: type[Options], switches: Sequence[str] = ()
) -> SimpleNamespace | None:
    """The arguments of a command line, as argparse would return them, if all its flags are written
    in full: `--option VALUE` or `--option=VALUE` of these options and `--config`, `--no-option` of
    an option that is true or false, and `--switch`. None for any other command line."""
    flags = {f"--{encoded}": name for name, encoded in _names(kind)} | {"--config": "config"}
    negated = {
        f"--no-{encoded}": name
        for (name, encoded), value in zip(_names(kind), kind.__struct_defaults__, strict=True)
        if isinstance(value, bool)
    }
    given: dict[str, str | bool | None] = dict.fromkeys(flags.values())
    given |= dict.fromkeys(switches, False)
    rest = iter(words)
    for word in rest:
        if word.startswith("--") and word[2:] in switches:
            given[word[2:]] = True
            continue
        if word in negated:
            given[negated[word]] = "false"
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


def add_root(parser: argparse.ArgumentParser) -> None:
    """Adds `--root`, for commands that read the machine."""
    parser.add_argument(
        "--root",
        default=os.environ.get("TOPOLET_ROOT", "/"),
        metavar="DIR",
        help="folder that holds the machine's sys and proc (default: /)",
    )


def add_arguments(parser: argparse.ArgumentParser, kind: type[Options]) -> None:
    """Adds `--config` and the options, by group, with their choices and defaults in the help.
    An option that is true or false is also set by `--option` without a value, and by
    `--no-option`."""
    import argparse

    text = f"TOML file of options ({CONFIG} if it exists); environment variables {_VARIABLE}OPTION "
    text += "override the file, and flags override both"
    parser.add_argument("--config", metavar="FILE", help=text)
    groups = {
        name: parser.add_argument_group(f"{name} options")
        for name in (_BASIC, *_GROUPS)
        if any(group(field.name) == name for field in options.options(kind))
    }
    for field in options.options(kind):
        add, flag = groups[group(field.name)].add_argument, f"--{field.encode_name}"
        text, default_text = description(field), default(field)
        if isinstance(field.default, bool):
            no = f"--no-{field.encode_name}"
            text = f"{text} ({default_text}; {no}: false)"
            add(flag, nargs="?", const="true", metavar="true|false", help=text)
            add(
                no,
                dest=field.name,
                action="store_const",
                const="false",
                help=argparse.SUPPRESS,
            )
        else:
            choices = "|".join(options.choices(field.type))
            add(flag, metavar=choices or _metavar(field.name), help=f"{text} ({default_text})")


def group(name: str) -> str:
    """The heading under which the help lists an option."""
    for heading, prefixes in _GROUPS.items():
        if name.startswith(prefixes):
            return heading
    return _BASIC


def description(field: msgspec.inspect.Field) -> str:
    """What an option means."""
    if isinstance(field.type, msgspec.inspect.Metadata):
        return str((field.type.extra_json_schema or {}).get("description", ""))
    return ""


def default(field: msgspec.inspect.Field) -> str:
    """The default as it is written in a file."""
    if field.default == "":
        return "empty"
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def load(arguments: argparse.Namespace | SimpleNamespace, kind: type[Kind]) -> Kind:
    """Raises SettingsError that names the option as it was given: the file and its key, the
    variable, or the flag."""
    path = config_path(arguments)
    raw = _of_process(read(path), kind, path) if path else {}
    origins = {name: f"{path}: {name}" for name in raw}
    for name, encoded in _names(kind):
        variable = f"{_VARIABLE}{name.upper()}"
        if (given := os.environ.get(variable)) is not None:
            raw[encoded], origins[encoded] = given, variable
        if (given := getattr(arguments, name, None)) is not None:
            raw[encoded], origins[encoded] = given, f"--{encoded} {given!r:.{_MAX_QUOTED}}"
    return options.parse(raw, kind, origins)


_OF_SERVICE: Final = (
    r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""The end of variables that a kubelet sets for each Service of a pod's namespace."""


def unknown_variables(kind: type[Options], variables: Iterable[str]) -> Iterator[str]:
    """A sentence for each of the variables `TOPOLET_...` that no process has as an option.

    `kind`: the options of this process."""
    own = {name.upper() for name, _ in _names(kind)} | {"CONFIG"}
    rest = [
        name
        for variable in sorted(variables)
        if variable.startswith(_VARIABLE) and (name := variable.removeprefix(_VARIABLE)) not in own
    ]
    if not rest:
        return
    import re

    option_names = {name.upper() for process in _kinds() for name, _ in _names(process)}
    for name in rest:
        if name not in option_names and not re.fullmatch(_OF_SERVICE, name):
            yield options.unknown(
                f"{_VARIABLE}{name}", [f"{_VARIABLE}{option_name}" for option_name in option_names]
            )


def config_path(arguments: argparse.Namespace | SimpleNamespace) -> str:
    """The file of options, "" without one."""
    given = arguments.config or os.environ.get(f"{_VARIABLE}CONFIG", "")
    return given or (CONFIG if os.path.exists(CONFIG) else "")


def _names(kind: type[Options]) -> list[tuple[str, str]]:
    """The field name and the written name of each option."""
    return list(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


def _of_process(raw: Mapping[str, Any], kind: type[Options], path: str) -> dict[str, Any]:
    """The options of this process. Those of other processes are checked. Raises SettingsError."""
    own = {name: value for name, value in raw.items() if name in kind.__struct_encode_fields__}
    if rest := {name: value for name, value in raw.items() if name not in own}:
        check(rest, path)
    return own


def check(raw: Mapping[str, Any], path: str) -> None:
    """Checks the options of a file, each as those of the processes that have it. Raises
    SettingsError for the first one that is wrong."""
    for problem in problems(raw, path):
        raise SettingsError(problem)


def problems(raw: Mapping[str, Any], path: str) -> Iterator[str]:
    """A sentence for each option of a file that does not exist or has a wrong value."""
    kinds = _kinds()
    names = {name for kind in kinds for name in kind.__struct_encode_fields__}
    for name, value in raw.items():
        if name not in names:
            yield f"{path}: {options.unknown(name, names)}"
        try:
            for kind in kinds:
                if name in kind.__struct_encode_fields__:
                    options.parse({name: value}, kind, {name: f"{path}: {name}"})
        except SettingsError as error:
            yield str(error)


def _kinds() -> tuple[type[Options], ...]:
    from agent.model.settings import agent, frontends, scheduler

    return (
        agent.AgentSettings,
        agent.UninstallSettings,
        frontends.ProxySettings,
        frontends.NriSettings,
        frontends.NriGuardSettings,
        scheduler.SchedulerSettings,
        scheduler.ExplainSettings,
        scheduler.WebhookSettings,
    )


def read(path: str) -> dict[str, Any]:
    """The content of a file of options. Raises SettingsError that names the file."""
    import tomllib  # a megabyte that a proxy without a file does not need

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8") from error
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


def usual_kubeconfig() -> str:
    """The kubeconfig file that kubectl would use, "" if there is none."""
    named = os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
    default_path = os.path.expanduser("~/.kube/config")
    return named or (default_path if os.path.exists(default_path) else "")


def caller_access(kubeconfig: str) -> Access:
    """The access of a person: by the kubeconfig that is given or usual, else by the service account
    of the pod. Raises AccessError."""
    from agent.kube import auth

    path = kubeconfig or usual_kubeconfig()
    try:
        return auth.access(path)
    except auth.AccessError as error:
        if path:
            raise
        raise auth.AccessError(
            "no kubeconfig: --kubeconfig or the variable KUBECONFIG names one, and ~/.kube/config "
            f"does not exist ({error})"
        ) from None


_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def duration_seconds(text: str) -> float:
    """The seconds of an argument such as `90s`, `30m`, `1h30m` or `2d`. Raises
    ArgumentTypeError."""
    import argparse
    import re

    parts = re.findall(r"(\d{1,6})([smhd])", text, re.ASCII)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text[:_MAX_QUOTED]!r} is not a time like 30m, 1h or 2d")
    return float(sum(int(number) * _UNIT_SECONDS[unit] for number, unit in parts))


def positive(text: str) -> int:
    """The number in an argument. Raises ArgumentTypeError."""
    import argparse

    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text[:_MAX_QUOTED]!r} is not a number from 1 on")
    return number


def fail(error: Exception, code: int = 1) -> int:
    """Writes the error to standard error; returns the exit code."""
    from agent.host.files import reason  # only for an error
    from agent.view.format import printable_lines

    text = reason(error) if isinstance(error, OSError) else str(error)
    print(f"topolet: {printable_lines(text)}", file=sys.stderr)
    return code


def _metavar(name: str) -> str:
    if name.endswith("_seconds"):
        return "SECONDS"
    if name in ("http", "https"):
        return "ADDRESS"
    return name.rpartition("_")[2].upper()
