"""The proxy under a service manager that owns its socket: no caller notices its restarts."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator

import grpc
import pytest

from agent.proto import cri_pb2 as pb
from tests.integration.harness import TestNode
from tests.integration.service_manager import ServiceManager
from tests.waiting import DEADLINE_SECONDS


@pytest.fixture
def manager(node: TestNode) -> Iterator[ServiceManager]:
    with contextlib.closing(ServiceManager(node)) as manager:
        yield manager


class Caller:
    """Calls continuously and without waiting for readiness.

    As in a kubelet's gRPC, only a call that was never sent is retried, on another connection: a
    GOAWAY can arrive between its choice of a connection and its first frame.
    """

    def __init__(self, path: pathlib.Path) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)
        self._version = self._channel.unary_unary(
            "/runtime.v1.RuntimeService/Version",
            request_serializer=pb.VersionRequest.SerializeToString,
            response_deserializer=pb.VersionResponse.FromString,
        )
        self.answers = 0
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def answered_again(self) -> None:
        wanted, tick = self.answers + 5, threading.Event()
        for _ in range(int(DEADLINE_SECONDS * 200)):
            if self.answers >= wanted:
                return
            tick.wait(0.005)
        raise AssertionError(f"no answers; failures: {self.failures}")

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._channel.close()

    def _call(self) -> None:
        while not self._ended.is_set():
            try:
                self._version(pb.VersionRequest(), timeout=DEADLINE_SECONDS)
                self.answers += 1
            except grpc.RpcError as error:
                self.failures.append(str(error))


def test_no_call_fails_while_the_proxy_restarts(node: TestNode, manager: ServiceManager) -> None:
    manager.start()
    with contextlib.closing(Caller(pathlib.Path(node.cri_socket))) as caller:
        for _ in range(3):
            caller.answered_again()
            manager.stop()
            manager.start()
        caller.answered_again()
    assert caller.failures == []
    assert os.path.exists(node.cri_socket), "the socket is the manager's"


def test_the_service_manager_is_notified_of_the_watchdog_and_the_stop(
    manager: ServiceManager,
) -> None:
    manager.start()
    manager.wait_for_notification(b"WATCHDOG=1")
    manager.wait_for_notification(b"WATCHDOG=1")
    manager.stop()
    manager.wait_for_notification(b"STOPPING=1")
