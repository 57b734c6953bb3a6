"""The agent as a hook server of koord-runtime-proxy: socket, registration file, what it counts."""

from __future__ import annotations

import logging
import time
from typing import Final

from agent.hookserver.hooks import Hooks
from agent.host import door
from agent.host.boot import boot_id
from agent.model import failurepolicy
from agent.model import settings as options
from agent.model.settings import Settings
from agent.proxy.admission import Admission
from agent.proxy.bell import Bell
from agent.proxy.grants import Grants
from agent.proxy.snapshots import SnapshotFile
from agent.runtime.grpcserver import GrpcServer
from agent.runtime.koordinator import messages, registration
from agent.runtime.koordinator.hookserver import hook_server
from agent.runtime.koordinator.registration import Registration
from agent.runtime.koordinator.service import HookService
from agent.telemetry.plain import Metric, render

log = logging.getLogger(__name__)

_DOOR_SECONDS: Final = 3.0
"""How long a proxy or plugin of ours may take to end."""
_GRACE_SECONDS: Final = 2.0


class HookDoor:
    """Asks the same admission as relay and NRI plugin, beside the agent's rounds. `heard_seconds`:
    how long koord-runtime-proxy may take to see that our file names no hook any more."""

    def __init__(self, settings: Settings, heard_seconds: float = 0.3) -> None:
        """Raises SettingsError, LockedError while another door of ours is on, OSError."""
        path = options.socket_path(settings.hook_server_socket)
        self._registration = Registration(
            settings.hook_server_registration_dir,
            path,
            settings.hook_server_failure_policy,
            registration.hooks(settings.hook_server_hooks),
        )
        policies, deadlines = failurepolicy.of(settings)
        if settings.cpu_policy == "dynamic":
            log.warning("no container is told its CPUs: Koordinator's hooks can't add a mount")
        self._lock = door.for_hook_server(settings.state_dir, _DOOR_SECONDS)
        snapshots = SnapshotFile(f"{settings.state_dir}/snapshot.json", boot_id())
        self._bell = Bell(f"{settings.state_dir}/doorbell.sock")
        admission = Admission(
            snapshots, self._bell, Grants(), policies, settings.state_dir, messages.SAYS
        )
        self._outcomes = admission.outcomes
        self._service = HookService(Hooks(admission, deadlines, snapshots))
        self._path = path
        self._heard_seconds = heard_seconds
        self._server: GrpcServer | None = None

    def start(self) -> None:
        """Listens, then registers. Raises OSError."""
        self._server = hook_server(self._path, self._service)
        self._server.start()
        self._registration.write()
        for name in self._registration.others():
            log.warning("%s registers hooks of ours too: only one of us is asked", name)
        log.info("hook server listens on %s", self._path)

    def page(self) -> str:
        """What it counts, as text for a scrape."""
        service, outcomes = self._service, self._outcomes
        return render(
            [
                Metric(
                    "topolet_hook_server_calls_total",
                    "counter",
                    "Calls of koord-runtime-proxy, by hook.",
                    {(hook,): service.asked[hook] for hook in service.hooks},
                    ("hook",),
                ),
                Metric(
                    "topolet_hook_server_errors_total",
                    "counter",
                    "Faults of a hook.",
                    {(hook,): service.errors[hook] for hook in service.hooks},
                    ("hook",),
                ),
                Metric(
                    "topolet_hook_server_held",
                    "gauge",
                    "Calls that wait for a decision now.",
                    {(): service.held},
                ),
                Metric(
                    "topolet_hook_server_failed_open_total",
                    "counter",
                    "Calls that went on though their hook could not do its work, and why.",
                    dict(outcomes.failed_open),
                    ("hook", "qos", "reason"),
                ),
                Metric(
                    "topolet_hook_server_failed_total",
                    "counter",
                    "Calls that failed because their hook could not do its work, and why.",
                    dict(outcomes.failed),
                    ("hook", "qos", "reason"),
                ),
            ]
        )

    def close(self) -> None:
        """Leaves neither file nor socket."""
        try:
            self._registration.withdraw()
            if self._server is not None:
                time.sleep(self._heard_seconds)
                self._server.stop(_GRACE_SECONDS)
            self._registration.remove()
        except OSError as error:
            log.error("hook server: the registration stays: %s", error)
        self._bell.close()
        self._lock.release()
