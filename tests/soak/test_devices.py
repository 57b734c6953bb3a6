"""The device plugin registers again with a kubelet that has started anew."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from tests.integration.kubelet import plugin
from tests.integration.kubelet.plugin import SOCKET
from tests.soak.day import ROOT
from tests.waiting import DEADLINE_SECONDS


class Registry(grpc.GenericRpcHandler):
    """The kubelet's side of registrations in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.registered = threading.Semaphore(0)

    def start(self) -> grpc.Server:
        """As a kubelet does: the folder has nothing of earlier ones."""
        for file in self._folder.iterdir():
            file.unlink()
        server = grpc.server(futures.ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((self,))
        server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        server.start()
        return server

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        def register(_request: bytes, _context: grpc.ServicerContext) -> bytes:
            self.registered.release()
            return b""

        return grpc.unary_unary_rpc_method_handler(register)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[None]:
    words = (sys.executable, "-m", plugin.__name__, str(tmp_path), '{"card-0": [0]}')
    with subprocess.Popen(words, cwd=ROOT) as process:
        yield
        process.kill()


def test_a_plugin_registers_with_each_kubelet(tmp_path: Path, program: None) -> None:
    registry = Registry(tmp_path)
    for _ in range(2):
        server = registry.start()
        assert registry.registered.acquire(timeout=DEADLINE_SECONDS)
        assert (tmp_path / SOCKET).exists()
        server.stop(None).wait()
