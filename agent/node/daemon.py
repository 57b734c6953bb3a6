"""The agent's process: it builds the parts, runs a pass of the reconcile loop on every trigger, and
serves metrics and health."""

from __future__ import annotations

import functools
import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Set
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.names import own_root
from agent.cri.client import Cri
from agent.discover.cpus import TopologyView
from agent.discover.sysfs import DiscoveryError
from agent.host.daemon import Ending, one_arena, return_large_blocks
from agent.host.files import boot_id
from agent.host.locks import Lock
from agent.http.limits import ConnectionLimits
from agent.http.peers import node_addresses
from agent.http.requests import Reply
from agent.http.routes import METRICS, Route
from agent.http.server import HttpServer, ServerLimits
from agent.kube.errors import StoreError
from agent.kubelet.statefile import StateFileError
from agent.model import snapshot
from agent.model.settings import options
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.model.snapshot import ExclusionError, Patterns
from agent.node import device_visibility, node_local
from agent.node.change_log import PodEvents
from agent.node.cluster_view import ClusterCache, ClusterView, cluster_objects
from agent.node.device_visibility import DeviceVisibilityView
from agent.node.devices import device_view
from agent.node.enforcement import Enforcement
from agent.node.kubelet_configuration import KubeletConfigurationView
from agent.node.kubelet_view import (
    CpuManagerStateView,
    DeviceCheckpointView,
    KubeletView,
    PodResourcesStateView,
    PodResourcesView,
)
from agent.node.node_configuration import NodeObject
from agent.node.node_local import CpuNotices
from agent.node.notifications import NotificationSocket
from agent.node.outbox import ReportPace
from agent.node.publisher import Publisher
from agent.node.reconcile import ReconcileError, Reconciler
from agent.node.report import ClusterReporter, Reporter
from agent.node.runtime_updater import RuntimeUpdater
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.sources import SourceName, Sources
from agent.node.triggers import Trigger, Triggers
from agent.rpc.grpc import RpcError
from agent.telemetry.health import Health
from agent.telemetry.metrics import AgentMetrics

if TYPE_CHECKING:
    from agent.node.corrected import CorrectedPodResources, Serve

log = logging.getLogger(__name__)

OPEN_FILES = 16_384
HTTP_LIMITS: Final = ServerLimits(
    ConnectionLimits(connections=96, reserved=16, each_peer=24), threads=0
)
_PODS_CHANGED = frozenset({Trigger.TREE, Trigger.RUNTIME, Trigger.KUBELET})
"""Triggers after which the kubelet may have assigned or released devices or CPUs."""


class Frontend(Protocol):
    """A server in this process that a runtime or proxy calls before it creates a container."""

    def start(self) -> None:
        """Called when the agent receives notifications. Raises OSError."""
        ...

    def page(self) -> str:
        """Its metrics, in the text format."""
        ...

    def close(self) -> None:
        """Ends the server and the calls in progress."""
        ...


def run(
    settings: AgentSettings,
    read_again: Callable[[], AgentSettings],
    frontend: Frontend | None = None,
    serve: Serve | None = None,
    *,
    standalone: bool,
) -> None:
    """Runs until SIGTERM or SIGINT. Does not change any cpuset at its end. SIGHUP reads the
    settings again. `serve` makes the server of corrected PodResources; None: they are not served.
    `standalone`: without a cluster. Raises LockedError, HttpListenError, CgroupError,
    SettingsError, ConfigurationError, StoreError or OSError when it can't start, OSError when its
    state folder is removed."""
    one_arena()
    return_large_blocks()
    exclude = excluded(settings)
    node_local.check_kubelet(settings)
    node = node_addresses(settings.node_addresses)
    _keep_files_open()
    closing = ExitStack()
    agent = _Agent(settings, serve, closing, standalone=standalone)
    agent.reconciler.exclude = exclude
    if settings.http:
        served = HttpServer(settings.http, _routes(agent, frontend), HTTP_LIMITS, node)
        served.start()
        closing.callback(served.close)
    loop = _Loop(agent, settings, read_again)
    closing.callback(loop.triggers.close)
    signal.signal(signal.SIGHUP, lambda number, frame: loop.reload())
    with Ending(loop.stop):
        agent.cluster.start()
        if frontend:
            frontend.start()
            closing.callback(frontend.close)
        if agent.corrected:
            agent.corrected.start()
        log.info("the agent manages the containers of %s", settings.runtime_endpoint)
        loop.run()
    closing.close()


