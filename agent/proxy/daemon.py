"""The proxy's process: one epoll loop that relays, hooks, notifies the agent and serves metrics;
and the file at which clients find it. Others can remove or replace that file, which the connections
that are open do not show: only a kubelet that restarts fails then."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import AssumedContainers
from agent.hooks.requests import DeviceFields, Outcomes
from agent.host import locks
from agent.host.daemon import Ending, ServiceManager, return_large_blocks
from agent.host.files import boot_id
from agent.host.listener import Listener, ListenError
from agent.host.log_once import CountedWarnings, Problem
from agent.host.loop import Loop
from agent.http.peers import node_addresses
from agent.model import notifications, snapshot
from agent.model.settings import frontends, options
from agent.model.settings.frontends import PROXY_PORT, ProxySettings
from agent.proxy.gate import CpusetGate
from agent.relay.server import RelayServer
from agent.telemetry.audit import Trail
from agent.telemetry.exposition import (
    BUILD_INFO,
    Declarations,
    Histogram,
    Histograms,
    Metric,
    render,
    single,
)
from agent.telemetry.frontend_metrics import FrontendMetrics, serve_pages

CHECK_SECONDS: Final = 5.0


class OwnSocket:
    """Checks the file, and makes it again if the proxy itself made it."""

    def __init__(self, path: str, listener: Listener | None) -> None:
        """`listener` None: the service manager made the socket, and is the only one that can make
        it again."""
        self.path = path
        self._listener = listener
        self._own = _identity(path)
        self._problem = Problem(log, "", logging.ERROR)
        self.recreated = 0

    def lost(self) -> str:
        """Why clients don't find the proxy, with what helps; "" if they do."""
        present = _identity(self.path)
        if present is not None and present == self._own:
            return ""
        what = "does not exist" if present is None else "is not the proxy's"
        if self._listener is None:
            return f"{self.path} {what}: systemctl restart topolet-proxy.socket makes it again"
        return f"{self.path} {what}: the proxy makes it again as soon as the path is free"

    def check(self, listen_on: Callable[[socket.socket], None]) -> None:
        """Logs a lost file. `listen_on` gets the new socket if it was made again."""
        problem = self.lost()
        if problem and self._listener is not None and _identity(self.path) is None:
            try:
                former = self._listener.bind_again()
            except ListenError as error:
                problem = str(error)
            else:
                listen_on(self._listener.socket)
                former.close()
                self._own, problem = _identity(self.path), ""
                self.recreated += 1
                log.warning("%s did not exist: the proxy made it again", self.path)
        if problem:
            self._problem.report(problem)
        elif self._problem.clear():
            log.info("clients find the proxy at %s again", self.path)


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode; None without such a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


log = logging.getLogger(__name__)
_TOTAL_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600,
)  # fmt: skip
_SHARE_SECONDS: Final = (
    0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 0.5, 1, 5,
)  # fmt: skip
_UNREACHABLE_SECONDS: Final = 60.0
_PROXY: Final = Declarations("topolet_proxy")
_READY: Final = _PROXY.gauge("ready", "1 while /readyz answers 200, else 0.")
_SOCKET_LOST: Final = _PROXY.gauge(
    "socket_lost", "1 while the file of the proxy's socket is removed or replaced, else 0."
)
_SOCKET_RECREATED: Final = _PROXY.counter(
    "socket_recreated", "Times the proxy made the removed file of its socket again."
)
_CONNECTIONS: Final = _PROXY.gauge("connections", "Open connections of clients.")
_UNREACHABLE: Final = _PROXY.counter(
    "runtime_unreachable", "Connections closed because the runtime did not answer."
)
_FAULTS: Final = _PROXY.counter("connection_errors", "Connections closed by an internal error.")
_MALFORMED: Final = _PROXY.counter(
    "malformed_connections", "Connections that did not speak HTTP/2."
)
_IN_FLIGHT: Final = _PROXY.gauge("calls_in_flight", "Calls in progress, by method.", "method")
_CALL_SECONDS: Final = _PROXY.histogram(
    "call_duration_seconds", "Time of a call from request to the end of the reply.", "method"
)
_OVERHEAD_SECONDS: Final = _PROXY.histogram(
    "call_overhead_seconds",
    "Part of a call's time that the proxy took, with the wait for the agent.",
    "method",
)
_HOOKED: Final = _PROXY.counter("hooked_calls", "Calls that a hook handled.")
_CHANGED: Final = _PROXY.counter("changed_calls", "Calls whose request was changed.")
_REFUSED: Final = _PROXY.counter("refused_calls", "Calls that were answered with an error.")
_HELD: Final = _PROXY.gauge("waiting_calls", "Calls that wait for the agent.")
_HELD_BYTES: Final = _PROXY.gauge(
    "reserved_bytes", "Memory reserved for the requests of calls in progress."
)
_NO_ROOM: Final = _PROXY.counter(
    "memory_refused_calls", "Calls refused because other requests held all memory."
)
_HOOK_ERRORS: Final = _PROXY.counter("hook_errors", "Internal errors of a hook.")
_SHARED: Final = FrontendMetrics("proxy", _PROXY)
DECLARED: Final = (*_PROXY.all, BUILD_INFO)
"""All metrics of the proxy."""
DRAIN_SECONDS: Final = 5.0
"""The longest wait for calls in progress at the end: the kubelet repeats a call that is cut off."""


def run(settings: ProxySettings, served: Listener | socket.socket) -> None:
    """Runs until SIGTERM or SIGINT, and then until the calls in progress have ended, another signal
    comes, or DRAIN_SECONDS are over. `served`: a listening socket, which the caller closes; one
    without a Listener belongs to the service manager. Raises LockedError while an NRI plugin runs,
    OSError when the state folder can't be written."""
    listener = served if isinstance(served, Listener) else None
    listening = served.socket if isinstance(served, Listener) else served
    own = OwnSocket(listener.path if listener else listening.getsockname(), listener)
    lock = locks.lock_for_relay(settings.state_dir)
    runtime = options.socket_path(settings.runtime_endpoint)
    pages_at = options.pages_address(settings.http, PROXY_PORT)
    node = node_addresses(settings.node_addresses)
    return_large_blocks()
    loop = Loop()
    snapshots = SnapshotFile(f"{settings.state_dir}/{snapshot.FILE}", boot_id())
    notifier = Notifier(f"{settings.state_dir}/{notifications.SOCKET}", lock.session())
    policies, deadlines = frontends.failure_policies(settings)
    assumed = AssumedContainers(lock.has_others, was_cut_off=lock.was_cut_off)
    trail = Trail(settings.state_dir, "proxy")
    admission = Admission(
        snapshots,
        notifier,
        assumed,
        policies,
        settings.state_dir,
        DeviceFields(),
        trail.append,
    )
    latencies = Latencies()
    unreachable = Unreachable(runtime)
    server = RelayServer(
        loop,
        CpusetGate(admission, deadlines),
        listening,
        runtime,
        on_hook_error=_log_hook_error,
        on_fault=_log_fault,
        on_unreachable=unreachable.report,
        observe=latencies.observe,
    )

    def problem() -> str:
        return own.lost() or unready(runtime, accepting=server.accepting)

    def check_socket() -> None:
        own.check(server.listen_on)
        loop.after(CHECK_SECONDS, check_socket)

    manager = ServiceManager(os.environ)
    with Ending(loop.stop):
        log.info("proxy listens on %s for the runtime at %s", own.path, runtime)
        unreachable.check()
        check_socket()
        pages = serve_pages(
            loop,
            pages_at,
            node,
            lambda: metrics_page(
                server, admission.outcomes, notifier, snapshots, latencies, own, problem()
            ),
            problem,
        )
        manager.keep_alive(loop)
        # The agent finds now that the session of a killed proxy has ended.
        admission.report_change()
        manager.ready()
        loop.run()
        manager.stopping()
        server.drain()
        loop.run_on(lambda: not server.connections, DRAIN_SECONDS)
        if server.connections:
            log.warning("ends while calls are in progress on %d connections", server.connections)
        cut_off = assumed.in_progress
    if pages is not None:
        pages.close()
    server.close()
    notifier.close()
    trail.close()
    loop.close()
    lock.release(cut_off=cut_off)


