"""A fake container runtime that streams container events."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc

from agent.proto import cri_pb2 as pb

SERVICE = "/runtime.v1.RuntimeService"


class Runtime(grpc.GenericRpcHandler):
    """`queue`: the events to send, None ends the stream. `called`: a client has called
    GetContainerEvents. `subscribed`: the stream has begun."""

    def __init__(self, version: str = "v2.0.0", implemented: bool = True) -> None:
        self.version = version
        self.implemented = implemented
        self.queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.subscribed = threading.Event()
        self.called = threading.Event()

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if details.method == f"{SERVICE}/Version":
            return grpc.unary_unary_rpc_method_handler(self._version)
        if details.method == f"{SERVICE}/GetContainerEvents":
            self.called.set()
            if self.implemented:
                return grpc.unary_stream_rpc_method_handler(self._stream)
        return None

    def _version(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return pb.VersionResponse(
            runtime_name="containerd", runtime_version=self.version
        ).SerializeToString()

    def _stream(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.subscribed.set()
        while (event := self.queue.get()) is not None:
            yield event


@contextlib.contextmanager
def serving(path: Path, runtime: Runtime) -> Iterator[None]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((runtime,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        runtime.queue.put(None)
        server.stop(None).wait()
