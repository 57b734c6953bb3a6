"""Calls of any CRI method, with all parts of the response that a caller gets."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import grpc
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import Message

CALL_SECONDS = 30.0
MESSAGE_BYTES = 64 << 20

Metadata = tuple[tuple[str, str | bytes], ...]


class Answer(msgspec.Struct, frozen=True):
    """`messages`: one for a unary call that succeeded, any number for a stream; with all fields, by
    their names. `details` is the status as bytes, if there is one."""

    code: str
    text: str
    details: bytes
    leading: Metadata
    trailing: Metadata
    messages: tuple[dict[str, Any], ...] = ()


class FullCri:
    """Calls by name, on one socket. `descriptor` is the CRI as a FileDescriptorProto."""

    def __init__(self, descriptor: pathlib.Path, socket: str) -> None:
        file = descriptor_pb2.FileDescriptorProto.FromString(descriptor.read_bytes())
        self._pool = descriptor_pool.DescriptorPool()
        self._pool.Add(file)
        self.methods = {
            method.name: (f"/{file.package}.{service.name}/{method.name}", method)
            for service in file.service
            for method in service.method
        }
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
        ]
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=options)

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Mapping[str, Any], **options: Any) -> Answer:
        """The response or the error. `options`: of `start`."""
        return self.finish(method, self.start(method, request, **options))

    def start(
        self, method: str, request: Mapping[str, Any], *, raw: bytes = b"", **options: Any
    ) -> grpc.Call:
        """A running call, as an iterator over the bytes of its messages, also of a unary method.
        `raw` is appended to the bytes of the request; `options`: of `start_raw`."""
        path, described = self.methods[method]
        message = json_format.ParseDict(dict(request), self._message(described.input_type))
        return self.start_raw(path, message.SerializeToString() + raw, **options)

    def start_raw(
        self,
        path: str,
        request: bytes,
        *,
        timeout_seconds: float = CALL_SECONDS,
        metadata: Metadata = (),
        compression: grpc.Compression = grpc.Compression.NoCompression,
    ) -> grpc.Call:
        """A running call with this path and these bytes."""
        return self._channel.unary_stream(path)(
            request, timeout=timeout_seconds, metadata=metadata, compression=compression
        )

    def finish(self, method: str, started: grpc.Call) -> Answer:
        """Waits for the end of the call."""
        output = self.methods[method][1].output_type if method in self.methods else None
        messages = []
        try:
            for text in started:
                messages.append(self.read(output, text) if output else {"bytes": text})
        except grpc.RpcError:
            pass  # the status code has it
        trailing = _metadata(started.trailing_metadata())
        return Answer(
            code=started.code().name,
            text=started.details() or "",
            details=dict(trailing).get("grpc-status-details-bin", b""),  # type: ignore[arg-type]
            leading=_metadata(started.initial_metadata()),
            trailing=trailing,
            messages=tuple(messages),
        )

    def read(self, kind: str, text: bytes) -> dict[str, Any]:
        """A message of this type as plain values."""
        message = self._message(kind)
        message.ParseFromString(text)
        return json_format.MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=self._pool,
        )

    def _message(self, kind: str) -> Message:
        found = self._pool.FindMessageTypeByName(kind.lstrip("."))
        return message_factory.GetMessageClass(found)()


def _metadata(pairs: Any) -> Metadata:
    return tuple(sorted((pair.key, pair.value) for pair in pairs or ()))
