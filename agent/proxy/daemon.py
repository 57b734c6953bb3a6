"""The proxy's process: one epoll loop that relays, hooks, notifies the agent and serves metrics."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from typing import Final

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import Grants
from agent.hooks.requests import DeviceFields, Outcomes
from agent.host import locks
from agent.host.daemon import Ending, ServiceManager, return_large_blocks
from agent.host.files import boot_id
from agent.host.log_once import CountedWarnings
from agent.host.loop import Loop
from agent.http.peers import node_addresses
from agent.model.settings import failure_policy, options
from agent.model.settings.frontends import ProxySettings
from agent.proxy.gate import CpusetGate
from agent.relay.server import RelayServer
from agent.telemetry.frontend_metrics import (
    Counts,
    Histogram,
    Histograms,
    Metric,
    render,
    serve_pages,
)

log = logging.getLogger(__name__)
_TOTAL_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600,
)  # fmt: skip
_SHARE_SECONDS: Final = (
    0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 0.5, 1, 5,
)  # fmt: skip
_UNREACHABLE_SECONDS: Final = 60.0
_COUNTS: Final = Counts("topolet_proxy")


def run(settings: ProxySettings, listening: socket.socket, served: str) -> None:
    """Runs until SIGTERM or SIGINT, and then until the calls in progress have ended, another signal
    comes, or `drain-seconds` are over. `served`: the path of `listening`, for the log. The caller
    closes `listening`. Raises LockedError while an NRI plugin runs, OSError when the state folder
    can't be written."""
    lock = locks.lock_for_relay(settings.state_dir)
    runtime = options.socket_path(settings.runtime_endpoint)
    pages_at = options.host_port(settings.proxy_http) if settings.proxy_http else None
    node = node_addresses(settings.node_addresses)
    return_large_blocks()
    loop = Loop()
    snapshots = SnapshotFile(f"{settings.state_dir}/snapshot.json", boot_id())
    notifier = Notifier(f"{settings.state_dir}/doorbell.sock", lock.session())
    policies, deadlines = failure_policy.failure_policies(settings)
    admission = Admission(
        snapshots, notifier, Grants(), policies, settings.state_dir, DeviceFields()
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
    manager = ServiceManager(os.environ)
    with Ending(loop.stop):
        log.info("proxy listens on %s for the runtime at %s", served, runtime)
        unreachable.check()
        pages = serve_pages(
            loop,
            pages_at,
            node,
            lambda: metrics_page(server, admission.outcomes, notifier, snapshots, latencies),
        )
        manager.keep_alive(loop)
        # The agent finds now that the session of a killed proxy has ended.
        admission.report_change()
        manager.ready()
        loop.run()
        manager.stopping()
        server.drain()
        loop.run_on(lambda: not server.connections, settings.drain_seconds)
        if server.connections:
            log.warning("ends while calls are in progress on %d connections", server.connections)
    if pages is not None:
        pages.close()
    server.close()
    notifier.close()
    loop.close()
    lock.release()


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
) -> str:
    """All series, in base units."""
    server.meter.settle()
    stats = server.stats
    return render(
        [
            _COUNTS.gauge("connections", "Client connections open now.", server.connections),
            _COUNTS.counter(
                "unreachable",
                "Connections closed because the runtime did not answer.",
                server.unreachable,
            ),
            _COUNTS.counter("faults", "Connections closed by an internal error.", server.faults),
            _COUNTS.counter("malformed", "Connections that did not speak HTTP/2.", stats.malformed),
            Metric(
                "topolet_proxy_in_flight",
                "gauge",
                "Calls in progress, by method.",
                {_method_label(path): number for path, number in server.meter.in_flight.items()},
                ("method",),
            ),
            *latencies.metrics(),
            _COUNTS.counter("hooked", "Calls that a hook handled.", stats.hooked),
            _COUNTS.counter("rewritten", "Calls whose request was changed.", stats.replaced),
            _COUNTS.counter("refused", "Calls that were answered with an error.", stats.refused),
            _COUNTS.gauge("held", "Calls that wait for the agent now.", stats.held_now),
            _COUNTS.gauge(
                "held_bytes",
                "Memory reserved for requests in progress.",
                server.budget.reserved_bytes,
            ),
            _COUNTS.counter(
                "no_room", "Calls refused because other requests held all memory.", stats.no_room
            ),
            _COUNTS.counter("hook_errors", "Internal errors of a hook.", stats.hook_errors),
            *_COUNTS.shared(outcomes, notifier, snapshots),
        ]
    )


class Latencies:
    """As many series as methods were called (agent.relay.meter bounds them)."""

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
            Histograms(
                "topolet_proxy_call_seconds",
                "Calls from request to the end of the reply.",
                _named(self._total),
                ("method",),
            ),
            Histograms(
                "topolet_proxy_share_seconds",
                "Part of a call's time that the proxy took, with the wait for the agent.",
                _named(self._share),
                ("method",),
            ),
        )


def _named(series: dict[bytes, Histogram]) -> dict[tuple[str, ...], Histogram]:
    return {_method_label(path): histogram for path, histogram in series.items()}


def _method_label(path: bytes) -> tuple[str]:
    """A path of a client's making as a label's value."""
    return (path.decode(errors="backslashreplace")[:128],)
