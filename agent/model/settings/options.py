"""The options that several processes have, and how option values are read. An option has its unit,
bounds, default and description where it is declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_type_hints

import msgspec


class SettingsError(ValueError):
    """An option that is unknown or has a wrong value; the message names it."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The options of one process, by name; in files and flags with dashes."""


StateDir = Annotated[
    str,
    msgspec.Meta(
        description="folder that agent and frontends share: snapshot, notifications, journal. "
        "scheduler: a local folder of its own, which should outlive the process: a leader that was "
        "killed then has its Lease again as soon as it is restarted"
    ),
]
STATE_DIR: Final = "/run/topolet"
RuntimeEndpoint = Annotated[str, msgspec.Meta(description="the container runtime's CRI socket")]
RUNTIME_ENDPOINT: Final = "unix:///run/containerd/containerd.sock"
Kubeconfig = Annotated[
    str,
    msgspec.Meta(
        description="kubeconfig file for the API server, or a folder as that of a pod's service "
        "account, with token and ca.crt; empty: the service account of this pod"
    ),
]
KUBECONFIG: Final = ""
HoldSeconds = Annotated[
    float,
    msgspec.Meta(
        ge=0,
        le=60,
        description="longest time that a call waits for the agent, seconds; RunPodSandbox "
        "waits for at most 0.05",
    ),
]
HOLD_SECONDS: Final = 0.5
HookFailurePolicy = Annotated[
    str,
    msgspec.Meta(
        description="HOOK/CLASS=ignore or fail, separated by commas, `*` for all: whether a "
        "call continues or fails if its hook timed out, could not read it or had an error; the "
        "narrowest rule applies. Class `devices`: whether a container that can't have the "
        "devices allocated to it keeps the devices of its device plugin, and whether one with CPUs "
        "of a ResourceClaim that the agent has not decided about runs without them"
    ),
]
HOOK_FAILURE_POLICY: Final = (
    "*=ignore,CreateContainer/LSE=fail,CreateContainer/LSR=fail,CreateContainer/devices=fail"
)
Http = Annotated[
    str,
    msgspec.Meta(
        description="ADDRESS or ADDRESS:PORT of /metrics, /healthz and /readyz in plain HTTP; of "
        "the agent also of its page, of the scheduler also of its page and of explanations. "
        "Without PORT: 9326 the agent, 9327 the proxy, 9328 the NRI plugin, 9329 the scheduler. "
        "empty: none"
    ),
]
HTTP: Final = "127.0.0.1"
TlsDir = Annotated[
    str,
    msgspec.Meta(
        description="folder with the server's certificate tls.crt and its key tls.key, which are "
        "read again when they change; scheduler: empty for plain HTTP"
    ),
]
TLS_DIR: Final = "/etc/topolet/tls"
NodeAddresses = Annotated[
    str,
    msgspec.Meta(
        description="addresses of this process's node, separated by commas: the HTTP port reserves "
        "connections for clients with these addresses, a loopback address, the port's own address "
        "and, in a pod, its gateway's address"
    ),
]
NODE_ADDRESSES: Final = ""
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    msgspec.Meta(description="lowest level of the log's lines"),
]
LOG_LEVEL: Final[Literal["info"]] = "info"
LogFormat: TypeAlias = Literal["logfmt", "json"]
LogFormatOption = Annotated[LogFormat, msgspec.Meta(description="format of the log's lines")]
LOG_FORMAT: Final[Literal["logfmt"]] = "logfmt"

PROXY_SOCKET: Final = "cri.sock"
"""The name of the proxy's socket in the state folder."""
_MAX_QUOTED: Final = 80

Kind = TypeVar("Kind", bound=Options)


class CallerSettings(Options, frozen=True):
    """Commands that only ask the API server, with the rights of their caller."""

    kubeconfig: Kubeconfig = KUBECONFIG


