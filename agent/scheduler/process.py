"""Builds a scheduler from the settings and runs it."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import msgspec

from agent.host.daemon import Ending, Faults, Periodic, one_arena
from agent.http.certificates import CertificateFiles
from agent.http.limits import (
    HANDSHAKES_EACH_SECOND,
    PAGES_EACH_SECOND,
    UNCERTIFIED_EACH_SECOND,
    ConnectionLimits,
)
from agent.http.page import Viewed, page_routes
from agent.http.peers import node_addresses
from agent.http.routes import Route
from agent.http.server import HttpServer, ServerLimits
from agent.kube import auth
from agent.kube.auth import Access
from agent.kube.events import Recorder
from agent.kube.listwatch import ListWatch
from agent.kube.transport import Reachability, ResponseLimits, Transport
from agent.model.cpu.policies import Strategy
from agent.model.settings.options import SettingsError
from agent.model.settings.plugin_args import SchedulerArgs
from agent.model.settings.scheduler import SchedulerSettings, split_names
from agent.scheduler.explain import endpoint
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.extender import extender
from agent.scheduler.extender.equivalence_cache import EquivalenceCache, StateNumbering
from agent.scheduler.extender.handlers import ExtenderHandlers, QueueingExtender
from agent.scheduler.leader import election
from agent.scheduler.leader.election import AlwaysLeader, Leader, LeaseTimes
from agent.scheduler.leader.gate import LeaderGate
from agent.scheduler.leader.label import LeaderLabel, pod_of
from agent.scheduler.leader.lease_dir import Candidate, FormerBindings
from agent.scheduler.preemption import disruption_budgets
from agent.scheduler.preemption.disruption_budgets import Budget, Budgets
from agent.scheduler.preemption.evictor import Evictor
from agent.scheduler.preemption.preemption import Preemption
from agent.scheduler.preemption.victim_selection import NodeSnapshots
from agent.scheduler.rebind.controller import RebindHours, RebindRequests, Rebinds
from agent.scheduler.rules import (
    agent_selector,
    allocator_rules,
    rebind_rules,
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
BIND_SECONDS: Final = 3.5
READ_LIMITS: Final = ResponseLimits(connect_seconds=0.5, read_seconds=0.5, whole_seconds=0.5)
"""A Binding and the read of its outcome take less than kube-scheduler waits (`httpTimeout`), so
that it receives a reason."""

# kube-scheduler sends binds in parallel, without a limit of its own; its scheduling loop waits for
# the other verbs only. All its connections have one address.
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

_PAGES: Final = ("/healthz", "/readyz", "/metrics")


def lease_times(lease_seconds: int) -> LeaseTimes:
    """Returns times in the proportions of kube-scheduler: 15, 10 and 2 seconds."""
    return LeaseTimes(lease_seconds, lease_seconds * 2 / 3, lease_seconds * 2 / 15)


def bind_limits(times: LeaseTimes) -> ResponseLimits:
    """The limits of a Binding: one that is in flight when the lease expires ends before another
    candidate may lead."""
    seconds = min(BIND_SECONDS, (times.lease_seconds - times.renew_seconds) * 0.8)
    connect, answer = seconds / 4, seconds * 3 / 4
    return ResponseLimits(connect_seconds=connect, read_seconds=answer, whole_seconds=answer)


def run(settings: SchedulerSettings) -> None:
    """Runs until SIGTERM, or until a thread fails: the other threads would answer from a stale
    state. Raises AccessError, CertificateError, FaultError, HttpListenError and SettingsError."""
    one_arena()
    args = scheduler_args(settings.scheduler_args_file)
    access = auth.access(settings.kubeconfig, settings.service_account_dir)
    ended = threading.Event()
    with Faults(ended.set), ExitStack() as closing:
        parts = _Parts(settings, args, access, closing)
        listening = servers(settings, parts.routes, {endpoint.PATH: parts.explain, **parts.page})
        with Ending(ended.set), ExitStack() as open_servers:
            for each in listening:
                each.start()
                open_servers.callback(each.close)
            parts.start(closing)
            log.info("extender listens on port %d", listening[0].port)
            ended.wait()
            # Requests in flight end before another candidate may lead.
            open_servers.close()
            closing.close()


def freeze_garbage() -> None:
    """Excludes the current objects from garbage collection, which takes half a second with 100,000
    pods. Most of these objects live long."""
    gc.collect()
    gc.freeze()


class _Parts:
    """The parts of a scheduler, connected."""

    def __init__(
        self, settings: SchedulerSettings, args: SchedulerArgs, access: Access, closing: ExitStack
    ) -> None:
        reachability = Reachability()

        def transport(limits: ResponseLimits | None = None, connections: int = 4) -> Transport:
            made = Transport(
                access,
                user_agent="topolet-scheduler",
                limits=limits,
                connections=connections,
                reachability=reachability,
            )
            closing.callback(made.close)
            return made

        times = lease_times(settings.lease_seconds)
        candidate = Candidate(settings.lease_dir)
        binding = transport(bind_limits(times), LIMITS.threads)
        reading = transport(READ_LIMITS, LIMITS.threads)
        rules = allocator_rules(args, Strategy(settings.gpu_shares))
        agents = agent_selector(settings)
        cluster = SchedulerCache(rules=rules, agents=bool(agents.labels))
        pod_infos = PodInfoCache(device_resources=cluster.device_resources)
        groups = GroupReservations(cluster, seconds=settings.group_seconds)
        cache = EquivalenceCache(cluster)
        queue, budgets, writing = UnschedulableQueue(), Budgets(), transport()
        seen = PodsSeen() if args.placement is not None else None
        self._stale_seconds = settings.watch_stale_seconds
        self._budgets: ListWatch[Budget] = ListWatch(
            writing,
            disruption_budgets.PATH,
            {},
            disruption_budgets.read,
            budgets.changed,
            pace=watch_pace(self._stale_seconds),
        )
        retry = Retry(
            writing,
            queue,
            cache,
            self._leads,
            lambda: unschedulable_pods(writing, cluster, settings.scheduler_name),
        )
        evictor = None
        if settings.evict:
            evictor = Evictor(writing, NodeSnapshots(cluster), queue, budgets, self._leads)
        rebind_requests = RebindRequests(cluster)
        self._watches = Watches(
            transport(),
            cluster,
            agents,
            pods_changed=[queue.pods_changed, *([seen.pods_changed] if seen else ())],
            kinds_of_pods=seen is not None,
            rebinds_changed=rebind_requests.changed,
            stale_seconds=self._stale_seconds,
        )
        bindings = BindingApi(binding, reading, candidate.sent)
        electing = transport(election.limits(times))
        self._leader = self._leader_election(settings, times, electing, candidate.identity)
        leadership = self._leader or AlwaysLeader()
        self._label: LeaderLabel | None = None
        if settings.leader_pod:
            pod = pod_of(settings.leader_pod)
            self._label = LeaderLabel(electing, pod, lambda: leadership.leading)

        numbering = StateNumbering(cluster)

        def settled() -> None:
            candidate.keep()
            numbering.step()
            freeze_garbage()

        former = FormerBindings(candidate.sent, bindings) if candidate.sent is not None else None
        self._gate = LeaderGate(leadership, self._watches, settled, former, self._label)
        corrections = Corrections(transport(), cluster, self._leads)
        conditions = ClaimConditions(transport(), cluster, self._leads)
        expiry = ReservationExpiry(cluster, groups, bindings)
        self._expiry = Periodic("expiry", EXPIRY_SECONDS, expiry.step)
        self._periodic = [Periodic("retry", RETRY_SECONDS, retry.step)]

        def number_states() -> None:
            if self._watches.synced:
                numbering.step()
            viewed.forget()

        self._periodic.append(Periodic("states", NUMBERING_SECONDS, number_states))
        if evictor is not None:
            self._periodic.append(Periodic("evict", EVICT_SECONDS, evictor.step))
        self._periodic.append(Periodic("corrections", CORRECTION_SECONDS, corrections.step))
        self._periodic.append(Periodic("conditions", CORRECTION_SECONDS, conditions.step))
        if seen is not None and args.placement is not None:
            updates = PlacementUpdates(
                transport(),
                settings.lease_namespace,
                cluster,
                seen,
                rules,
                args.placement,
                lambda: self._watches.synced,
                self._leads,
            )
            self._periodic.append(updates.periodic)
        rebinds = Rebinds(
            transport(),
            cluster,
            rebind_requests,
            lambda: self._bind_unavailable() is None,
            rebind_rules(settings),
            RebindHours.parsed(settings.rebind_hours),
        )
        self._periodic.append(Periodic("rebinds", REBIND_SECONDS, rebinds.step))
        binder = Binder(cluster, groups, bindings, pod_infos, self._bind_unavailable)
        handlers = ExtenderHandlers(
            cluster,
            groups,
            binder.bind,
            pod_infos,
            cache,
            Preemption(cluster, groups, queue, budgets),
            best_only=settings.best_node_only,
            placing=args.placement is not None,
        )
        queueing = QueueingExtender(
            handlers, pod_infos, cluster, queue, preempting=evictor.pause if evictor else None
        )
        metrics = extender.metrics()
        metrics.follow(
            lambda: SchedulerValues(
                deciding=self._leads(),
                nodes=len(cluster.nodes()),
                lost_races=binder.lost_races,
                waiting=len(queue),
                retried=retry.retried,
                evicted=evictor.evicted if evictor else 0,
                corrected=corrections.written,
                uncorrected=corrections.failed,
                misreported=corrections.open,
                watch_ages_seconds=self._watches.ages_seconds
                | {disruption_budgets.PLURAL: self._budgets.age_seconds},
                rebinds=rebinds.values,
            )
        )
        explainer = Explainer(
            cluster,
            settings.scheduler_name,
            budgets=budgets,
            nominated=lambda info: queue.nominated_for_others(
                info.pod.uid, info.pod_request.priority, time.monotonic(), info.group
            ),
        )
        identity = candidate.identity
        holder = identity if self._leader is not None else ""
        self.explain = endpoint.route(explainer, self._gate.reason, holder)

        def make_page() -> ClusterPage:
            from agent.scheduler.page import ClusterPage  # only while somebody looks

            reason, decisions = self._gate.reason, binder.decisions
            return ClusterPage(cluster, queue, decisions, explainer, reason, holder)

        viewed = Viewed(make_page)
        self.page = page_routes(
            "cluster",
            {},
            {
                "state": lambda body: viewed.current().state(body),
                "detail": lambda body: viewed.current().detail(body),
            },
        )
        recorder = Recorder(transport(), CONTROLLER, election.host_of(identity), "Scheduling")
        closing.callback(recorder.close)
        no_room = NoRoomEvents(queue, explainer, recorder, self._leads)
        self._periodic.append(Periodic("events", EVENT_SECONDS, no_room.step))
        self.routes: dict[str, Route] = extender.routes(
            queueing,
            self._gate.reason,
            metrics,
            {"preempt": self._preemption_unavailable},
            self._gate.unready,
        )

    def start(self, closing: ExitStack) -> None:
        """Registers the stops in reverse order: first the parts that write to pods, then the leader
        election, then the label of its pod."""
        if self._leader is not None:
            # Before the watches: what they list first has all pods bound before this term.
            self._leader.start()
        for part in (self._watches, self._expiry, self._gate):
            part.start()
            closing.callback(part.stop)
        if self._label is not None:
            self._label.start()
            closing.callback(self._label.stop)
        if self._leader is not None:
            closing.callback(self._leader.stop)
        self._budgets.start()
        closing.callback(self._budgets.stop)
        for each in self._periodic:
            each.start()
            closing.callback(each.stop)

    def _leads(self) -> bool:
        """Whether this process leads and knows the cluster."""
        return self._gate.reason() is None

    def _preemption_unavailable(self) -> str | None:
        """Returns why no victims may be selected now; None if they may."""
        return stale({disruption_budgets.PLURAL: self._budgets}, self._stale_seconds)

    def _bind_unavailable(self) -> str | None:
        """Returns why no Binding may be sent now; None if one may. The other verbs change nothing,
        so they are answered also while a watch catches up."""
        return self._gate.reason() or self._watches.behind()

    def _leader_election(
        self,
        settings: SchedulerSettings,
        times: LeaseTimes,
        transport: Transport,
        identity: str,
    ) -> Leader | None:
        if not settings.lease_name:
            return None
        return Leader(
            transport,
            settings.lease_namespace,
            settings.lease_name,
            identity,
            times=times,
            acquired=lambda: self._gate.begin(),
        )


def extender_limits(settings: SchedulerSettings) -> ServerLimits:
    """With a client CA, kube-scheduler's connections do not count."""
    if not settings.client_ca_file:
        return LIMITS
    connections = msgspec.structs.replace(
        LIMITS.connections, new_each_second=HANDSHAKES_EACH_SECOND
    )
    return msgspec.structs.replace(LIMITS, connections=connections)


def servers(
    settings: SchedulerSettings, routes: Mapping[str, Route], for_people: Mapping[str, Route]
) -> list[HttpServer]:
    """Returns the extender's server as the first one. `for_people`: explanations and the page.
    Raises CertificateError and SettingsError."""
    certificate = None
    if settings.tls_certificate_file:
        certificate = CertificateFiles(
            settings.tls_certificate_file, settings.tls_key_file, settings.client_ca_file
        )
    elif settings.client_ca_file:
        raise SettingsError("client-ca-file: requires tls-certificate-file")
    names = split_names(settings.client_names)
    if names and not settings.client_ca_file:
        raise SettingsError("client-names: requires client-ca-file")
    node = node_addresses(settings.node_addresses)
    limits = extender_limits(settings)
    found = [HttpServer(settings.extender_address, routes, limits, node, certificate, names)]
    if settings.scheduler_http:
        pages = {path: routes[path] for path in _PAGES}
        if settings.explain:
            pages |= for_people
        found.append(HttpServer(settings.scheduler_http, pages, PAGE_LIMITS, node))
    return found
