"""The options of the proxy and of the NRI plugin; the policies of all frontends for hooks that
fail, and how long a hook may wait.

The policies are text, with the same syntax in a flag and in a TOML file: `HOOK/CLASS=ignore|fail`,
separated by commas. A hook is a method of the CRI, a class is a QoS class, or `devices` for a
container that can't have its devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Protocol

import msgspec

from agent.model.pod.qos import QoS
from agent.model.settings.options import (
    HOLD_SECONDS,
    HOOK_FAILURE_POLICY,
    HTTP,
    LOG_FORMAT,
    LOG_LEVEL,
    NODE_ADDRESSES,
    RUNTIME_ENDPOINT,
    STATE_DIR,
    HoldSeconds,
    HookFailurePolicy,
    Http,
    LogFormatOption,
    LogLevel,
    NodeAddresses,
    Options,
    RuntimeEndpoint,
    SettingsError,
    StateDir,
)

RUN, CREATE = "RunPodSandbox", "CreateContainer"
UPDATE, UPDATE_SANDBOX = "UpdateContainerResources", "UpdatePodSandboxResources"
HOOKS: Final = (RUN, CREATE, UPDATE, UPDATE_SANDBOX)

DEVICES: Final = "devices"
_ANY: Final = "*"
_CLASSES: Final = (*QoS, DEVICES)
_FAILS: Final = {"ignore": False, "fail": True}
SANDBOX_SECONDS: Final = 0.05
"""The longest time for which a sandbox is held: the pause container in it needs hardly any CPU
time."""


class HookSettings(Protocol):
    """The options of a process with hooks."""

    @property
    def hold_seconds(self) -> float: ...

    @property
    def hook_failure_policy(self) -> str: ...


class FailurePolicyError(ValueError):
    """A rule that can't be read; the message quotes it."""


class FailurePolicies(msgspec.Struct, frozen=True):
    """Which calls fail."""

    rules: Mapping[tuple[str, str], bool]
    """Whether the call fails, by hook and class; each is a name or `*`."""

    def fails(self, hook: str, class_: str | None) -> bool:
        """Whether the caller gets an error; otherwise the call continues, and is counted and
        logged. The narrowest rule decides, a hook before a class.

        `class_`: None if the pod is unknown."""
        class_ = class_ or _ANY
        for key in ((hook, class_), (hook, _ANY), (_ANY, class_), (_ANY, _ANY)):
            if key in self.rules:
                return self.rules[key]
        return False


class Deadlines(msgspec.Struct, frozen=True):
    """How long a call may be held."""

    hold_seconds: float

    def of(self, hook: str) -> float:
        """The seconds for calls of the hook."""
        return min(self.hold_seconds, SANDBOX_SECONDS) if hook == RUN else self.hold_seconds


def failure_policies(settings: HookSettings) -> tuple[FailurePolicies, Deadlines]:
    """The policies and deadlines of the settings. Raises SettingsError that names the option."""
    try:
        policies = parse_policies(settings.hook_failure_policy)
    except FailurePolicyError as error:
        raise SettingsError(f"hook-failure-policy: {error}") from None
    return policies, Deadlines(settings.hold_seconds)


def parse_policies(text: str) -> FailurePolicies:
    """The policies in a text. If two rules have the same hook and class, the later one applies.
    Raises FailurePolicyError."""
    rules = {}
    for name, value, rule in _pairs(text):
        hook, _, class_ = name.partition("/")
        if hook not in (*HOOKS, _ANY):
            raise FailurePolicyError(f"{rule!r}: hook {hook!r} is not {', '.join(HOOKS)} or *")
        if "/" in name and class_ not in (*_CLASSES, _ANY):
            raise FailurePolicyError(
                f"{rule!r}: class {class_!r} is not {', '.join(_CLASSES)} or *"
            )
        if value not in _FAILS:
            raise FailurePolicyError(f"{rule!r}: neither ignore nor fail")
        rules[hook, class_ or _ANY] = _FAILS[value]
    return FailurePolicies(rules)


def _pairs(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, value and whole text of each rule. Raises FailurePolicyError."""
    for part in text.split(","):
        if rule := part.strip():
            name, equals, value = rule.partition("=")
            if not equals:
                raise FailurePolicyError(f"{rule!r} has no '='")
            yield name.strip(), value.strip(), rule


PROXY_PORT: Final = 9327
NRI_PORT: Final = 9328


class ProxySettings(Options, frozen=True):
    """`topolet proxy`."""

    state_dir: StateDir = STATE_DIR
    runtime_endpoint: RuntimeEndpoint = RUNTIME_ENDPOINT
    http: Http = HTTP
    node_addresses: NodeAddresses = NODE_ADDRESSES
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT


NriSocket = Annotated[
    str, msgspec.Meta(description="the container runtime's socket for NRI plugins")
]
NRI_SOCKET: Final = "/var/run/nri/nri.sock"


class NriSettings(Options, frozen=True):
    """`topolet nri`."""

    state_dir: StateDir = STATE_DIR
    nri_socket: NriSocket = NRI_SOCKET
    http: Http = HTTP
    node_addresses: NodeAddresses = NODE_ADDRESSES
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT


class NriGuardSettings(Options, frozen=True):
    """`topolet nri-guard`."""

    state_dir: StateDir = STATE_DIR
    nri_socket: NriSocket = NRI_SOCKET
    guard_exempt: Annotated[
        str,
        msgspec.Meta(
            description="containers that the guard never refuses, in the form of --exclude: the "
            "namespaces of Topolet and of what the plugin needs to run, which must start while it "
            "does not"
        ),
    ] = "topolet-system"
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT
