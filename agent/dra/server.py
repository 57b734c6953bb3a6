"""The sockets of the DRA driver, and its registration at the kubelet. Importing this loads grpcio.

The kubelet watches a folder for sockets, asks each one which driver it belongs to, and then calls
the driver's own socket. It forgets a driver whose registration socket is gone, and 30 seconds later
removes the driver's ResourceSlices. Two agents may run at a time while one replaces the other: the
sockets of each have their own names, and the kubelet uses the last that registered (Kubernetes:
k8s.io/dynamic-resource-allocation/kubeletplugin, RollingUpdate)."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
from collections.abc import Iterator
from typing import Final

from agent.dra.service import HEALTH, REGISTRATION, SERVICE, DraService
from agent.host import files
from agent.model.dra.names import DRIVER, PLUGIN_DIR, REGISTRY
from agent.rpc.server import GrpcServer, ServicerContext

log = logging.getLogger(__name__)

THREADS: Final = 8
"""More than the streams of health (MOST_STREAMS) and the calls that wait (MOST_WAITING) have."""
_MAX_CALLS: Final = 64
_GRACE_SECONDS: Final = 2.0


def plugin_dir(kubelet_dir: str) -> str:
    """The driver's own folder."""
    return os.path.join(kubelet_dir, PLUGIN_DIR)


def endpoint(kubelet_dir: str, instance: str) -> str:
    """The driver's socket.

    `instance`: the name of this agent among those that run."""
    return os.path.join(plugin_dir(kubelet_dir), f"{instance}.sock")


class DraServer:
    """The driver's server, and its registration.

    `kubelet_dir`: the kubelet's folder, at the same path as on the host.
    `instance`: the name of this agent among those that run."""

    def __init__(self, service: DraService, kubelet_dir: str, instance: str) -> None:
        self._service = service
        self._path = endpoint(kubelet_dir, instance)
        self._registry = os.path.join(kubelet_dir, REGISTRY)
        self._registration_path = os.path.join(self._registry, f"{DRIVER}-{instance}-reg.sock")
        self._server: GrpcServer | None = None
        self._registration: GrpcServer | None = None

    def start(self) -> None:
        """Listens, then registers. Raises OSError."""
        service = self._service
        files.make_folders(self._registry)
        self._server = GrpcServer(
            self._path,
            SERVICE,
            {
                "NodePrepareResources": lambda message, _: service.prepare(message),
                "NodeUnprepareResources": lambda message, _: service.unprepare(message),
            },
            THREADS,
            _MAX_CALLS,
            streams={HEALTH: ("NodeWatchResources", self._health)},
        )
        self._server.start()
        # The kubelet reads a socket as soon as it appears.
        self._registration = GrpcServer(
            self._registration_path,
            REGISTRATION,
            {
                "GetInfo": lambda message, _: service.registration(message),
                "NotifyRegistrationStatus": lambda message, _: service.notified(message),
            },
            1,
            _MAX_CALLS,
        )
        self._registration.start()
        self._remove_dead()

    def close(self) -> None:
        """Withdraws the registration, then ends."""
        self._service.close()
        for server in (self._registration, self._server):
            if server is not None:
                server.stop(_GRACE_SECONDS)

    def _health(self, _: bytes, context: ServicerContext) -> Iterator[bytes]:
        return self._service.health(context.is_active)

    def _remove_dead(self) -> None:
        """Removes the sockets that killed agents left: a kubelet calls each of them for ever."""
        for folder in (self._registry, os.path.dirname(self._path)):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                own = path in (self._path, self._registration_path)
                if own or not name.endswith(".sock") or not _of_driver(folder, name):
                    continue
                if _is_dead(path):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)


def _of_driver(folder: str, name: str) -> bool:
    return os.path.basename(folder) == DRIVER or name.startswith(f"{DRIVER}-")


def _is_dead(path: str) -> bool:
    """Whether nobody listens on the socket. The agent that ends may remove it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
