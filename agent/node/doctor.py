"""Examines a node from outside of its agent: first whether agent, proxy, runtime, cgroups and the
kubelet's state can be used at all, then whether the annotation, the kubelet's checkpoint, the
snapshot, the cgroup and the processes of each running container have drifted apart. Changes
nothing; an agent that runs makes one pass.
"""

from __future__ import annotations

import enum
import errno
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cri.client import Cri
from agent.hooks.agent_client import Notifier
from agent.host import processes
from agent.kubelet.statefile import StateFileError
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.notifications import SnapshotRequest
from agent.model.pod.annotations import AnnotationError, resource_status
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QoS
from agent.model.settings import options
from agent.model.settings.agent import DoctorSettings
from agent.model.snapshot import NOTHING, Owner, PodWanted, Snapshot, SnapshotError
from agent.node.kubelet_view import CpuManagerStateView
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.violations import may_hold
from agent.rpc.grpc import RpcError

ANSWER_SECONDS: Final = 3.0
"""A pass takes milliseconds; one that waits for a busy runtime takes longer."""
_PAUSE_SECONDS: Final = 0.02


class ObservedContainer(msgspec.Struct, frozen=True):
    """One running container and its CPUs by each source; None when a source has none. `claimed`:
    its pod's annotation; `kubelet`: the kubelet's checkpoint; `wanted`: the agent's snapshot;
    `group`: the effective cpuset of its cgroup; `processes`: the union of its processes'
    affinities. `problem`: why the agent does not honor the pod's claim, or why the annotation
    can't be read."""

    pod_uid: str
    title: str
    qos: QoS
    claimed: CpuSet | None = None
    kubelet: CpuSet | None = None
    wanted: CpuSet | None = None
    group: CpuSet | None = None
    processes: CpuSet | None = None
    problem: str = msgspec.field(default="", name="trouble")


class DriftKind(enum.StrEnum):
    """The kinds of findings; scripts may rely on the values."""

    CLAIM = "claim-not-honoured"
    CLAIM_UNSEEN = "claim-not-seen-by-agent"
    NO_GROUP = "no-cgroup"
    GROUP = "cgroup-differs"
    PROCESSES = "processes-outside-cgroup"
    KUBELET = "kubelet-differs"
    OVERLAP = "overlap"


class Finding(msgspec.Struct, frozen=True):
    """`expected` and `found`: CPU lists, when there are two to compare; `detail`: an explanation,
    such as the owner of the CPUs that overlap."""

    kind: DriftKind
    container: str
    expected: str = ""
    found: str = ""
    detail: str = ""


class NodeCode(enum.StrEnum):
    """The kinds of findings about the node itself; scripts may rely on the values."""

    RUNTIME = "runtime-unavailable"
    CGROUPS = "cgroups-unusable"
    AGENT_ABSENT = "agent-absent"
    AGENT_HUNG = "agent-does-not-answer"
    SNAPSHOT = "snapshot-unreadable"
    PROXY = "proxy-unavailable"
    KUBELET_STATE = "kubelet-state-unreadable"


REMEDIES: Final = {
    NodeCode.RUNTIME: "start the container runtime, or name its socket with --runtime-endpoint",
    NodeCode.CGROUPS: "mount cgroups with the cpuset controller, or name the folder with "
    "--cgroup-root",
    NodeCode.AGENT_ABSENT: "start the agent (kubectl -n topolet-system get pods -o wide); until "
    "then new containers get the CPUs of its last decisions. If it runs, name its --state-dir",
    NodeCode.AGENT_HUNG: "read the agent's log, and restart it if its process is stopped or "
    "waits for a disk or the runtime; containers keep their CPUs",
    NodeCode.SNAPSHOT: "restart the agent: it writes the file again",
    NodeCode.PROXY: "start the proxy (systemctl status topolet-proxy): a kubelet that uses this "
    "socket can start no container",
    NodeCode.KUBELET_STATE: "repair the file as the kubelet's documentation says, or drain the "
    "node, stop the kubelet, remove the file and start it",
}


class NodeFinding(msgspec.Struct, frozen=True):
    """What is wrong with the node itself, and what to do."""

    code: NodeCode
    text: str
    remedy: str


class Examination(msgspec.Struct, frozen=True):
    """`node`: what is wrong with the node itself, the most serious first; `seen` sorted by title,
    None if the containers can't be examined."""

    node: tuple[NodeFinding, ...]
    seen: tuple[ObservedContainer, ...] | None
    findings: tuple[Finding, ...]


def examine(settings: DoctorSettings) -> Examination:
    """Raises SettingsError."""
    wrong: dict[NodeCode, str] = {}
    seen: tuple[ObservedContainer, ...] | None = None
    owners: tuple[Owner, ...] = ()
    answer = _agent_answer(settings.state_dir)
    if answer is not None:
        wrong[answer[0]] = answer[1]
    snapshot: Snapshot | None = None
    try:
        snapshot = snapshots.decode((Path(settings.state_dir) / "snapshot.json").read_bytes())
        owners = snapshot.owners
    except FileNotFoundError:
        pass
    except (OSError, SnapshotError) as error:
        wrong[NodeCode.SNAPSHOT] = f"the agent's decisions can't be read: {error}"
    if refused := _refused(os.path.join(settings.state_dir, "cri.sock")):
        wrong[NodeCode.PROXY] = refused
    given: dict[str, CpuSet] = {}
    try:
        given = CpuManagerStateView(settings.kubelet_dir).cpus().by_uid
    except StateFileError as error:
        wrong[NodeCode.KUBELET_STATE] = str(error)
    try:
        seen = _containers(settings, snapshot, given)
    except RpcError as error:
        wrong[NodeCode.RUNTIME] = f"the container runtime does not answer: {error}"
    except CgroupError as error:
        wrong[NodeCode.CGROUPS] = str(error)
    node = tuple(
        NodeFinding(each, wrong[each], REMEDIES[each]) for each in NodeCode if each in wrong
    )
    return Examination(node, seen, findings(seen or (), owners))


