"""The agent's process: it builds the parts, runs the loop, and serves metrics and health."""

from __future__ import annotations

import functools
import logging
import os
import resource
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from agent.allocate.pools import Decision
from agent.cgroup.hierarchy import Controllers, Handles, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.names import own_root
from agent.cri.client import Cri
from agent.discover.cpus import TopologyView
from agent.host.daemon import (
    Ending,
    return_large_blocks,
    use_batch_scheduling,
    use_one_malloc_arena,
)
from agent.host.files import boot_id
from agent.host.locks import AGENT_LOCK, Lock
from agent.http.limits import LOCAL_EACH_SECOND, PAGES_EACH_SECOND, ConnectionLimits
from agent.http.page import page_routes
from agent.http.peers import node_addresses
from agent.http.requests import METRICS, Reply, Route
from agent.http.server import HttpServer, ServerLimits
from agent.kube.cluster import Cluster
from agent.kube.objects import Objects
from agent.kubelet import podresources
from agent.model import notifications, snapshot
from agent.model.audit import Record
from agent.model.cpu.policies import BeOnOwned, CpuGrouping, DeviceLocality, GroupOrder
from agent.model.cpu.topology import Topology
from agent.model.devices.pci import Function
from agent.model.dra.names import CLAIMS_FILE, SHOWN_FILE
from agent.model.pod.pods import Pod
from agent.model.settings import options
from agent.model.settings.agent import AGENT_PORT, AgentSettings
from agent.model.settings.colocation import feature_modes
from agent.model.settings.feature_modes import FeatureMode
from agent.model.settings.options import SettingsError
from agent.node import device_visibility, node_local, nri_guard
from agent.node.change_log import PodEvents
from agent.node.cluster_view import ClusterCache, ClusterState, ClusterView, cluster_objects
from agent.node.cpu_notices import CpuNotices
from agent.node.device_visibility import DeviceVisibilityView
from agent.node.devices import device_view
from agent.node.enforcement import Enforcement
from agent.node.kai import KaiPlacements
from agent.node.kubelet_configuration import KubeletConfigurationView
from agent.node.kubelet_view import (
    CpuManagerStateView,
    DeviceCheckpointView,
    KubeletView,
    PodResourcesStateView,
    PodResourcesView,
)
from agent.node.locality import LocalityView
from agent.node.lookup import locality_of_namespaces, locations_of_claims
from agent.node.loop import Health, PassLoop, excluded
from agent.node.network_devices import NetworkDevices
from agent.node.node_configuration import NodeObject
from agent.node.node_resource_topology import ReportedOffer
from agent.node.notifications import NotificationSocket
from agent.node.originals import control_groups, core_groups, group_values
from agent.node.outbox import RECHECK_SECONDS, ReportPace
from agent.node.publisher import Publisher
from agent.node.reconcile import Reconciler
from agent.node.report import ClusterReporter, FollowUsage, GpuMoment, Reporter
from agent.node.runtime_updater import RuntimeUpdater
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.sources import SourceName, Sources
from agent.node.triggers import Triggers
from agent.telemetry.audit import Trail
from agent.telemetry.metrics import AgentMetrics
from agent.usage import (
    COLOCATION_FILE,
    EVICTIONS_FILE,
    OFFERED_FILE,
    QUIET_FILE,
    STRATEGIES_FILE,
    WAITS_FILE,
)

if TYPE_CHECKING:
    from agent.cgroup.core_scheduling import CoreGroups
    from agent.cgroup.resctrl import ControlGroups
    from agent.node.colocation.cpu_suppression import CpuSuppression
    from agent.node.colocation.evictions import Evictions
    from agent.node.colocation.moment import Moment
    from agent.node.colocation.writer import Colocation
    from agent.node.contention import Contention
    from agent.node.corrected import CorrectedPodResources, Serve
    from agent.node.features import Feature
    from agent.node.page import NodePage
    from agent.node.quiet.moment import QuietMoment
    from agent.node.quiet.writer import QuietCpus
    from agent.node.resource_claims import ClaimFiles, ResourceClaims
    from agent.node.strategies import StrategiesView
    from agent.node.usage import UsageView
    from agent.usage.past import PastHour

log = logging.getLogger(__name__)

OPEN_FILES = 16_384
HTTP_LIMITS: Final = ServerLimits(
    ConnectionLimits(
        connections=96,
        reserved=16,
        each_peer=24,
        new_each_second=PAGES_EACH_SECOND,
        local_each_second=LOCAL_EACH_SECOND,
    ),
    threads=0,
)
PAGE_VALUES: Final = ("state", "history", "load", "usage")
"""The methods of `NodePage` that its page asks for."""


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


class DraDriver(Protocol):
    """The driver's server, which the kubelet calls."""

    def start(self) -> None:
        """Raises OSError."""

    def close(self) -> None:
        """Withdraws the registration, and ends."""


class DraParts(NamedTuple):
    """What the DRA driver has outside of this package."""

    files: ClaimFiles
    server: Callable[[ResourceClaims], DraDriver]


def run(
    settings: AgentSettings,
    read_again: Callable[[], AgentSettings],
    frontend: Frontend | None = None,
    serve: Serve | None = None,
    dra: DraParts | None = None,
    *,
    standalone: bool,
) -> None:
    """Runs until SIGTERM or SIGINT. Does not change any cpuset at its end. SIGHUP reads the
    settings again.

    `serve`: makes the server of corrected PodResources, None if they are not served.
    `dra`: the parts of the DRA driver; None without it.
    `standalone`: without a cluster.

    Raises LockedError, HttpListenError, CgroupError, SettingsError, ConfigurationError, StoreError
    or OSError when it can't start, OSError when its state folder is removed."""
    use_one_malloc_arena()
    return_large_blocks()
    use_batch_scheduling()
    exclude = excluded(settings)
    node_local.check_kubelet(settings)
    node = node_addresses(settings.node_addresses)
    _raise_file_limit()
    closing = ExitStack()
    agent = _Agent(settings, serve, dra, closing, standalone=standalone)
    agent.reconciler.exclude = exclude
    if settings.http:
        served = HttpServer(
            options.with_port(settings.http, AGENT_PORT),
            _routes(agent, frontend),
            HTTP_LIMITS,
            node,
        )
        served.start()
        closing.callback(served.close)
    triggers = agent.triggers(settings)
    closing.callback(triggers.close)
    loop = PassLoop(
        settings,
        read_again,
        agent.notification_socket,
        triggers,
        agent.reconciler,
        agent.health,
        agent.metrics,
        agent.devices,
        agent.pod_resources,
        agent.kubelet_configuration,
        agent.each_second(),
    )
    signal.signal(signal.SIGHUP, lambda number, frame: loop.reload())
    with Ending(loop.stop):
        if agent.claims is not None and dra is not None:
            # Before the first pass: the file has the prepared claims, and others wait for the pass,
            # while a kubelet without a driver refuses a pod, and tries again a minute later.
            driver = dra.server(agent.claims)
            driver.start()
            closing.callback(driver.close)
            agent.claims.start()
            closing.callback(agent.claims.close)
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
    """The parts of an agent, which `closing` ends."""

    def __init__(
        self,
        settings: AgentSettings,
        serve: Serve | None,
        dra: DraParts | None,
        closing: ExitStack,
        *,
        standalone: bool,
    ) -> None:
        self.settings = settings
        node_name = self.node_name = settings.node_name or os.uname().nodename
        objects = cluster_objects(settings, node_name, standalone=standalone)
        topology = TopologyView(settings.root)
        os.makedirs(settings.state_dir, mode=0o755, exist_ok=True)
        state = Path(settings.state_dir)
        visibility_policy = device_visibility.prepare(device_visibility.policy(settings))
        closing.callback(Lock(str(state / AGENT_LOCK)).release)
        hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
        closing.callback(hierarchy.close)
        self._hierarchy_root = hierarchy.path
        self.metrics = AgentMetrics()
        health = self.health = Health()
        self.metrics.follow_passes(lambda: not health.problem(), health.snapshot_age_seconds)
        self.metrics.add(lambda: nri_guard.metrics(settings.state_dir))
        problems = self.metrics.source_problems
        self.sources = Sources(lambda name, number: problems.set(number, name), settings.root)
        if lock_problem := visibility_policy.isolation.problem:
            self.sources.report(SourceName.LOCK_FOLDER, [lock_problem])
        self.notification_socket = NotificationSocket(str(state / notifications.SOCKET))
        closing.callback(self.notification_socket.close)
        wake = self.notification_socket.wake
        pace = None if standalone else ReportPace(recheck_seconds=RECHECK_SECONDS)
        trail = Trail(settings.state_dir, "agent")
        closing.callback(trail.close)
        self.cluster = ClusterView(objects, node_name, self.metrics, wake, pace, trail.append)
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
        kubelet = self.kubelet_configuration.in_force()
        node_local_cpus = node_local.configured(settings, topology, kubelet)
        self.pod_resources = PodResourcesView(
            podresources.socket_path(settings.kubelet_dir), wake, sources=self.sources
        )
        closing.callback(self.pod_resources.close)
        cri = Cri(options.socket_path(settings.runtime_endpoint))
        closing.callback(cri.close)
        runtime = RuntimeView(
            cri,
            CgroupLocator(hierarchy),
            requests=settings.cpu_policy != "none",
            devices=True,
        )
        checkpoint = DeviceCheckpointView(settings.kubelet_dir, self.sources)
        network = NetworkDevices(settings.root, runtime.process_of)
        self.devices = device_view(
            settings, wake, checkpoint, cache.known.files, self.sources, network
        )
        if self.devices is not None:
            closing.callback(self.devices.close)
        self.corrected = _corrected(settings, serve) if serve else None
        self.colocation: Colocation | None = None
        self.quiet: QuietCpus | None = None
        self.offers: Callable[[], Mapping[str, int]] = dict
        if self.corrected:
            closing.callback(self.corrected.close)
        locations = namespaces = kai = None
        if isinstance(objects, Cluster):
            if settings.kai_placements:
                kai = KaiPlacements(objects)
                kai.start()
                closing.callback(kai.close)
            locations = locations_of_claims(objects, node_name, wake, self.sources)
            namespaces = locality_of_namespaces(objects, wake, self.sources)
            closing.callback(locations.close)
            closing.callback(namespaces.close)
        self.claims: ResourceClaims | None = None
        if dra is None:
            (state / SHOWN_FILE).unlink(missing_ok=True)
        if dra is not None:
            self.claims = self._resource_claims(
                settings, objects, dra.files, wake, trail.append, closing
            )
        usage = self.usage = (
            self._usage(settings, objects, wake, closing) if settings.usage else _NO_USAGE
        )
        if usage.offered is _NO_USAGE.offered:
            (state / OFFERED_FILE).unlink(missing_ok=True)
        if settings.quiet == "off":
            (state / QUIET_FILE).unlink(missing_ok=True)
        if usage.colocation is None:
            (state / COLOCATION_FILE).unlink(missing_ok=True)
        if usage.colocation is None or not settings.evictions:
            (state / EVICTIONS_FILE).unlink(missing_ok=True)
        if not settings.usage or settings.node_slo == "off":
            (state / STRATEGIES_FILE).unlink(missing_ok=True)
        if usage.follow is None:
            (state / WAITS_FILE).unlink(missing_ok=True)
        enforcement = self._enforcement(settings, hierarchy, cri, closing, usage)
        self.reconciler = Reconciler(
            topology,
            runtime,
            cache,
            NodeObject(node_name, self.sources),
            KubeletView(
                self.kubelet_configuration,
                CpuManagerStateView(settings.kubelet_dir, self.sources),
                PodResourcesStateView(self.pod_resources, self.sources),
                checkpoint,
            ),
            enforcement,
            Publisher(str(state / snapshot.FILE), boot_id(), self.sources),
            Reporter(
                ClusterReporter(
                    node_name, self.cluster.deliver, usage.offered, waits=pace is not None
                ),
                self.metrics,
                PodEvents(self.cluster.events),
                self.corrected.update if self.corrected else None,
                hierarchy.group_of,
                trail.append,
                self.sources,
                kai,
                self._follow(usage.follow),
                usage.disturbed,
                tuple if self.quiet is None else self.quiet.refusals,
            ),
            node_local_cpus,
            DeviceVisibilityView(self.devices, visibility_policy),
            LocalityView(
                DeviceLocality(settings.device_locality),
                locations=locations,
                namespaces=namespaces,
                read_claims=functools.partial(self.pod_resources.refresh, at_once=True),
            ),
            self.claims,
        )

    def _resource_claims(
        self,
        settings: AgentSettings,
        objects: Objects,
        claim_files: ClaimFiles,
        wake: Callable[[], None],
        append: Callable[[Sequence[Record]], None],
        closing: ExitStack,
    ) -> ResourceClaims:
        """Raises SettingsError."""
        from agent.allocate.dra.groups import GroupRules
        from agent.node import resource_claims
        from agent.node.claim_reports import ClaimReports
        from agent.node.resource_slices import ResourceSlices
        from agent.telemetry.dra_metrics import DraCounts, follow_dra

        if not isinstance(objects, Cluster):
            raise SettingsError("dra: there are no ResourceClaims without a cluster")
        claims = resource_claims.ResourceClaims(
            objects.claim,
            self.node_name,
            os.path.join(settings.state_dir, CLAIMS_FILE),
            claim_files,
            GroupRules(CpuGrouping(settings.dra_devices), GroupOrder(settings.dra_order)),
            wake,
            append,
            self._functions if settings.dra_pcie_roots else tuple,
        )
        published = ResourceSlices(objects, self.node_name, claims, self.sources)
        events = self.cluster.events
        record = events.record if events is not None else lambda pod, reason, note: None
        path = os.path.join(settings.state_dir, SHOWN_FILE)
        reports = ClaimReports(objects, claims, record, lambda: published.problem, path)

        def changed() -> None:
            published.changed()
            reports.changed()

        def counts() -> DraCounts:
            return DraCounts(
                len(claims.now()),
                len(claims.cpus()),
                claims.seconds,
                claims.refusals,
                reports.evicted,
                published.writes,
                len(reports.low),
            )

        claims.changed = changed
        for thread in (published, reports):
            thread.start()
            closing.callback(thread.close)
        follow_dra(self.metrics, counts)
        return claims

    def _functions(self) -> Collection[Function]:
        """The PCI functions of the node; none before the first pass, or without devices."""
        return self.devices.sysfs.functions.values() if self.devices is not None else ()

    def _usage(
        self,
        settings: AgentSettings,
        objects: Objects,
        wake: Callable[[], None],
        closing: ExitStack,
    ) -> _Usage:
        from agent.node.usage import NodeMetricReporter, UsageView  # few nodes need it

        strategies = None
        if settings.node_slo != "off":
            strategies = self._strategies(settings, objects, wake)
            closing.callback(strategies.close)
        view = UsageView(
            settings.root,
            settings.state_dir,
            Controllers(settings.cgroup_root),
            self.metrics,
            strategies,
        )
        view.start()
        closing.callback(view.close)
        contention = self._contention(settings, view, wake, closing)

        def follow(
            pods: Collection[Pod],
            cluster: ClusterState,
            topology: Topology,
            decision: Decision,
            gpus: GpuMoment,
        ) -> None:
            view.follow(pods, cluster, topology, decision, gpus)
            contention.follow(pods, topology)
            if self.colocation is not None:
                self.colocation.follow(topology, decision)

        def past() -> PastHour:
            return msgspec.structs.replace(view.past(), disturbed=contention.sentences())

        usage = _Usage(follow, past=past, disturbed=contention.sentences)
        if strategies is not None and settings.colocation != "off":
            colocation = functools.partial(
                self._colocation, settings, objects, view, strategies, wake
            )
            usage = usage._replace(colocation=colocation)
        if settings.koordlet_metrics:
            from agent.node.koordlet_metrics import KoordletMetrics

            closed_files = Controllers(settings.cgroup_root, Handles(0))
            self.metrics.add(KoordletMetrics(self.node_name, view, closed_files).read)
        if not isinstance(objects, Cluster):
            return usage
        if settings.node_metric != "off":
            create = settings.node_metric == "create"
            reporter = NodeMetricReporter(objects, self.node_name, view.used, create=create)
            reporter.start()
            closing.callback(reporter.close)
        if settings.batch_resources == "off":
            return usage
        from agent.node.batch_resources import NodeOffers
        from agent.telemetry.usage_metrics import follow_offers

        path = os.path.join(settings.state_dir, OFFERED_FILE)
        batch = NodeOffers(objects, self.node_name, view.load, path, wake)
        batch.start()
        closing.callback(batch.close)
        follow_offers(self.metrics, batch.resources)
        self.offers = batch.resources
        return usage._replace(offered=batch.reported)

    def _colocation(
        self,
        settings: AgentSettings,
        objects: Objects,
        view: UsageView,
        strategies: StrategiesView,
        wake: Callable[[], None],
        hierarchy: Hierarchy,
        controllers: Controllers,
        journal: Journal,
        cri: Cri,
        resctrl: ControlGroups,
        core_sched: CoreGroups,
    ) -> Colocation:
        from agent.node.colocation import cpu_suppression
        from agent.node.colocation.core_scheduling import CoreScheduling
        from agent.node.colocation.cpu_burst import CpuBursting
        from agent.node.colocation.cpu_priority import CpuPriority
        from agent.node.colocation.cpu_suppression import CpuSuppression
        from agent.node.colocation.disk_qos import DiskQos
        from agent.node.colocation.koordlet import KoordletTakeover
        from agent.node.colocation.left_alone import LeftAloneNetwork, LeftAloneSystem
        from agent.node.colocation.memory_qos import PodMemoryQos
        from agent.node.colocation.oom_scores import OomScores
        from agent.node.colocation.resctrl import CacheAndBandwidth
        from agent.node.colocation.writer import Colocation
        from agent.telemetry.usage_metrics import follow_colocation

        modes = feature_modes(settings)
        memory_qos = PodMemoryQos(
            controllers,
            view.allocatable_bytes,
            lambda: self.kubelet_configuration.known,
            acts=modes[PodMemoryQos.name] is FeatureMode.ACT,
        )
        on_owned = BeOnOwned(settings.be_on_owned)
        takeover = KoordletTakeover(
            hierarchy,
            Controllers(settings.cgroup_root, Handles(0)),
            journal,
            os.path.join(settings.root, "proc"),
            lambda: self.kubelet_configuration.known,
            lambda container: cri.container_status(container.id).resources.quota,
            resctrl,
        )
        path = os.path.join(settings.state_dir, COLOCATION_FILE)
        suppression = CpuSuppression(
            controllers, journal, view.node_use, on_owned, last=cpu_suppression.last(path)
        )
        features: tuple[Feature[Moment], ...] = (
            CpuPriority(controllers),
            CpuBursting(controllers, journal, view.shared_use, wake),
            memory_qos,
            OomScores(settings.oom_score_adj_min),
            CacheAndBandwidth(resctrl, journal),
            CoreScheduling(core_sched),
            DiskQos(controllers, settings.root),
            LeftAloneNetwork(),
            LeftAloneSystem(),
        )
        if settings.evictions:
            features += (self._evictions(settings, objects, view, suppression, modes),)
        colocation = Colocation(
            controllers,
            journal,
            suppression,
            features,
            functools.partial(view.in_cluster, with_node=isinstance(objects, Cluster)),
            strategies.now,
            lambda pod: snapshot.excludes_any(self.reconciler.exclude, pod.namespace, pod.name),
            self.sources,
            wake,
            path,
            modes,
            takeover=takeover if settings.colocation == "act" else None,
        )
        follow_colocation(self.metrics, colocation.measured, lambda: memory_qos.above_mark_bytes)
        return colocation

    def _evictions(
        self,
        settings: AgentSettings,
        objects: Objects,
        view: UsageView,
        suppression: CpuSuppression,
        modes: Mapping[str, FeatureMode],
    ) -> Evictions:
        """Raises SettingsError."""
        from agent.node.colocation.evictions import EvictionRequests, Evictions, rules
        from agent.telemetry.usage_metrics import follow_evictions

        of_settings, requests = rules(settings), None
        if isinstance(objects, Cluster):
            evict = functools.partial(objects.evict_pod, kill=of_settings.kills)
            requests = EvictionRequests(evict)
        events = self.cluster.events
        evictions = Evictions(
            of_settings,
            view,
            lambda: self.offers(),
            lambda: suppression.now,
            requests,
            events.record if events is not None else lambda pod, reason, note: None,
            os.path.join(settings.state_dir, EVICTIONS_FILE),
            acts=modes[Evictions.name] is FeatureMode.ACT,
        )
        follow_evictions(self.metrics, evictions.measured)
        return evictions

    def _contention(
        self,
        settings: AgentSettings,
        view: UsageView,
        wake: Callable[[], None],
        closing: ExitStack,
    ) -> Contention:
        from agent.node.contention import CgroupTasks, Contention, moment
        from agent.telemetry.usage_metrics import follow_waits
        from agent.usage.pressure import shared_cards

        hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
        closing.callback(hierarchy.close)
        controllers = Controllers(settings.cgroup_root, hierarchy.handles)
        groups = CgroupTasks(controllers, hierarchy)
        contention = Contention(
            settings.root,
            settings.state_dir,
            groups,
            lambda: moment(view.sampler, view.followed()[0].values()),
            lambda: shared_cards(*self.metrics.devices.in_use()),
            view.requested_bytes,
            wake,
        )
        contention.start()
        closing.callback(contention.close)
        follow_waits(self.metrics, contention.waits, contention.delays)
        return contention

    def _strategies(
        self, settings: AgentSettings, objects: Objects, wake: Callable[[], None]
    ) -> StrategiesView:
        from agent.node.strategies import StrategiesView

        view = StrategiesView(
            objects if isinstance(objects, Cluster) else None,
            self.node_name,
            settings.slo_config,
            os.path.join(settings.state_dir, STRATEGIES_FILE),
            self.sources,
            wake,
        )
        view.start()
        return view

    def triggers(self, settings: AgentSettings) -> Triggers:
        """Watches the host from now on."""
        return Triggers(
            self.notification_socket,
            self._hierarchy_root,
            settings.kubelet_dir,
            options.socket_path(settings.runtime_endpoint),
            self.cluster.news,
            self.sources,
        )

    def _enforcement(
        self,
        settings: AgentSettings,
        hierarchy: Hierarchy,
        cri: Cri,
        closing: ExitStack,
        usage: _Usage,
    ) -> Enforcement:
        journal = Journal(Path(settings.state_dir) / "journal")
        values = group_values(settings.root, hierarchy, lambda: journal.values)
        controllers = Controllers(settings.cgroup_root, hierarchy.handles, values)
        for missing in controllers.missing():
            log.warning("this machine has no %s controller: its limits are not set", missing)
        self.sources.report(SourceName.JOURNAL, journal.problems)
        # A slow update must not delay the calls of a pass.
        own = Cri(options.socket_path(settings.runtime_endpoint))
        updater = RuntimeUpdater(own, hierarchy.exists)
        closing.callback(updater.close)
        notices = CpuNotices(settings.state_dir, settings.shrink_warning_seconds)
        enforcement = Enforcement(
            hierarchy,
            controllers,
            journal,
            cri,
            updater,
            notices,
            migrate_memory=settings.migrate_memory,
        )
        holders: list[Callable[[], Collection[tuple[str, str]]]] = []
        if usage.colocation is not None:
            self.colocation = usage.colocation(
                hierarchy,
                controllers,
                journal,
                cri,
                control_groups(settings.root, hierarchy)(),
                core_groups(hierarchy, lambda: journal.values)(),
            )
            holders.append(self.colocation.holds)
            enforcement.be_cpus = self.colocation.be_cpus
        if settings.quiet != "off":
            self.quiet = self._quiet_cpus(settings, hierarchy, controllers, journal)
            holders.append(self.quiet.holds)
            enforcement.pause_cpus = self.quiet.pause_cpus
            enforcement.before = self.quiet.before
        enforcement.held = lambda: {key for holds in holders for key in holds()}
        return enforcement

    def _quiet_cpus(
        self,
        settings: AgentSettings,
        hierarchy: Hierarchy,
        controllers: Controllers,
        journal: Journal,
    ) -> QuietCpus:
        from agent.model.settings.quiet import default_features, quiet_modes
        from agent.node.quiet.c_states import CStates
        from agent.node.quiet.frequency import Frequency
        from agent.node.quiet.host_slices import HostSlices
        from agent.node.quiet.interrupts import QuietInterrupts
        from agent.node.quiet.packet_steering import PacketSteering
        from agent.node.quiet.partitions import CpusetPartitions
        from agent.node.quiet.workqueues import Workqueues
        from agent.node.quiet.writer import QuietCpus
        from agent.telemetry.quiet_metrics import follow_quiet

        root = settings.root
        features: tuple[Feature[QuietMoment], ...] = (
            CpusetPartitions(controllers, chain=settings.quiet_chain),
            QuietInterrupts(root, controllers, journal),
            HostSlices(controllers, hierarchy, journal),
            Workqueues(root, journal.value),
            PacketSteering(root, controllers, journal),
            CStates(root),
            Frequency(root),
        )
        quiet = QuietCpus(
            controllers,
            journal,
            features,
            quiet_modes(settings),
            default_features(settings),
            self.sources,
            os.path.join(settings.state_dir, QUIET_FILE),
        )
        follow_quiet(self.metrics, quiet.measured)
        return quiet

    def _follow(self, follow_usage: FollowUsage | None) -> FollowUsage | None:
        """What takes the pods and owners of each pass; None if nothing does."""
        quiet = self.quiet
        if quiet is None:
            return follow_usage

        def follow(
            pods: Collection[Pod],
            cluster: ClusterState,
            topology: Topology,
            decision: Decision,
            gpus: GpuMoment,
        ) -> None:
            quiet.follow(pods, topology, decision)
            if follow_usage is not None:
                follow_usage(pods, cluster, topology, decision, gpus)

        return follow

    def each_second(self) -> Callable[[], None] | None:
        """What is done between passes; None for nothing."""
        steps = [part.step for part in (self.colocation, self.quiet) if part is not None]
        if not steps:
            return None

        def step() -> None:
            for step_of_part in steps:
                step_of_part()

        return step


