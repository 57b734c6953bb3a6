"""The options of the agent, and of the commands that read what the agent reads."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from agent.model.devices.visibility import Unasked
from agent.model.settings.options import (
    HOLD_SECONDS,
    HOOK_DEADLINES,
    HOOK_FAILURE_POLICY,
    KUBECONFIG,
    LISTEN,
    LOG_FORMAT,
    LOG_LEVEL,
    NODE_ADDRESSES,
    RUNTIME_ENDPOINT,
    SERVICE_ACCOUNT_DIR,
    STATE_DIR,
    HoldSeconds,
    HookDeadlines,
    HookFailurePolicy,
    Kubeconfig,
    Listen,
    LogFormatOption,
    LogLevel,
    NodeAddresses,
    Options,
    RuntimeEndpoint,
    ServiceAccountDir,
    StateDir,
)
from agent.model.snapshot import CpuPolicy


class TopologySettings(Options, frozen=True):
    """`topolet audit` and `topolet history`."""

    state_dir: StateDir = STATE_DIR


GpuDriverRoot = Annotated[
    str,
    msgspec.Meta(
        description="folder with the files of NVIDIA's driver; empty: the system's library path"
    ),
]


class DevicesSettings(TopologySettings, frozen=True):
    """`topolet topology` and `topolet devices`."""

    gpu_driver_root: GpuDriverRoot = ""


class RestoreSettings(TopologySettings, frozen=True):
    """`topolet restore`."""

    runtime_endpoint: RuntimeEndpoint = RUNTIME_ENDPOINT
    root: Annotated[str, msgspec.Meta(description="where the host's /sys and /proc are")] = "/"
    cgroup_root: Annotated[str, msgspec.Meta(description="where cgroups are mounted")] = (
        "/sys/fs/cgroup"
    )


class InstallSettings(RestoreSettings, frozen=True):
    """`topolet install-proxy`."""

    runtime_endpoint: Annotated[
        str, msgspec.Meta(description="the container runtime's CRI socket; empty: the kubelet's")
    ] = ""
    settle_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=0, le=600, description="time that the kubelet must run without a restart, seconds"
        ),
    ] = 10.0


NodeName = Annotated[
    str, msgspec.Meta(description="name of this node's objects; empty: the host name")
]


class UninstallSettings(InstallSettings, frozen=True):
    """`topolet uninstall-node`."""

    node_name: NodeName = ""
    kubeconfig: Kubeconfig = KUBECONFIG
    service_account_dir: ServiceAccountDir = SERVICE_ACCOUNT_DIR


class KubeletStateSettings(RestoreSettings, frozen=True):
    """`topolet kubelet-state`."""

    kubelet_dir: Annotated[
        str, msgspec.Meta(description="the kubelet's folder, read for cpu_manager_state")
    ] = "/var/lib/kubelet"


class DoctorSettings(KubeletStateSettings, frozen=True):
    """`topolet doctor`."""

    listen: Listen = LISTEN


class AgentSettings(KubeletStateSettings, frozen=True):
    """`topolet agent`."""

    node_name: NodeName = ""
    kubeconfig: Kubeconfig = KUBECONFIG
    service_account_dir: ServiceAccountDir = SERVICE_ACCOUNT_DIR
    managed_by: Annotated[
        Literal["topolet", "Koordinator"],
        msgspec.Meta(
            description="value of the label app.kubernetes.io/managed-by of NodeResourceTopology "
            "and Device: Koordinator for programs that select the objects of koordlet by it"
        ),
    ] = "topolet"
    kubelet_configz: Annotated[
        str,
        msgspec.Meta(
            description="https://NODE:10250/configz, where the agent reads the kubelet's "
            "configuration; empty: it reads the kubelet's command line and file"
        ),
    ] = ""
    kubelet_config: Annotated[
        str,
        msgspec.Meta(
            description="path of the kubelet's configuration file as the agent sees it; empty: the "
            "path of the kubelet's own --config, below root. The kubelet's flags override the file"
        ),
    ] = ""
    kubelet_token_file: Annotated[
        str,
        msgspec.Meta(
            description="bearer token for kubelet-configz, sent only to a verified kubelet; "
            "empty: none"
        ),
    ] = ""
    kubelet_ca_file: Annotated[
        str,
        msgspec.Meta(
            description="CA of the kubelet's certificate; empty: the kubelet must have the "
            "certificate in kubelet-dir/pki"
        ),
    ] = ""
    kubelet_cpu_manager: Annotated[
        Literal["detect", "none", "static"],
        msgspec.Meta(
            description="the kubelet's cpuManagerPolicy: with none or static the agent does not "
            "start if the kubelet has another policy; detect: any policy"
        ),
    ] = "detect"
    devices: Annotated[
        bool,
        msgspec.Meta(description="the agent discovers GPUs, RDMA devices and FPGAs"),
    ] = True
    gpu_driver_root: GpuDriverRoot = ""
    gpu_actions: Annotated[
        str,
        msgspec.Meta(
            description="XID=ACTION or STATE=ACTION, separated by commas, to override NVIDIA's "
            "catalogue: ignore, restart-app, reset, reboot or support; `*` for unknown XIDs"
        ),
    ] = ""
    withhold_held_devices: Annotated[
        bool,
        msgspec.Meta(
            description="devices that pods hold through a kubelet's device plugin, a ResourceClaim "
            "or by hand have amounts of 0 in the Device object and the Node: for a scheduler that "
            "does not read devices-checkpoints, such as Koordinator's"
        ),
    ] = False
    pod_resources_socket: Annotated[
        str,
        msgspec.Meta(
            description="the kubelet's PodResources socket, with the resources that its pods hold; "
            "empty: not used"
        ),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    corrected_pod_resources_socket: Annotated[
        str,
        msgspec.Meta(
            description="socket on which the agent serves PodResources as the kubelet does, with "
            "the devices and CPUs that containers really have, for exporters (DCGM) and Multus; "
            "empty: none. Needs grpcio and pod-resources-socket"
        ),
    ] = ""
    cpu_policy: Annotated[
        CpuPolicy,
        msgspec.Meta(
            description="exclusive CPUs for containers of Guaranteed pods that request whole CPUs, "
            "if no scheduler allocated CPUs. none: no CPUs; static: fixed at creation; dynamic: "
            "the agent may replace them by better CPUs, and lists them in a file in the container"
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
            description="for cpu-policy: CPUs that no container owns, as a Linux list; without it "
            "and reserved-cpu-milli: the CPUs of the kubelet's reservedSystemCPUs, else those for "
            "its kubeReserved and systemReserved. The agent does not start if there are none"
        ),
    ] = ""
    reserved_cpu_milli: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1_000_000_000,
            description="for cpu-policy, instead of reserved-cpus: an amount of CPU that no "
            "container owns, like the sum of kube-reserved and system-reserved, in millicores; it "
            "is rounded up to whole CPUs, taken core by core from the lowest core",
        ),
    ] = 0
    owners_on_reserved: Annotated[
        bool,
        msgspec.Meta(description="LSE and LSR pods may own CPUs that the kubelet reserves"),
    ] = False
    be_on_reserved: Annotated[
        bool,
        msgspec.Meta(
            description="BE pods use the CPUs that the kubelet reserves first, and the rest of "
            "their pool too while these CPUs are busy or the requests of BE pods do not fit there"
        ),
    ] = True
    bind_memory: Annotated[
        bool,
        msgspec.Meta(
            description="pods that own CPUs or are bound to NUMA nodes get memory of their CPUs' "
            "NUMA nodes, also if the Node does not have the label numa-memory-policy: bind"
        ),
    ] = False
    migrate_memory: Annotated[
        bool,
        msgspec.Meta(
            description="pages of running containers move when their memory nodes change; without "
            "it, their memory nodes do not change on cgroup v2, which always moves pages"
        ),
    ] = False
    unasked_gpus: Annotated[
        Unasked,
        msgspec.Meta(
            description="containers without an allocated GPU. leave: they stay unchanged; hide: "
            "they see no GPU unless the request names one, whatever the image names, except device "
            "plugins, exporters and privileged containers; deny: as hide, without exceptions, also "
            "if the request names `all`, as monitoring pods do. NRI does not distinguish image and "
            "request: there hide treats `all` as a value of the image"
        ),
    ] = "hide"
    gpu_monitor_namespaces: Annotated[
        str,
        msgspec.Meta(
            description="namespaces, separated by commas, of monitoring pods: under unasked-gpus "
            "hide, their requests may name `all` GPUs while other pods hold some"
        ),
    ] = "gpu-operator,kube-system"
    gpu_cdi_kind: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_-]*)?$",
            examples=["nvidia.com/gpu"],
            description="kind of the CDI devices, named by UUID (nvidia.com/gpu), through which a "
            "container gets GPUs if its request names none; empty: NVIDIA_VISIBLE_DEVICES",
        ),
    ] = ""
    hami_core_library: Annotated[
        str,
        msgspec.Meta(
            description="path of HAMi-core's library on this host, which enforces the parts of "
            "GPUs of pods that request it; empty: not available"
        ),
    ] = ""
    http: Annotated[
        str,
        msgspec.Meta(description="agent: ADDRESS:PORT of /metrics, /healthz, /readyz; empty: none"),
    ] = "127.0.0.1:9326"
    node_addresses: NodeAddresses = NODE_ADDRESSES
    hook_server_socket: Annotated[
        str,
        msgspec.Meta(
            description="socket on which the agent serves Koordinator's hooks to "
            "koord-runtime-proxy; empty: none. Needs grpcio"
        ),
    ] = ""
    hook_server_registration_dir: Annotated[
        str,
        msgspec.Meta(description="the folder where koord-runtime-proxy finds hook servers"),
    ] = "/etc/runtime/hookserver.d"
    hook_server_failure_policy: Annotated[
        Literal["Fail", "Ignore"],
        msgspec.Meta(
            description="what koord-runtime-proxy does when the agent returns an error or no "
            "answer. Ignore: calls that hook-failure-policy fails continue unchanged; Fail: after "
            "a crash of the agent only pods with the label skip-hookserver start, such as its own"
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
            description="time between two full passes while events are incomplete, seconds",
        ),
    ] = 0.5
    full_pass_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0, le=600, description="time between two full passes without an event, seconds"
        ),
    ] = 10.0
    exclude: Annotated[
        str,
        msgspec.Meta(
            description="pods and containers that the agent does not manage: NAMESPACE, "
            "NAMESPACE/POD or NAMESPACE/POD/CONTAINER, with * and ?, separated by commas; a "
            "namespace must not begin with a wildcard"
        ),
    ] = ""
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_deadlines: HookDeadlines = HOOK_DEADLINES
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT
