"""A node without a runtime: listed pods are values, cgroups and state are files of the test."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agent.allocate.device_holders.reported_devices import Carriers
from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.cgroup.journal import Journal
from agent.cri.client import Cri, RuntimeContainer, Sandbox, VerboseStatus
from agent.discover.cpus import TopologyView
from agent.kube.errors import StoreError
from agent.kube.events import Regarding
from agent.kube.store import EmbeddedStore
from agent.model import snapshot as snapshots
from agent.model.audit import Record
from agent.model.linux_resources import LinuxResources
from agent.model.pod import apiobjects
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import ContainerState
from agent.model.pod.qos import QOS_LABEL
from agent.model.settings.agent import AgentSettings
from agent.model.snapshot import Snapshot
from agent.model.verdict import Code
from agent.node.audit import Append
from agent.node.change_log import PodEvents
from agent.node.cluster_view import ClusterCache, ClusterState
from agent.node.cpu_notices import CpuNotices
from agent.node.enforcement import Enforcement
from agent.node.kubelet_configuration import KubeletConfigurationView
from agent.node.kubelet_view import (
    CpuManagerStateView,
    DeviceCheckpointView,
    KubeletView,
    PodResourcesAnswer,
    PodResourcesStateView,
)
from agent.node.node_configuration import NodeObject
from agent.node.node_local import NodeLocalCpus
from agent.node.outbox import deliver
from agent.node.publisher import Publisher
from agent.node.reconcile import ClaimsOfNode, Reconciler
from agent.node.report import ClusterReporter, Reporter
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError
from agent.telemetry.metrics import AgentMetrics
from tests.fixtures import trees

LIMITS = {
    "cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "cpu.shares": "1024"},
    "memory": {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.usage_in_bytes": "0",
    },
}
"""The files of a cgroup v1 group without limits and processes."""


def claim(cpus: str) -> dict[str, str]:
    """The annotation that claims CPUs."""
    return {RESOURCE_STATUS: f'{{"cpuset": "{cpus}"}}'} if cpus else {}


class ListedRuntime(Cri):
    """A runtime whose answers a test sets. `failing`: by container or sandbox id; `statuses` and
    `carriers`: the verbose statuses of the others. `requested_carriers`: the ids whose carriers
    were requested; `status_calls`: the number of requested statuses by id."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.listed_sandboxes: list[Sandbox] = []
        self.listed_containers: list[RuntimeContainer] = []
        self.statuses: dict[str, VerboseStatus] = {}
        self.failing: dict[str, Code] = {}
        self.updates: dict[str, str] = {}
        self.carriers: dict[str, Carriers] = {}
        self.requested_carriers: list[str] = []
        self.status_calls: Counter[str] = Counter()

    def sandboxes(self) -> list[Sandbox]:
        return self.listed_sandboxes

    def containers(self) -> list[RuntimeContainer]:
        return self.listed_containers

    def sandbox_status(self, sandbox_id: str) -> VerboseStatus:
        return self._status(sandbox_id)

    def container_status(self, container_id: str, *, carriers: bool = False) -> VerboseStatus:
        found = self._status(container_id)
        if not carriers:
            return found
        self.requested_carriers.append(container_id)
        carriers_of = self.carriers.get(container_id, Carriers())
        return msgspec.structs.replace(found, carriers=carriers_of)

    def update(self, container_id: str, resources: LinuxResources) -> None:
        self.updates[container_id] = resources.cpuset or ""

    def set_resources(self, container_id: str, **changes: Any) -> None:
        """Changes these values in the status of a container."""
        status = self.statuses[container_id]
        resources = msgspec.structs.replace(status.resources, **changes)
        self.statuses[container_id] = msgspec.structs.replace(status, resources=resources)

    def delete(self, sandbox: Sandbox) -> None:
        """Removes the sandbox and its containers from the lists."""
        self.listed_sandboxes.remove(sandbox)
        containers = self.listed_containers
        self.listed_containers = [each for each in containers if each.sandbox_id != sandbox.id]

    def _status(self, id_: str) -> VerboseStatus:
        self.status_calls[id_] += 1
        if id_ in self.failing:
            raise RpcError(self.failing[id_], "set by the test")
        return self.statuses[id_]


