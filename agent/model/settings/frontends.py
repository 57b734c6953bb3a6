"""The options of the proxy and of the NRI plugin."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.model.settings.options import (
    HOLD_SECONDS,
    HOOK_DEADLINES,
    HOOK_FAILURE_POLICY,
    LISTEN,
    LOG_FORMAT,
    LOG_LEVEL,
    NODE_ADDRESSES,
    RUNTIME_ENDPOINT,
    STATE_DIR,
    HoldSeconds,
    HookDeadlines,
    HookFailurePolicy,
    Listen,
    LogFormatOption,
    LogLevel,
    NodeAddresses,
    Options,
    RuntimeEndpoint,
    StateDir,
)


class ProxySettings(Options, frozen=True):
    """`topolet proxy`."""

    state_dir: StateDir = STATE_DIR
    runtime_endpoint: RuntimeEndpoint = RUNTIME_ENDPOINT
    listen: Listen = LISTEN
    proxy_http: Annotated[
        str,
        msgspec.Meta(description="proxy: ADDRESS:PORT of /metrics, /healthz, /readyz; empty: none"),
    ] = "127.0.0.1:9327"
    node_addresses: NodeAddresses = NODE_ADDRESSES
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_deadlines: HookDeadlines = HOOK_DEADLINES
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT


class NriSettings(Options, frozen=True):
    """`topolet nri`."""

    state_dir: StateDir = STATE_DIR
    nri_socket: Annotated[
        str, msgspec.Meta(description="the container runtime's socket for NRI plugins")
    ] = "/var/run/nri/nri.sock"
    nri_http: Annotated[
        str,
        msgspec.Meta(
            description="NRI plugin: ADDRESS:PORT of /metrics, /healthz, /readyz; empty: none"
        ),
    ] = "127.0.0.1:9328"
    node_addresses: NodeAddresses = NODE_ADDRESSES
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_deadlines: HookDeadlines = HOOK_DEADLINES
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT
