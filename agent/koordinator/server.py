"""The agent as a hook server of koord-runtime-proxy: its socket, its registration and its metrics.
Importing this loads grpcio.

The registration is a file in a folder that koord-runtime-proxy watches. koord-runtime-proxy reads a
new file at once, and identifies it by its inode. While it reads a new file, and as long as it can't
parse one, every hooked call ends its process. So a file is complete when it appears, a correct file
is not touched, and a file is changed in place where possible. koord-runtime-proxy looks for removed
files once a minute only, so the hooks are removed from a file before the file is removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import AssumedContainers
from agent.host import files, locks
from agent.host.files import boot_id
from agent.koordinator import service
from agent.koordinator.service import SERVICE, HookService, KoordinatorHooks
from agent.model import bounds, notifications, snapshot
from agent.model.bounds import JsonError
from agent.model.settings import frontends, options
from agent.model.settings.agent import AgentSettings
from agent.model.settings.frontends import CREATE, FailurePolicies
from agent.model.verdict import Refuse
from agent.rpc.grpc import RpcError
from agent.rpc.server import GrpcServer, Method, ServicerContext
from agent.telemetry.audit import Trail
from agent.telemetry.exposition import Declarations, Metric, render, single
from agent.telemetry.frontend_metrics import HookFailures

HOOKS: Final = (
    "PreRunPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PreUpdateContainerResources",
    "PostStopContainer",
    "PostStopPodSandbox",
)
REGISTERED: Final = tuple(hook for hook in HOOKS if hook != "PostStartContainer")
"""The hooks that koord-runtime-proxy calls. Nothing is to be done after a start."""
REGISTRATION_DIR: Final = "/etc/runtime/hookserver.d"
"""Where koord-runtime-proxy finds hook servers."""
FILE: Final = "topolet.json"
_THREADS: Final = 128
"""Each held call occupies one; other calls must not wait for it."""
_MAX_CALLS: Final = 256
_MAX_MESSAGE_BYTES: Final = 8 << 20
"""koord-runtime-proxy accepts requests of 4 MiB, and adds the pod's labels and annotations."""
LOCK_SECONDS: Final = 3.0
"""How long to wait for a Topolet proxy or plugin to end."""
_GRACE_SECONDS: Final = 2.0
_HOOK_SERVER: Final = Declarations("topolet_hook_server")
_CALLS: Final = _HOOK_SERVER.counter("calls", "Calls of koord-runtime-proxy, by hook.", "hook")
_HOOK_ERRORS: Final = _HOOK_SERVER.counter("hook_errors", "Internal errors of a hook.", "hook")
_HELD: Final = _HOOK_SERVER.gauge("waiting_calls", "Calls that wait for a decision.")
_FAILURES: Final = HookFailures(_HOOK_SERVER)
DECLARED: Final = _HOOK_SERVER.all
"""All metrics of the hook server, which are on the agent's page."""

log = logging.getLogger(__name__)


