"""A device plugin (v1beta1) that reports the devices of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc

from tests.integration.kubelet.standalone import START_SECONDS
from tests.waiting import eventually

RESOURCE = "vendor.example/card"


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
        self._server.add_insecure_port(f"unix:{self._folder / 'card.sock'}")
        self._server.start()
        request = _field(1, b"v1beta1") + _field(2, b"card.sock") + _field(3, RESOURCE.encode())
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


def _device(name: str, nodes: tuple[int, ...], health: bytes) -> bytes:
    topology = b"".join(_field(1, bytes((8, node))) for node in nodes)
    return _field(1, name.encode()) + _field(2, health) + (_field(3, topology) if nodes else b"")


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field of at most 127 bytes."""
    assert len(content) < 128
    return bytes((number << 3 | 2, len(content))) + content