class Objects:
    """The state of a cluster: the Node of a store, read on each call, and the pods of a test."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.pods: dict[str, ApiPod] = {}

    def now(self) -> ClusterState:
        node = None
        with contextlib.suppress(StoreError):
            if (found := self._store.get("Node", "n")) is not None:
                node = apiobjects.decode_node(msgspec.json.encode(found))
        return ClusterState(node, dict(self.pods), True)


class Recorded:
    """Records Events. `events`: the warnings; `normal`: the others."""

    def __init__(self) -> None:
        self.events: list[tuple[Regarding, str, str]] = []
        self.normal: list[tuple[Regarding, str, str]] = []

    def record(self, regarding: Regarding, reason: str, note: str) -> None:
        self.events.append((regarding, reason, note))

    def inform(self, regarding: Regarding, reason: str, note: str) -> None:
        self.normal.append((regarding, reason, note))


class Kubelet:
    """A kubelet's last PodResources answer, None without one."""

    def __init__(self) -> None:
        self.answer: PodResourcesAnswer | None = None

    def last_answer(self) -> PodResourcesAnswer | None:
        return self.answer


def reconciler(
    root: str,
    state: Path,
    kubelet_dir: Path,
    runtime: RuntimeView,
    cluster: Objects,
    kubelet: Kubelet,
    enforcement: Enforcement,
    store: EmbeddedStore,
    local: NodeLocalCpus | None = None,
    metrics: AgentMetrics | None = None,
    pod_events: PodEvents | None = None,
    append: Append = lambda records: None,
    claims: ClaimsOfNode | None = None,
) -> Reconciler:
    """A reconciler of node `n` without devices, with its files in `state`."""
    return Reconciler(
        TopologyView(root),
        runtime,
        ClusterCache(cluster, str(state / "cluster.json")),
        NodeObject("n"),
        KubeletView(
            KubeletConfigurationView(AgentSettings(root=root)),
            CpuManagerStateView(str(kubelet_dir)),
            PodResourcesStateView(kubelet),
            DeviceCheckpointView(str(kubelet_dir)),
        ),
        enforcement,
        Publisher(str(state / "snapshot.json"), "boot"),
        Reporter(
            ClusterReporter("n", lambda report: deliver(store, report)),
            metrics or AgentMetrics(),
            pod_events,
            append=append,
        ),
        local,
        claims=claims,
    )


