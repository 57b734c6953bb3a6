"""The options of the proxy and of the NRI plugin."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

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
    StateDir,
)

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


class NriSettings(Options, frozen=True):
    """`topolet nri`."""

    state_dir: StateDir = STATE_DIR
    nri_socket: Annotated[
        str, msgspec.Meta(description="the container runtime's socket for NRI plugins")
    ] = "/var/run/nri/nri.sock"
    http: Http = HTTP
    node_addresses: NodeAddresses = NODE_ADDRESSES
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT
