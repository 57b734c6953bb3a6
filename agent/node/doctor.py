"""Examines a node from outside of its agent: first whether agent, proxy, runtime, cgroups, the
kubelet and its state can be used at all and who else sets the same values, then whether the
annotation, the kubelet's checkpoint, the snapshot, the cgroup and the processes of each running
container have drifted apart. Changes nothing; an agent that runs makes one pass.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cri.client import Cri
from agent.discover.sysfs import DiscoveryError
from agent.hooks.agent_client import Notifier, read_snapshot
from agent.host import files, processes
from agent.host.kernel_events import first_writer
from agent.host.listener import receives_datagrams
from agent.host.locks import AGENT_LOCK
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.kubelet import state_folder
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.kubelet.device_checkpoint import DeviceCheckpoint
from agent.kubelet.memory_manager_state import MemoryManagerState
from agent.kubelet.statefile import StateFileError
from agent.model import snapshot as snapshots
from agent.model.audit import Record, WriteReason, stamp
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSet
from agent.model.dra import prepared_claim
from agent.model.dra.names import CLAIMS_FILE, SHOWN_FILE
from agent.model.dra.prepared_claim import PreparedClaim
from agent.model.notifications import SOCKET, SnapshotRequest
from agent.model.pod.pods import ContainerState
from agent.model.settings import options
from agent.model.settings.agent import AgentSettings, KubeletStateSettings
from agent.model.snapshot import Owner, Snapshot, SnapshotError
from agent.node import (
    contention,
    drift,
    koordlet_findings,
    kubelet_configuration,
    kubelet_process,
    node_findings,
    nri_guard,
    own_processes,
    quiet_findings,
)
from agent.node.drift import Finding, ObservedContainer
from agent.node.kubelet_view import CpuManagerStateView
from agent.node.node_findings import KubeletStatus, NodeCode, NodeFinding
from agent.node.runtime_view import CgroupLocator, RuntimeState, RuntimeView
from agent.node.sources import SourceName
from agent.node.takeover import own_group_of
from agent.rpc.grpc import RpcError
from agent.telemetry import audit
from agent.usage import STRATEGIES_FILE, strategies
from agent.view import dra

ANSWER_SECONDS: Final = 3.0
"""A pass takes milliseconds; one that waits for a busy runtime takes longer."""
WRITER_SECONDS: Final = 3.0
"""How long a finding about another writer makes the command watch the files."""
_MAX_ARGUMENTS: Final = 200
"""Characters of a command line that a finding names."""
_PAUSE_SECONDS: Final = 0.02
SCHEMA_VERSION: Final = 1
"""The version of the JSON output, which changes when a field changes its meaning or goes."""


class Facts(msgspec.Struct, frozen=True):
    """Facts of the node that help to understand the findings; "" if unknown."""

    runtime: str = ""
    cgroup_version: str = ""
    cgroup_driver: str = ""
    kubelet: str = ""
    cpu_manager_policy: str = ""
    memory_manager_policy: str = ""
    topology_manager_policy: str = ""
    runtime_endpoint: str = ""
    frontend: str = ""
    kernel: str = ""


class Examination(msgspec.Struct, frozen=True):
    """What the doctor has found."""

    node: tuple[NodeFinding, ...]
    """What is wrong with the node itself, the most serious first."""
    seen: tuple[ObservedContainer, ...] | None
    """The containers by title, None if they can't be examined."""
    findings: tuple[Finding, ...]
    facts: Facts = Facts()

    @property
    def errors(self) -> int:
        """The number of findings that are not warnings."""
        severities = [each.severity for each in self.node]
        severities += [each.severity for each in self.findings]
        return severities.count("error")


def body(examined: Examination) -> dict[str, Any]:
    """The examination as JSON values: CPU sets as Linux lists, null for an unknown set."""
    built: dict[str, Any] = msgspec.to_builtins(examined, enc_hook=str)
    for each, finding in zip(built["findings"], examined.findings, strict=True):
        each |= {"severity": finding.severity, "remedy": finding.remedy}
    return {"schema_version": SCHEMA_VERSION, **built}


def examine(settings: KubeletStateSettings) -> Examination:
    """Raises SettingsError."""
    wrong: dict[NodeCode, str] = {}
    remedies: dict[NodeCode, str] = {}
    facts: dict[str, str] = {"kernel": os.uname().release}
    seen: tuple[ObservedContainer, ...] | None = None
    owners: tuple[Owner, ...] = ()
    if (answer := _agent_answer(settings.state_dir)) is not None:
        wrong[answer[0]] = answer[1]
    snapshot: Snapshot | None = None
    try:
        snapshot = read_snapshot(os.path.join(settings.state_dir, snapshots.FILE))
        owners = snapshot.owners
    except FileNotFoundError:
        pass
    except OSError as error:
        wrong[NodeCode.SNAPSHOT] = f"the agent's decisions can't be read: {files.reason(error)}"
        if isinstance(error, PermissionError):
            remedies[NodeCode.SNAPSHOT] = node_findings.AS_ROOT
    except SnapshotError as error:
        wrong[NodeCode.SNAPSHOT] = f"the agent's decisions can't be read: {error}"
    proxy, refused = _proxy(options.proxy_socket(settings.state_dir))
    if refused:
        wrong[NodeCode.PROXY] = refused
    if limited := "; ".join(node_findings.not_permitted(_paths(settings))):
        wrong[NodeCode.PERMISSIONS] = limited
    proc = os.path.join(settings.root, "proc")
    kubelet, unreadable = observed_kubelet(settings)
    wrong |= node_findings.of_kubelet(kubelet, snapshot, proxy)
    running = (argv for _, argv in own_processes.command_lines(proc))
    page = own_processes.page_of("agent", proc, settings.state_dir)
    colocates = page is not None and node_findings.colocates(page)
    programs = node_findings.of_programs(running, proxy=bool(proxy), colocates=colocates)
    changes = _foreign_changes(settings.state_dir)
    wrong |= programs | node_findings.of_changes(changes, programs)
    if page:
        if page.ready:
            wrong.pop(NodeCode.AGENT_HUNG, None)  # it says itself why it decides nothing
        wrong |= node_findings.of_agent(page)
    if not (proxy or refused) and own_processes.runs("proxy", proc, settings.state_dir):
        text = f"a proxy runs, and {options.proxy_socket(settings.state_dir)} does not exist"
        wrong[NodeCode.PROXY_SOCKET] = text
    elif relay := own_processes.page_of("proxy", proc, settings.state_dir):
        wrong |= node_findings.of_proxy(relay)
    plugin = own_processes.page_of("nri", proc, settings.state_dir)
    if plugin is not None:
        wrong |= node_findings.of_nri(plugin)
    if plugin is not None or own_processes.runs("nri", proc, settings.state_dir):
        with contextlib.suppress(OSError):  # a finding of its own
            wrong |= node_findings.of_guard(nri_guard.status(settings.state_dir))
    with contextlib.suppress(OSError):
        room = os.statvfs(settings.state_dir)
        free_bytes = room.f_bavail * room.f_frsize
        wrong |= node_findings.of_free_bytes(settings.state_dir, free_bytes)
    with contextlib.suppress(FileNotFoundError):
        wrong |= _of_strategies(os.path.join(settings.state_dir, STRATEGIES_FILE))
    with contextlib.suppress(FileNotFoundError):
        wrong |= _of_dra(settings.state_dir, snapshot)
    devices = snapshot.devices if snapshot else None
    wrong |= node_findings.of_plugins(kubelet.registered, devices)
    given: dict[str, CpuSet] = {}
    with contextlib.suppress(StateFileError):
        given = CpuManagerStateView(settings.kubelet_dir).cpus().by_uid
    if unreadable:
        wrong[NodeCode.KUBELET_STATE] = "; ".join(unreadable)
    facts |= _facts_of(kubelet) | {"frontend": "proxy" if proxy else "nri" if plugin else ""}
    try:
        hierarchy = Hierarchy(settings.cgroup_root, proc)
        facts["cgroup_version"] = str(hierarchy.version)
        if NodeCode.COMPETING in wrong:
            writer = _writer(settings.state_dir, changes, hierarchy)
            wrong[NodeCode.COMPETING] += f"; {writer}"
        seen, groups, facts["runtime"], listed = _containers(settings, snapshot, given, hierarchy)
        wrong |= node_findings.of_groups(groups)
        wrong |= koordlet_findings.find(settings, hierarchy, listed, kubelet.configuration)
        wrong |= quiet_findings.find(settings, listed.pods, snapshot)
        facts["cgroup_driver"] = node_findings.driver_of(groups)
        with contextlib.suppress(DiscoveryError):  # then the agent is not ready
            if waits := contention.finding(contention.waits_of_node(settings)):
                wrong[NodeCode.DISTURBED] = waits
    except RpcError as error:
        wrong[NodeCode.RUNTIME] = f"the container runtime does not answer: {error}"
        runtime = options.socket_path(settings.runtime_endpoint)
        if os.path.exists(runtime) and not os.access(runtime, os.W_OK):
            remedies[NodeCode.RUNTIME] = node_findings.AS_ROOT
    except CgroupError as error:
        wrong[NodeCode.CGROUPS] = str(error)
    drifted = drift.findings(seen or (), owners)
    wrong = {code: files.with_host_paths(settings.root, text) for code, text in wrong.items()}
    return Examination(node_findings.found(wrong, remedies), seen, drifted, Facts(**facts))


def observed_kubelet(settings: KubeletStateSettings) -> tuple[KubeletStatus, tuple[str, ...]]:
    """The kubelet, and why its state files can't be read."""
    proc = os.path.join(settings.root, "proc")
    own_group: str | None = None
    with contextlib.suppress(CgroupError):  # a finding of its own
        own_group = own_group_of(settings, proc)
    process = kubelet_process.find(proc, own_group).of_folder(settings.root, settings.kubelet_dir)
    values = {name: getattr(settings, name) for name in KubeletStateSettings.__struct_fields__}
    reader = AgentSettings(**values)
    reading = kubelet_configuration.read(reader, lambda: own_group)
    unread = [
        text
        for source, texts in reading.problems.items()
        if source is not SourceName.MEMORY_MANAGER_STATE
        for text in texts
    ]
    cpu_state = memory_state = ""
    registered: dict[str, int] = {}
    state_files = state_folder.read(settings.kubelet_dir)
    for each in state_files:
        match each.state:
            case CpuManagerState():
                cpu_state = each.state.policy
            case MemoryManagerState():
                memory_state = each.state.policy
            case DeviceCheckpoint():
                registered = {name: len(ids) for name, ids in each.state.registered.items()}
    status = KubeletStatus(
        program=process.program if process else "",
        configuration=reading.whole,
        unread=tuple(unread),
        cpu_state=cpu_state,
        memory_state=memory_state,
        registered=registered,
    )
    return status, tuple(
        f"{settings.kubelet_dir}/{each.name}: {each.problem}"
        for each in state_files
        if each.problem
    )


def _facts_of(kubelet: KubeletStatus) -> dict[str, str]:
    configuration = kubelet.configuration
    if configuration is None:
        return {"kubelet": kubelet.program}
    return {
        "kubelet": kubelet.program,
        "cpu_manager_policy": configuration.cpu_manager_policy,
        "memory_manager_policy": configuration.memory_manager_policy,
        "topology_manager_policy": configuration.topology_manager_policy,
        "runtime_endpoint": kubelet.runtime_endpoint or "",
    }


def _paths(settings: KubeletStateSettings) -> Iterator[tuple[str, int]]:
    """The paths that the agent needs, each with a mode of os.access."""
    yield settings.state_dir, os.W_OK | os.X_OK
    yield options.socket_path(settings.runtime_endpoint), os.W_OK
    with contextlib.suppress(CgroupError):
        path = Hierarchy(settings.cgroup_root).path
        for name in ("kubepods", "kubepods.slice"):
            yield f"{path}/{name}/cpuset.cpus", os.W_OK
    yield settings.kubelet_dir, os.R_OK | os.X_OK


def _containers(
    settings: KubeletStateSettings,
    snapshot: Snapshot | None,
    given: Mapping[str, CpuSet],
    hierarchy: Hierarchy,
) -> tuple[tuple[ObservedContainer, ...], list[str], str, RuntimeState]:
    """The running containers, sorted by title, their groups, the runtime's name, and what it has.

    `given`: by pod uid, the CPUs of the kubelet's checkpoint.

    Raises RpcError, SettingsError."""
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    seen, groups, runtime = [], [], ""
    pids_of = drift.members(hierarchy)
    try:
        state = RuntimeView(cri, CgroupLocator(hierarchy)).observe()
        for pod in state.pods:
            for container in pod.containers:
                if container.state is not ContainerState.RUNNING or container.virtual:
                    continue
                carriers = None
                of_pod = snapshot.pods.get(pod.uid) if snapshot else None
                if of_pod is not None and of_pod.of(container.name).visible is not None:
                    carriers = cri.container_status(container.id, carriers=True).carriers
                kubelets = given.get(pod.uid)
                observed = drift.observed(
                    pod, container, of_pod, kubelets, hierarchy, pids_of, carriers
                )
                problem = files.with_host_paths(settings.root, observed.problem)
                seen.append(msgspec.structs.replace(observed, problem=problem))
                groups += [container.group] if container.group else []
        with contextlib.suppress(RpcError):  # it did answer
            runtime = cri.version()
    finally:
        cri.close()
    by_title = tuple(sorted(seen, key=lambda container: container.title))
    return by_title, groups, runtime, state


