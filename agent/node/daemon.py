"""The agent's process: it builds the parts, runs a pass of the reconcile loop on every trigger, and
serves metrics and health."""

from __future__ import annotations

import functools
import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from agent.cgroup.controllers import Controllers
from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.namespace import own_root
from agent.cri.client import Cri
from agent.discover.cpus import TopologyView
from agent.discover.facts import DiscoveryError
from agent.host import malloc
from agent.host.ending import Ending
from agent.host.files import boot_id
from agent.host.locks import Lock
from agent.kube.errors import StoreError
from agent.kubelet.statefile import StateFileError
from agent.model import exclusion
from agent.model import settings as options
from agent.model.exclusion import ExclusionError, Patterns
from agent.model.settings import Settings, SettingsError
from agent.node import device_visibility, node_local
from agent.node.cluster_cache import ClusterCache
from agent.node.cluster_view import ClusterView, cluster_objects
from agent.node.cpu_notices import CpuNotices
from agent.node.device_visibility import DeviceVisibilityView
from agent.node.devices import device_view
from agent.node.enforcement import Enforcement
from agent.node.kubelet_configuration import KubeletConfigurationView
from agent.node.kubelet_view import CpuManagerStateView, KubeletView
from agent.node.node_object import NodeObject
from agent.node.notifications import NotificationSocket
from agent.node.outbox import ReportPace
from agent.node.pod_events import PodEvents
from agent.node.pod_resources import PodResourcesStateView, PodResourcesView
from agent.node.publisher import Publisher
from agent.node.reconcile import ReconcileError, Reconciler
from agent.node.report import ClusterReporter, Reporter
from agent.node.runtime_updater import RuntimeUpdater
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.sources import SourceName, Sources
from agent.node.triggers import Trigger, Triggers, rest
from agent.rpc.grpc import RpcError
from agent.telemetry.http import HttpResponse, HttpServer
from agent.telemetry.metrics import AgentMetrics

if TYPE_CHECKING:
    from agent.node.corrected import CorrectedPodResources, Serve

log = logging.getLogger(__name__)

OPEN_FILES = 16_384
_PODS_CHANGED = frozenset({Trigger.TREE, Trigger.RUNTIME, Trigger.KUBELET})
"""Triggers that may come with devices or CPUs that the kubelet gave or took."""


class Frontend(Protocol):
    """A server in this process that a runtime or proxy asks before it creates a container."""

    def start(self) -> None:
        """Called when the agent takes notifications. Raises OSError."""
        ...

    def page(self) -> str:
        """Its metrics, in the text format."""
        ...

    def close(self) -> None:
        """Ends the server and the calls in progress."""
        ...


