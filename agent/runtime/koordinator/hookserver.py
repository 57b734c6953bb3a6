"""Koordinator's RuntimeHookService on a unix socket. Importing this loads grpcio."""

from __future__ import annotations

from typing import Final

import grpc

from agent.rpc.grpc import RpcError
from agent.runtime.gate import Refuse
from agent.runtime.grpcserver import GrpcServer, Method
from agent.runtime.koordinator.service import SERVICE, HookService

_THREADS: Final = 128
"""A held call keeps one, and others must not wait for it."""
_MOST_CALLS: Final = 1024


def hook_server(path: str, service: HookService) -> GrpcServer:
    """Raises OSError."""
    methods = {f"{hook}Hook": _method(service, hook) for hook in service.hooks}
    return GrpcServer(path, SERVICE, methods, _THREADS, _MOST_CALLS)


def _method(service: HookService, hook: str) -> Method:
    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        answer = service.answer(hook, message, context)
        if isinstance(answer, Refuse):
            raise RpcError(answer.code, answer.message)
        return answer

    return answer
