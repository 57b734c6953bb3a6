"""A device plugin (v1beta1) that reports the devices of a test.

As a program it registers again with each kubelet that starts, as plugins have to:
python -m tests.integration.kubelet.plugin FOLDER '{"DEVICE": [NUMA NODE...], ...}'"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Final

import grpc

from tests.integration.kubelet.standalone import START_SECONDS
from tests.waiting import eventually

RESOURCE = "vendor.example/card"
SOCKET: Final = "card.sock"
_POLL_SECONDS: Final = 0.5


class DevicePlugin(grpc.GenericRpcHandler):
    """Registers with the kubelet that has this folder of sockets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._message = b""
        self._ended = False
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))

    def start(self, devices: dict[str, tuple[int, ...]]) -> None:
        """Waits until the kubelet listens, since it empties the folder before, and registers with
        these devices."""
        registry = self._folder / "kubelet.sock"
        eventually("the kubelet takes plugins", registry.exists, START_SECONDS)
        self.report(devices)
        self._server.add_insecure_port(f"unix:{self._folder / SOCKET}")
        self._server.start()
        request = _field(1, b"v1beta1") + _field(2, SOCKET.encode()) + _field(3, RESOURCE.encode())
        with grpc.insecure_channel(f"unix:{registry}") as channel:
            register = channel.unary_unary("/v1beta1.Registration/Register")
            register(request, timeout=START_SECONDS, wait_for_ready=True)

    def report(
        self,
        devices: dict[str, tuple[int, ...]],
        unhealthy: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Sends the NUMA nodes of healthy and unhealthy devices, by id, to the kubelet."""
        with self._changed:
            self._message = b"".join(
                _field(1, _device(name, nodes, health))
                for group, health in ((devices, b"Healthy"), (unhealthy or {}, b"Unhealthy"))
                for name, nodes in group.items()
            )
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._server.stop(None).wait()

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        match details.method.rpartition("/")[2]:
            case "ListAndWatch":
                return grpc.unary_stream_rpc_method_handler(self._devices)
            case "Allocate":
                return grpc.unary_unary_rpc_method_handler(lambda *_: _field(1, b""))
            case "GetDevicePluginOptions":
                return grpc.unary_unary_rpc_method_handler(lambda *_: b"")
        return None

    def _devices(self, _request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        sent: bytes | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda sent=sent: self._ended or self._message != sent)
                if self._ended:
                    return
                sent = self._message
            yield sent


def serve(folder: Path, devices: dict[str, tuple[int, ...]]) -> None:
    """Returns when a kubelet has emptied the folder, which it does when it starts."""
    plugin = DevicePlugin(folder)
    try:
        plugin.start(devices)
        while (folder / SOCKET).exists():
            time.sleep(_POLL_SECONDS)
    finally:
        plugin.stop()


def main() -> None:
    folder, devices = Path(sys.argv[1]), json.loads(sys.argv[2])
    while True:
        with contextlib.suppress(grpc.RpcError, AssertionError):
            serve(folder, devices)


def _device(name: str, nodes: tuple[int, ...], health: bytes) -> bytes:
    topology = b"".join(_field(1, bytes((8, node))) for node in nodes)
    return _field(1, name.encode()) + _field(2, health) + (_field(3, topology) if nodes else b"")


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field of at most 127 bytes."""
    assert len(content) < 128
    return bytes((number << 3 | 2, len(content))) + content


if __name__ == "__main__":
    main()
