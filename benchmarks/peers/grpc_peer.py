"""The grpcio processes of the CRI benchmark: `backend SOCKET` and `proxy SOCKET UPSTREAM`.

The backend answers any method with valid protobuf (field 1, length-delimited); the proxy
forwards bytes unread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent import futures

import grpc

LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def field(number: int, content: bytes) -> bytes:
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes((number << 3 | 2,)) + bytes(length) + content


SMALL = field(1, b"0.1.0") + field(2, b"trivial") + field(3, b"1.0") + field(4, b"v1")
LIST = b"".join(field(1, field(1, b"%064d" % n) + field(2, bytes(900))) for n in range(512))
EVENT = field(1, b"%064d" % 7)


class Backend(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = details.method.rpartition("/")[2]
        if method == "GetContainerEvents":
            return grpc.unary_stream_rpc_method_handler(lambda request, context: self.events())
        reply = LIST if method == "ListContainers" else SMALL
        return grpc.unary_unary_rpc_method_handler(lambda request, context: reply)

    def events(self) -> Iterator[bytes]:
        for _ in range(1_000):
            yield EVENT


class Proxy(grpc.GenericRpcHandler):
    def __init__(self, upstream: str) -> None:
        self.channel = grpc.insecure_channel(f"unix:{upstream}", options=LIMITS)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        if details.method.endswith("/GetContainerEvents"):
            stream = self.channel.unary_stream(details.method)
            return grpc.unary_stream_rpc_method_handler(lambda request, _: stream(request))
        call = self.channel.unary_unary(details.method)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: call(request))


def main(role: str, path: str, upstream: str = "") -> None:
    server = grpc.server(futures.ThreadPoolExecutor(12), options=LIMITS)
    server.add_generic_rpc_handlers((Backend() if role == "backend" else Proxy(upstream),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
