"""A kubelet's PodResources API on a real gRPC server, for tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
from google.protobuf.message import Message

from agent.proto import podresources_pb2 as pb

Answer = Message | bytes | tuple[grpc.StatusCode, str]


class FakeKubelet(grpc.GenericRpcHandler):
    """Answers by method with a message, raw bytes, or a status. A method without an answer is not
    served. While `silent` is set it does not answer; `blocked_calls` counts the calls meanwhile."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.calls: list[tuple[str, bytes]] = []
        self.silent = threading.Event()
        self.blocked_calls = 0
        self.ended = threading.Event()

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        service, _, method = details.method.rpartition("/")
        if service != "/v1.PodResourcesLister" or method not in self.answers:
            return None

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls.append((method, request))
            if self.silent.is_set():
                self.blocked_calls += 1
                while self.silent.is_set() and not self.ended.wait(0.01) and context.is_active():
                    pass
            reply = self.answers[method]
            if isinstance(reply, tuple):
                context.abort(*reply)
            return reply.SerializeToString() if isinstance(reply, Message) else reply

        return grpc.unary_unary_rpc_method_handler(answer)

    def set_pods(self, *pods: pb.PodResources) -> None:
        self.answers["List"] = pb.ListPodResourcesResponse(pod_resources=pods)

    def call_count(self, method: str) -> int:
        return sum(1 for each, _ in self.calls if each == method)


@contextlib.contextmanager
def serving(path: Path, kubelet: FakeKubelet) -> Iterator[None]:
    limits = [("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(4), options=limits)
    server.add_generic_rpc_handlers((kubelet,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        kubelet.ended.set()
        server.stop(None).wait()


def memory(kind: str, size_bytes: int, *nodes: int) -> pb.ContainerMemory:
    return pb.ContainerMemory(memory_type=kind, size=size_bytes, topology=topology(*nodes))


def device(resource: str, name: str, *nodes: int) -> pb.ContainerDevices:
    """Of no NUMA node: without topology."""
    where = topology(*nodes) if nodes else None
    return pb.ContainerDevices(resource_name=resource, device_ids=[name], topology=where)


def topology(*nodes: int) -> pb.TopologyInfo:
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])
