"""What is wrong with a node itself: agent, proxy, runtime, cgroups, the kubelet and its state
files, and other programs that set the same values. Values in, findings out."""

from __future__ import annotations

import enum
import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from agent.kubelet.configuration import KubeletConfiguration
from agent.model.audit import Record
from agent.model.devices.visibility import NodeVisibility
from agent.model.dra.prepared_claim import PreparedClaim
from agent.model.settings.options import RUNTIME_ENDPOINT
from agent.model.snapshot import Snapshot
from agent.node import koordlet_process
from agent.node.audit import repeated
from agent.node.kubelet_process import K3S, K3S_ENDPOINT
from agent.node.nri_guard import GuardStatus
from agent.node.own_processes import ProcessPage
from agent.view.dra import ShownDra


class NodeCode(enum.StrEnum):
    """The kinds of findings about the node itself; scripts may rely on the values."""

    RUNTIME = "runtime-unavailable"
    CGROUPS = "cgroups-unusable"
    AGENT_ABSENT = "agent-absent"
    AGENT_HUNG = "agent-does-not-answer"
    AGENT_NOT_READY = "agent-not-ready"
    DISK = "state-folder-full"
    SNAPSHOT = "snapshot-unreadable"
    PROXY = "proxy-unavailable"
    PROXY_SOCKET = "proxy-socket-lost"
    BYPASSED = "kubelet-bypasses-proxy"
    NRI_UNAVAILABLE = "nri-unavailable"
    NRI_UNREGISTERED = "nri-plugin-not-registered"
    NRI_GUARD = "nri-guard-unavailable"
    PERMISSIONS = "not-permitted"
    WATCH = "api-server-out-of-touch"
    DEVICE = "device-unhealthy"
    KUBELET_ABSENT = "kubelet-absent"
    KUBELET_STATE = "kubelet-state-unreadable"
    KUBELET_POLICY = "kubelet-policy-differs"
    AGENT_POLICY = "cpu-policy-conflict"
    CGROUP_DRIVER = "cgroup-drivers-differ"
    COMPETING = "competing-writer"
    KOORDLET = "koordlet-competes"
    PINNING = "other-program-sets-cpus"
    KUBELET_CONFIGURATION = "kubelet-configuration-unreadable"
    NRI_CONFLICT = "nri-plugins-conflict"
    NRI_UNGUARDED = "nri-unguarded"
    DRA_CPUS = "dra-driver-gives-cpus"
    DRA_UNREGISTERED = "dra-not-registered"
    DRA_UNREADABLE = "dra-claims-unreadable"
    DRA_UNOFFERED = "dra-not-offered"
    DRA_REFUSED = "dra-claims-refused"
    DRA_LEFT = "dra-claim-without-pod"
    DRA_LOW = "dra-requests-low"
    DEVICE_PLUGIN = "device-plugin-offers-devices"
    STRATEGIES = "strategies-invalid"
    DISTURBED = "pods-disturbed"
    QUIET_PARTITION = "quiet-partition-invalid"
    QUIET_INTERRUPTS = "quiet-interrupts-remain"
    QUIET_TASKS = "quiet-tasks-remain"
    QUIET_IRQBALANCE = "irqbalance-not-told"
    QUIET_BOOT = "boot-options-unused"
    LEFT_DANGER = "koordlet-left-danger"
    LEFT_QUOTAS = "koordlet-left-quotas"
    LEFT_CPUS = "koordlet-left-cpus"
    LEFT_PRIORITIES = "koordlet-left-priorities"
    LEFT_MEMORY = "koordlet-left-memory"
    LEFT_BATCH = "koordlet-left-batch-limits"
    LEFT_DISKS = "koordlet-left-disk-limits"
    LEFT_RESCTRL = "koordlet-left-resctrl-groups"
    LEFT_FILES = "koordlet-left-files"


_TAKE_OVER: Final = (
    "start the agent with --usage --node-slo=follow --colocation=act, which resets what no "
    "strategy wants (docs/migrating-from-koordlet.md)"
)

REMEDIES: Final = {
    NodeCode.RUNTIME: "start the container runtime, or name its socket with --runtime-endpoint",
    NodeCode.CGROUPS: "mount cgroups with the cpuset controller, or name the folder with "
    "--cgroup-root",
    NodeCode.AGENT_ABSENT: "start the agent (kubectl -n topolet-system get pods -o wide); until "
    "then new containers get the CPUs of its last decisions. If it runs, name its --state-dir",
    NodeCode.AGENT_HUNG: "read the agent's log, and restart it if its process is stopped or "
    "waits for a disk or the runtime; containers keep their CPUs",
    NodeCode.AGENT_NOT_READY: "look for the reason in docs/troubleshooting.md, and read "
    "the agent's log",
    NodeCode.DISK: "remove files from that file system: the agent decides again by itself",
    NodeCode.SNAPSHOT: "remove what is at that path: the agent writes the file again",
    NodeCode.PROXY: "start the proxy (systemctl status topolet-proxy): a kubelet that uses this "
    "socket can start no container",
    NodeCode.PROXY_SOCKET: "systemctl restart topolet-proxy.socket, which makes the file again (a "
    "restart of the service does not; without that unit the proxy makes it by itself). Until then "
    "a kubelet that restarts can't connect",
    NodeCode.BYPASSED: "run topolet install-proxy on the node, or set the kubelet's "
    "containerRuntimeEndpoint to the proxy's socket and restart it",
    NodeCode.NRI_UNAVAILABLE: "switch NRI on in the runtime and restart it (docs/frontends.md), or "
    "name its socket with --nri-socket; until then containers start on CPUs that the runtime "
    "chooses",
    NodeCode.NRI_UNREGISTERED: "read the plugin's log, and the runtime's: another plugin may have "
    "the same name and index (docs/frontends.md)",
    NodeCode.NRI_GUARD: "read the guard's log, and start it (docs/frontends.md); until then no "
    "container starts where the runtime requires the guard, and elsewhere one that the plugin did "
    "not adjust starts on CPUs that the runtime chooses",
    NodeCode.PERMISSIONS: "run the agent as root with the mounts of its DaemonSet: cgroups and "
    "the state folder writable, the runtime's socket reachable",
    NodeCode.WATCH: "read the error in the agent's log: if the API server refuses requests (403), "
    "apply deploy/ again, whose roles allow them; if it does not answer, start it, or repair the "
    "node's connection to it; until then the agent decides by the last state that it received, and "
    "containers keep their CPUs",
    NodeCode.DEVICE: "read the condition of the node's Device object, which names the action "
    "(docs/devices.md)",
    NodeCode.KUBELET_ABSENT: "start the kubelet (systemctl status kubelet), and read its log; if "
    "its folder is another one, name it with --kubelet-dir",
    NodeCode.KUBELET_STATE: "repair the file as the kubelet's documentation says, or drain the "
    "node, stop the kubelet, remove the file and start it",
    NodeCode.KUBELET_POLICY: "drain the node, stop the kubelet, remove the state file and start "
    "the kubelet: it does not start with the state of another policy",
    NodeCode.AGENT_POLICY: "set the agent's --cpu-policy to none, or the kubelet's "
    "cpuManagerPolicy to none; if one of them has just changed, restart the agent",
    NodeCode.CGROUP_DRIVER: "set the same driver in the kubelet (cgroupDriver) and the runtime "
    "(containerd: SystemdCgroup; CRI-O: cgroup_manager), and restart both",
    NodeCode.COMPETING: "find the program (docs/troubleshooting.md), and remove it, or exclude "
    "these pods from Topolet (--exclude): one program sets these values",
    NodeCode.KOORDLET: "switch these gates off in koordlet (docs/kubelet.md)",
    NodeCode.PINNING: "remove that program from the node, or Topolet: one program sets cpusets",
    NodeCode.KUBELET_CONFIGURATION: "let the agent read it: --kubelet-configz, or --kubelet-config "
    "(docs/kubelet.md)",
    NodeCode.NRI_CONFLICT: "remove the other plugin from the node, or Topolet's: one of them sets "
    "CPUs (docs/kubelet.md)",
    NodeCode.NRI_UNGUARDED: "if a container on wrong CPUs is worse than one that does not start, "
    "run topolet nri-guard beside the plugin on containerd 2.2 or later, or use the proxy "
    "(docs/frontends.md)",
    NodeCode.DRA_CPUS: "leave it if pods shall also claim CPUs by ResourceClaims, which removes "
    "these CPUs from the pools; otherwise remove the driver",
    NodeCode.DRA_UNREGISTERED: "give the agent the kubelet's folder plugins_registry and its own "
    "in plugins, both at the paths of the host (docs/dra.md)",
    NodeCode.DRA_UNREADABLE: "end the pods with claims, remove the file and restart the agent",
    NodeCode.DRA_UNOFFERED: "topolet explain node dra shows the devices; docs/dra.md says what "
    "keeps them from being published",
    NodeCode.DRA_REFUSED: "topolet explain node dra has each reason; the agent evicts pods whose "
    "claims another node may prepare",
    NodeCode.DRA_LEFT: "if it lasts, restart the kubelet, which unprepares the claims of pods that "
    "have ended",
    NodeCode.DRA_LOW: "set spec.resources.requests.cpu of these pods to the CPUs of their claims",
    NodeCode.DEVICE_PLUGIN: "leave it if only Topolet's scheduler places pods that request these "
    "devices; otherwise keep other schedulers from placing such pods here (docs/devices.md)",
    NodeCode.STRATEGIES: "correct these values; topolet explain node strategies shows what is in "
    "force instead",
    NodeCode.DISTURBED: "move or limit what disturbs these pods, give them CPUs of their own or "
    "more of them, or raise their quota (docs/usage.md)",
    NodeCode.QUIET_PARTITION: "read the kernel's reason (docs/quiet-cpus.md): another group has "
    "these CPUs, or one above is no partition; the agent makes it again every two seconds",
    NodeCode.QUIET_INTERRUPTS: "leave interrupts that the kernel manages, or boot with "
    "isolcpus=managed_irq; topolet explain node quiet names those that the kernel refused to move",
    NodeCode.QUIET_TASKS: "read why host-slices or partitions could not move them (topolet explain "
    "node quiet); a process outside of units is moved by its administrator",
    NodeCode.QUIET_IRQBALANCE: "let the agent reach irqbalance's socket, or start irqbalance with "
    "IRQBALANCE_BANNED_CPULIST or not at all (docs/quiet-cpus.md)",
    NodeCode.QUIET_BOOT: "give these CPUs to owners with quiet CPUs, or remove them from the "
    "kernel's command line: pods that share them run without load balancing, or pay for a tick "
    "that can stop",
    NodeCode.LEFT_DANGER: f"write 0 there, or {_TAKE_OVER}: one kill would end every pod of the "
    "class, or a kubelet would not start again",
    NodeCode.LEFT_QUOTAS: _TAKE_OVER,
    NodeCode.LEFT_CPUS: _TAKE_OVER,
    NodeCode.LEFT_PRIORITIES: _TAKE_OVER,
    NodeCode.LEFT_MEMORY: _TAKE_OVER,
    NodeCode.LEFT_BATCH: "let the agent run, which sets these limits by the pods' batch resources; "
    "with --colocation=act it also notes what the kubelet has there",
    NodeCode.LEFT_DISKS: "write the device and 0 there (docs/migrating-from-koordlet.md)",
    NodeCode.LEFT_RESCTRL: _TAKE_OVER,
    NodeCode.LEFT_FILES: "remove them, if koordlet shall not come back",
}

WARNINGS: Final = frozenset(
    {
        NodeCode.KUBELET_CONFIGURATION,
        NodeCode.KOORDLET,
        NodeCode.PINNING,
        NodeCode.NRI_CONFLICT,
        NodeCode.NRI_UNGUARDED,
        NodeCode.DRA_CPUS,
        NodeCode.DRA_UNOFFERED,
        NodeCode.DRA_REFUSED,
        NodeCode.DRA_LEFT,
        NodeCode.DRA_LOW,
        NodeCode.DEVICE_PLUGIN,
        NodeCode.STRATEGIES,
        NodeCode.DISTURBED,
        NodeCode.QUIET_INTERRUPTS,
        NodeCode.QUIET_TASKS,
        NodeCode.QUIET_IRQBALANCE,
        NodeCode.QUIET_BOOT,
        NodeCode.LEFT_QUOTAS,
        NodeCode.LEFT_CPUS,
        NodeCode.LEFT_PRIORITIES,
        NodeCode.LEFT_MEMORY,
        NodeCode.LEFT_BATCH,
        NodeCode.LEFT_DISKS,
        NodeCode.LEFT_RESCTRL,
        NodeCode.LEFT_FILES,
    }
)
"""The codes of what works but may be unintended, and of what any pod can cause, as a program's name
is; they do not change the exit code."""


class NodeFinding(msgspec.Struct, frozen=True):
    """One thing that is wrong with the node itself, and its remedy."""

    code: NodeCode
    text: str
    remedy: str
    severity: str
    """error or warning."""


AS_ROOT: Final = "run the command as root: this user may not use it"
"""The remedy for what exists, and only the command can't use."""


