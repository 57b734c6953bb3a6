"""The proxy's process: one epoll loop that relays, hooks, notifies the agent and serves metrics."""

from __future__ import annotations

import logging
import os
import socket

from agent.hooks.agent_link import Notifier, SnapshotFile
from agent.hooks.cpuset import Grants
from agent.host import frontendlock, malloc
from agent.host.ending import Ending
from agent.host.files import boot_id
from agent.host.loop import Loop
from agent.host.sdnotify import ServiceManager
from agent.model import failurepolicy
from agent.model.settings import options
from agent.model.settings.frontends import ProxySettings
from agent.proxy import metrics
from agent.proxy.gate import CpusetGate
from agent.proxy.metrics import Latencies
from agent.relay.server import RelayServer
from agent.telemetry.page import serve_pages

log = logging.getLogger(__name__)


def run(settings: ProxySettings, listening: socket.socket) -> None:
    """Until SIGTERM or SIGINT, and then until the calls under way have ended, a signal comes again,
    or `drain-seconds` are over; `listening` stays its giver's. Raises LockedError while an NRI
    plugin is on, OSError when the state folder can't be written."""
    lock = frontendlock.for_relay(settings.state_dir)
    runtime = options.socket_path(settings.runtime_endpoint)
    pages_at = options.host_port(settings.proxy_http) if settings.proxy_http else None
    malloc.return_large_blocks()
    loop = Loop()
    snapshots = SnapshotFile(f"{settings.state_dir}/snapshot.json", boot_id())
    notifier = Notifier(f"{settings.state_dir}/doorbell.sock")
    policies, deadlines = failurepolicy.of(settings)
    gate = CpusetGate(
        snapshots,
        notifier,
        Grants(),
        deadlines,
        policies,
        settings.state_dir,
    )
    latencies = Latencies()
    server = RelayServer(
        loop,
        gate,
        listening,
        runtime,
        on_hook_error=_log_hook_error,
        on_fault=_log_fault,
        observe=latencies.observe,
    )
    manager = ServiceManager(os.environ)
    with Ending(loop.stop):
        log.info("proxy listens on %s for %s", listening.getsockname(), runtime)
        pages = serve_pages(
            loop, pages_at, lambda: metrics.page(server, gate, notifier, snapshots, latencies)
        )
        manager.keep_alive(loop)
        manager.ready()
        loop.run()
        manager.stopping()
        server.drain()
        loop.run_on(lambda: not server.connections, settings.drain_seconds)
        if server.connections:
            log.warning("ends with %d connections whose calls go on", server.connections)
    if pages is not None:
        pages.close()
    server.close()
    notifier.close()
    loop.close()
    lock.release()


def _log_hook_error(path: bytes, error: Exception) -> None:
    log.error("the hook of %s went wrong: %r", path.decode(errors="replace"), error)


def _log_fault(error: Exception) -> None:
    log.error("a connection is closed: %r", error, exc_info=error)
