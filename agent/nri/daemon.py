"""The NRI plugin's process: one epoll loop that answers the runtime, updates it after changes of
the agent, notifies the agent and serves metrics. A plugin that the runtime starts gets its socket,
name and index from the runtime."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Final

import msgspec

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import AssumedContainers
from agent.hooks.requests import Outcomes
from agent.host import locks
from agent.host.daemon import Ending, ServiceManager, return_large_blocks
from agent.host.files import boot_id
from agent.host.loop import Loop
from agent.http.peers import node_addresses
from agent.model import notifications, snapshot
from agent.model.settings import frontends, options
from agent.model.settings.frontends import NRI_PORT, NriSettings
from agent.nri import messages
from agent.nri.conflicts import Conflicts, connected_processes
from agent.nri.containers import Containers, Updater
from agent.nri.hooks import NriHooks
from agent.nri.link import PluginLink
from agent.telemetry.audit import Trail
from agent.telemetry.exposition import BUILD_INFO, Declarations, Metric, render, single
from agent.telemetry.frontend_metrics import FrontendMetrics, serve_pages

LOCK_SECONDS = 3.0
"""How long another Topolet plugin may take to end: the runtime waits 5 s for a registration."""
_NAMES = ("NRI_PLUGIN_SOCKET", "NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX")
_NRI: Final = Declarations("topolet_nri")
_READY: Final = _NRI.gauge(
    "ready", "1 while /readyz answers 200: the runtime calls the plugin for each container."
)
_SESSIONS: Final = _NRI.counter("sessions", "Sessions with the runtime that began.")
_FAILED_SESSIONS: Final = _NRI.counter(
    "failed_sessions", "Sessions that ended before the plugin did."
)
_CALLS: Final = _NRI.counter("calls", "Calls of the runtime, by method.", "method")
_HOOK_ERRORS: Final = _NRI.counter("hook_errors", "Internal errors of a hook.", "method")
_ADJUSTED: Final = _NRI.counter(
    "adjusted_containers", "Containers whose creation or update was adjusted."
)
_REFUSED: Final = _NRI.counter("refused_calls", "Calls that were answered with an error.")
_HELD: Final = _NRI.gauge("waiting_calls", "Calls that wait for the agent.")
_SLOWEST: Final = _NRI.gauge("longest_call_seconds", "Time of the longest call so far.")
_CONTAINERS: Final = _NRI.gauge("containers", "Containers that the runtime has.")
_UPDATES: Final = _NRI.counter("updates", "Updates of containers after a new snapshot.")
_FAILED_UPDATES: Final = _NRI.counter("failed_updates", "Updates that failed.")
_UNVERIFIED: Final = _NRI.counter(
    "unverified_updates",
    "Updates that the runtime accepted, while a process still runs on other CPUs.",
)
_CONFLICTS: Final = _NRI.counter(
    "conflicts",
    "Signs of another writer of cpusets, by kind and possible writer.",
    "kind",
    "plugin",
)
_SHARED: Final = FrontendMetrics("nri", _NRI)
DECLARED: Final = (*_NRI.all, BUILD_INFO)
"""All metrics of the NRI plugin."""
NAME: Final = "topolet"
"""The name with which a plugin registers that the runtime did not start."""
INDEX: Final = "10"
"""The runtime calls its plugins in the order of their indices. Other plugins set other fields, so
any index is right."""

log = logging.getLogger(__name__)


def run(settings: NriSettings, launched: Launched | None) -> None:
    """Runs until SIGTERM or SIGINT, or, when the runtime started this process, until it closes the
    socket. Raises LockedError while a relay or another plugin runs, SettingsError, OSError when the
    state folder can't be written."""
    path = options.socket_path(settings.nri_socket)
    pages_at = options.pages_address(settings.http, NRI_PORT)
    node = node_addresses(settings.node_addresses)
    policies, deadlines = frontends.failure_policies(settings)
    lock = locks.lock_for_plugin(settings.state_dir, LOCK_SECONDS)
    name = launched.name if launched else NAME
    index = launched.index if launched else INDEX
    return_large_blocks()
    loop = Loop()
    snapshots = SnapshotFile(f"{settings.state_dir}/{snapshot.FILE}", boot_id())
    notifier = Notifier(f"{settings.state_dir}/{notifications.SOCKET}")
    assumed, containers = AssumedContainers(), Containers()
    trail = Trail(settings.state_dir, "nri")
    admission = Admission(
        snapshots,
        notifier,
        assumed,
        policies,
        settings.state_dir,
        messages.SETTABLE,
        trail.append,
    )
    conflicts = Conflicts(f"{index}-{name}", lambda: connected_processes(path))
    hooks = NriHooks(admission, deadlines, snapshots, containers, conflicts)
    link = PluginLink(
        loop,
        path,
        name,
        index,
        hooks,
        connected=launched.socket if launched else None,
        on_end=loop.stop if launched else None,
    )
    updater = Updater(loop, link, snapshots, containers, assumed, notifier, conflicts)
    manager = ServiceManager(os.environ)
    with Ending(loop.stop):
        log.info("plugin %s-%s for %s", index, name, path)
        pages = serve_pages(
            loop,
            pages_at,
            node,
            lambda: metrics_page(
                link, admission.outcomes, updater, conflicts, containers, notifier, snapshots
            ),
            lambda: unready(link),
        )
        manager.keep_alive(loop)
        link.start()
        updater.start()
        manager.ready()
        loop.run()
        manager.stopping()
    link.close()
    if pages is not None:
        pages.close()
    notifier.close()
    trail.close()
    loop.close()
    lock.release()


