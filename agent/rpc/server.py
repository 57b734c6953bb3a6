"""A gRPC server on a unix socket: bytes in and out. Importing this module loads
grpcio, so it is imported only if an option enables such a server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final, TypeAlias

import grpc

from agent.rpc.grpc import RpcError

_CODES: Final = {each.value[0]: each for each in grpc.StatusCode}

ServicerContext: TypeAlias = grpc.ServicerContext
Method = Callable[[bytes, ServicerContext], bytes]
"""Raises RpcError for a status other than OK."""
Stream = Callable[[bytes, ServicerContext], Iterator[bytes]]
"""A call with any number of replies, which occupies a thread until it ends."""


class GrpcServer:
    """Listens from its construction on, and answers calls after `start`. Replaces a socket that an
    earlier server left. More than `max_calls` calls at a time, and requests of more than
    `max_message_bytes`, fail with RESOURCE_EXHAUSTED.

    Raises OSError."""

    def __init__(
        self,
        path: str,
        service: str,
        methods: Mapping[str, Method],
        threads: int,
        max_calls: int,
        max_message_bytes: int = 1 << 20,
        streams: Mapping[str, tuple[str, Stream]] = MappingProxyType({}),
    ) -> None:
        """`streams`: by service, the name and the handler of its one call, which is a stream."""
        self._pool = ThreadPoolExecutor(threads, service.rpartition(".")[2])
        self._server = grpc.server(
            self._pool,
            maximum_concurrent_rpcs=max_calls,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", max_message_bytes),
            ],
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(_handler(method))
            for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(service, handlers),
                *(
                    grpc.method_handlers_generic_handler(
                        of_stream, {name: grpc.unary_stream_rpc_method_handler(stream)}
                    )
                    for of_stream, (name, stream) in streams.items()
                ),
            )
        )
        self._path = path
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        self._inode = self._bind(service)

    def _bind(self, service: str) -> int:
        """Binds the socket, with mode 0600 from the start, and returns its inode. grpcio accepts
        only a path, and creates the socket with the mode of the umask: it does so in a folder that
        others can't enter, from which the socket is renamed. A kubelet that watches the folder
        ignores names with a dot at their start."""
        folder, name = os.path.split(self._path)
        private = os.path.join(folder, f".{name}")
        socket = f"{private}/s"
        os.makedirs(private, exist_ok=True)
        try:
            os.chmod(private, 0o700)
            try:
                self._server.add_insecure_port(f"unix://{socket}")
            except RuntimeError as error:
                raise OSError(f"{service}: can't listen on {self._path}: {error}") from None
            os.chmod(socket, 0o600)
            inode = os.lstat(socket).st_ino
            os.rename(socket, self._path)
        finally:
            os.rmdir(private)
        return inode

    def start(self) -> None:
        self._server.start()

    def stop(self, grace_seconds: float) -> None:
        """Returns when the open calls have ended, or after `grace_seconds`; removes the socket,
        unless another server replaced it."""
        self._server.stop(grace_seconds).wait()
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _handler(method: Method) -> Method:
    def handle(message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return method(message, context)
        except RpcError as error:
            context.abort(_CODES.get(error.code, grpc.StatusCode.UNKNOWN), error.message)

    return handle