def _agent_answer(state_dir: str) -> tuple[NodeCode, str] | None:
    """Requests a new snapshot and waits for it. Returns the finding if there is none, else None."""
    requested_at = time.monotonic_ns()
    path = os.path.join(state_dir, SOCKET)
    notifier = Notifier(path)
    try:
        # The queue of the socket may be full if the agent hangs.
        if not notifier.notify(SnapshotRequest()) and not receives_datagrams(path):
            return NodeCode.AGENT_ABSENT, f"no agent uses the state folder {state_dir}"
    finally:
        notifier.close()
    snapshot_path = os.path.join(state_dir, snapshots.FILE)
    deadline = requested_at + int(ANSWER_SECONDS * 1e9)
    while True:
        try:
            if read_snapshot(snapshot_path).listed_at >= requested_at:
                return None
        except (OSError, SnapshotError):
            pass  # a finding of its own
        if time.monotonic_ns() > deadline:
            text = f"the agent has made no decision within {ANSWER_SECONDS:g} s"
            return NodeCode.AGENT_HUNG, text
        time.sleep(_PAUSE_SECONDS)


def _foreign_changes(state_dir: str) -> list[Record]:
    """The agent's recent writes that undid the change of another process; none without a trail."""
    since = stamp(time.time() - node_findings.CHANGES_SECONDS)
    try:
        return audit.read(
            state_dir, since, lambda record: record.reason == WriteReason.CHANGED_BY_OTHER
        ).records
    except OSError:
        return []


def _writer(state_dir: str, changes: Sequence[Record], hierarchy: Hierarchy) -> str:
    """Who writes CPUs or NUMA nodes of the groups now, as a sentence."""
    files = {
        f"{hierarchy.path}{each.group}/{each.field}"
        for each in changes
        if each.field.startswith("cpuset.")
    }
    own = processes.lock_holders(os.path.join(state_dir, AGENT_LOCK), hierarchy.proc)
    try:
        if not drift.own_numbers(hierarchy.proc):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        pid = first_writer(sorted(files), WRITER_SECONDS, own)
    except OSError:
        return "run topolet doctor on the node itself, as root: it can name the process then"
    if pid is None:
        return f"no other process wrote there within {WRITER_SECONDS:g} s"
    try:
        with Process(hierarchy.proc, pid) as process:
            return f"process {pid} writes there: {' '.join(process.argv())[:_MAX_ARGUMENTS]}"
    except (ProcessGoneError, UnreadableError):
        return f"process {pid}, which has ended, wrote there"


def _of_strategies(path: str) -> dict[NodeCode, str]:
    """What is wrong with the strategies that the agent follows. Raises FileNotFoundError if it
    follows none."""
    try:
        in_force = strategies.read(path)
        troubles = (*in_force.unread, *in_force.troubles, *in_force.pod_troubles)
    except FileNotFoundError:
        raise
    except OSError as error:
        troubles = (files.reason(error),)
    except JsonError as error:
        troubles = (f"{path}: {error}",)
    return {NodeCode.STRATEGIES: "; ".join(troubles)} if troubles else {}


def _of_dra(state_dir: str, snapshot: Snapshot | None) -> dict[NodeCode, str]:
    """What is wrong with the DRA driver. Raises FileNotFoundError if the agent is none."""
    path = os.path.join(state_dir, SHOWN_FILE)
    claims: tuple[PreparedClaim, ...] = ()
    try:
        shown = dra.read(path)
        path = os.path.join(state_dir, CLAIMS_FILE)
        with contextlib.suppress(FileNotFoundError):  # no claim has been prepared yet
            claims, faults = prepared_claim.decode(files.read(path, prepared_claim.MAX_BYTES))
            if faults:
                return {NodeCode.DRA_UNREADABLE: f"{path}: {'; '.join(faults)}"}
    except FileNotFoundError:
        raise
    except OSError as error:
        return {NodeCode.DRA_UNREADABLE: files.reason(error)}
    except JsonError as error:
        return {NodeCode.DRA_UNREADABLE: f"{path}: {error}"}
    if snapshot is None:
        claims = ()
    return node_findings.of_dra(shown, claims, snapshot.pods.keys() if snapshot else ())


def _proxy(path: str) -> tuple[str, str]:
    """The path of the proxy's socket if a process serves it, else ""; and why an existing socket
    accepts no connection, else ""."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        result = client.connect_ex(path)
    if result in (0, errno.EAGAIN):
        return path, ""
    if result == errno.ENOENT:
        return "", ""
    return "", f"the proxy does not serve {path}: {os.strerror(result)}"
