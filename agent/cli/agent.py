"""Run the node agent: it discovers the machine, keeps CPU pools and cgroups correct, and
reports."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent import WHEEL
from agent.cgroup.hierarchy import CgroupError
from agent.cli import options
from agent.host.locks import LockedError
from agent.http.server import HttpListenError
from agent.kube.errors import StoreError
from agent.kubelet.configuration import ConfigurationError
from agent.model.settings import frontends
from agent.model.settings.agent import AGENT_PORT, AgentSettings
from agent.model.settings.options import SettingsError, pages_address, socket_path
from agent.node import daemon
from agent.node.daemon import Frontend
from agent.node.devices import configured_actions
from agent.node.loop import excluded
from agent.node.node_local import named_reserved, static_options
from agent.telemetry import logs

if TYPE_CHECKING:
    import argparse

    from agent.node.corrected import PodResourcesServer, Serve

SETTINGS = AgentSettings
SWITCHES = ("standalone",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--standalone",
        action="store_true",
        help="no cluster: pods come from the runtime, objects go to files",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        check(settings)
    except SettingsError as error:
        return options.fail(error, 2)
    logs.start(settings.log_level, settings.log_format, settings.node_name or os.uname().nodename)
    logs.announce("agent", settings)
    try:
        daemon.run(
            settings,
            lambda: options.load(arguments, SETTINGS),
            _frontend(settings),
            _serve(settings),
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


def check(settings: AgentSettings) -> None:
    """Checks the options that are texts, even if no other option enables them. Raises
    SettingsError."""
    frontends.failure_policies(settings)
    static_options(settings.cpu_policy_options)
    excluded(settings)
    socket_path(settings.runtime_endpoint)
    pages_address(settings.http, AGENT_PORT)
    configured_actions(settings)
    named_reserved(settings)


def _frontend(settings: AgentSettings) -> Frontend | None:
    """The server of Koordinator's hook protocol, which takes 14 MB of memory; None if it is not
    enabled.

    Raises SettingsError, LockedError or OSError."""
    if not settings.hook_server_socket:
        return None
    _needs_grpcio("hook-server-socket")
    from agent.koordinator import server

    return server.HookServer(settings, server.REGISTRATION_DIR)


def _serve(settings: AgentSettings) -> Serve | None:
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
    if importlib.util.find_spec("grpc") is None:
        raise SettingsError(
            f"{option}: needs grpcio, which is missing: pip install '{WHEEL}[hookserver]'"
        )
