"""The node's connection to the cluster: it watches the Node, its pods and the Device object, and
delivers the node's reports.

The last known state is kept in a file: decisions do not change while no server answers, also after
a restart of the agent.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from agent.allocate.present import metadata_by_uid, vouched
from agent.host import files
from agent.host.daemon import Periodic
from agent.kube import auth
from agent.kube.auth import AccessError
from agent.kube.cluster import RECHECK_SECONDS, Cluster, Repair
from agent.kube.errors import ForbiddenError
from agent.kube.events import Recorder, Regarding
from agent.kube.objects import Change, ChangeKind, Objects
from agent.kube.transport import ResponseLimits, Transport
from agent.kubelet import configuration
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.devices import device_object, resource_slice
from agent.model.devices.device_files import NO_FILES, DeviceFiles
from agent.model.objects import ObjectError
from agent.model.pod import apiobjects
from agent.model.pod.annotations import NUMA_PLACEMENT_OBSERVED, STRATEGY_BYTES
from agent.model.pod.apiobjects import CONFIG_HASH, CONFIG_MIRROR, ApiNode, ApiPod
from agent.model.pod.pods import PodMetadata, pod_metadata
from agent.model.pod.qos import PRIORITY_CLASS_LABEL
from agent.model.settings.agent import AgentSettings
from agent.node import rebinds
from agent.node.audit import Append
from agent.node.device_listing import Published, published
from agent.node.node_resource_topology import Report
from agent.node.outbox import Outbox, ReportPace, deliver
from agent.node.rebinds import NodeRebinds
from agent.node.sources import SourceName, Sources
from agent.telemetry.metrics import AgentMetrics, ForeignChange

log = logging.getLogger(__name__)

EVENT_CONTROLLER: Final = "topolet.io/agent"
EVENT_ACTION: Final = "AssignCPUs"
REPORT_CHANGED: Final = "ReportChanged"
_UNTOLD: Final = (apiobjects.NODE_KIND, resource_slice.KIND)
"""Changes of these kinds are in log and metrics alone: a kubelet that starts removes the node's
slices."""

LIMITS: Final = ResponseLimits(body_bytes=12 << 20, line_bytes=12 << 20)
"""A pod may take 1.5 MB in etcd, and several times that as JSON. If the list of the node's pods is
larger than this, it is read in small pages."""

CLOSE_SECONDS: Final = 2.0
"""How long the end of the agent waits for a request about RebindResources."""


class ClusterState(msgspec.Struct, frozen=True):
    """The state of the cluster at one moment."""

    node: ApiNode | None = None
    """None if it is unknown, or does not exist."""
    pods: dict[str, ApiPod] = {}
    """The pods of this node by the API's uid, without mirror pods that its kubelet did not
    write."""
    pods_listed: bool = False
    """Whether all pods are known."""
    devices: Published | None = None
    """The Device object when the agent started, None while it is unknown."""

    @property
    def complete(self) -> bool:
        """Whether a report may be made: readers can't distinguish a partial one."""
        return bool(self.pods_listed and self.node and self.devices)


