"""The agent as a hook server of koord-runtime-proxy: socket, registration file, metrics. Importing
this loads grpcio."""

from __future__ import annotations

import logging
import time
from typing import Final

import grpc

from agent.hooks.admission import Admission
from agent.hooks.agent_link import Notifier, SnapshotFile
from agent.hooks.cpuset import Grants
from agent.host import locks
from agent.host.files import boot_id
from agent.koordinator import messages, registration
from agent.koordinator.registration import Registration
from agent.koordinator.service import SERVICE, HookService, KoordinatorHooks
from agent.model import failurepolicy
from agent.model.settings import options
from agent.model.settings.agent import AgentSettings
from agent.model.verdict import Refuse
from agent.rpc.grpc import RpcError
from agent.rpc.server import GrpcServer, Method
from agent.telemetry.frontend_metrics import Metric, render

log = logging.getLogger(__name__)

_THREADS: Final = 128
"""A held call keeps one, and others must not wait for it."""
_MOST_CALLS: Final = 256
_MOST_MESSAGE_BYTES: Final = 8 << 20
"""koord-runtime-proxy takes requests of 4 MiB, and adds what it knows of the pod."""
_LOCK_SECONDS: Final = 3.0
"""How long a proxy or plugin of ours may take to end."""
_GRACE_SECONDS: Final = 2.0


class HookServer:
    """Uses the same admission as relay and NRI plugin, in the agent's process. `heard_seconds`: the
    time that koord-runtime-proxy may take to notice a file without hooks."""

    def __init__(self, settings: AgentSettings, heard_seconds: float = 0.3) -> None:
        """Raises SettingsError, LockedError while another frontend of ours runs, OSError."""
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
        self._lock = locks.lock_for_hook_server(settings.state_dir, _LOCK_SECONDS)
        snapshots = SnapshotFile(f"{settings.state_dir}/snapshot.json", boot_id())
        self._notifier = Notifier(f"{settings.state_dir}/doorbell.sock")
        admission = Admission(
            snapshots, self._notifier, Grants(), policies, settings.state_dir, messages.SETTABLE
        )
        self._outcomes = admission.outcomes
        self._service = HookService(KoordinatorHooks(admission, deadlines, snapshots))
        self._path = path
        self._heard_seconds = heard_seconds
        self._server: GrpcServer | None = None

    def start(self) -> None:
        """Listens, then registers. Raises OSError."""
        self._server = _grpc_server(self._path, self._service)
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
        self._notifier.close()
        self._lock.release()


def _grpc_server(path: str, service: HookService) -> GrpcServer:
    """Raises OSError."""
    methods = {f"{hook}Hook": _method(service, hook) for hook in service.hooks}
    return GrpcServer(path, SERVICE, methods, _THREADS, _MOST_CALLS, _MOST_MESSAGE_BYTES)


def _method(service: HookService, hook: str) -> Method:
    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        answer = service.answer(hook, message, context)
        if isinstance(answer, Refuse):
            raise RpcError(answer.code, answer.message)
        return answer

    return answer