class _Usage(NamedTuple):
    """What samples the use of CPU and memory; None if nothing does."""

    follow: FollowUsage | None = None
    offered: Callable[[], ReportedOffer] = ReportedOffer
    """Returns the batch and mid resources."""
    past: Callable[[], PastHour] | None = None
    """Returns the load and pressure of the last hour; None if nothing is sampled."""
    disturbed: Callable[[], Mapping[str, tuple[str, ...]]] = dict
    """Returns by uid what disturbs a pod, in sentences."""
    colocation: (
        Callable[[Hierarchy, Controllers, Journal, Cri, ControlGroups, CoreGroups], Colocation]
        | None
    ) = None
    """Makes what follows the strategies; None if nothing does."""


_NO_USAGE: Final = _Usage()


def _corrected(settings: AgentSettings, serve: Serve) -> CorrectedPodResources:
    from agent.node.corrected import CorrectedPodResources  # few nodes need it

    return CorrectedPodResources(podresources.socket_path(settings.kubelet_dir), serve)


def _routes(agent: _Agent, frontend: Frontend | None) -> dict[str, Route]:
    def metrics(_: bytes) -> Reply:
        text = agent.metrics.render() + (frontend.page() if frontend else "")
        return Reply(200, text.encode(), METRICS)

    def page() -> NodePage:
        from agent.node.page import NodePage  # a megabyte that only a viewer needs

        settings, reconciler, devices = agent.settings, agent.reconciler, agent.devices
        return NodePage(
            agent.node_name,
            settings.root,
            settings.state_dir,
            lambda: reconciler.last,
            devices.sysfs if devices else None,
            devices.gpu_report if devices else lambda: None,
            agent.health.problem,
            agent.usage.past,
        )

    return {
        "/metrics": Route("GET", metrics),
        "/healthz": Route("GET", lambda _: agent.health.alive()),
        "/readyz": Route("GET", lambda _: agent.health.ready()),
        **page_routes("node", page_values(page)),
    }


def page_values(make_page: Callable[[], NodePage]) -> dict[str, Callable[[], bytes]]:
    """The values of the node's page by name. `make_page` is called with the first request."""
    page = functools.cache(make_page)

    def value(name: str) -> bytes:
        found: bytes = getattr(page(), name)()
        return found

    return {each: functools.partial(value, each) for each in PAGE_VALUES}


def _raise_file_limit() -> None:
    """Raises the soft limit of open files, up to OPEN_FILES: a pass reads the same few files of
    every container, which stay open (`cgroup.hierarchy.Handles`)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(OPEN_FILES, hard)), hard))