class ClusterView:
    """Watches the objects of this node, and delivers its reports: to an API server through an
    outbox, to a folder of files (standalone) at once.

    `wake`: called after each change, on any thread.
    `pace`: None for a view without an outbox.
    `append`: adds records to the audit trail."""

    def __init__(
        self,
        objects: Objects,
        node_name: str,
        metrics: AgentMetrics,
        wake: Callable[[], None],
        pace: ReportPace | None,
        append: Append = lambda records: None,
    ) -> None:
        self._objects = objects
        self._name = node_name
        self._metrics = metrics
        self._wake = wake
        self._labels: dict[str, str] = {}
        self._devices: Published | None = None
        self._outbox: Outbox | None = None
        if pace is not None:
            self._outbox = Outbox(self._deliver, metrics, pace, first=self._read_devices)
        self.events: Recorder | None = None
        self._rebinds: Periodic | None = None
        if isinstance(objects, Cluster):
            of_node = NodeRebinds(objects, node_name, append=append)
            self._rebinds = Periodic("rebinds", rebinds.PERIOD_SECONDS, of_node.step)
            if self._outbox is not None:
                objects.reachability.listen(self._outbox.server_available)
            objects.repaired = self._repaired
            self.events = objects.recorder(EVENT_CONTROLLER, EVENT_ACTION, metrics.events.inc)
        self.news = threading.Event()
        self._watches = ClusterWatches(objects, node_name, self._changed)
        metrics.follow(self._watches.ages_seconds, lambda: len(self.problems()))

    def now(self) -> ClusterState:
        return msgspec.structs.replace(self._watches.now(), devices=self._devices)

    def deliver(self, report: Report) -> None:
        """Writes the report; an outbox writes it later. Raises StoreError without one."""
        if self._outbox is None:
            self._deliver(report)
        else:
            self._outbox.put(report)

    def problems(self) -> tuple[str, ...]:
        """Why watches and deliveries fail now."""
        problems = self._watches.problems()
        if self._outbox is not None and self._outbox.problem.text:
            problems += (self._outbox.problem.text,)
        return problems

    def start(self) -> None:
        """Raises StoreError when a folder can't be read."""
        if self._outbox is None:
            self._read_devices()
        self._watches.start()
        if self._rebinds is not None:
            self._rebinds.start()

    def close(self) -> None:
        self._watches.stop()
        if self._rebinds is not None:
            self._rebinds.stop(CLOSE_SECONDS)
        if self.events is not None:
            self.events.close()
        if self._outbox is not None:
            self._outbox.close()

    def _read_devices(self) -> None:
        """Reads the Device object of the last agent, because devices keep their numbers.

        Raises StoreError."""
        try:
            body = self._objects.get(device_object.KIND, self._name)
            devices, problems = published(body) if body is not None else (Published(), ())
        except (ObjectError, ForbiddenError) as error:
            devices, problems = Published(), (str(error),)
        for problem in problems:
            log.error("the numbers of devices may change: %s", problem)
        self._devices = devices
        self.news.set()
        self._wake()

    def _deliver(self, report: Report) -> bool:
        self._labels = report.labels
        return deliver(self._objects, report)

    def _repaired(self, repair: Repair) -> None:
        self._metrics.foreign_changes(ForeignChange(repair.kind))
        who = repair.manager or "a client of the API server"
        change = "was deleted" if repair.deleted else f"was changed by {who}"
        note = f"{repair.kind} {repair.name} {change}; the agent has written it again"
        log.warning("%s", note)
        node = self._watches.now().node
        if self.events is not None and node is not None and repair.kind not in _UNTOLD:
            self.events.record(Regarding("", self._name, node.uid, "Node"), REPORT_CHANGED, note)

    def _changed(self) -> None:
        if self._outbox is not None:
            # Watches start at a random moment of each node; reports start after them.
            self._outbox.start()
        node = self._watches.now().node
        if node is not None and not self._labels.items() <= node.labels.items():
            self._objects.forget(apiobjects.NODE_KIND, self._name)
        self.news.set()
        self._wake()


