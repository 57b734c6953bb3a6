"""The options of the agent, and of the commands that read what the agent reads."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from agent.model.devices.visibility import UnrequestedGpus
from agent.model.pod.annotations import QUIET_FEATURES
from agent.model.settings.colocation import FEATURES
from agent.model.settings.options import (
    HOLD_SECONDS,
    HOOK_FAILURE_POLICY,
    HTTP,
    KUBECONFIG,
    LOG_FORMAT,
    LOG_LEVEL,
    NODE_ADDRESSES,
    RUNTIME_ENDPOINT,
    STATE_DIR,
    HoldSeconds,
    HookFailurePolicy,
    Http,
    Kubeconfig,
    LogFormatOption,
    LogLevel,
    NodeAddresses,
    Options,
    RuntimeEndpoint,
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


KUBELET_DIR: Final = "/var/lib/kubelet"
CdiDir = Annotated[
    str,
    msgspec.Meta(
        pattern="^/",
        description="with dra: a folder where the runtime looks for CDI files, at the path that "
        "the host has",
    ),
]
CDI_DIR: Final = "/var/run/cdi"


class UninstallSettings(InstallSettings, frozen=True):
    """`topolet uninstall-node`."""

    node_name: NodeName = ""
    kubeconfig: Kubeconfig = KUBECONFIG
    kubelet_dir: Annotated[
        str, msgspec.Meta(description="the kubelet's folder, with the sockets of the DRA driver")
    ] = KUBELET_DIR
    cdi_dir: CdiDir = CDI_DIR


class KubeletStateSettings(RestoreSettings, frozen=True):
    """`topolet kubelet-state` and `topolet doctor`."""

    kubelet_dir: Annotated[
        str, msgspec.Meta(description="the kubelet's folder, read for cpu_manager_state")
    ] = KUBELET_DIR


AGENT_PORT: Final = 9326


class AgentSettings(KubeletStateSettings, frozen=True):
    """`topolet agent`."""

    node_name: NodeName = ""
    kubeconfig: Kubeconfig = KUBECONFIG
    managed_by: Annotated[
        Literal["topolet", "Koordinator"],
        msgspec.Meta(
            description="Koordinator: for koord-scheduler and other readers of koordlet's objects, "
            "NodeResourceTopology and Device have its value of the label "
            "app.kubernetes.io/managed-by, and devices that pods hold through a kubelet's device "
            "plugin, a ResourceClaim or by hand have amounts of 0 in the Device object and the Node"
        ),
    ] = "topolet"
    kubelet_configz: Annotated[
        str,
        msgspec.Meta(
            description="https://NODE:10250/configz, where the agent reads the kubelet's "
            "configuration with the token of its pod, which it sends only to a verified kubelet; "
            "empty: it reads the kubelet's command line and file"
        ),
    ] = ""
    kubelet_config: Annotated[
        str,
        msgspec.Meta(
            description="path of the kubelet's configuration file as the agent sees it; empty: the "
            "path of the kubelet's own --config, below root. The kubelet's flags override the file"
        ),
    ] = ""
    kubelet_ca_file: Annotated[
        str,
        msgspec.Meta(
            description="CA of the kubelet's certificate; empty: the kubelet must have the "
            "certificate in kubelet-dir/pki"
        ),
    ] = ""
    devices: Annotated[
        bool,
        msgspec.Meta(description="the agent discovers GPUs, RDMA devices and FPGAs"),
    ] = True
    device_locality: Annotated[
        Literal["off", "prefer", "bind", "require"],
        msgspec.Meta(
            description="containers without CPUs of their own run on the NUMA nodes of their "
            "devices. prefer: also on the next nodes, while the CPU requests there exceed the CPUs "
            "of their pool; bind: as prefer, with memory of these nodes alone; require: as prefer, "
            "and Topolet's scheduler binds pods only where there is room for it; off: on their "
            "whole pool. A pod's annotation topolet.io/device-locality has the same values"
        ),
    ] = "prefer"
    dra: Annotated[
        bool,
        msgspec.Meta(
            description="the agent is a DRA driver: it publishes the CPUs of the node as devices "
            "of the driver cpu.topolet.io, and gives ResourceClaims the CPUs that a scheduler "
            "allocated. Not with cpu-policy, and only in a cluster"
        ),
    ] = False
    dra_devices: Annotated[
        Literal["numa-node", "l3-cache", "core"],
        msgspec.Meta(
            description="with dra: what a device is. Claims have parts of a NUMA node, with its "
            "memory and huge pages, or of an L3 cache, or whole cores"
        ),
    ] = "numa-node"
    dra_order: Annotated[
        Literal["devices-last", "numa-node", "spread"],
        msgspec.Meta(
            description="with dra: the order of the devices, of which kube-scheduler takes the "
            "first that fits. devices-last: NUMA nodes with fewer GPUs and other devices come "
            "first; numa-node: by id; spread: the one with the most unclaimed CPUs comes first"
        ),
    ] = "devices-last"
    dra_pcie_roots: Annotated[
        bool,
        msgspec.Meta(
            description="with dra: the devices have the attribute resource.kubernetes.io/pcieRoot, "
            "which is a list. The cluster needs the feature gate DRAListTypeAttributes"
        ),
    ] = False
    cdi_dir: CdiDir = CDI_DIR
    usage: Annotated[
        bool,
        msgspec.Meta(
            description="the agent samples the use of CPU and memory of the machine, its NUMA "
            "nodes and the pods"
        ),
    ] = False
    koordlet_metrics: Annotated[
        bool,
        msgspec.Meta(
            description="with usage, the agent's page has also the metrics of koordlet whose "
            "numbers the agent has, under koordlet's names"
        ),
    ] = False
    node_metric: Annotated[
        Literal["off", "report", "create"],
        msgspec.Meta(
            description="with usage, the agent fills the status of Koordinator's NodeMetric of its "
            "node. report: where a manager has created the object; create: the agent creates it; "
            "off: never"
        ),
    ] = "report"
    batch_resources: Annotated[
        Literal["off", "offer"],
        msgspec.Meta(
            description="with usage, offer: the agent computes Koordinator's batch and mid "
            "resources of its Node, where no koord-manager has given the node's NodeMetric a policy"
        ),
    ] = "off"
    node_slo: Annotated[
        Literal["off", "follow"],
        msgspec.Meta(
            description="with usage, follow: the agent follows the strategies in Koordinator's "
            "NodeSLO of its node, and those of slo-config where there is no NodeSLO"
        ),
    ] = "off"
    colocation: Annotated[
        Literal["off", "observe", "act"],
        msgspec.Meta(
            description="with node-slo=follow, act: the agent does what these strategies want; "
            "observe: it only reports what it would do; off: it gives back what it has changed"
        ),
    ] = "off"
    colocation_features: Annotated[
        str,
        msgspec.Meta(
            description="with colocation: FEATURE=MODE, separated by commas, for features that do "
            "less than colocation says; a MODE is off, observe or act, and FEATURE is one of "
            + ", ".join(FEATURES)
        ),
    ] = ""
    quiet: Annotated[
        Literal["off", "observe", "act"],
        msgspec.Meta(
            description="act: interrupts, daemons and what else disturbs leave the CPUs of owners "
            "that ask for it; observe: the agent only reports what it would do; off: it gives back "
            "what it has changed"
        ),
    ] = "off"
    quiet_features: Annotated[
        str,
        msgspec.Meta(
            description="with quiet: FEATURE=MODE, separated by commas, for features that do less "
            "than quiet says; a MODE is off, observe or act, and FEATURE is one of "
            + ", ".join(QUIET_FEATURES)
        ),
    ] = ""
    quiet_owners: Annotated[
        str,
        msgspec.Meta(
            description="with quiet: the features, separated by commas, or all, that every owner "
            "of CPUs has whose pod does not ask by an annotation; empty: only pods that ask have "
            "some"
        ),
    ] = ""
    quiet_chain: Annotated[
        bool,
        msgspec.Meta(
            description="with quiet, on a kernel without remote cpuset partitions (before 6.7): "
            "the group of all pods may become a partition, so that the host runs only on the CPUs "
            "that the node's reservation keeps from all pods"
        ),
    ] = False
    be_on_owned: Annotated[
        Literal["in-proportion", "last", "never"],
        msgspec.Meta(
            description="with colocation: whether suppressed BE pods run on CPUs of LSR pods: "
            "on as many as these are of their pool, only when the others do not suffice, or never"
        ),
    ] = "in-proportion"
    oom_score_adj_min: Annotated[
        int,
        msgspec.Meta(
            ge=-1000,
            le=1000,
            description="with colocation: the lowest oom_score_adj that annotations of pods may "
            "have. A low value protects a pod at the cost of others, and its author writes the "
            "annotation. 1000 allows only that of BestEffort pods, -997 also that of Guaranteed "
            "ones, and -1000 that the kernel never kills the processes",
        ),
    ] = 1000
    evictions: Annotated[
        str,
        msgspec.Meta(
            description="with colocation: the evictions that resourceUsedThresholdWithBE may make, "
            "by the names of koordlet's features, separated by commas: BECPUEvict, BEMemoryEvict, "
            "CPUEvict, MemoryEvict, CPUAllocatableEvict, MemoryAllocatableEvict, and "
            "CPUPressureEvict, MemoryPressureEvict; empty: none, because that strategy has "
            "thresholds also where it is only to suppress BE pods"
        ),
    ] = ""
    evict_by: Annotated[
        Literal["eviction", "deletion"],
        msgspec.Meta(
            description="with evictions: eviction: a pod leaves if its disruption budgets permit "
            "it, with its own grace period; deletion: it leaves in any case, and its processes are "
            "killed after 1 second"
        ),
    ] = "eviction"
    eviction_rounds: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=600,
            description="with evictions: a pod leaves after an amount has been above its threshold "
            "for so many seconds in a row",
        ),
    ] = 3
    eviction_cooling_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=1,
            le=3600,
            description="with evictions: pause after a pod has left, seconds",
        ),
    ] = 20.0
    evict_cpu_pressure_percent: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=100,
            description="with CPUPressureEvict in evictions: BE pods leave while a pod that is not "
            "BE waits for CPU in so many percent of a minute (PSI, cgroup v2)",
        ),
    ] = 40
    evict_cpu_pressure_lower_percent: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=100,
            description="with CPUPressureEvict: evictions end below so many percent",
        ),
    ] = 20
    evict_memory_pressure_percent: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=100,
            description="with MemoryPressureEvict in evictions: as evict-cpu-pressure-percent, for "
            "memory",
        ),
    ] = 20
    evict_memory_pressure_lower_percent: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=100,
            description="with MemoryPressureEvict: evictions end below so many percent",
        ),
    ] = 10
    slo_config: Annotated[
        str,
        msgspec.Meta(
            description="with node-slo: folder with a file for each key of Koordinator's ConfigMap "
            "slo-controller-config, as a volume of it has them: the strategies of nodes without a "
            "NodeSLO, by the labels of nodes; empty: koordlet's defaults"
        ),
    ] = ""
    kai_placements: Annotated[
        bool,
        msgspec.Meta(
            description="the agent writes the annotation kai.scheduler/numa-placement-observed to "
            "the pods of its node, which KAI's NUMA plugin reads. It needs the permission to patch "
            "pods"
        ),
    ] = False
    gpu_driver_root: GpuDriverRoot = ""
    gpu_actions: Annotated[
        str,
        msgspec.Meta(
            description="XID=ACTION or STATE=ACTION, separated by commas, to override NVIDIA's "
            "catalogue: ignore, restart-app, reset, reboot or support; `*` for unknown XIDs"
        ),
    ] = ""
    corrected_pod_resources_socket: Annotated[
        str,
        msgspec.Meta(
            description="socket on which the agent serves PodResources as the kubelet does, with "
            "the devices and CPUs that containers really have, for exporters (DCGM) and Multus; "
            "empty: none. Needs grpcio"
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
            description="for cpu-policy: CPUs that no container owns, as a Linux list; empty: the "
            "CPUs of the kubelet's reservedSystemCPUs, else those for its kubeReserved and "
            "systemReserved. The agent does not start if there are none"
        ),
    ] = ""
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
    unrequested_gpus: Annotated[
        UnrequestedGpus,
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
            description="namespaces, separated by commas, of monitoring pods: under "
            "unrequested-gpus hide, their requests may name `all` GPUs while other pods hold some"
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
    http: Http = HTTP
    node_addresses: NodeAddresses = NODE_ADDRESSES
    hook_server_socket: Annotated[
        str,
        msgspec.Meta(
            description="socket on which the agent serves Koordinator's hooks to "
            "koord-runtime-proxy; empty: none. Needs grpcio"
        ),
    ] = ""
    period_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=600,
            description="time between two full passes without an event, seconds",
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
    shrink_warning_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=0.2,
            description="time that a mixed container has between the warning in its file of CPUs "
            "and the loss of CPUs, for which a new owner of these waits too, seconds; 0: none",
        ),
    ] = 0.05
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
    log_format: LogFormatOption = LOG_FORMAT
