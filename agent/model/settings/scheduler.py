"""The options of the scheduler and of the webhook."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from agent.model.settings.options import (
    KUBECONFIG,
    LOG_LEVEL,
    SERVICE_ACCOUNT_DIR,
    TLS_CERTIFICATE_FILE,
    TLS_KEY_FILE,
    Kubeconfig,
    LogLevel,
    Options,
    ServiceAccountDir,
    TlsCertificateFile,
    TlsKeyFile,
)


class SchedulerSettings(Options, frozen=True):
    """`topolet scheduler`."""

    kubeconfig: Kubeconfig = KUBECONFIG
    service_account_dir: ServiceAccountDir = SERVICE_ACCOUNT_DIR
    tls_certificate_file: TlsCertificateFile = TLS_CERTIFICATE_FILE
    tls_key_file: TlsKeyFile = TLS_KEY_FILE
    extender_address: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: ADDRESS:PORT of the verbs that kube-scheduler calls, and of "
            "/readyz, /healthz and /metrics"
        ),
    ] = "0.0.0.0:9444"
    client_ca_file: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: the CA of which clients must show a certificate; read again "
            "when it changes; empty: whoever reaches the port may have pods bound"
        ),
    ] = ""
    client_names: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: names, separated by commas, of which a client's certificate "
            "must bear one; empty: any of client-ca-file"
        ),
    ] = ""
    scheduler_http: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: ADDRESS:PORT of /readyz, /healthz and /metrics in plain HTTP, "
            "for those who have no certificate; empty: none"
        ),
    ] = "127.0.0.1:9329"
    scheduler_name: Annotated[
        str,
        msgspec.Meta(
            min_length=1, description="scheduler: the schedulerName of the pods that are ours"
        ),
    ] = "topolet-scheduler"
    scheduler_args_file: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: file of a CPUOrchestrationPluginArgs or a NodeNUMAResourceArgs "
            "that says how nodes are scored; empty: the former's defaults"
        ),
    ] = ""
    gpu_shares: Annotated[
        str,
        msgspec.Meta(
            pattern="^(MostAllocated|LeastAllocated)$",
            description="scheduler: parts of GPUs are given of the card that has least left for "
            "them, so that whole ones stay whole, or of the one that has most",
        ),
    ] = "MostAllocated"
    agent_selector: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: labels, KEY=VALUE separated by commas, of the pods of which a "
            "node must have a Ready one to give CPUs or devices; empty: it needs none"
        ),
    ] = "app.kubernetes.io/name=topolet,app.kubernetes.io/component=agent"
    agent_namespace: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: the namespace of these pods, so that nobody else can pass for "
            "them; empty: any"
        ),
    ] = ""
    best_node_only: Annotated[
        bool,
        msgspec.Meta(
            description="scheduler: a pod that needs CPUs or devices is offered its best node "
            "alone, so that no other score and no draw decides"
        ),
    ] = True
    group_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=3600,
            description="scheduler: how long a node is held for the members of a group that are "
            "still to come, seconds",
        ),
    ] = 60.0
    evict: Annotated[
        bool,
        msgspec.Meta(
            description="scheduler: evicts pods of lower priority itself where kube-scheduler sees "
            "no reason to: CPU is free on the node, but not as the pod needs it"
        ),
    ] = False
    lease_namespace: Annotated[
        str, msgspec.Meta(min_length=1, description="scheduler: where the lease of the leader is")
    ] = "topolet-system"
    lease_name: Annotated[
        str,
        msgspec.Meta(
            description="scheduler: the Lease whose holder decides, all others wait; empty: there "
            "is one scheduler only"
        ),
    ] = "topolet-scheduler"
    lease_seconds: Annotated[
        int,
        msgspec.Meta(
            ge=3,
            le=600,
            description="scheduler: how long after the leader was heard of last another takes its "
            "place, seconds",
        ),
    ] = 15
    watch_stale_seconds: Annotated[
        int,
        msgspec.Meta(
            ge=15,
            le=600,
            description="scheduler: how long a watch that decisions read may be out of touch with "
            "the API server (no event, bookmark or answer) before nothing is answered, seconds; "
            "each watch is renewed three times in that time",
        ),
    ] = 30
    log_level: LogLevel = LOG_LEVEL


class WebhookSettings(Options, frozen=True):
    """`topolet webhook`."""

    kubeconfig: Kubeconfig = KUBECONFIG
    service_account_dir: ServiceAccountDir = SERVICE_ACCOUNT_DIR
    webhook_https: Annotated[
        str,
        msgspec.Meta(description="webhook: ADDRESS:PORT of its pages, /healthz among them, by TLS"),
    ] = "0.0.0.0:9443"
    tls_certificate_file: TlsCertificateFile = TLS_CERTIFICATE_FILE
    tls_key_file: TlsKeyFile = TLS_KEY_FILE
    webhook_failure_policy: Annotated[
        Literal["Fail", "Ignore"],
        msgspec.Meta(
            description="webhook: whether the Binding of a pod that can't be looked up is refused "
            "or goes on"
        ),
    ] = "Fail"
    log_level: LogLevel = LOG_LEVEL
