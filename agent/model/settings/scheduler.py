"""The options of the scheduler and of the webhook."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from agent.model.settings.options import (
    HTTP,
    KUBECONFIG,
    LOG_FORMAT,
    LOG_LEVEL,
    NODE_ADDRESSES,
    TLS_DIR,
    Http,
    Kubeconfig,
    LogFormatOption,
    LogLevel,
    NodeAddresses,
    Options,
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
GpuShares = Annotated[
    Literal["MostAllocated", "LeastAllocated"],
    msgspec.Meta(
        description="scheduler: which card gives a part of a GPU. MostAllocated: the card with "
        "the smallest free part, so that other cards stay whole; LeastAllocated: the largest",
    ),
]
GPU_SHARES: Final[Literal["MostAllocated"]] = "MostAllocated"
LeaseName = Annotated[
    str,
    msgspec.Meta(
        description="scheduler: name of the leader's Lease; only its holder decides; empty: "
        "there is only one scheduler"
    ),
]
LEASE_NAME: Final = "topolet-scheduler"
AgentLabels = Annotated[
    str,
    msgspec.Meta(
        description="scheduler: labels of the agents' pods, KEY=VALUE separated by commas; only "
        "nodes with a Ready agent offer CPUs and devices; empty: all nodes"
    ),
]
AGENT_LABELS: Final = "app.kubernetes.io/name=topolet,app.kubernetes.io/component=agent"
AgentNamespace = Annotated[
    str,
    msgspec.Meta(
        description="scheduler: the namespace of the agents' pods, so that pods of other "
        "namespaces do not count as agents; empty: any namespace"
    ),
]


def split_names(text: str) -> frozenset[str]:
    """The names of `client_names`."""
    return frozenset(filter(None, map(str.strip, text.split(","))))


class SchedulerSettings(Options, frozen=True):
    """`topolet scheduler`."""

    kubeconfig: Kubeconfig = KUBECONFIG
    tls_dir: TlsDir = TLS_DIR
    https: Https = HTTPS
    client_ca_file: ClientCaFile = ""
    client_names: ClientNames = ""
    http: Http = HTTP
    node_addresses: NodeAddresses = NODE_ADDRESSES
    scheduler_name: SchedulerName = SCHEDULER_NAME
    scheduler_args_file: SchedulerArgsFile = ""
    gpu_shares: GpuShares = GPU_SHARES
    agent_selector: AgentLabels = AGENT_LABELS
    agent_namespace: AgentNamespace = ""
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
    rebind_max_pods: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="scheduler: most pods that one RebindResource moves; 0: any number",
        ),
    ] = 0
    rebind_hours: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d)?$",
            examples=["22:00-06:00"],
            description="scheduler: HH:MM-HH:MM in UTC, the time of the day in which a "
            "RebindResource may begin to move pods; it may include midnight; empty: always",
        ),
    ] = ""
    rebind_excluded_namespaces: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: namespaces whose pods no RebindResource moves, separated by "
            "commas"
        ),
    ] = ""
    lease_namespace: Annotated[
        str, msgspec.Meta(min_length=1, description="scheduler: namespace of the leader's Lease")
    ] = "topolet-system"
    lease_name: LeaseName = LEASE_NAME
    lease_seconds: Annotated[
        int,
        msgspec.Meta(
            ge=3,
            le=600,
            description="scheduler: time after the leader's last renewal of its Lease until "
            "another process may lead, seconds",
        ),
    ] = 15
    lease_dir: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: local folder, of one scheduler only, that outlives the "
            "process: a leader that was killed has its Lease again as soon as it is restarted; "
            "empty: it waits until the Lease expires"
        ),
    ] = ""
    leader_pod: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: NAMESPACE/NAME of this process's pod: the pod has the label "
            "topolet.io/scheduler-leader=true while the process leads, and a standby is Ready; "
            "empty: no label, and only the leader is Ready"
        ),
    ] = ""
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT


class ExplainSettings(Options, frozen=True):
    """`topolet explain`. Options that the scheduler has too have the same names, so that its
    settings file can be used."""

    kubeconfig: Kubeconfig = KUBECONFIG
    scheduler_namespace: Annotated[
        str, msgspec.Meta(min_length=1, description="explain: namespace of the scheduler's Service")
    ] = "topolet-system"
    lease_name: LeaseName = LEASE_NAME
    scheduler_name: SchedulerName = SCHEDULER_NAME
    scheduler_args_file: SchedulerArgsFile = ""
    gpu_shares: GpuShares = GPU_SHARES
    agent_selector: AgentLabels = AGENT_LABELS
    agent_namespace: AgentNamespace = ""


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
