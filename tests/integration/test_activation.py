"""The proxy under a service manager that owns its socket: no caller notices its restarts."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading

import grpc

from agent.proto import cri_pb2 as pb
from tests.integration.harness import TestNode
from tests.integration.service_manager import ServiceManager
from tests.waiting import DEADLINE_SECONDS


class Caller:
    """Calls the proxy continuously, and does not wait until it is ready.

    Like a kubelet's gRPC client, it retries only a call that was never sent: a GOAWAY can arrive
    between the choice of a connection and the call's first frame.
    """

    def __init__(self, path: pathlib.Path) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)
        self._version = self._channel.unary_unary(
            "/runtime.v1.RuntimeService/Version",
            request_serializer=pb.VersionRequest.SerializeToString,
            response_deserializer=pb.VersionResponse.FromString,
        )
        self.responses = 0
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def wait_for_responses(self) -> None:
        wanted, tick = self.responses + 5, threading.Event()
        for _ in range(int(DEADLINE_SECONDS * 200)):
            if self.responses >= wanted:
                return
            tick.wait(0.005)
        raise AssertionError(f"no responses; failures: {self.failures}")

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._channel.close()

    def _call(self) -> None:
        while not self._ended.is_set():
            try:
                self._version(pb.VersionRequest(), timeout=DEADLINE_SECONDS)
                self.responses += 1
            except grpc.RpcError as error:
                self.failures.append(str(error))


def test_no_call_fails_while_the_proxy_restarts(
    node: TestNode, service_manager: ServiceManager
) -> None:
    service_manager.start()
    with contextlib.closing(Caller(pathlib.Path(node.cri_socket))) as caller:
        for _ in range(3):
            caller.wait_for_responses()
            service_manager.stop()
            service_manager.start()
        caller.wait_for_responses()
    assert caller.failures == []
    assert os.path.exists(node.cri_socket), "the service manager owns the socket"


def test_the_service_manager_is_notified_of_the_watchdog_and_the_stop(
    service_manager: ServiceManager,
) -> None:
    service_manager.start()
    service_manager.wait_for_notification(b"WATCHDOG=1")
    service_manager.wait_for_notification(b"WATCHDOG=1")
    service_manager.stop()
    service_manager.wait_for_notification(b"STOPPING=1")