def parse(
    raw: Mapping[str, Any], kind: type[Kind], origins: Mapping[str, str] = MappingProxyType({})
) -> Kind:
    """The settings in `raw`.

    `origins`: by option, the words for it in an error: the flag with its value, the file and the
        key, or the variable.

    Raises SettingsError with these words, or the option's name, and the values that the option may
    have. It quotes no value itself, which may be a secret."""
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        problem = _problem(raw, kind, origins) or f"settings: {error}"
        raise SettingsError(problem) from None


def _problem(raw: Mapping[str, Any], kind: type[Options], origins: Mapping[str, str]) -> str:
    """The first option that does not exist or has a wrong value, "" if none is wrong by itself."""
    types = get_type_hints(kind, include_extras=True)
    fields = {field.encode_name: field for field in options(kind)}
    for name, value in raw.items():
        if name not in fields:
            return unknown(name, fields)
        try:
            msgspec.convert(value, types[fields[name].name], strict=False)
        except msgspec.ValidationError:
            return f"{origins.get(name, name)} is not {allowed(fields[name].type)}"
    return ""


def unknown(name: str, names: Iterable[str]) -> str:
    """A sentence about an option that does not exist, with the most similar of the `names`."""
    import difflib  # only for a message

    near = difflib.get_close_matches(name, list(names), 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name[:_MAX_QUOTED]}: this option does not exist{hint}"


def choices(kind: msgspec.inspect.Type) -> tuple[str, ...]:
    """The values of an option that has a fixed set of them."""
    match kind:
        case msgspec.inspect.Metadata():
            return choices(kind.type)
        case msgspec.inspect.EnumType():
            return tuple(str(each.value) for each in kind.cls)
        case msgspec.inspect.LiteralType():
            return tuple(map(str, kind.values))
        case msgspec.inspect.BoolType():
            return ("true", "false")
    return ()


def allowed(kind: msgspec.inspect.Type) -> str:
    """The values that an option may have, in words that follow "is not"."""
    if isinstance(kind, msgspec.inspect.Metadata):
        examples = (kind.extra_json_schema or {}).get("examples")
        return f"a value like {examples[0]}" if examples else allowed(kind.type)
    if values := choices(kind):
        return " or ".join(values) if len(values) == 2 else f"one of {', '.join(values)}"
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        number = "a whole number" if isinstance(kind, msgspec.inspect.IntType) else "a number"
        least = "" if kind.ge is None else f" of at least {kind.ge:g}"
        least += "" if kind.gt is None else f" greater than {kind.gt:g}"
        most = "" if kind.le is None else f" of at most {kind.le:g}"
        return number + " and".join(each for each in (least, most) if each)
    return "a text"


def options(kind: type[Options]) -> tuple[msgspec.inspect.Field, ...]:
    """Name, type, default and description of every option, in order."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def proxy_socket(state_dir: str) -> str:
    """The socket of the proxy, to which the kubelet connects."""
    return f"{state_dir}/{PROXY_SOCKET}"


def socket_path(endpoint: str) -> str:
    """The path of `unix:///path` or of a plain path. Raises SettingsError."""
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/"):
        raise SettingsError(f"endpoint {endpoint!r} is not unix:///absolute/path")
    return path


def with_port(address: str, port: int) -> str:
    """`ADDRESS` with this port; `ADDRESS:PORT` unchanged."""
    return address if ":" in address.rpartition("]")[2] else f"{address}:{port}"


def pages_address(address: str, port: int) -> tuple[str, int] | None:
    """The address and port of `http`, where a process serves its pages; None for none. Raises
    SettingsError."""
    return host_port(with_port(address, port)) if address else None


def host_port(address: str) -> tuple[str, int]:
    """`HOST:PORT` as a pair; an empty host means all addresses. Raises SettingsError."""
    host, colon, port = address.rpartition(":")
    if not colon or host.isdecimal() or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"address {address!r} is not ADDRESS or ADDRESS:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)