class HookServer:
    """The hook server in the agent's process: socket, registration and admission. `notice_seconds`:
    how long koord-runtime-proxy may take to read a changed file."""

    def __init__(
        self,
        settings: AgentSettings,
        registration_dir: str,
        notice_seconds: float = 0.3,
    ) -> None:
        """Raises SettingsError, LockedError while another frontend of Topolet runs, OSError."""
        path = options.socket_path(settings.hook_server_socket)
        policies, deadlines = frontends.failure_policies(settings)
        self._registration = Registration(
            registration_dir, path, _proxy_policy(policies), REGISTERED
        )
        if settings.cpu_policy == "dynamic":
            log.warning("containers get no CPU file: Koordinator's hooks can't add a mount")
        self._lock = locks.lock_for_hook_server(settings.state_dir, LOCK_SECONDS)
        snapshots = SnapshotFile(f"{settings.state_dir}/{snapshot.FILE}", boot_id())
        self._notifier = Notifier(f"{settings.state_dir}/{notifications.SOCKET}")
        trail = Trail(settings.state_dir, "hook-server")
        admission = Admission(
            snapshots,
            self._notifier,
            AssumedContainers(),
            policies,
            settings.state_dir,
            service.SETTABLE,
            trail.append,
        )
        self._outcomes = admission.outcomes
        self._service = HookService(KoordinatorHooks(admission, deadlines))
        self._path = path
        self._notice_seconds = notice_seconds
        self._server: GrpcServer | None = None

    def start(self) -> None:
        """Listens, then registers. Raises OSError."""
        self._server = _grpc_server(self._path, self._service)
        self._server.start()
        self._registration.write()
        for name in self._registration.others():
            log.warning("%s registers the same hooks: only one server is called", name)
        log.info("hook server listens on %s", self._path)

    def page(self) -> str:
        """The metrics page."""
        service = self._service
        return render(
            [
                Metric(_CALLS, {(hook,): service.calls[hook] for hook in service.hooks}),
                Metric(_HOOK_ERRORS, {(hook,): service.errors[hook] for hook in service.hooks}),
                single(_HELD, len(service.held)),
                *_FAILURES.values(self._outcomes),
            ]
        )

    def close(self) -> None:
        """Removes the registration, then the socket."""
        try:
            self._registration.withdraw()
            if self._server is not None:
                time.sleep(self._notice_seconds)
                self._server.stop(_GRACE_SECONDS)
            self._registration.remove()
        except OSError as error:
            log.error("hook server: the registration stays: %s", error)
        self._notifier.close()
        self._lock.release()


def _grpc_server(path: str, service: HookService) -> GrpcServer:
    """Raises OSError."""
    methods = {f"{hook}Hook": _method(service, hook) for hook in service.hooks}
    return GrpcServer(path, SERVICE, methods, _THREADS, _MAX_CALLS, _MAX_MESSAGE_BYTES)


def _method(service: HookService, hook: str) -> Method:
    def answer(message: bytes, context: ServicerContext) -> bytes:
        answer = service.answer(hook, message, context)
        if isinstance(answer, Refuse):
            raise RpcError(answer.code, answer.message)
        return answer

    return answer


def _proxy_policy(policies: FailurePolicies) -> str:
    """What koord-runtime-proxy does if the agent returns an error or no answer: without the agent
    every pod is unknown."""
    return "Fail" if policies.fails(CREATE, None) else "Ignore"


class _Config(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    remote_endpoint: str = ""
    failure_policy: str = ""
    runtime_hooks: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_Config)


class Registration:
    """The agent's registration file in `folder`. `policy`: what koord-runtime-proxy does if the
    server fails or does not answer."""

    def __init__(
        self, folder: str, socket_path: str, policy: str, runtime_hooks: tuple[str, ...]
    ) -> None:
        self._folder = Path(folder)
        self._path = self._folder / FILE
        self._config = _Config(socket_path, policy, runtime_hooks)

    def write(self) -> None:
        """Replaces the file of an earlier agent, if it differs. Raises OSError."""
        files.make_folders(str(self._folder))
        if _read(self._path) != self._config:
            files.replace(str(self._path), msgspec.json.encode(self._config), durable=False)

    def others(self) -> list[str]:
        """The names of files that register another server for the same hooks. koord-runtime-proxy
        then calls any one of the servers."""
        hooks = set(self._config.runtime_hooks)
        return sorted(
            path.name
            for path in self._folder.glob("*json")
            if path != self._path and hooks & set(_read(path).runtime_hooks)
        )

    def withdraw(self) -> None:
        """Removes the hooks from the file. Raises OSError."""
        if not self._registers_this_server():
            return
        nothing = msgspec.json.encode(_Config(self._config.remote_endpoint, "Ignore"))
        with self._path.open("r+b", buffering=0) as file:
            file.write(nothing.ljust(self._path.stat().st_size))

    def remove(self) -> None:
        """Removes the file. Raises OSError."""
        if self._registers_this_server():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _registers_this_server(self) -> bool:
        return _read(self._path).remote_endpoint == self._config.remote_endpoint


def _read(path: Path) -> _Config:
    """An empty configuration for a missing or unreadable file."""
    try:
        return bounds.decode(_decoder, path.read_bytes())
    except (OSError, JsonError):
        return _Config()
