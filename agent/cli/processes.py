"""The subcommands of the long-running processes: agent, proxy, NRI plugin and its guard, scheduler
and webhook. A process imports its own modules when it starts, and those of no other process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from agent.cli import options
from agent.host.listener import ActivationError, Listener, ListenError, inherited
from agent.host.locks import LockedError
from agent.model.settings import frontends
from agent.model.settings.frontends import (
    NRI_PORT,
    PROXY_PORT,
    NriGuardSettings,
    NriSettings,
    ProxySettings,
)
from agent.model.settings.options import (
    SettingsError,
    pages_address,
    proxy_socket,
    socket_path,
)
from agent.telemetry import logs

if TYPE_CHECKING:
    import argparse

    from agent.model.settings.agent import AgentSettings
    from agent.model.settings.scheduler import SchedulerSettings, WebhookSettings
    from agent.node.corrected import PodResourcesServer, Serve
    from agent.node.daemon import DraParts, Frontend

log = logging.getLogger(__name__)

Kind = TypeVar(
    "Kind",
    "AgentSettings",
    ProxySettings,
    NriSettings,
    NriGuardSettings,
    "SchedulerSettings",
    "WebhookSettings",
)


class Daemon(Generic[Kind]):
    """A subcommand that runs a process.

    `settings`: loads the type of its settings.
    `serve`: runs the process and returns the exit code.
    `check`: raises SettingsError for settings that the process refuses, even if no other setting
        enables them.
    `switches`: the help of each flag without a value that is not a setting."""

    def __init__(
        self,
        name: str,
        description: str,
        settings: Callable[[], type[Kind]],
        serve: Callable[[Kind, argparse.Namespace], int],
        check: Callable[[Kind], None] = lambda settings: None,
        switches: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self.__doc__ = description
        self._settings: Callable[[], type[Kind]] = settings
        self.check: Callable[[Kind], None] = check
        self._serve: Callable[[Kind, argparse.Namespace], int] = serve
        self._switches = switches or {}
        self.SWITCHES = tuple(self._switches)

    @property
    def SETTINGS(self) -> type[Kind]:  # noqa: N802 - the name that modules of subcommands use
        return self._settings()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for switch, text in self._switches.items():
            parser.add_argument(f"--{switch}", action="store_true", help=text)
        options.add_arguments(parser, self.SETTINGS)

    def run(self, arguments: argparse.Namespace) -> int:
        try:
            settings = options.load(arguments, self.SETTINGS)
            self.check(settings)
        except SettingsError as error:
            return options.fail(error, 2)
        node = getattr(settings, "node_name", None)
        if node == "":
            node = os.uname().nodename
        logs.start(settings.log_level, settings.log_format, node or "")
        logs.announce(self._name, settings)
        return self._serve(settings, arguments)


def _run_agent(settings: AgentSettings, arguments: argparse.Namespace) -> int:
    from agent.cgroup.hierarchy import CgroupError
    from agent.http.server import HttpListenError
    from agent.kube.errors import StoreError
    from agent.kubelet.configuration import ConfigurationError
    from agent.model.settings.agent import AgentSettings
    from agent.node import daemon

    try:
        daemon.run(
            settings,
            lambda: options.load(arguments, AgentSettings),
            _hook_server(settings),
            _serve_corrected(settings),
            _dra_driver(settings),
            standalone=arguments.standalone,
        )
    except (
        LockedError,
        HttpListenError,
        CgroupError,
        ConfigurationError,
        SettingsError,
        StoreError,
        OSError,
    ) as error:
        return options.fail(error)
    return 0


def _check_agent(settings: AgentSettings) -> None:
    from agent.model.settings.agent import AGENT_PORT
    from agent.model.settings.colocation import feature_modes
    from agent.node.devices import configured_actions
    from agent.node.loop import excluded
    from agent.node.node_local import named_reserved, static_options

    frontends.failure_policies(settings)
    static_options(settings.cpu_policy_options)
    excluded(settings)
    socket_path(settings.runtime_endpoint)
    pages_address(settings.http, AGENT_PORT)
    configured_actions(settings)
    feature_modes(settings)
    named_reserved(settings)
    if settings.quiet_features or settings.quiet_owners:
        from agent.model.settings.quiet import default_features, quiet_modes  # few agents need it

        quiet_modes(settings)
        default_features(settings)


def _hook_server(settings: AgentSettings) -> Frontend | None:
    """The server of Koordinator's hook protocol, which takes 14 MB of memory; None if it is not
    enabled.

    Raises SettingsError, LockedError or OSError."""
    if not settings.hook_server_socket:
        return None
    _needs_grpcio("hook-server-socket")
    from agent.koordinator import server

    return server.HookServer(settings, server.REGISTRATION_DIR)


def _dra_driver(settings: AgentSettings) -> DraParts | None:
    """The parts of the DRA driver, None if it is not enabled. Raises SettingsError."""
    if not settings.dra:
        return None
    if settings.cpu_policy != "none":
        raise SettingsError("dra: cpu-policy gives the same CPUs: set it to none")
    _needs_grpcio("dra")
    import uuid

    from agent.dra import server
    from agent.dra.cdi import CdiFiles
    from agent.dra.service import Claims, DraService
    from agent.node.daemon import DraParts

    instance = uuid.uuid4().hex[:8]
    # Kubelet and runtime open the sockets and files by the paths that they have on the host.
    below_root = os.path.relpath(settings.kubelet_dir, settings.root)
    is_outside = below_root.partition("/")[0] == os.pardir
    kubelet_dir = settings.kubelet_dir if is_outside else os.path.join("/", below_root)

    def driver(claims: Claims) -> server.DraServer:
        service = DraService(claims, server.endpoint(kubelet_dir, instance))
        return server.DraServer(service, kubelet_dir, instance)

    return DraParts(CdiFiles(settings.cdi_dir, server.plugin_dir(kubelet_dir)), driver)


def _serve_corrected(settings: AgentSettings) -> Serve | None:
    """The server of the corrected PodResources API, None if it is not enabled. Raises
    SettingsError."""
    name, socket = "corrected-pod-resources-socket", settings.corrected_pod_resources_socket
    if not socket:
        return None
    path = socket_path(socket)
    from agent.kubelet import podresources

    if os.path.realpath(path) == os.path.realpath(podresources.socket_path(settings.kubelet_dir)):
        raise SettingsError(f"{name}: {path} is the kubelet's own socket")
    _needs_grpcio(name)

    def serve(answer: Callable[[str, bytes], bytes]) -> PodResourcesServer:
        from agent.rpc.server import GrpcServer, Method

        def method(name: str) -> Method:
            return lambda request, _: answer(name, request)

        return GrpcServer(
            path, podresources.SERVICE, {name: method(name) for name in podresources.METHODS}, 4, 64
        )

    return serve


def _needs_grpcio(option: str) -> None:
    import importlib.util

    from agent import WHEEL

    if importlib.util.find_spec("grpc") is None:
        raise SettingsError(
            f"{option}: needs grpcio, which is missing: pip install '{WHEEL}[hookserver]'"
        )


def _run_proxy(settings: ProxySettings, _: argparse.Namespace) -> int:
    try:
        served = inherited(os.environ) or _listen(settings)
    except (ActivationError, ListenError, OSError) as error:
        return options.fail(error)
    # A kubelet that connects now waits for the imports instead of failing.
    from agent.proxy import daemon

    try:
        daemon.run(settings, served)
    except (LockedError, OSError) as error:
        return options.fail(error)
    finally:
        if isinstance(served, Listener):
            served.close()
    return 0


def _check_proxy(settings: ProxySettings) -> None:
    frontends.failure_policies(settings)
    runtime = socket_path(settings.runtime_endpoint)
    if os.path.realpath(proxy_socket(settings.state_dir)) == os.path.realpath(runtime):
        raise SettingsError(f"runtime-endpoint is the proxy's own socket, {runtime}")
    pages_address(settings.http, PROXY_PORT)


def _listen(settings: ProxySettings) -> Listener:
    folder = settings.state_dir
    if not os.path.isdir(folder):
        os.makedirs(folder, mode=0o755, exist_ok=True)
        log.info("%s did not exist: the proxy created it for its socket", folder)
    return Listener(proxy_socket(folder))


def _run_nri(settings: NriSettings, _: argparse.Namespace) -> int:
    from agent.nri import daemon
    from agent.nri.daemon import LaunchError, launched

    try:
        daemon.run(settings, launched(os.environ))
    except (LockedError, LaunchError, OSError) as error:
        return options.fail(error)
    return 0


def _check_nri(settings: NriSettings) -> None:
    frontends.failure_policies(settings)
    socket_path(settings.nri_socket)
    pages_address(settings.http, NRI_PORT)


_GUARD: Final = (
    "import sys; sys.path.append(sys.argv.pop(1)); from agent.guard.process import main; "
    "sys.exit(main(sys.argv[1:]))"
)


def _run_nri_guard(settings: NriGuardSettings, _: argparse.Namespace) -> int:
    """Becomes the guard: an interpreter without the modules that read the options."""
    import agent

    package = os.path.dirname(os.path.dirname(os.path.abspath(agent.__file__)))
    socket = socket_path(settings.nri_socket)
    values = [settings.state_dir, socket, settings.log_format, *_exempt(settings)]
    command = [sys.executable, "-I", "-S", "-c", _GUARD, package, *values]
    try:
        os.execv(sys.executable, command)
    except OSError as error:
        return options.fail(error)


def _check_nri_guard(settings: NriGuardSettings) -> None:
    socket_path(settings.nri_socket)
    _exempt(settings)


def _exempt(settings: NriGuardSettings) -> tuple[str, ...]:
    """Raises SettingsError."""
    from agent.model.snapshot import ExclusionError, parse_patterns

    try:
        return parse_patterns(settings.guard_exempt)
    except ExclusionError as error:
        raise SettingsError(f"guard-exempt: {error}") from None


def _run_scheduler(settings: SchedulerSettings, _: argparse.Namespace) -> int:
    from agent.scheduler import process

    return _serve_cluster(lambda: process.run(settings))


def _run_webhook(settings: WebhookSettings, _: argparse.Namespace) -> int:
    from agent.scheduler import webhook

    return _serve_cluster(lambda: webhook.run(settings))


def _serve_cluster(run: Callable[[], None]) -> int:
    """Runs a process that serves HTTP to the cluster; returns the exit code."""
    from agent.host.daemon import FaultError
    from agent.http.certificates import CertificateError
    from agent.http.server import HttpListenError
    from agent.kube.auth import AccessError

    try:
        run()
    except SettingsError as error:
        return options.fail(error, 2)
    except (AccessError, CertificateError, FaultError, HttpListenError) as error:
        return options.fail(error)
    return 0


def _agent_settings() -> type[AgentSettings]:
    from agent.model.settings.agent import AgentSettings

    return AgentSettings


def _scheduler_settings() -> type[SchedulerSettings]:
    from agent.model.settings.scheduler import SchedulerSettings

    return SchedulerSettings


def _webhook_settings() -> type[WebhookSettings]:
    from agent.model.settings.scheduler import WebhookSettings

    return WebhookSettings


AGENT: Final = Daemon(
    "agent",
    "Run the node agent: it discovers the machine, keeps CPU pools and cgroups correct, and "
    "reports.",
    _agent_settings,
    _run_agent,
    _check_agent,
    {"standalone": "no cluster: pods come from the runtime, objects go to files"},
)
PROXY: Final = Daemon(
    "proxy",
    "Run the CRI proxy: it relays calls byte for byte, and sets the CPUs of containers.",
    lambda: ProxySettings,
    _run_proxy,
    _check_proxy,
)
NRI: Final = Daemon(
    "nri",
    "Run the NRI plugin: the runtime calls it for each container, and it sets the container's "
    "CPUs.",
    lambda: NriSettings,
    _run_nri,
    _check_nri,
)
SUBCOMMANDS: Final[Mapping[str, Daemon[Any]]] = {
    "agent": AGENT,
    "proxy": PROXY,
    "nri": NRI,
    "nri-guard": Daemon(
        "nri-guard",
        "Run the guard of the NRI plugin: the runtime asks it before it creates a container, and "
        "it\nrefuses one that would start without its CPUs, or on CPUs of another pod.",
        lambda: NriGuardSettings,
        _run_nri_guard,
        _check_nri_guard,
    ),
    "scheduler": Daemon(
        "scheduler",
        "Run the extender of kube-scheduler: it finds the best node for each pod, and chooses "
        "the\npod's CPUs and devices there.",
        _scheduler_settings,
        _run_scheduler,
    ),
    "webhook": Daemon(
        "webhook",
        "Run the admission webhook: it allows only configured accounts to bind pods with GPUs.",
        _webhook_settings,
        _run_webhook,
    ),
}