def unready(link: PluginLink) -> str:
    """Why the plugin changes no container; empty if it is registered with a runtime that has
    reported its containers."""
    if link.ready:
        return ""
    return ": ".join(filter(None, ("the plugin is not registered with the runtime", link.problem)))


def metrics_page(
    link: PluginLink,
    outcomes: Outcomes,
    updater: Updater,
    conflicts: Conflicts,
    containers: Containers,
    notifier: Notifier,
    snapshots: SnapshotFile,
) -> str:
    """The metrics page."""
    stats = link.stats
    return render(
        [
            single(_READY, int(link.ready)),
            single(_SESSIONS, link.sessions),
            single(_FAILED_SESSIONS, link.failed_sessions),
            Metric(_CALLS, {(method,): number for method, number in stats.calls.items()}),
            Metric(_HOOK_ERRORS, {(method,): number for method, number in stats.errors.items()}),
            single(_ADJUSTED, stats.adjusted),
            single(_REFUSED, stats.refused),
            single(_HELD, len(link.held)),
            single(_SLOWEST, stats.slowest_seconds),
            single(_CONTAINERS, len(containers)),
            single(_UPDATES, updater.updates),
            single(_FAILED_UPDATES, updater.failed),
            single(_UNVERIFIED, updater.unverified),
            Metric(_CONFLICTS, dict(conflicts.found)),
            *_SHARED.values(outcomes, notifier, snapshots),
        ]
    )


class LaunchError(Exception):
    """The descriptor from the runtime is not a socket."""


class Launched(msgspec.Struct, frozen=True):
    """The runtime's parameters for a plugin that it starts. `socket` is connected."""

    socket: socket.socket
    name: str
    index: str


def launched(environment: MutableMapping[str, str]) -> Launched | None:
    """Reads and removes the variables that a runtime sets for a plugin; None if the runtime did not
    start this process. Raises LaunchError."""
    number, name, index = (environment.pop(each, "") for each in _NAMES)
    if not number:
        return None
    try:
        connected = socket.socket(fileno=int(number))
        os.set_inheritable(connected.fileno(), False)
    except (OSError, ValueError) as error:
        raise LaunchError(f"NRI_PLUGIN_SOCKET={number} is not a socket: {error}") from None
    return Launched(connected, name, index)