def unready(runtime: str, *, accepting: bool) -> str:
    """Why the proxy can't serve a kubelet; empty if it can. Does not wait for the runtime: a
    runtime whose queue of new connections is full counts as one that does not answer."""
    if not accepting:
        return "the proxy accepts no connections"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(runtime)
        except OSError as error:
            return f"the runtime does not answer at {runtime}: {error.strerror}"
    return ""


class Unreachable:
    """Logs that the runtime does not answer, at most once a minute."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self._warnings = CountedWarnings(log, _UNREACHABLE_SECONDS)
        self._counts: Counter[tuple[str, ...]] = Counter()

    def check(self) -> None:
        """Reports a runtime whose socket does not exist, before a client calls it."""
        if not os.path.exists(self._runtime):
            self.report()

    def report(self) -> None:
        text = f"the runtime does not answer at {self._runtime}: calls end with UNAVAILABLE"
        self._warnings.add(self._counts, (self._runtime,), text)


def _log_hook_error(path: bytes, error: Exception) -> None:
    log.error("the hook of %s failed: %r", path.decode(errors="replace"), error)


def _log_fault(error: Exception) -> None:
    log.error("a connection is closed: %r", error, exc_info=error)


def metrics_page(
    server: RelayServer,
    outcomes: Outcomes,
    notifier: Notifier,
    snapshots: SnapshotFile,
    latencies: Latencies,
    own: OwnSocket,
    problem: str = "",
) -> str:
    """The metrics page. `problem`: why the proxy is not ready; empty if it is."""
    server.meter.settle()
    stats = server.stats
    in_flight: dict[tuple[str, ...], float] = {
        _method_label(path): number for path, number in server.meter.in_flight.items()
    }
    return render(
        [
            single(_READY, int(not problem)),
            single(_SOCKET_LOST, int(bool(own.lost()))),
            single(_SOCKET_RECREATED, own.recreated),
            single(_CONNECTIONS, server.connections),
            single(_UNREACHABLE, server.unreachable),
            single(_FAULTS, server.faults),
            single(_MALFORMED, stats.malformed),
            Metric(_IN_FLIGHT, in_flight),
            *latencies.metrics(),
            single(_HOOKED, stats.hooked),
            single(_CHANGED, stats.replaced),
            single(_REFUSED, stats.refused),
            single(_HELD, len(server.held)),
            single(_HELD_BYTES, server.budget.reserved_bytes),
            single(_NO_ROOM, stats.no_room),
            single(_HOOK_ERRORS, stats.hook_errors),
            *_SHARED.values(outcomes, notifier, snapshots),
        ]
    )


class Latencies:
    """Histograms of the time of calls by method, whole and in the proxy. `agent.relay.meter` bounds
    the number of methods."""

    def __init__(self) -> None:
        self._total: dict[bytes, Histogram] = {}
        self._share: dict[bytes, Histogram] = {}

    def observe(self, path: bytes, seconds: float, share_seconds: float) -> None:
        """A call has ended."""
        total = self._total.get(path)
        if total is None:
            total = self._total[path] = Histogram(_TOTAL_SECONDS)
            self._share[path] = Histogram(_SHARE_SECONDS)
        total.observe(seconds)
        self._share[path].observe(share_seconds)

    def metrics(self) -> tuple[Histograms, Histograms]:
        return (
            Histograms(_CALL_SECONDS, _named(self._total)),
            Histograms(_OVERHEAD_SECONDS, _named(self._share)),
        )


def _named(series: dict[bytes, Histogram]) -> dict[tuple[str, ...], Histogram]:
    return {_method_label(path): histogram for path, histogram in series.items()}


def _method_label(path: bytes) -> tuple[str]:
    """The label of a method's path, which a client may choose freely: it is shortened."""
    return (path.decode(errors="backslashreplace")[:128],)