class World:
    """A node of four CPUs, or more, with cgroup v1."""

    def __init__(
        self,
        folder: Path,
        *,
        cores: int = 4,
        threads: int = 1,
        nodes: int = 1,
        sockets: int = 1,
        caches: int = 1,
    ) -> None:
        """`nodes` of each socket, `caches` of each node, `cores` of each cache."""
        self.cpuset = folder / "cgroup" / "cpuset"
        self.group("", f"0-{cores * threads * nodes * sockets * caches - 1}")
        self.state = folder / "state"
        self.state.mkdir()
        self.store = EmbeddedStore(str(self.state / "objects"))
        self.cluster_objects = Objects(self.store)
        self.pod_resources = Kubelet()
        self.kubelet = folder / "kubelet"
        self.kubelet.mkdir()
        self.runtime = ListedRuntime()
        self.metrics = AgentMetrics()
        self.records: list[Record] = []
        self.root = trees.write(
            str(folder / "machine"), trees.machine(sockets, nodes, caches, cores, threads)
        )
        (folder / "machine" / "proc").mkdir(exist_ok=True)

    def agent(
        self,
        local: NodeLocalCpus | None = None,
        pod_events: PodEvents | None = None,
        append: Append | None = None,
        wait: Callable[[float], None] | None = None,
        claims: ClaimsOfNode | None = None,
    ) -> Reconciler:
        """An agent with new `metrics`; its records go to `records`, or to `append`. With a `wait`
        it warns mixed containers 0.1 s before."""
        self.metrics = AgentMetrics()
        hierarchy = Hierarchy(str(self.cpuset.parent))
        controllers = Controllers(str(self.cpuset.parent), hierarchy.handles)
        runtime = RuntimeView(
            self.runtime,
            CgroupLocator(hierarchy),
            requests=local is not None,
            devices=True,
        )
        journal = Journal(self.state / "journal")
        notices = CpuNotices(str(self.state), 0.1 if wait else 0)
        enforcement = Enforcement(
            hierarchy,
            controllers,
            journal,
            self.runtime,
            notices=notices,
            wait=wait or time.sleep,
        )
        return reconciler(
            self.root,
            self.state,
            self.kubelet,
            runtime,
            self.cluster_objects,
            self.pod_resources,
            enforcement,
            self.store,
            local,
            self.metrics,
            pod_events,
            append or self.records.extend,
            claims,
        )

    def metric(self, name: str) -> float:
        """The value of a series; `name` includes its labels."""
        for line in self.metrics.render().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(name)

    def snapshot(self) -> Snapshot:
        return snapshots.decode((self.state / "snapshot.json").read_bytes())

    def cpus(self, group: str) -> str:
        return (self.cpuset / group / "cpuset.cpus").read_text().strip()

    def limit(self, group: str, file: str) -> str:
        return (self.cpuset.parent / file.partition(".")[0] / group / file).read_text().strip()

    def limits(self, group: str, file: str, text: str) -> None:
        """Writes a value as a kubelet or a runtime does."""
        path = self.cpuset.parent / file.partition(".")[0] / group / file
        path.write_text(f"{text}\n")

    def group(self, path: str, cpus: str = "0-3") -> None:
        folder = self.cpuset / path
        if path and not folder.parent.exists():
            self.group(str(folder.parent.relative_to(self.cpuset)))
        folder.mkdir(parents=not path)
        (folder / "cpuset.cpus").write_text(f"{cpus}\n")
        (folder / "cpuset.mems").write_text("0\n")
        for controller, files in LIMITS.items():
            other = self.cpuset.parent / controller / path
            other.mkdir(parents=True)
            for name, text in files.items():
                (other / name).write_text(f"{text}\n")

    def sandbox(
        self,
        uid: str,
        qos: str = "",
        cpus: str = "",
        *,
        suffix: str = "",
        parent: str | None = None,
        ready: bool = True,
        created_at: int = 0,
        handler: str = "",
    ) -> Sandbox:
        """A listed sandbox, without a cgroup. `cpus`: those that the pod claims."""
        parent = f"/kubepods/burstable/pod{uid}" if parent is None else parent
        listed = Sandbox(
            id=f"s-{uid}{suffix}",
            uid=uid,
            namespace="ns",
            name=uid,
            ready=ready,
            created_at=created_at,
            labels={QOS_LABEL: qos} if qos else {},
            annotations=claim(cpus),
            handler=handler,
        )
        self.runtime.listed_sandboxes.append(listed)
        self.runtime.statuses[listed.id] = VerboseStatus(cgroup_parent=parent)
        return listed

    def container(
        self,
        of: Sandbox,
        name: str = "main",
        state: ContainerState = ContainerState.RUNNING,
        *,
        cpus: int = 0,
        cpuset: str = "",
        created_at: int = 0,
    ) -> RuntimeContainer:
        """A listed container; running ones have a cgroup. `cpus`: its request; `cpuset`: its
        initial CPUs, those of the machine if empty."""
        suffix = f"-{created_at}" if created_at else ""
        listed = RuntimeContainer(f"c-{of.uid}-{name}{suffix}", of.id, name, state, created_at)
        self.runtime.listed_containers.append(listed)
        path = f"{self.runtime.statuses[of.id].cgroup_parent}/{listed.id}"
        status = VerboseStatus(
            cgroups_path=path,
            resources=LinuxResources(cpuset, shares=1024 * cpus or 2),
        )
        self.runtime.statuses[listed.id] = status
        if state is ContainerState.RUNNING:
            self.group(path.lstrip("/"), cpuset or self.cpus(""))
        return listed

    def end_container(self, container: RuntimeContainer, *, still_listed: bool = False) -> None:
        """`still_listed`: the runtime lists the container as ended, with its resources."""
        self.runtime.listed_containers.remove(container)
        if not still_listed:
            return
        ended = msgspec.structs.replace(container, state=ContainerState.ENDED)
        self.runtime.listed_containers.append(ended)
        group = self.cpuset / self.runtime.statuses[container.id].cgroups_path.lstrip("/")
        cpus = (group / "cpuset.cpus").read_text().strip()
        self.runtime.set_resources(container.id, cpuset=cpus)
        shutil.rmtree(group)
