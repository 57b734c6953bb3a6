"""Builds a scheduler from the settings and runs it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import msgspec

from agent.host.daemon import Ending, Faults, Periodic, freeze_garbage, use_one_malloc_arena
from agent.http import certificates
from agent.http.certificates import CertificateFiles
from agent.http.limits import (
    HANDSHAKES_EACH_SECOND,
    PAGES_EACH_SECOND,
    UNCERTIFIED_EACH_SECOND,
    ConnectionLimits,
)
from agent.http.page import Viewed, page_routes
from agent.http.peers import node_addresses
from agent.http.requests import Route
from agent.http.server import HttpServer, ServerLimits
from agent.kube import auth
from agent.kube.events import Recorder
from agent.kube.listwatch import ListWatch
from agent.kube.transport import Transport, Transports
from agent.model.settings.options import SettingsError, with_port
from agent.model.settings.plugin_args import SchedulerArgs
from agent.model.settings.scheduler import (
    EXTENDER_PORT,
    LEASE_NAME,
    LEASE_SECONDS,
    SCHEDULER_PORT,
    SchedulerSettings,
    split_names,
)
from agent.scheduler.explain import endpoint
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.extender import extender
from agent.scheduler.extender.equivalence_cache import EquivalenceCache, StateNumbering
from agent.scheduler.extender.handlers import ExtenderHandlers, QueueingExtender
from agent.scheduler.leader import election
from agent.scheduler.leader.candidate import Candidate, FormerBindings
from agent.scheduler.leader.election import AlwaysLeader, Leader, bind_limits, lease_times
from agent.scheduler.leader.gate import LeaderGate, LeaderLabel
from agent.scheduler.preemption import disruption_budgets
from agent.scheduler.preemption.disruption_budgets import Budget, Budgets
from agent.scheduler.preemption.evictor import Evictor
from agent.scheduler.preemption.preemption import Preemption
from agent.scheduler.preemption.victim_selection import NodeSnapshots
from agent.scheduler.rebind.controller import RebindRequests, Rebinds
from agent.scheduler.rules import (
    agent_selector,
    allocator_rules,
    scheduler_args,
)
from agent.scheduler.state.binder import Binder, ReservationExpiry
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfoCache
from agent.scheduler.state.pod_patches import ClaimConditions, Corrections
from agent.scheduler.state.pods_api import BindingApi
from agent.scheduler.state.pods_seen import PlacementUpdates, PodsSeen
from agent.scheduler.state.watches import Watches, stale, watch_pace
from agent.scheduler.unschedulable.events import NoRoomEvents
from agent.scheduler.unschedulable.queue import UnschedulableQueue
from agent.scheduler.unschedulable.retry import Retry, unschedulable_pods
from agent.telemetry.schedulermetrics import SchedulerValues

if TYPE_CHECKING:
    from agent.scheduler.page import ClusterPage

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 30.0
"""The longest time without an event, bookmark or answer for a watch that decisions need; after it
the scheduler refuses requests. Each watch is renewed three times in this time."""
EXPIRY_SECONDS: Final = 1.0
"""Interval of the expiry of reservations."""
CORRECTION_SECONDS: Final = 1.0
"""Interval of the corrections of resource-status, and of the conditions of refused claims."""
REBIND_SECONDS: Final = 1.0
"""Interval of the steps of rebinds."""
RETRY_SECONDS: Final = 0.5
"""Interval of the retries of unschedulable pods."""
NUMBERING_SECONDS: Final = 1.0
"""Interval in which the states of changed nodes are numbered."""
EVICT_SECONDS: Final = 1.0
"""Interval of the evictions for unschedulable pods."""
EVENT_SECONDS: Final = 2.0
"""Interval of the search for waiting pods that need an Event."""
CONTROLLER: Final = "topolet.io/scheduler"

# kube-scheduler sends binds in parallel and without a limit; its scheduling loop waits only for the
# other verbs. All its connections have one address.
LIMITS: Final = ServerLimits(
    ConnectionLimits(
        connections=320,
        reserved=64,
        each_peer=192,
        new_each_second=UNCERTIFIED_EACH_SECOND,
        reply_seconds=5.0,
        idle_seconds=120.0,
        head_bytes=64 << 10,
        body_bytes=8 << 20,
        bodies_bytes=64 << 20,
    ),
    threads=64,
)
PAGE_LIMITS: Final = ServerLimits(
    ConnectionLimits(
        connections=48,
        reserved=16,
        each_peer=16,
        new_each_second=PAGES_EACH_SECOND,
        body_bytes=endpoint.BODY_BYTES,
        bodies_bytes=4 * endpoint.BODY_BYTES,
    ),
    threads=3,
)

MIN_LEASE_SECONDS: Final = 3
_STATUS_PATHS: Final = ("/healthz", "/readyz", "/metrics")


def run(settings: SchedulerSettings) -> None:
    """Runs until SIGTERM, or until a thread fails: the other threads would answer from a stale
    state. Raises AccessError, CertificateError, FaultError, HttpListenError and SettingsError."""
    use_one_malloc_arena()
    if 0 < settings.lease_seconds < MIN_LEASE_SECONDS:
        raise SettingsError(f"lease-seconds is not 0 or at least {MIN_LEASE_SECONDS}")
    args = scheduler_args(settings.scheduler_args_file)
    access = auth.access(settings.kubeconfig)
    ended = threading.Event()
    with Faults(ended.set), ExitStack() as closing:
        transports = Transports(access, "topolet-scheduler")
        closing.callback(transports.close)
        scheduler = _Scheduler(settings, args, transports)
        user_routes = {endpoint.PATH: scheduler.explain, **scheduler.page}
        listening = servers(settings, scheduler.routes, user_routes)
        with Ending(ended.set), ExitStack() as open_servers:
            for each in listening:
                each.start()
                open_servers.callback(each.close)
            scheduler.start(closing)
            log.info("extender listens on port %d", listening[0].port)
            ended.wait()
            # Requests in flight end before another candidate may lead.
            open_servers.close()
            closing.close()


class _State:
    """The state of the cluster, and the watches that update it."""

    def __init__(
        self, settings: SchedulerSettings, args: SchedulerArgs, transports: Transports
    ) -> None:
        self.rules = allocator_rules(args)
        agents = agent_selector(settings)
        self.cluster = SchedulerCache(rules=self.rules, agents=bool(agents.labels))
        self.pod_infos = PodInfoCache(defaults=lambda: self.cluster.pod_defaults)
        self.groups = GroupReservations(self.cluster)
        self.cache = EquivalenceCache(self.cluster)
        self.numbering = StateNumbering(self.cluster)
        self.queue, self.budgets = UnschedulableQueue(), Budgets()
        self.seen = PodsSeen() if args.placement is not None else None
        self.rebind_requests = RebindRequests(self.cluster)
        self.watches = Watches(
            transports.new(),
            self.cluster,
            agents,
            pods_changed=[
                self.queue.pods_changed,
                *([self.seen.pods_changed] if self.seen is not None else ()),
            ],
            kinds_of_pods=self.seen is not None,
            scheduler=settings.scheduler_name,
            rebinds_changed=self.rebind_requests.changed,
            stale_seconds=STALE_SECONDS,
        )
        self.budget_watch: ListWatch[Budget] = ListWatch(
            transports.new(),
            disruption_budgets.PATH,
            {},
            disruption_budgets.read,
            self.budgets.changed,
            pace=watch_pace(STALE_SECONDS),
        )

    @property
    def watch_ages_seconds(self) -> dict[str, float]:
        """The time since each watch was last in touch with the API server, by resource."""
        of_budgets = {disruption_budgets.PLURAL: self.budget_watch.age_seconds}
        return self.watches.ages_seconds | of_budgets

    def preemption_unavailable(self) -> str | None:
        """Returns why no victims may be selected now; None if they may."""
        return stale({disruption_budgets.PLURAL: self.budget_watch}, STALE_SECONDS)


class _Leading:
    """Whether this process leads, and its Bindings, which only a leader sends."""

    def __init__(self, settings: SchedulerSettings, transports: Transports, state: _State) -> None:
        times = lease_times(settings.lease_seconds or LEASE_SECONDS)
        candidate = Candidate(os.path.join(settings.state_dir, "scheduler"))
        self.identity = candidate.identity
        self.bindings = BindingApi(
            transports.new(bind_limits(times), LIMITS.threads),
            transports.new(election.READ_LIMITS, LIMITS.threads),
            candidate.sent,
        )
        electing = transports.new(election.limits(times))
        self.in_flight = extender.RequestsInFlight()
        self.leader: Leader | None = None
        if settings.lease_seconds:
            self.leader = Leader(
                electing,
                settings.release_namespace,
                LEASE_NAME,
                self.identity,
                times=times,
                acquired=lambda: self.gate.begin(),
                unhealthy=self.in_flight.overdue,
            )
        leadership = self.leader or AlwaysLeader()
        self.label: LeaderLabel | None = None
        pod = auth.own_pod(settings.kubeconfig)
        if pod is not None:
            self.label = LeaderLabel(electing, pod, lambda: leadership.leading)

        def settled() -> None:
            candidate.keep()
            state.numbering.step()
            freeze_garbage()

        sent, self._watches = candidate.sent, state.watches
        former = FormerBindings(sent, self.bindings) if sent is not None else None
        self.gate = LeaderGate(leadership, self._watches, settled, former, self.label)

    @property
    def holder(self) -> str:
        """This process in the Lease; "" without leader election."""
        return self.identity if self.leader is not None else ""

    def leads(self) -> bool:
        """Whether this process leads and knows the cluster."""
        return self.gate.reason() is None

    def bind_unavailable(self) -> str | None:
        """Returns why no Binding may be sent now; None if one may. The other verbs change nothing,
        so they are answered also while a watch catches up."""
        return self.gate.reason() or self._watches.behind()


class _Scheduler:
    """The parts of a scheduler, connected: the extender's handlers, and what runs periodically."""

    def __init__(
        self, settings: SchedulerSettings, args: SchedulerArgs, transports: Transports
    ) -> None:
        self._state = state = _State(settings, args, transports)
        self._leading = leading = _Leading(settings, transports, state)
        self._binder = Binder(
            state.cluster, state.groups, leading.bindings, state.pod_infos, leading.bind_unavailable
        )
        self._explainer = Explainer(
            state.cluster,
            settings.scheduler_name,
            budgets=state.budgets,
            nominated=lambda info: state.queue.nominated_for_others(
                info.pod.uid, info.pod_request.priority, time.monotonic(), info.group
            ),
        )
        self.explain = endpoint.route(self._explainer, leading.gate.reason, leading.holder)
        self._viewed = Viewed(self._make_page)
        self.page = page_routes(
            "cluster",
            {},
            {
                "state": lambda body: self._viewed.current().state(body),
                "detail": lambda body: self._viewed.current().detail(body),
            },
        )
        expiry = ReservationExpiry(state.cluster, state.groups, leading.bindings)
        self._expiry = Periodic("expiry", EXPIRY_SECONDS, expiry.step)
        self._retry, self._evictor = self._for_waiting_pods(settings, transports.new())
        self._corrections = Corrections(transports.new(), state.cluster, leading.leads)
        self._rebinds = Rebinds(
            transports.new(),
            state.cluster,
            state.rebind_requests,
            lambda: leading.bind_unavailable() is None,
        )
        self._recorder = Recorder(
            transports.new(), CONTROLLER, election.host_of(leading.identity), "Scheduling"
        )
        self._periodic = list(self._periodic_steps(transports))
        if state.seen is not None and args.placement is not None:
            updates = PlacementUpdates(
                transports.new(),
                settings.release_namespace,
                state.cluster,
                state.seen,
                state.rules,
                args.placement,
                lambda: state.watches.synced,
                leading.leads,
            )
            self._periodic.append(updates.periodic)
        self.routes = self._routes(settings, placing=args.placement is not None)

    def _for_waiting_pods(
        self, settings: SchedulerSettings, transport: Transport
    ) -> tuple[Retry, Evictor | None]:
        """The retries of unschedulable pods, and the evictions for them if they are enabled."""
        state, leads = self._state, self._leading.leads
        retry = Retry(
            transport,
            state.queue,
            state.cache,
            leads,
            lambda: unschedulable_pods(transport, state.cluster, settings.scheduler_name),
        )
        if not settings.evict:
            return retry, None
        snapshots = NodeSnapshots(state.cluster)
        return retry, Evictor(transport, snapshots, state.queue, state.budgets, leads)

    def _periodic_steps(self, transports: Transports) -> Iterator[Periodic]:
        state, leads = self._state, self._leading.leads
        conditions = ClaimConditions(transports.new(), state.cluster, leads)
        no_room = NoRoomEvents(
            state.queue, self._explainer, self._recorder, leads, evicts=self._evictor is not None
        )
        yield Periodic("retry", RETRY_SECONDS, self._retry.step)
        yield Periodic("states", NUMBERING_SECONDS, self._number_states)
        if self._evictor is not None:
            yield Periodic("evict", EVICT_SECONDS, self._evictor.step)
        yield Periodic("corrections", CORRECTION_SECONDS, self._corrections.step)
        yield Periodic("conditions", CORRECTION_SECONDS, conditions.step)
        yield Periodic("rebinds", REBIND_SECONDS, self._rebinds.step)
        yield Periodic("events", EVENT_SECONDS, no_room.step)

    def _number_states(self) -> None:
        if self._state.watches.synced:
            self._state.numbering.step()
        self._viewed.forget()

    def _routes(self, settings: SchedulerSettings, *, placing: bool) -> dict[str, Route]:
        """Those of the extender."""
        state, gate, evictor = self._state, self._leading.gate, self._evictor
        handlers = ExtenderHandlers(
            state.cluster,
            state.groups,
            self._binder.bind,
            state.pod_infos,
            state.cache,
            Preemption(state.cluster, state.groups, state.queue, state.budgets),
            best_only=settings.best_node_only,
            placing=placing,
        )
        preempting = evictor.pause if evictor else None
        queueing = QueueingExtender(
            handlers, state.pod_infos, state.cluster, state.queue, preempting=preempting
        )
        metrics = extender.metrics()
        metrics.follow(self._values)
        unavailable = {"preempt": state.preemption_unavailable}
        return extender.routes(
            queueing, gate.reason, metrics, unavailable, gate.unready, self._leading.in_flight
        )

    def _values(self) -> SchedulerValues:
        state = self._state
        return SchedulerValues(
            deciding=self._leading.leads(),
            nodes=len(state.cluster.nodes()),
            unable_nodes=state.cluster.unable_nodes() if state.watches.synced else {},
            untried=state.cluster.untried,
            lost_races=self._binder.lost_races,
            waiting=len(state.queue),
            retried=self._retry.retried,
            evicted=self._evictor.evicted if self._evictor else 0,
            corrected=self._corrections.written,
            uncorrected=self._corrections.failed,
            misreported=self._corrections.open,
            watch_ages_seconds=state.watch_ages_seconds,
            rebinds=self._rebinds.values,
        )

    def _make_page(self) -> ClusterPage:
        from agent.scheduler.page import ClusterPage  # loaded for the first viewer

        state, leading = self._state, self._leading
        return ClusterPage(
            state.cluster,
            state.queue,
            self._binder.decisions,
            self._explainer,
            leading.gate.reason,
            leading.holder,
        )

    def start(self, closing: ExitStack) -> None:
        """Registers the stops in reverse order: first the parts that write to pods, then the leader
        election, then the label of its pod."""
        closing.callback(self._recorder.close)
        state, leading = self._state, self._leading
        if leading.leader is not None:
            # Before the watches: their first lists then contain all pods bound before this term.
            leading.leader.start()
        for part in (state.watches, self._expiry, leading.gate):
            part.start()
            closing.callback(part.stop)
        if leading.label is not None:
            leading.label.start()
            closing.callback(leading.label.stop)
        if leading.leader is not None:
            closing.callback(leading.leader.stop)
        state.budget_watch.start()
        closing.callback(state.budget_watch.stop)
        for each in self._periodic:
            each.start()
            closing.callback(each.stop)


def extender_limits(settings: SchedulerSettings) -> ServerLimits:
    """With a client CA, `new_each_second` limits only handshakes without an accepted certificate,
    so never those of kube-scheduler."""
    if not settings.client_ca_file:
        return LIMITS
    connections = msgspec.structs.replace(
        LIMITS.connections, new_each_second=HANDSHAKES_EACH_SECOND
    )
    return msgspec.structs.replace(LIMITS, connections=connections)


def servers(
    settings: SchedulerSettings, routes: Mapping[str, Route], user_routes: Mapping[str, Route]
) -> list[HttpServer]:
    """Returns the server of the extender and, if configured, that of the pages. `user_routes`: the
    routes of explanations and of the page. Raises CertificateError and SettingsError."""
    certificate = None
    if settings.tls_dir:
        files = certificates.in_folder(settings.tls_dir)
        certificate = CertificateFiles(*files, settings.client_ca_file)
    elif settings.client_ca_file:
        raise SettingsError("client-ca-file: requires tls-dir")
    names = split_names(settings.client_names)
    if names and not settings.client_ca_file:
        raise SettingsError("client-names: requires client-ca-file")
    node = node_addresses(settings.node_addresses)
    limits = extender_limits(settings)
    address = with_port(settings.https, EXTENDER_PORT)
    found = [HttpServer(address, routes, limits, node, certificate, names)]
    if settings.http:
        pages = {**{path: routes[path] for path in _STATUS_PATHS}, **user_routes}
        address = with_port(settings.http, SCHEDULER_PORT)
        found.append(HttpServer(address, pages, PAGE_LIMITS, node))
    return found