def _containers(
    settings: DoctorSettings, snapshot: Snapshot | None, given: dict[str, CpuSet]
) -> tuple[ObservedContainer, ...]:
    """The running containers, sorted by title. `given`: by pod uid, the CPUs of the kubelet's
    checkpoint. Raises RpcError, CgroupError, SettingsError."""
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    try:
        observed = RuntimeView(cri, CgroupLocator(hierarchy)).observe()
    finally:
        cri.close()
    seen = [
        _seen(pod, container, snapshot, given.get(pod.uid), hierarchy)
        for pod in observed.pods
        for container in pod.containers
        if container.state is ContainerState.RUNNING and not container.virtual
    ]
    return tuple(sorted(seen, key=lambda each: each.title))


def _agent_answer(state_dir: str) -> tuple[NodeCode, str] | None:
    """Requests a new snapshot and waits for it; why there is none."""
    requested_at = time.monotonic_ns()
    notifier = Notifier(os.path.join(state_dir, "doorbell.sock"))
    try:
        if not notifier.notify(SnapshotRequest()):
            return NodeCode.AGENT_ABSENT, f"no agent uses the state folder {state_dir}"
    finally:
        notifier.close()
    path = Path(state_dir) / "snapshot.json"
    deadline = requested_at + int(ANSWER_SECONDS * 1e9)
    while True:
        try:
            if snapshots.decode(path.read_bytes()).listed_at >= requested_at:
                return None
        except (OSError, SnapshotError):
            pass  # a finding of its own
        if time.monotonic_ns() > deadline:
            text = f"the agent has made no decision within {ANSWER_SECONDS:g} s"
            return NodeCode.AGENT_HUNG, text
        time.sleep(_PAUSE_SECONDS)


def _refused(path: str) -> str:
    """Why a socket that exists accepts no connection; empty if it does, or does not exist."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        result = client.connect_ex(path)
    if result in (0, errno.EAGAIN, errno.ENOENT):
        return ""
    return f"the proxy does not serve {path}: {os.strerror(result)}"


def findings(seen: Sequence[ObservedContainer], owners: Sequence[Owner]) -> tuple[Finding, ...]:
    """`owners` of the agent's snapshot, none without one."""
    found: list[Finding] = []
    for each in seen:
        found += _of_container(each, owners)
    return tuple(found)


def _of_container(seen: ObservedContainer, owners: Sequence[Owner]) -> list[Finding]:
    found: list[Finding] = []

    def add(
        kind: DriftKind, expected: CpuSet | None = None, got: CpuSet | None = None, detail: str = ""
    ) -> None:
        texts = ["" if cpus is None else str(cpus) for cpus in (expected, got)]
        found.append(Finding(kind, seen.title, texts[0], texts[1], detail))

    own = next((owner.cpus for owner in owners if owner.uid == seen.pod_uid), None)
    if seen.problem:
        add(DriftKind.CLAIM, seen.claimed, seen.group, seen.problem)
    elif seen.claimed and own is None:
        add(DriftKind.CLAIM_UNSEEN, seen.claimed, seen.group)
    elif seen.claimed and own is not None and seen.claimed != own:
        add(DriftKind.CLAIM, seen.claimed, own, f"CPUs {seen.claimed - own} are not online")
    if seen.group is None:
        add(DriftKind.NO_GROUP)
        return found
    wanted = seen.wanted
    if wanted is None and seen.kubelet:
        if seen.kubelet != seen.group:
            add(DriftKind.KUBELET, seen.kubelet, seen.group)
    elif wanted is not None and wanted != seen.group:
        add(DriftKind.GROUP, wanted, seen.group)
    if seen.processes is not None and not seen.processes <= seen.group:
        add(DriftKind.PROCESSES, seen.group, seen.processes)
    for owner in owners:
        common = seen.group & owner.cpus
        if common and not may_hold(seen.pod_uid, seen.qos, owner):
            add(DriftKind.OVERLAP, None, common, f"{owner.title} owns them")
    return found


def _seen(
    pod: Pod,
    container: Container,
    snapshot: Snapshot | None,
    kubelet: CpuSet | None,
    hierarchy: Hierarchy,
) -> ObservedContainer:
    of_pod = snapshot.pods.get(pod.uid) if snapshot else None
    wanted = of_pod.of(container.name) if of_pod else NOTHING
    claimed, problem = _claim(pod, of_pod)
    group = in_group = None
    if container.group is not None:
        try:
            group = hierarchy.effective_cpus(container.group)
            pids = hierarchy.processes(container.group)
            allowed = [processes.allowed_cpus(hierarchy.proc, pid) for pid in pids]
            in_group = union(CpuSet.parse(cpus) for cpus in allowed if cpus is not None)
        except CgroupError as error:
            problem = problem or str(error)
    return ObservedContainer(
        pod_uid=pod.uid,
        title=f"{pod.title} {container.name}",
        qos=pod.qos,
        claimed=claimed,
        kubelet=kubelet,
        wanted=None if wanted.cpuset is None else CpuSet.parse(wanted.cpuset),
        group=group,
        processes=in_group or None,
        problem=problem,
    )


def _claim(pod: Pod, wanted: PodWanted | None) -> tuple[CpuSet | None, str]:
    try:
        claimed = resource_status(pod.annotations).cpus() or None
    except AnnotationError as error:
        return None, str(error)
    return claimed, (wanted.refused or wanted.each.blocked) if wanted else ""
