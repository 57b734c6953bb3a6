"""The options of the scheduler and of the webhook."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from agent.model.settings.agent import RestoreSettings
from agent.model.settings.options import (
    HTTP,
    KUBECONFIG,
    LOG_FORMAT,
    LOG_LEVEL,
    NODE_ADDRESSES,
    STATE_DIR,
    TLS_DIR,
    Http,
    Kubeconfig,
    LogFormatOption,
    LogLevel,
    NodeAddresses,
    Options,
    StateDir,
    TlsDir,
)

SCHEDULER_PORT: Final = 9329
EXTENDER_PORT: Final = 9444
WEBHOOK_PORT: Final = 9443
Https = Annotated[
    str,
    msgspec.Meta(
        description="ADDRESS or ADDRESS:PORT of what kube-scheduler (port 9444) or the API server "
        "(port 9443 of the webhook) calls, with TLS, and of /healthz; of the scheduler also of "
        "/readyz and /metrics"
    ),
]
HTTPS: Final = "0.0.0.0"
SchedulerName = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        description="the schedulerName of the pods that the scheduler places, and that the webhook "
        "gives to new pods with GPUs",
    ),
]
SCHEDULER_NAME: Final = "topolet-scheduler"
ClientCaFile = Annotated[
    str,
    msgspec.Meta(
        description="the CA of the clients' certificates; read again when it changes; empty: any "
        "client that reaches the scheduler's port can bind pods, and the webhook reads no pods"
    ),
]
ClientNames = Annotated[
    str,
    msgspec.Meta(
        description="accepted names of a client's certificate, separated by commas; empty: any "
        "certificate of client-ca-file"
    ),
]

SchedulerArgsFile = Annotated[
    str,
    msgspec.Meta(
        description="scheduler: file with a CPUOrchestrationPluginArgs or NodeNUMAResourceArgs "
        "that configures the scores of nodes; empty: the defaults of CPUOrchestrationPluginArgs"
    ),
]
LEASE_NAME: Final = "topolet-scheduler"
"""The Lease of the leader, in the release's namespace."""
LEASE_SECONDS: Final = 15
ReleaseNamespace = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        description="namespace of the agents' pods, of the scheduler's Service and of the leader's "
        "Lease; pods of other namespaces do not count as agents",
    ),
]
RELEASE_NAMESPACE: Final = "topolet-system"
AgentLabels = Annotated[
    str,
    msgspec.Meta(
        description="scheduler: labels of the agents' pods, KEY=VALUE separated by commas; only "
        "nodes with a Ready agent offer CPUs and devices; empty: all nodes"
    ),
]
AGENT_LABELS: Final = "app.kubernetes.io/name=topolet,app.kubernetes.io/component=agent"


def split_names(text: str) -> frozenset[str]:
    """The names of `client_names`."""
    return frozenset(filter(None, map(str.strip, text.split(","))))


class SchedulerSettings(Options, frozen=True):
    """`topolet scheduler`."""

    state_dir: StateDir = STATE_DIR
    kubeconfig: Kubeconfig = KUBECONFIG
    tls_dir: TlsDir = TLS_DIR
    https: Https = HTTPS
    client_ca_file: ClientCaFile = ""
    client_names: ClientNames = ""
    http: Http = HTTP
    node_addresses: NodeAddresses = NODE_ADDRESSES
    scheduler_name: SchedulerName = SCHEDULER_NAME
    scheduler_args_file: SchedulerArgsFile = ""
    agent_selector: AgentLabels = AGENT_LABELS
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE
    best_node_only: Annotated[
        bool,
        msgspec.Meta(
            description="scheduler: offers only the best node to a pod that needs CPUs or devices, "
            "so that neither another score nor a random choice decides"
        ),
    ] = True
    evict: Annotated[
        bool,
        msgspec.Meta(
            description="scheduler: evicts pods of lower priority on nodes that only the extender "
            "rejects, where kube-scheduler does not preempt because the sum of free CPU is enough"
        ),
    ] = False
    lease_seconds: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=600,
            description="scheduler: time after the leader's last renewal of its Lease until "
            "another process may lead, seconds, at least 3; 0: there is only one scheduler, and "
            "no Lease",
        ),
    ] = LEASE_SECONDS
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT


class ExplainSettings(RestoreSettings, frozen=True):
    """`topolet explain`. Options that the scheduler and the agent have too have the same names, so
    that their settings files can be used."""

    kubeconfig: Kubeconfig = KUBECONFIG
    scheduler_name: SchedulerName = SCHEDULER_NAME
    scheduler_args_file: SchedulerArgsFile = ""
    agent_selector: AgentLabels = AGENT_LABELS
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE


class WebhookSettings(Options, frozen=True):
    """`topolet webhook`."""

    kubeconfig: Kubeconfig = KUBECONFIG
    https: Https = HTTPS
    node_addresses: NodeAddresses = NODE_ADDRESSES
    tls_dir: TlsDir = TLS_DIR
    client_ca_file: ClientCaFile = ""
    client_names: ClientNames = ""
    webhook_failure_policy: Annotated[
        Literal["Fail", "Ignore"],
        msgspec.Meta(
            description="webhook: whether a Binding is refused or allowed if its pod can't be read"
        ),
    ] = "Fail"
    scheduler_name: SchedulerName = SCHEDULER_NAME
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT
