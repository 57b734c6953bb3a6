"""The scheduler as a process: the cluster from the API server, its verbs for kube-scheduler."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final

from agent.allocate.place.facts import PlaceRules
from agent.host import malloc
from agent.host.ending import Ending
from agent.host.faults import Faults
from agent.host.periodic import Periodic
from agent.kube import auth, documents
from agent.kube.answers import Limits
from agent.kube.auth import Access
from agent.kube.documents import DocumentError
from agent.kube.transport import Transport
from agent.model import schedulerargs
from agent.model.objects import ObjectError
from agent.model.policies import NumaStrategy
from agent.model.schedulerargs import Rules, SchedulerArgs
from agent.model.settings import Settings, SettingsError
from agent.scheduler import extender, leader, server
from agent.scheduler.asked import Recent
from agent.scheduler.bind import Binder
from agent.scheduler.bindings import Bindings
from agent.scheduler.certificates import CertificateFiles
from agent.scheduler.cluster import Cluster
from agent.scheduler.duty import Alone, Duty
from agent.scheduler.expiry import Expiry
from agent.scheduler.groups import Groups
from agent.scheduler.leader import Leader
from agent.scheduler.lease import Times
from agent.scheduler.readings import Agents
from agent.scheduler.routes import Route
from agent.scheduler.server import Server
from agent.scheduler.shapes import Shapes
from agent.scheduler.unplaced import Unplaced
from agent.scheduler.verbs import Deciding
from agent.scheduler.watching import Watching
from agent.telemetry.schedulermetrics import SchedulerFacts

log = logging.getLogger(__name__)

EXPIRY_SECONDS: Final = 1.0
"""Between two looks at promises whose time has passed."""
BIND_SECONDS: Final = 3.5
LOOK_LIMITS: Final = Limits(connect_seconds=0.5, read_seconds=0.5, whole_seconds=0.5)
"""Of a Binding, and of a look at what became of it: together less than kube-scheduler waits for us
(`httpTimeout`), so that it hears a reason."""

# kube-scheduler has as many binds under way as the API server takes to answer, and its loop waits
# for the filter alone.
LIMITS: Final = server.Limits(threads=64, request_seconds=5.0)

_PAGES: Final = ("/healthz", "/readyz", "/metrics")


def lease_times(lease_seconds: int) -> Times:
    """In kube-scheduler's proportions: 15, 10 and 2 seconds."""
    return Times(lease_seconds, lease_seconds * 2 / 3, lease_seconds * 2 / 15)


def bind_limits(times: Times) -> Limits:
    """A Binding under way when our time is up has ended before another may begin."""
    seconds = min(BIND_SECONDS, (times.lease_seconds - times.renew_seconds) * 0.8)
    connect, answer = seconds / 4, seconds * 3 / 4
    return Limits(connect_seconds=connect, read_seconds=answer, whole_seconds=answer)


def scheduler_args(path: str) -> SchedulerArgs:
    """Of a file, YAML or JSON. Raises SettingsError, which names file and field."""
    if not path:
        return schedulerargs.defaults(Rules.PROPOSAL)
    try:
        return schedulerargs.decode(documents.read(path))
    except (OSError, DocumentError, ObjectError) as error:
        raise SettingsError(f"scheduler-args-file {path}: {error}") from error


def place_rules(args: SchedulerArgs, shares: NumaStrategy) -> PlaceRules:
    """How every node gives what it has; `shares`: parts of GPUs."""
    return PlaceRules(
        shares=shares, scoring=args, zones=args.zones, gpu_objective=args.gpu_objective
    )


def client_names(text: str) -> frozenset[str]:
    """Between commas."""
    return frozenset(filter(None, map(str.strip, text.split(","))))


def agent_labels(text: str) -> dict[str, str]:
    """KEY=VALUE between commas. Raises SettingsError."""
    labels = {}
    for each in filter(None, map(str.strip, text.split(","))):
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise SettingsError(f"agent-selector: {each[:60]!r} is no KEY=VALUE")
        labels[key] = value
    return labels


def agents(settings: Settings) -> Agents:
    """Raises SettingsError."""
    return Agents(agent_labels(settings.agent_selector), settings.agent_namespace)


