"""The options of the agent, and of the commands that read what the agent reads."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from agent.model.devices.visible import Unasked
from agent.model.settings.options import (
    HOLD_SECONDS,
    HOOK_DEADLINES,
    HOOK_FAILURE_POLICY,
    KUBECONFIG,
    LOG_LEVEL,
    RUNTIME_ENDPOINT,
    SERVICE_ACCOUNT_DIR,
    STATE_DIR,
    HoldSeconds,
    HookDeadlines,
    HookFailurePolicy,
    Kubeconfig,
    LogLevel,
    Options,
    RuntimeEndpoint,
    ServiceAccountDir,
    StateDir,
)
from agent.model.snapshot import CpuPolicy


class TopologySettings(Options, frozen=True):
    """`topolet topology`."""

    state_dir: StateDir = STATE_DIR


class RestoreSettings(TopologySettings, frozen=True):
    """`topolet restore`."""

    runtime_endpoint: RuntimeEndpoint = RUNTIME_ENDPOINT
    root: Annotated[str, msgspec.Meta(description="where the host's /sys and /proc are")] = "/"
    cgroup_root: Annotated[str, msgspec.Meta(description="where cgroups are mounted")] = (
        "/sys/fs/cgroup"
    )


class DoctorSettings(RestoreSettings, frozen=True):
    """`topolet doctor` and `topolet kubelet-state`."""

    kubelet_dir: Annotated[
        str, msgspec.Meta(description="the kubelet's folder, read for cpu_manager_state")
    ] = "/var/lib/kubelet"


class AgentSettings(DoctorSettings, frozen=True):
    """`topolet agent`."""

    node_name: Annotated[
        str, msgspec.Meta(description="name of this node's objects; empty: the host name")
    ] = ""
    store_dir: Annotated[
        str, msgspec.Meta(description="standalone: folder of the objects; empty: below state-dir")
    ] = ""
    kubeconfig: Kubeconfig = KUBECONFIG
    service_account_dir: ServiceAccountDir = SERVICE_ACCOUNT_DIR
    recheck_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=86_400,
            description="how often what was reported to the cluster is compared with what is "
            "stored there, seconds",
        ),
    ] = 300.0
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
    hold_seconds: HoldSeconds = HOLD_SECONDS
    hook_deadlines: HookDeadlines = HOOK_DEADLINES
    hook_failure_policy: HookFailurePolicy = HOOK_FAILURE_POLICY
    log_level: LogLevel = LOG_LEVEL