def found(
    wrong: Mapping[NodeCode, str], remedies: Mapping[NodeCode, str] = MappingProxyType({})
) -> tuple[NodeFinding, ...]:
    """The findings in the order of their codes: the most serious first.

    `remedies`: the remedies that differ from REMEDIES because the reason is known."""
    return tuple(
        NodeFinding(
            code,
            wrong[code],
            remedies.get(code, REMEDIES[code]),
            "warning" if code in WARNINGS else "error",
        )
        for code in NodeCode
        if code in wrong
    )


class KubeletStatus(msgspec.Struct, frozen=True):
    """The node's kubelet. The policies of the managers are those of their state files, empty
    without a file."""

    program: str = ""
    """Empty if none runs."""
    configuration: KubeletConfiguration | None = None
    """None if it can't be read."""
    unread: tuple[str, ...] = ()
    """Why the configuration can't be read."""
    cpu_state: str = ""
    memory_state: str = ""
    registered: Mapping[str, int] = {}
    """The number of devices of its plugins, by resource."""

    @property
    def runtime_endpoint(self) -> str | None:
        """The endpoint of the runtime, None if unknown."""
        if self.configuration is None:
            return None
        default = K3S_ENDPOINT if self.program == K3S else RUNTIME_ENDPOINT
        return self.configuration.runtime_endpoint or default


def of_kubelet(
    kubelet: KubeletStatus, snapshot: Snapshot | None, proxy: str
) -> dict[NodeCode, str]:
    """What is wrong between the kubelet, its state files and the agent's decisions.

    `proxy`: the path of the socket that a proxy serves, "" without one."""
    wrong: dict[NodeCode, str] = {}
    if not kubelet.program:
        if kubelet.cpu_state and not kubelet.unread:
            wrong[NodeCode.KUBELET_ABSENT] = "no kubelet runs, and its state files exist"
        elif kubelet.unread:
            wrong[NodeCode.KUBELET_CONFIGURATION] = "; ".join(kubelet.unread)
        return wrong
    if kubelet.unread:
        wrong[NodeCode.KUBELET_CONFIGURATION] = "; ".join(kubelet.unread)
    configured = kubelet.configuration
    if configured is None:
        return wrong
    differing = configured.differing(kubelet.cpu_state, kubelet.memory_state)
    if differing:
        wrong[NodeCode.KUBELET_POLICY] = f"the kubelet's configuration differs: {differing[0]}"
    if snapshot is not None:
        if snapshot.cpu_policy != "none" and configured.static:
            wrong[NodeCode.AGENT_POLICY] = (
                f"the agent's cpu-policy is {snapshot.cpu_policy}, and the kubelet's "
                "cpuManagerPolicy is static: both give containers their own CPUs"
            )
        elif snapshot.kubelet_static and not configured.static:
            wrong[NodeCode.AGENT_POLICY] = (
                "the agent's decisions follow a kubelet with the policy static, and the kubelet's "
                f"cpuManagerPolicy is {configured.cpu_manager_policy}"
            )
    endpoint = kubelet.runtime_endpoint
    if proxy and endpoint is not None and _path(endpoint) != _path(proxy):
        wrong[NodeCode.BYPASSED] = (
            f"a proxy serves {proxy}, and the kubelet uses {endpoint}: no hook changes its requests"
        )
    return wrong


def _path(endpoint: str) -> str:
    path = os.path.normpath(endpoint.removeprefix("unix://"))
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


WATCH_SECONDS: Final = 120.0
"""An API server ends a quiet watch after five to ten minutes, and sends bookmarks each minute."""


def of_agent(page: ProcessPage) -> dict[NodeCode, str]:
    """What is wrong according to the agent's own /readyz and metrics."""
    wrong: dict[NodeCode, str] = {}
    if page.ready:
        wrong[NodeCode.AGENT_NOT_READY] = f"/readyz: {page.ready}"
    late = {
        each.labels.get("resource", ""): each.value
        for each in page.series
        if each.name == "topolet_watch_age_seconds" and each.value > WATCH_SECONDS
    }
    if late:
        name, age = max(late.items(), key=lambda each: each[1])
        wrong[NodeCode.WATCH] = f"the watch of {name} has had no answer for {age:.0f} s"
    failing = {each.name: each.value for each in page.series if each.value}
    if not late and "topolet_cluster_problems" in failing:
        wrong[NodeCode.WATCH] = "the agent can't read or write objects: its log has the error"
    lost = [
        " ".join(filter(None, (each.labels.get("type", ""), each.labels.get("id", ""))))
        for each in page.series
        if each.name == "topolet_device_healthy" and each.value == 0
    ]
    if "topolet_gpu_missing" in failing:
        lost.append("a GPU that the driver does not list")
    if "topolet_gpu_driver_fault" in failing:
        lost.append("the GPU driver")
    if lost:
        wrong[NodeCode.DEVICE] = f"not healthy: {', '.join(lost)}"
    return wrong