def run(settings: Settings) -> None:
    """Until SIGTERM, or until a thread fails: without one of them the others would answer from a
    state that stands still. Raises AccessError, CertificateError, FaultError, ServerError and
    SettingsError."""
    malloc.one_arena()
    args = scheduler_args(settings.scheduler_args_file)
    access = auth.access(settings.kubeconfig, settings.service_account_dir)
    ended = threading.Event()
    with Faults(ended.set), ExitStack() as closing:
        parts = _Parts(settings, args, access, closing)
        listening = doors(settings, parts.routes)
        with Ending(ended.set), ExitStack() as open_doors:
            for door in listening:
                door.start()
                open_doors.callback(door.close)
            parts.start(closing)
            log.info("extender listens on port %d", listening[0].port)
            ended.wait()
            # Requests under way end before another may lead.
            open_doors.close()
            closing.close()


def settle() -> None:
    """What is known of the cluster stays, most of it: no collection of garbage looks at it again,
    which takes half a second with 100,000 pods."""
    gc.collect()
    gc.freeze()


class _Parts:
    """What a scheduler is made of, joined."""

    def __init__(
        self, settings: Settings, args: SchedulerArgs, access: Access, closing: ExitStack
    ) -> None:
        def transport(limits: Limits | None = None, connections: int = 4) -> Transport:
            made = Transport(
                access, user_agent="topolet-scheduler", limits=limits, connections=connections
            )
            closing.callback(made.close)
            return made

        times = lease_times(settings.lease_seconds)
        binding = transport(bind_limits(times), LIMITS.threads)
        looking = transport(LOOK_LIMITS, LIMITS.threads)
        rules = place_rules(args, NumaStrategy(settings.gpu_shares))
        wanted = agents(settings)
        cluster = Cluster(rules=rules, agents=bool(wanted.labels))
        recent = Recent()
        groups = Groups(cluster, seconds=settings.group_seconds)
        shapes = Shapes(cluster)
        self._unplaced = Unplaced(
            transport(),
            cluster,
            groups,
            shapes,
            recent,
            lambda: self._duty.reason() is None,
            settings.scheduler_name,
            evict=settings.evict,
        )
        self._watching = Watching(
            transport(),
            cluster,
            wanted,
            pods_changed=self._unplaced.pods_changed,
        )
        self._leader = self._elected(settings, times, transport)
        self._duty = Duty(self._leader or Alone(), self._watching, settle)
        bindings = Bindings(binding, looking)
        expiry = Expiry(cluster, groups, bindings)
        self._expiry = Periodic("expiry", EXPIRY_SECONDS, expiry.step)
        binder = Binder(cluster, groups, bindings, recent, self._duty.reason)
        deciding = Deciding(
            cluster,
            groups,
            binder,
            recent,
            shapes,
            self._unplaced.preempt,
            best_alone=settings.best_node_only,
        )
        verbs = self._unplaced.verbs(deciding)
        counted = extender.metrics()
        counted.follow(
            lambda: SchedulerFacts(
                self._duty.reason() is None,
                len(cluster.nodes()),
                binder.lost_races,
                self._unplaced.waiting,
                self._unplaced.retried,
                self._unplaced.evicted,
            )
        )
        self.routes: dict[str, Route] = extender.routes(verbs, self._duty.reason, counted)

    def start(self, closing: ExitStack) -> None:
        """Ended in the other order: who touches pods first, then who leads."""
        led = (self._leader,) if self._leader is not None else ()
        for each in (self._watching, self._expiry, self._duty, *led, self._unplaced):
            each.start()
            closing.callback(each.stop)

    def _elected(
        self, settings: Settings, times: Times, transport: Callable[[Limits], Transport]
    ) -> Leader | None:
        if not settings.lease_name:
            return None
        return Leader(
            transport(leader.limits(times)),
            settings.lease_namespace,
            settings.lease_name,
            f"{socket.gethostname()}_{uuid.uuid4()}",
            times=times,
            acquired=lambda: self._duty.begin(),
        )


def doors(settings: Settings, routes: Mapping[str, Route]) -> list[Server]:
    """The extender's first. Raises CertificateError and SettingsError."""
    certificate = None
    if settings.tls_certificate_file:
        certificate = CertificateFiles(
            settings.tls_certificate_file, settings.tls_key_file, settings.client_ca_file
        )
    elif settings.client_ca_file:
        raise SettingsError("client-ca-file: clients show no certificate to plain HTTP")
    names = client_names(settings.client_names)
    if names and not settings.client_ca_file:
        raise SettingsError("client-names: without client-ca-file no client shows a name")
    doors = [Server(settings.extender_address, routes, certificate, LIMITS, names)]
    if settings.scheduler_http:
        pages = {path: routes[path] for path in _PAGES}
        doors.append(
            Server(settings.scheduler_http, pages, limits=server.Limits(threads=2, waiting=32))
        )
    return doors