class _Agent:
    """The parts of an agent; `closing` ends them."""

    def __init__(
        self,
        settings: AgentSettings,
        serve: Serve | None,
        closing: ExitStack,
        *,
        standalone: bool,
    ) -> None:
        node_name = settings.node_name or os.uname().nodename
        objects = cluster_objects(settings, node_name, standalone=standalone)
        topology = TopologyView(settings.root)
        node_local_cpus = node_local.configured(settings, topology)
        os.makedirs(settings.state_dir, mode=0o755, exist_ok=True)
        state = Path(settings.state_dir)
        visibility_policy = device_visibility.prepare(device_visibility.policy(settings))
        closing.callback(Lock(str(state / "agent.lock")).release)
        hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
        closing.callback(hierarchy.close)
        self.hierarchy_root = hierarchy.path
        self.metrics = AgentMetrics()
        self.health = Health(settings.period_seconds)
        by_source = self.metrics.source_troubles.labels
        self.sources = Sources(lambda name, number: by_source(name).set(number))
        if lock_trouble := visibility_policy.isolation.trouble:
            self.sources.report(SourceName.LOCK_FOLDER, [lock_trouble])
        self.notification_socket = NotificationSocket(str(state / "doorbell.sock"))
        closing.callback(self.notification_socket.close)
        wake = self.notification_socket.wake
        pace = None if standalone else ReportPace(recheck_seconds=settings.recheck_seconds)
        self.cluster = ClusterView(objects, node_name, self.metrics, wake, pace)
        closing.callback(self.cluster.close)
        cache = ClusterCache(self.cluster, str(state / "cluster.json"), self.sources)
        self.kubelet_configuration = KubeletConfigurationView(
            settings,
            self.sources,
            functools.cache(lambda: own_root(hierarchy)),
            wake,
            cache.known.configuration,
        )
        self.kubelet_configuration.start()
        closing.callback(self.kubelet_configuration.close)
        self.pod_resources = PodResourcesView(
            settings.pod_resources_socket, wake, sources=self.sources
        )
        closing.callback(self.pod_resources.close)
        checkpoint = DeviceCheckpointView(settings.kubelet_dir, self.sources)
        self.devices = device_view(settings, wake, checkpoint, cache.known.files, self.sources)
        if self.devices is not None:
            closing.callback(self.devices.close)
        self.corrected = _corrected(settings, serve) if serve else None
        if self.corrected:
            closing.callback(self.corrected.close)
        cri = Cri(options.socket_path(settings.runtime_endpoint))
        closing.callback(cri.close)
        locator = CgroupLocator(hierarchy)
        self.reconciler = Reconciler(
            topology,
            RuntimeView(cri, locator, requests=settings.cpu_policy != "none", grants=True),
            cache,
            NodeObject(node_name, self.sources),
            KubeletView(
                self.kubelet_configuration,
                CpuManagerStateView(settings.kubelet_dir, self.sources),
                PodResourcesStateView(self.pod_resources, self.sources),
                checkpoint,
            ),
            self._enforcement(settings, hierarchy, cri, closing),
            Publisher(str(state / "snapshot.json"), boot_id(), self.sources),
            Reporter(
                ClusterReporter(node_name, self.cluster.deliver, waits=pace is not None),
                self.metrics,
                PodEvents(self.cluster.events),
                self.corrected.update if self.corrected else None,
                hierarchy.group_of,
            ),
            node_local_cpus,
            DeviceVisibilityView(self.devices, visibility_policy),
        )

    def _enforcement(
        self, settings: AgentSettings, hierarchy: Hierarchy, cri: Cri, closing: ExitStack
    ) -> Enforcement:
        controllers = Controllers(settings.cgroup_root, hierarchy.handles)
        for missing in controllers.missing():
            log.warning("this machine has no %s controller: its limits are not set", missing)
        journal = Journal(Path(settings.state_dir) / "journal")
        self.sources.report(SourceName.JOURNAL, journal.problems)
        # A slow update must not delay the calls of a pass.
        own = Cri(options.socket_path(settings.runtime_endpoint))
        updater = RuntimeUpdater(own, hierarchy.exists)
        closing.callback(updater.close)
        notices = CpuNotices(settings.state_dir)
        return Enforcement(
            hierarchy,
            controllers,
            journal,
            cri,
            updater,
            notices,
            migrate_memory=settings.migrate_memory,
        )