def colocates(page: ProcessPage) -> bool:
    """Whether the agent has features of colocation, according to its own metrics."""
    return any(each.name == "topolet_colocation_files" for each in page.series)


def of_proxy(page: ProcessPage) -> dict[NodeCode, str]:
    """What is wrong according to the proxy's own metrics."""
    lost = any(each.name == "topolet_proxy_socket_lost" and each.value for each in page.series)
    return {NodeCode.PROXY_SOCKET: f"/readyz of the proxy: {page.ready}"} if lost else {}


_ABSENT: Final = tuple(map(os.strerror, (errno.ENOENT, errno.ECONNREFUSED)))


def of_nri(page: ProcessPage) -> dict[NodeCode, str]:
    """What is wrong according to the NRI plugin's own /readyz and metrics."""
    wrong: dict[NodeCode, str] = {}
    if page.ready:
        absent = page.ready.endswith(_ABSENT)
        code = NodeCode.NRI_UNAVAILABLE if absent else NodeCode.NRI_UNREGISTERED
        wrong[code] = f"/readyz of the NRI plugin: {page.ready}"
    conflicts: dict[str, float] = {}
    for each in page.series:
        if each.name == "topolet_nri_conflicts_total" and each.value:
            name = each.labels.get("plugin") or "an unknown one"
            conflicts[name] = conflicts.get(name, 0) + each.value
    if conflicts:
        signs = ", ".join(f"{name} ({number:.0f})" for name, number in sorted(conflicts.items()))
        text = f"signs of another plugin that sets CPUs, since the start of Topolet's: {signs}"
        wrong[NodeCode.NRI_CONFLICT] = text
    return wrong


def of_guard(guard: GuardStatus | None) -> dict[NodeCode, str]:
    """What is wrong with the guard of a node on which the NRI plugin runs."""
    if guard is None:
        text = "the runtime creates containers without the NRI plugin when it hangs or is killed"
        return {NodeCode.NRI_UNGUARDED: text}
    if guard.ready:
        return {}
    if guard.too_old:
        return {NodeCode.NRI_UNGUARDED: guard.problem}
    return {NodeCode.NRI_GUARD: guard.problem or "the runtime has not registered the guard yet"}


MIN_FREE_BYTES: Final = 1 << 20


def of_free_bytes(path: str, free_bytes: int) -> dict[NodeCode, str]:
    """Whether the file system of the state folder (`path`) has too little room for a snapshot."""
    if free_bytes >= MIN_FREE_BYTES:
        return {}
    return {NodeCode.DISK: f"{path} has {free_bytes} bytes left for the agent's decisions"}


def of_groups(groups: Iterable[str]) -> dict[NodeCode, str]:
    """Whether kubelet and runtime use different cgroup drivers, by the groups of running
    containers. A runtime with the driver cgroupfs takes a kubelet's path for systemd
    (`slice:prefix:name`) as the name of a folder."""
    for group in groups:
        if ".slice:" in group:
            text = f"{group} has a name for systemd, and the runtime's cgroup driver is cgroupfs"
            return {NodeCode.CGROUP_DRIVER: text}
    return {}


CHANGES_SECONDS: Final = 300.0
"""How far back the audit trail is searched for changes by other processes."""


def of_changes(changes: Sequence[Record], programs: Mapping[NodeCode, str]) -> dict[NodeCode, str]:
    """Whether another process keeps changing what the agent has set.

    `changes`: the records of the agent's writes that undid one, within CHANGES_SECONDS.
    `programs`: the result of `of_programs`, since the kernel does not say who wrote a file."""
    files = repeated(changes)
    if not files:
        return {}
    texts = [f"{file} {number} times" for file, number in list(files.items())[:_NAMED]]
    more = [f"{len(files) - _NAMED} more files"] if len(files) > _NAMED else []
    suspects = [
        programs[code] for code in (NodeCode.KOORDLET, NodeCode.PINNING) if code in programs
    ]
    text = (
        f"in the last {CHANGES_SECONDS / 60:.0f} minutes another process changed "
        f"{', '.join(texts + more)}, the last time at {changes[-1].time}: {changes[-1].message}"
    )
    return {NodeCode.COMPETING: "; ".join((text, *suspects))}


