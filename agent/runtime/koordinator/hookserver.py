"""Koordinator's RuntimeHookService on a unix socket. Importing this loads grpcio."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from agent.runtime.gate import Refuse
from agent.runtime.koordinator.service import SERVICE, HookService

_THREADS: Final = 128
"""A held call keeps one, and others must not wait for it."""
_MOST_CALLS: Final = 1024
_CODES: Final = {each.value[0]: each for each in grpc.StatusCode}


class HookServer:
    """Listens from construction on, and answers from `start` on."""

    def __init__(self, path: str, service: HookService) -> None:
        """Replaces a socket that an earlier server left. Raises OSError."""
        self._pool = ThreadPoolExecutor(_THREADS, "hook")
        self._server = grpc.server(
            self._pool,
            maximum_concurrent_rpcs=_MOST_CALLS,
            options=[("grpc.so_reuseport", 0)],
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            f"{hook}Hook": grpc.unary_unary_rpc_method_handler(_handler(service, hook))
            for hook in service.hooks
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        try:
            self._server.add_insecure_port(f"unix://{path}")
        except RuntimeError as error:
            raise OSError(f"hook server: can't listen on {path}: {error}") from None
        os.chmod(path, 0o600)

    def start(self) -> None:
        """From now on calls are answered."""
        self._server.start()

    def stop(self, grace_seconds: float) -> None:
        """Returns when the calls under way have ended, or when time is up."""
        self._server.stop(grace_seconds).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _handler(service: HookService, hook: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def handle(message: bytes, context: grpc.ServicerContext) -> bytes:
        answer = service.answer(hook, message, context)
        if isinstance(answer, Refuse):
            context.abort(_CODES[answer.code], answer.message)
        return answer

    return handle