def run(
    settings: Settings,
    read_again: Callable[[], Settings],
    frontend: Frontend | None = None,
    serve: Serve | None = None,
    *,
    standalone: bool,
) -> None:
    """Runs until SIGTERM or SIGINT, and leaves every cpuset as it is. SIGHUP reads the settings
    again. `serve` makes the server of corrected PodResources; None: they are not served.
    `standalone`: without a cluster. Raises LockedError, HttpError, CgroupError, SettingsError,
    ConfigurationError, StoreError or OSError when it can't start, OSError when its state folder is
    taken away."""
    malloc.one_arena()
    malloc.return_large_blocks()
    exclude = excluded(settings)
    node_name = settings.node_name or os.uname().nodename
    objects = cluster_objects(settings, node_name, standalone=standalone)
    node_local.check_kubelet(settings)
    topology_view = TopologyView(settings.root)
    node_local_cpus = node_local.configured(settings, topology_view)
    _keep_files_open()
    os.makedirs(settings.state_dir, mode=0o755, exist_ok=True)
    state = Path(settings.state_dir)
    visibility_policy = device_visibility.policy(settings)
    device_visibility.prepare(visibility_policy)
    lock = Lock(str(state / "agent.lock"))
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    metrics = AgentMetrics()
    sources = Sources(lambda name, number: metrics.source_troubles.labels(name).set(number))
    notification_socket = NotificationSocket(str(state / "doorbell.sock"))
    pace = None if standalone else ReportPace(recheck_seconds=settings.recheck_seconds)
    cluster = ClusterView(objects, node_name, metrics, notification_socket.wake, pace)
    cache = ClusterCache(cluster, str(state / "cluster.json"), sources)
    kubelet_configuration = KubeletConfigurationView(
        settings,
        sources,
        functools.cache(lambda: own_root(hierarchy)),
        notification_socket.wake,
        cache.known.configuration,
    )
    kubelet_configuration.start()
    controllers = Controllers(settings.cgroup_root, hierarchy.handles)
    for missing in controllers.missing():
        log.warning("this machine has no %s controller: nothing is limited by it", missing)
    journal = Journal(state / "journal")
    sources.report(SourceName.JOURNAL, journal.problems)
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    updater = RuntimeUpdater(Cri(options.socket_path(settings.runtime_endpoint)), hierarchy.exists)
    pod_resources = PodResourcesView(
        settings.pod_resources_socket, notification_socket.wake, sources=sources
    )
    devices = device_view(settings, notification_socket.wake, cache.known.files, sources)
    corrected = _corrected(settings, serve) if serve else None
    node = Reconciler(
        topology_view,
        RuntimeView(
            cri, CgroupLocator(hierarchy), requests=settings.cpu_policy != "none", grants=True
        ),
        cache,
        NodeObject(node_name, sources),
        KubeletView(
            kubelet_configuration,
            CpuManagerStateView(settings.kubelet_dir, sources),
            PodResourcesStateView(pod_resources, sources),
        ),
        Enforcement(
            hierarchy,
            controllers,
            journal,
            cri,
            updater,
            CpuNotices(settings.state_dir),
            migrate_memory=settings.migrate_memory,
        ),
        Publisher(str(state / "snapshot.json"), boot_id(), sources),
        Reporter(
            ClusterReporter(node_name, cluster.deliver, waits=pace is not None),
            metrics,
            PodEvents(cluster.events),
            corrected,
            hierarchy.group_of,
        ),
        node_local_cpus,
        DeviceVisibilityView(devices, visibility_policy),
    )
    node.exclude = exclude
    health = Health(settings.period_seconds)
    pages = {
        "/metrics": lambda: HttpResponse(
            200, _metrics(metrics, frontend), "text/plain; version=0.0.4"
        ),
        "/healthz": health.alive,
        "/readyz": health.ready,
    }
    server = HttpServer(settings.http, pages) if settings.http else None
    triggers = Triggers(
        notification_socket,
        hierarchy.path,
        settings.kubelet_dir,
        options.socket_path(settings.runtime_endpoint),
        cluster.news,
        sources,
    )
    stopping = asked_to_reload = False

    def hang_up(number: int, frame: object) -> None:
        nonlocal asked_to_reload
        asked_to_reload = True
        notification_socket.wake()

    def stop() -> None:
        nonlocal stopping
        stopping = True
        notification_socket.wake()

    signal.signal(signal.SIGHUP, hang_up)
    with Ending(stop):
        cluster.start()
        if frontend:
            frontend.start()
        if corrected:
            corrected.start()
        log.info("the agent manages the containers of %s", settings.runtime_endpoint)
        next_pass = resting = 0.0
        while not stopping:
            received = notification_socket.wait(next_pass - time.monotonic(), resting)
            node.notified(received)
            began = time.monotonic()
            woken_by = triggers.take() | ({Trigger.NOTIFICATION} if received else set())
            if not woken_by and began >= next_pass:
                woken_by = {Trigger.CLOCK}
            for source in woken_by:
                metrics.wakes.labels(source.value).inc()
            if devices is not None and Trigger.HOTPLUG in woken_by:
                devices.rescan()
            if woken_by & _PODS_CHANGED:
                pod_resources.ask()
            if asked_to_reload or Trigger.KUBELET in woken_by:
                kubelet_configuration.ask()
            if asked_to_reload:
                asked_to_reload = False
                settings = reloaded(settings, read_again, node)
            healthy = _reconcile(node, health, metrics)
            pause = triggers.pause(settings, healthy, woken_by, began)
            if node.again:
                pause = min(pause, settings.period_seconds)
            health.rest(pause)
            metrics.pause_seconds.set(pause)
            next_pass = began + pause
            resting = rest(settings, time.monotonic() - began)
            if notification_socket.lost():
                raise OSError(f"{settings.state_dir} was removed or given to another agent")
    if frontend:
        frontend.close()
    if corrected:
        corrected.close()
    triggers.close()
    cluster.close()
    kubelet_configuration.close()
    pod_resources.close()
    if devices is not None:
        devices.close()
    notification_socket.close()
    if server:
        server.close()
    updater.close()
    cri.close()
    hierarchy.close()
    lock.release()