_NAMED: Final = 8


def driver_of(groups: Sequence[str]) -> str:
    """The cgroup driver with which containers were created, "" without any."""
    if not groups:
        return ""
    return "systemd" if groups[0].endswith(".scope") else "cgroupfs"


_PINNING: Final = frozenset(
    {
        "nri-resource-policy-balloons",
        "nri-resource-policy-topology-aware",
        "nri-resource-policy-template",
        "cri-resmgr",
    }
)
_DRA_CPUS: Final = "dracpu"
_NRI_INDEX: Final = re.compile(r"^\d\d-")
"""A plugin that the runtime starts has its index before its name (NRI: pkg/api/plugin.go)."""


def of_programs(
    command_lines: Iterable[Sequence[str]], *, proxy: bool, colocates: bool = False
) -> dict[NodeCode, str]:
    """Running programs that set the same values as Topolet.

    `proxy`: whether Topolet's proxy runs; only one program may rewrite a request.
    `colocates`: whether the agent has features of colocation."""
    wrong: dict[NodeCode, str] = {}
    same_values = dict(koordlet_process.OF_CPUS_AND_DEVICES)
    if colocates:
        same_values |= koordlet_process.OF_COLOCATION
    for argv in command_lines:
        program = _NRI_INDEX.sub("", os.path.basename(argv[0])) if argv else ""
        if program == koordlet_process.PROGRAM:
            if gates := koordlet_process.gates(argv, same_values):
                wrong[NodeCode.KOORDLET] = f"koordlet runs with {', '.join(gates)}"
        elif program == _DRA_CPUS:
            wrong[NodeCode.DRA_CPUS] = "dra-driver-cpu runs: it gives containers CPUs of claims"
        elif program in _PINNING or (proxy and program == "koord-runtime-proxy"):
            wrong[NodeCode.PINNING] = f"{program} runs: it sets the CPUs of containers"
    return wrong


_MOST_PARTS: Final = 5
"""A finding names so many claims, pods or disturbers."""


def of_dra(
    dra: ShownDra, claims: Iterable[PreparedClaim], pods: Collection[str]
) -> dict[NodeCode, str]:
    """What is wrong with the DRA driver and its claims.

    `pods`: the uids of the pods of the node."""
    wrong = {NodeCode.DRA_UNREGISTERED: dra.registration, NodeCode.DRA_UNOFFERED: dra.problem}
    wrong[NodeCode.DRA_REFUSED] = some(claim.refused for claim in dra.claims if claim.refused)
    left = (
        f"ResourceClaim {claim.title} has CPUs {claim.cpus}"
        for claim in claims
        if claim.containers and not any(each.pod_uid in pods for each in claim.containers)
    )
    wrong[NodeCode.DRA_LEFT] = some(left)
    wrong[NodeCode.DRA_LOW] = some(f"pod {title}: {text}" for title, text in dra.low.items())
    return {code: text for code, text in wrong.items() if text}


def some(texts: Iterable[str]) -> str:
    """The first of many parts of a finding, and the number of the others."""
    every = [*texts]
    more = len(every) - _MOST_PARTS
    return "; ".join((*every[:_MOST_PARTS], *([f"and {more} more"] if more > 0 else ())))


_GPU_RESOURCES: Final = ("nvidia.com/",)


def of_plugins(
    registered: Mapping[str, int], devices: NodeVisibility | None
) -> dict[NodeCode, str]:
    """Devices that both a device plugin of the kubelet and a scheduler of Topolet may allocate.

    `devices`: None if the agent does not decide about devices."""
    if devices is None or not any(device.is_gpu for device in devices.held):
        return {}
    offered = [
        f"{name} ({number})"
        for name, number in sorted(registered.items())
        if number and name.startswith(_GPU_RESOURCES)
    ]
    if not offered:
        return {}
    text = f"a device plugin offers {', '.join(offered)}, which a scheduler allocates too"
    return {NodeCode.DEVICE_PLUGIN: text}


def not_permitted(paths: Iterable[tuple[str, int]]) -> Iterator[str]:
    """A sentence for each existing path that this process may not use in this mode (os.access)."""
    for path, mode in paths:
        if os.path.exists(path) and not os.access(path, mode):
            verb = "write" if mode & os.W_OK else "read"
            yield f"this process may not {verb} {path}"
