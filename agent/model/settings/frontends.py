"""The options of the proxy and of the NRI plugin."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.model.settings.options import (
    HOLD_SECONDS,
    HOOK_DEADLINES,
    HOOK_FAILURE_POLICY,
    LOG_LEVEL,
    RUNTIME_ENDPOINT,
    STATE_DIR,
    HoldSeconds,
    HookDeadlines,
    HookFailurePolicy,
    LogLevel,
    Options,
    RuntimeEndpoint,
    StateDir,
)


class ProxySettings(Options, frozen=True):
    """`topolet proxy`."""

    state_dir: StateDir = STATE_DIR
    runtime_endpoint: RuntimeEndpoint = RUNTIME_ENDPOINT
    listen: Annotated[
        str, msgspec.Meta(description="the proxy's own socket, given to the kubelet")
    ] = "unix:///run/topolet/cri.sock"
    proxy_http: Annotated[
        str, msgspec.Meta(description="proxy: ADDRESS:PORT of /metrics and /healthz; empty: none")
    ] = "127.0.0.1:9327"
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_deadlines: HookDeadlines = HOOK_DEADLINES
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    drain_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=0, le=600, description="proxy: how long calls under way may take at its end, seconds"
        ),
    ] = 5.0
    log_level: LogLevel = LOG_LEVEL


class NriSettings(Options, frozen=True):
    """`topolet nri`."""

    state_dir: StateDir = STATE_DIR
    nri_socket: Annotated[
        str, msgspec.Meta(description="where the container runtime takes NRI plugins")
    ] = "/var/run/nri/nri.sock"
    nri_name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[A-Za-z0-9_.+-]+$", description="name of the NRI plugin, for the runtime"
        ),
    ] = "topolet"
    nri_index: Annotated[
        str,
        msgspec.Meta(
            pattern="^[0-9]{2}$",
            description="two digits: the runtime asks its plugins in their order",
        ),
    ] = "10"
    nri_updates: Annotated[
        bool,
        msgspec.Meta(
            description="the NRI plugin too tells the runtime what the agent changed, which the "
            "agent does by the CRI: only one whose NRI is 0.12.1 or later, as earlier ones can "
            "lock up over it"
        ),
    ] = True
    nri_http: Annotated[
        str,
        msgspec.Meta(description="NRI plugin: ADDRESS:PORT of /metrics and /healthz; empty: none"),
    ] = "127.0.0.1:9328"
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_deadlines: HookDeadlines = HOOK_DEADLINES
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