def _corrected(settings: Settings, serve: Serve) -> CorrectedPodResources:
    from agent.node.corrected import CorrectedPodResources  # few nodes need it

    return CorrectedPodResources(options.socket_path(settings.pod_resources_socket), serve)


def _metrics(metrics: AgentMetrics, frontend: Frontend | None) -> str:
    return metrics.render() + (frontend.page() if frontend else "")


def _keep_files_open() -> None:
    """As many as the limit allows: a pass reads the same few files of every container."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(OPEN_FILES, hard)), hard))


def _reconcile(node: Reconciler, health: Health, metrics: AgentMetrics) -> bool:
    health.begin()
    start = time.monotonic()
    error = ""
    try:
        node.reconcile()
    except RpcError as failure:
        error = f"the runtime does not answer: {failure}"
    except (DiscoveryError, StateFileError, StoreError, ReconcileError, OSError) as failure:
        error = str(failure)
    except Exception as failure:  # the supervisor: a fault must not end the loop
        error = f"the pass failed: {failure!r}"
        if health.is_news(error):
            log.exception("the pass failed")
    else:
        metrics.look_seconds.observe(time.monotonic() - start)
    metrics.looks.labels("failed" if error else "ok").inc()
    health.end(error)
    return not error


LIVE: Final = ("exclude", "period_seconds", "full_pass_seconds", "log_level")
"""Options that a reload applies."""


def excluded(settings: Settings) -> Patterns:
    """Raises SettingsError."""
    try:
        return exclusion.parse(settings.exclude)
    except ExclusionError as error:
        raise SettingsError(f"exclude: {error}") from None


def reloaded(old: Settings, read_again: Callable[[], Settings], node: Reconciler) -> Settings:
    """The settings from now on. An invalid file leaves the old ones; a changed option that needs a
    restart is logged."""
    try:
        new = read_again()
        node.exclude = excluded(new)
    except SettingsError as error:
        log.error("the settings stay as they were: %s", error)
        return old
    logging.getLogger().setLevel(new.log_level.upper())
    now = msgspec.structs.replace(old, **{name: getattr(new, name) for name in LIVE})
    fixed = [
        field.encode_name
        for field in options.options()
        if getattr(now, field.name) != getattr(new, field.name)
    ]
    if fixed:
        log.warning("changed, but only with a restart: %s", ", ".join(fixed))
    log.info("the settings were read again")
    return now


STALE_SECONDS = 5.0


class Health:
    """The state of the reconcile loop, for /healthz and /readyz."""

    def __init__(self, period_seconds: float) -> None:
        self._patience_seconds = max(STALE_SECONDS, 4 * period_seconds)
        self._begun = time.monotonic()
        self._succeeded: float | None = None
        self._error = "there was no pass yet"
        self._pause_seconds = 0.0

    def begin(self) -> None:
        """A pass begins."""
        self._begun = time.monotonic()

    def end(self, error: str) -> None:
        """The pass ended, with "" for success. Logs a new error."""
        if self.is_news(error):
            log.error("%s", error)
        self._error = error
        if not error:
            self._succeeded = time.monotonic()

    def rest(self, pause_seconds: float) -> None:
        """The next pass is due only after this time."""
        self._pause_seconds = pause_seconds

    def is_news(self, error: str) -> bool:
        """Whether the last pass ended otherwise: a lasting fault must not fill a disk."""
        return bool(error) and error != self._error

    def alive(self) -> HttpResponse:
        """503 when there are no passes any more."""
        silent = time.monotonic() - self._begun
        if silent > self._pause_seconds + 4 * self._patience_seconds:
            return HttpResponse(503, f"no pass for {silent:.0f} s\n")
        return HttpResponse(200, "ok\n")

    def ready(self) -> HttpResponse:
        """503 unless the last pass succeeded (so the runtime answers) and is recent."""
        if self._error:
            return HttpResponse(503, f"{self._error}\n")
        age = time.monotonic() - (self._succeeded or 0)
        if age > self._pause_seconds + self._patience_seconds:
            return HttpResponse(503, f"the snapshot is {age:.0f} s old\n")
        return HttpResponse(200, "ok\n")