class ClusterWatches:
    """Watches the Node and its pods. A pod that can't be decoded keeps its last valid state; an
    unavailable server changes nothing.

    `changed`: called on any thread after a change that affects decisions or reports."""

    def __init__(self, objects: Objects, node_name: str, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._node: ApiNode | None = None
        self._pods: dict[str, ApiPod] = {}
        self._pods_listed = False
        self._pods_watch = objects.watch_pods(node_name, _pod_of_node, self._pods_changed)
        self._node_watch = objects.watch_node(node_name, apiobjects.decode_node, self._node_changed)

    def start(self) -> None:
        self._node_watch.start()
        self._pods_watch.start()

    def stop(self) -> None:
        self._node_watch.stop()
        self._pods_watch.stop()

    def now(self) -> ClusterState:
        with self._lock:
            return ClusterState(self._node, vouched(self._pods, self._node), self._pods_listed)

    def problems(self) -> tuple[str, ...]:
        """Why watches fail now."""
        watches = self._node_watch, self._pods_watch
        return tuple(each.problem for each in watches if each.problem is not None)

    def ages_seconds(self) -> dict[str, float]:
        """By resource: the time since the last answer of the server to its watch."""
        return {"pods": self._pods_watch.age_seconds, "nodes": self._node_watch.age_seconds}

    def _pods_changed(self, changes: Sequence[Change[ApiPod]]) -> None:
        news = not self._pods_listed
        for change in changes:
            pod = change.value
            with self._lock:
                if change.kind is ChangeKind.DELETED:
                    news = self._pods.pop(pod.uid, None) is not None or news
                else:
                    news = self._pods.get(pod.uid) != pod or news
                    self._pods[pod.uid] = pod
        self._pods_listed = True
        if news:
            self._changed()

    def _node_changed(self, changes: Sequence[Change[ApiNode]]) -> None:
        if not changes:
            return
        last = changes[-1]
        node = None if last.kind is ChangeKind.DELETED else last.value
        with self._lock:
            news = node != self._node
            self._node = node
        if news:
            self._changed()


def cluster_objects(settings: AgentSettings, node_name: str, *, standalone: bool) -> Objects:
    """The objects of an API server, or of a folder. Raises AccessError."""
    if standalone:
        from agent.kube.store import EmbeddedStore  # loads YAML, a megabyte

        return EmbeddedStore(os.path.join(settings.state_dir, "objects"))
    try:
        access = auth.access(settings.kubeconfig)
    except AccessError as error:
        ways = "--kubeconfig names one, --standalone needs none"
        raise AccessError(f"{error} ({ways})") from None
    return Cluster(Transport(access, limits=LIMITS), node_name, recheck_seconds=RECHECK_SECONDS)


MAX_BYTES: Final = 32 << 20
"""The largest file: the annotations of 370 pods, each of the greatest length."""
_NODE_KEYS = ("node.koordinator.sh/", "topolet.io/")


class ClusterStateSource(Protocol):
    """A source of the cluster's state, as far as it concerns this node."""

    def now(self) -> ClusterState: ...


class CachedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last known state, as the file has it."""

    node: ApiNode = ApiNode()
    pods: dict[str, PodMetadata] = {}
    """By the runtime's uid."""
    devices: Published | None = None
    """The Device object, which has the numbers of the devices; None before it was read once."""
    files: DeviceFiles = NO_FILES
    """How containers reach the devices, also those that can't be discovered while pods hold
    them."""
    kubelet: dict[str, Any] = {}
    """The last configuration of the kubelet that could be read as a whole
    (`kubelet.configuration.to_object`)."""

    @property
    def configuration(self) -> KubeletConfiguration | None:
        """The kubelet's configuration; None without one that can be read."""
        if not self.kubelet:
            return None
        try:
            return configuration.of_object(self.kubelet, "the last known configuration")
        except ConfigurationError:
            return None


class ClusterCache:
    """Reads the cluster's state from a source, and keeps the last state in a file, which is written
    when the state changes. The file is only needed while no server answers."""

    def __init__(
        self, source: ClusterStateSource, path: str, sources: Sources | None = None
    ) -> None:
        self._source = source
        self._path = path
        self._sources = sources or Sources()
        self._kubelet: KubeletConfiguration | None = None
        self._lost: tuple[str, ...] = ()
        self._unwritten = False
        self.known = self._stored()

    def now(self) -> ClusterState:
        """The present state of the source. It is stored only by `update`."""
        return self._source.now()

    def update(self, state: ClusterState, listed: Iterable[str]) -> CachedState:
        """Stores a state, and returns the known one. `listed` has the uids of the pods that the
        runtime has."""
        self._keep(merged(self.known, state, listed))
        return self.known

    def store_devices(self, devices: Published, files: DeviceFiles = NO_FILES) -> None:
        self._keep(msgspec.structs.replace(self.known, devices=devices, files=files))

    def store_kubelet(self, kubelet: KubeletConfiguration | None) -> None:
        """Stores the kubelet's configuration; None changes nothing."""
        if kubelet is not None and kubelet is not self._kubelet:
            self._kubelet = kubelet
            self._keep(
                msgspec.structs.replace(self.known, kubelet=configuration.to_object(kubelet))
            )

    def _keep(self, new: CachedState) -> None:
        """Writes the file. If it can't be written, that is logged, and the next call tries
        again."""
        if new == self.known and not self._unwritten:
            return
        self.known = new
        try:
            files.replace(self._path, msgspec.json.encode(new), durable=False, mode=0o600)
        except OSError as error:
            self._unwritten = True
            self._report(f"the last state of the cluster is not stored: {error}")
        else:
            self._unwritten = False
            self._report()

    def _stored(self) -> CachedState:
        try:
            return bounds.decode(_decoder, files.read(self._path, MAX_BYTES))
        except FileNotFoundError:
            return CachedState()
        except (OSError, JsonError) as error:
            self._lost = (f"the last state of the cluster is lost: {self._path}: {error}",)
            self._report()
            return CachedState()

    def _report(self, *problems: str) -> None:
        self._sources.report(SourceName.CLUSTER_MEMORY, (*self._lost, *problems))


def merged(last: CachedState, state: ClusterState, listed: Iterable[str]) -> CachedState:
    """The state to store: the Node, and every pod that the runtime has (`listed`, by uid), also one
    that the API server has removed; each as in `state`, or else as in `last`."""
    node = last.node
    if state.node is not None:
        labels, annotations = state.node.labels, state.node.annotations
        node = ApiNode(state.node.uid, _of_node(labels), _of_node(annotations))
    now = metadata_by_uid(state.pods.values())
    pods = {uid: pod for uid in sorted(listed) if (pod := now.get(uid, last.pods.get(uid)))}
    return CachedState(node, pods, last.devices, last.files, last.kubelet)


_decoder = msgspec.json.Decoder(CachedState)


def _of_node(texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in sorted(texts.items()) if key.startswith(_NODE_KEYS)}


_MIRROR_KEYS: Final = {CONFIG_MIRROR: 256, CONFIG_HASH: 256}
_REPORTED_KEYS: Final = {NUMA_PLACEMENT_OBSERVED: 4096, **STRATEGY_BYTES}
_REPORTED_LABELS: Final = {PRIORITY_CLASS_LABEL: 63}


def _pod_of_node(text: bytes) -> ApiPod:
    """The part of a pod of this node that the agent keeps, from an object's JSON: what
    `pod_metadata` keeps, the keys of a mirror pod, those that the agent writes or that count for
    usage, and MAX_CONTAINERS of its containers. It has no resource version, which changes with
    every write of the status. The agent keeps only the name of a pod that has ended: anybody who
    may create pods can create any number for this node, and the kubelet ends at once those that it
    does not admit.

    Raises ObjectError."""
    pod = apiobjects.decode(text)
    mirror = bounds.kept(pod.annotations, _MIRROR_KEYS)
    if pod.terminal:
        name = pod.uid, pod.namespace, pod.name, pod.node, pod.phase
        owner = pod.controlling_node
        return ApiPod(*name, {}, mirror, pod.kube_class, pod.created_at, controlling_node=owner)
    read = pod_metadata(pod.labels, pod.annotations)
    containers = pod.containers[: bounds.MAX_CONTAINERS]
    return msgspec.structs.replace(
        pod,
        labels=read.labels | bounds.kept(pod.labels, _REPORTED_LABELS),
        annotations=read.annotations | mirror | bounds.kept(pod.annotations, _REPORTED_KEYS),
        containers=containers,
        init_containers=pod.init_containers[: bounds.MAX_CONTAINERS - len(containers)],
        resource_version="",
    )