class _Loop:
    """Runs a pass on every trigger, and rests between passes."""

    def __init__(
        self, agent: _Agent, settings: AgentSettings, read_again: Callable[[], AgentSettings]
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._read_again = read_again
        self.triggers = Triggers(
            agent.notification_socket,
            agent.hierarchy_root,
            settings.kubelet_dir,
            options.socket_path(settings.runtime_endpoint),
            agent.cluster.news,
            agent.sources,
        )
        self._stopping = self._asked_to_reload = False

    def reload(self) -> None:
        """Reads the settings again before the next pass. For a signal's handler."""
        self._asked_to_reload = True
        self._agent.notification_socket.wake()

    def stop(self) -> None:
        """Ends `run` after the present pass. For a signal's handler."""
        self._stopping = True
        self._agent.notification_socket.wake()

    def run(self) -> None:
        """Raises OSError when the state folder is removed."""
        socket = self._agent.notification_socket
        next_pass = pause_seconds = 0.0
        while not self._stopping:
            received = socket.wait(next_pass - time.monotonic(), pause_seconds)
            self._agent.reconciler.notified(received)
            began = time.monotonic()
            triggers = self.triggers.take() | ({Trigger.NOTIFICATION} if received else set())
            if not triggers and began >= next_pass:
                triggers = {Trigger.CLOCK}
            self._prepare(triggers)
            next_pass = began + self._pass(triggers, began)
            pause_seconds = self.triggers.cooldown(self._settings, time.monotonic() - began)
            if socket.lost():
                folder = self._settings.state_dir
                raise OSError(f"{folder} was removed or given to another agent")

    def _prepare(self, triggers: Set[Trigger]) -> None:
        """Refreshes the sources that a trigger concerns, and reads the settings again."""
        agent = self._agent
        for each in triggers:
            agent.metrics.triggers.labels(each.value).inc()
        if agent.devices is not None and Trigger.HOTPLUG in triggers:
            agent.devices.rescan()
        if triggers & _PODS_CHANGED:
            agent.pod_resources.ask()
        if self._asked_to_reload or Trigger.KUBELET in triggers:
            agent.kubelet_configuration.ask()
        if self._asked_to_reload:
            self._asked_to_reload = False
            self._settings = reloaded(self._settings, self._read_again, agent.reconciler)

    def _pass(self, triggers: Set[Trigger], began: float) -> float:
        """One pass; returns after how many seconds from `began` the next one is due."""
        agent, settings = self._agent, self._settings
        healthy = _reconcile(agent.reconciler, agent.health, agent.metrics)
        pause = self.triggers.pause(settings, healthy, triggers, began)
        if agent.reconciler.again:
            pause = min(pause, settings.period_seconds)
        agent.health.rest(pause)
        agent.metrics.pause_seconds.set(pause)
        return pause


def _corrected(settings: AgentSettings, serve: Serve) -> CorrectedPodResources:
    from agent.node.corrected import CorrectedPodResources  # few nodes need it

    return CorrectedPodResources(options.socket_path(settings.pod_resources_socket), serve)


def _routes(agent: _Agent, frontend: Frontend | None) -> dict[str, Route]:
    def metrics(_: bytes) -> Reply:
        page = agent.metrics.render() + (frontend.page() if frontend else "")
        return Reply(200, page.encode(), METRICS)

    return {
        "/metrics": Route("GET", metrics),
        "/healthz": Route("GET", lambda _: agent.health.alive()),
        "/readyz": Route("GET", lambda _: agent.health.ready()),
    }


def _keep_files_open() -> None:
    """Keeps as many files open as the limit allows: a pass reads the same few files of every
    container."""
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
        if health.is_new(error):
            log.exception("the pass failed")
    else:
        metrics.pass_seconds.observe(time.monotonic() - start)
    metrics.passes.labels("failed" if error else "ok").inc()
    health.end(error)
    return not error


LIVE: Final = ("exclude", "period_seconds", "full_pass_seconds", "log_level")
"""Options that a reload applies."""


def excluded(settings: AgentSettings) -> Patterns:
    """Raises SettingsError."""
    try:
        return snapshot.parse_patterns(settings.exclude)
    except ExclusionError as error:
        raise SettingsError(f"exclude: {error}") from None


def reloaded(
    old: AgentSettings, read_again: Callable[[], AgentSettings], node: Reconciler
) -> AgentSettings:
    """Returns the settings to use. An invalid file leaves the old ones in force; a changed option
    that needs a restart is logged."""
    try:
        new = read_again()
        node.exclude = excluded(new)
    except SettingsError as error:
        log.error("the old settings stay in force: %s", error)
        return old
    logging.getLogger().setLevel(new.log_level.upper())
    now = msgspec.structs.replace(old, **{name: getattr(new, name) for name in LIVE})
    fixed = [
        field.encode_name
        for field in options.options(AgentSettings)
        if getattr(now, field.name) != getattr(new, field.name)
    ]
    if fixed:
        log.warning("these changed options need a restart: %s", ", ".join(fixed))
    log.info("the settings were read again")
    return now
