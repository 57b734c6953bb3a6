"""Every option of every process, with unit and default; from TOML and flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from agent.model.snapshot import CpuPolicy
from agent.model.visible import Unasked


class SettingsError(ValueError):
    """An option that is unknown or has a wrong value; the message names it."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One struct for all; each part is given the values it needs."""

    state_dir: Annotated[
        str,
        msgspec.Meta(description="folder shared by agent and proxy: snapshot, doorbell, journal"),
    ] = "/run/topolet"
    runtime_endpoint: Annotated[
        str, msgspec.Meta(description="the container runtime's CRI socket")
    ] = "unix:///run/containerd/containerd.sock"
    listen: Annotated[
        str, msgspec.Meta(description="the proxy's own socket, given to the kubelet")
    ] = "unix:///run/topolet/cri.sock"
    node_name: Annotated[
        str, msgspec.Meta(description="name of this node's objects; empty: the host name")
    ] = ""
    store_dir: Annotated[
        str, msgspec.Meta(description="standalone: folder of the objects; empty: below state-dir")
    ] = ""
    kubeconfig: Annotated[
        str,
        msgspec.Meta(
            description="file that says where the API server is and who we are; empty: the service "
            "account of our pod"
        ),
    ] = ""
    service_account_dir: Annotated[
        str, msgspec.Meta(description="folder of our pod's token and of the API server's ca.crt")
    ] = "/var/run/secrets/kubernetes.io/serviceaccount"
    recheck_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=86_400,
            description="how often what was reported to the cluster is compared with what is "
            "stored there, seconds",
        ),
    ] = 300.0
    root: Annotated[str, msgspec.Meta(description="where the host's /sys and /proc are")] = "/"
    cgroup_root: Annotated[str, msgspec.Meta(description="where cgroups are mounted")] = (
        "/sys/fs/cgroup"
    )
    kubelet_dir: Annotated[
        str, msgspec.Meta(description="the kubelet's folder, read for cpu_manager_state")
    ] = "/var/lib/kubelet"
    kubelet_configz: Annotated[
        str,
        msgspec.Meta(
            description="https://NODE:10250/configz, where the kubelet tells its configuration; "
            "empty: its command line and file tell"
        ),
    ] = ""
    kubelet_config: Annotated[
        str,
        msgspec.Meta(
            description="the kubelet's configuration file, by its path for the agent; empty: the "
            "path of the kubelet's own --config, below root. Flags of the kubelet win over the file"
        ),
    ] = ""
    kubelet_token_file: Annotated[
        str, msgspec.Meta(description="bearer token for kubelet-configz; empty: none")
    ] = ""
    kubelet_ca_file: Annotated[
        str,
        msgspec.Meta(description="who signed the kubelet's certificate; empty: it is not verified"),
    ] = ""
    kubelet_cpu_manager: Annotated[
        Literal["detect", "none", "static"],
        msgspec.Meta(
            description="the kubelet's cpuManagerPolicy, declared: none or static, and the agent "
            "does not start beside another one; detect: whatever it is"
        ),
    ] = "detect"
    devices: Annotated[
        bool,
        msgspec.Meta(description="the agent looks for GPUs, RDMA devices and FPGAs"),
    ] = True
    gpu_driver_root: Annotated[
        str,
        msgspec.Meta(
            description="where the files of NVIDIA's driver are; empty: "
            "where the system looks for libraries"
        ),
    ] = ""
    gpu_actions: Annotated[
        str,
        msgspec.Meta(
            description="XID=ACTION or STATE=ACTION, separated by commas, where NVIDIA's catalogue "
            "is not wanted: ignore, restart-app, reset, reboot or support; `*` for unknown XIDs"
        ),
    ] = ""
    gfd_labels: Annotated[
        bool,
        msgspec.Meta(
            description="the Node gets the labels of NVIDIA's GPU feature discovery too, as far as "
            "we know them: where that does not run"
        ),
    ] = False
    withhold_held_devices: Annotated[
        bool,
        msgspec.Meta(
            description="devices that pods hold by a kubelet's plugin, a claim or by hand are "
            "listed with amounts of 0, in Device object and Node: for a scheduler that does not "
            "read devices-checkpoints, as Koordinator's"
        ),
    ] = False
    pod_resources_socket: Annotated[
        str,
        msgspec.Meta(
            description="where the kubelet tells what its pods hold (PodResources); empty: it is "
            "not asked"
        ),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    corrected_pod_resources_socket: Annotated[
        str,
        msgspec.Meta(
            description="agent: where it serves PodResources as the kubelet does, with the devices "
            "and CPUs that containers really have, for exporters (DCGM) and Multus; empty: "
            "nowhere. Needs grpcio and pod-resources-socket"
        ),
    ] = ""
    cpu_policy: Annotated[
        CpuPolicy,
        msgspec.Meta(
            description="who gives Guaranteed containers with whole CPUs their own where no "
            "scheduler does: none; static: at their creation, for good; dynamic: they may be "
            "replaced by better ones, which a file in the container tells"
        ),
    ] = "none"
    cpu_policy_options: Annotated[
        str,
        msgspec.Meta(
            description="for cpu-policy: options of the kubelet's static policy (full-pcpus-only, "
            "distribute-cpus-across-numa, ...), separated by commas"
        ),
    ] = ""
    reserved_cpus: Annotated[
        str,
        msgspec.Meta(
            description="for cpu-policy: CPUs that no container gets as its own, as a Linux list"
        ),
    ] = ""
    owners_on_reserved: Annotated[
        bool,
        msgspec.Meta(description="LSE and LSR pods may own CPUs that the kubelet reserves"),
    ] = False
    be_on_reserved: Annotated[
        bool,
        msgspec.Meta(
            description="BE pods run on the CPUs that the kubelet reserves alone, while what they "
            "request fits there"
        ),
    ] = False
    bind_memory: Annotated[
        bool,
        msgspec.Meta(
            description="pods with own CPUs, or held to NUMA nodes, get the memory of their CPUs' "
            "nodes, also where the Node has no label numa-memory-policy"
        ),
    ] = False
    migrate_memory: Annotated[
        bool,
        msgspec.Meta(
            description="pages of running containers move when their memory nodes change; else "
            "cgroup v2, which always moves them, leaves running containers as they are"
        ),
    ] = False
    unasked_gpus: Annotated[
        Unasked,
        msgspec.Meta(
            description="containers that no GPU was given to: leave them as they come; hide every "
            "GPU where the request names none, whatever the image says, but not from device "
            "plugins, exporters and privileged containers; deny also these, and a request for "
            "`all`, which monitors make. By NRI, which shows image and request as one, hide takes "
            "`all` for the image's"
        ),
    ] = "hide"
    gpu_cdi_kind: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_-]*)?$",
            description="kind of the CDI devices, named by UUID, that GPUs are given by where a "
            "request has no sign of any (nvidia.com/gpu); empty: by NVIDIA_VISIBLE_DEVICES",
        ),
    ] = ""
    hami_core_library: Annotated[
        str,
        msgspec.Meta(
            description="HAMi-core's library on this host, for pods that want their part of a GPU "
            "enforced; empty: there is none"
        ),
    ] = ""
    http: Annotated[
        str,
        msgspec.Meta(description="agent: ADDRESS:PORT of /metrics, /healthz, /readyz; empty: none"),
    ] = "0.0.0.0:9326"
    proxy_http: Annotated[
        str, msgspec.Meta(description="proxy: ADDRESS:PORT of /metrics and /healthz; empty: none")
    ] = "127.0.0.1:9327"
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
    hook_server_socket: Annotated[
        str,
        msgspec.Meta(
            description="agent: where it serves Koordinator's hooks to koord-runtime-proxy; empty: "
            "nowhere. Needs grpcio"
        ),
    ] = ""
    hook_server_registration_dir: Annotated[
        str,
        msgspec.Meta(description="the folder where koord-runtime-proxy looks for hook servers"),
    ] = "/etc/runtime/hookserver.d"
    hook_server_failure_policy: Annotated[
        Literal["Fail", "Ignore"],
        msgspec.Meta(
            description="what koord-runtime-proxy does when a hook of ours gives an error or no "
            "answer: with Ignore a call that hook-failure-policy fails goes on unchanged; with "
            "Fail no pod comes while the agent was killed, the agent's own only by its label"
        ),
    ] = "Ignore"
    hook_server_hooks: Annotated[
        str,
        msgspec.Meta(description="the hooks that koord-runtime-proxy calls, separated by commas"),
    ] = (
        "PreRunPodSandbox,PreCreateContainer,PreStartContainer,PreUpdateContainerResources,"
        "PostStopContainer,PostStopPodSandbox"
    )
    period_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=60,
            description="how often the agent looks while events can't tell everything, seconds",
        ),
    ] = 0.5
    full_pass_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0, le=600, description="how often the agent looks though no event came, seconds"
        ),
    ] = 10.0
    exclude: Annotated[
        str,
        msgspec.Meta(
            description="what the agent leaves alone: NAMESPACE, NAMESPACE/POD or "
            "NAMESPACE/POD/CONTAINER, with * and ?, separated by commas"
        ),
    ] = ""
    hold_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=0, le=60, description="how long a call waits for the agent at most, seconds"
        ),
    ] = 0.5
    hook_deadlines: Annotated[
        str,
        msgspec.Meta(
            description="HOOK=SECONDS, separated by commas, where a hook waits longer or shorter "
            "than hold-seconds"
        ),
    ] = ""
    hook_failure_policy: Annotated[
        str,
        msgspec.Meta(
            description="HOOK/CLASS=ignore or fail, separated by commas, `*` for all: whether a "
            "call goes on or fails when its hook waited in vain, can't read it or went wrong; the "
            "narrowest rule speaks. Class `devices`: whether a container that can't have the "
            "devices allocated to it keeps those of its device plugin"
        ),
    ] = "*=ignore,CreateContainer/LSE=fail,CreateContainer/LSR=fail,CreateContainer/devices=fail"
    webhook_https: Annotated[
        str,
        msgspec.Meta(description="webhook: ADDRESS:PORT of its pages, /healthz among them, by TLS"),
    ] = "0.0.0.0:9443"
    tls_certificate_file: Annotated[
        str,
        msgspec.Meta(
            description="the certificate shown to clients; read again when it changes; scheduler: "
            "empty for plain HTTP"
        ),
    ] = "/etc/topolet/tls/tls.crt"
    tls_key_file: Annotated[str, msgspec.Meta(description="the key of tls-certificate-file")] = (
        "/etc/topolet/tls/tls.key"
    )
    webhook_failure_policy: Annotated[
        Literal["Fail", "Ignore"],
        msgspec.Meta(
            description="webhook: whether the Binding of a pod that can't be looked up is refused "
            "or goes on"
        ),
    ] = "Fail"
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
    drain_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=0, le=600, description="proxy: how long calls under way may take at its end, seconds"
        ),
    ] = 5.0
    log_level: Annotated[
        str,
        msgspec.Meta(pattern="^(debug|info|warning|error)$", description="least level logged"),
    ] = "info"


def parse(raw: Mapping[str, Any]) -> Settings:
    """Raises SettingsError that names the option."""
    try:
        return msgspec.convert(raw, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"settings: {error}") from None


def options() -> tuple[msgspec.inspect.Field, ...]:
    """Name, type, default and description of every option, in order."""
    kind = msgspec.inspect.type_info(Settings)
    assert isinstance(kind, msgspec.inspect.StructType)
    return kind.fields


def socket_path(endpoint: str) -> str:
    """`unix:///path` or a path, as a path. Raises SettingsError."""
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/"):
        raise SettingsError(f"endpoint {endpoint!r} is no unix:///absolute/path")
    return path


def host_port(address: str) -> tuple[str, int]:
    """`HOST:PORT` as a pair, an empty host meaning all. Raises SettingsError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"address {address!r} is no HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)
