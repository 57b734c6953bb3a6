"""A fake runtime for NRI. Like containerd, it loses frames that are larger than its read buffer."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message as Proto

from agent.host.loop import Loop
from agent.model.verdict import Code
from agent.proto import nri_pb2 as pb
from agent.proto import ttrpc_pb2 as ttrpc
from tests.waiting import eventually

PLUGIN, RUNTIME = 1, 2
BUFFER_BYTES = 4096
Reply = TypeVar("Reply", bound=Proto)


class FrameLostError(Exception):
    """Go's ttrpc could not read this frame; the connection cannot be used any more."""


class Reader:
    """Reads the messages (stream, type, payload) of one connection as Go's ttrpc does: through a
    buffer of 4096 bytes, or directly for larger reads. Each read takes one whole frame."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, int, bytes]] = []
        self._buffered = b""
        self._reading = self._run()
        self._room = next(self._reading)

    def frame(self, content: bytes) -> None:
        """Raises FrameLostError."""
        if len(content) > self._room:
            raise FrameLostError(f"a frame of {len(content)} bytes, room for {self._room}")
        self._room = self._reading.send(content)

    def _run(self) -> Generator[int, bytes, None]:
        while True:
            size, stream, kind, _ = struct.unpack(">IIBB", (yield from self._whole(10)))
            payload = yield from self._whole(size)
            self.messages.append((stream, kind, payload))

    def _whole(self, size: int) -> Generator[int, bytes, bytes]:
        got = b""
        while len(got) < size:
            missing = size - len(got)
            if not self._buffered:
                self._buffered = yield max(missing, BUFFER_BYTES)
            got += self._buffered[:missing]
            self._buffered = self._buffered[missing:]
        return got


class FakeRuntime:
    """The runtime's end of NRI: listens for a plugin, and runs the plugin's loop while it waits."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self.path = str(folder / "nri.sock")
        self.timeout_milliseconds = 60_000
        """The plugin may hold a call for half of it."""
        self.answers_updates = True
        self.updates: list[pb.ContainerUpdate] = []
        self.update_error: ttrpc.Status | None = None
        self._loop = loop
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.setblocking(False)
        self._socket: socket.socket | None = None
        self._next_stream = 1

    def accept(self) -> pb.RegisterPluginRequest:
        """Accepts a plugin and answers its registration."""
        registration = self.accept_without_answer()
        self.respond(*registration)
        return pb.RegisterPluginRequest.FromString(self.requests[0][1].payload)

    def accept_without_answer(self) -> tuple[int, ttrpc.Response]:
        """The stream of the registration, and the answer to send on it."""
        self._connect(self._accepted)
        self.until("registration", lambda: self.requests)
        stream, request = self.requests[0]
        assert request.service == "nri.pkg.api.v1alpha1.Runtime"
        assert request.method == "RegisterPlugin"
        return stream, ttrpc.Response()

    def use_socket(self, it: socket.socket) -> None:
        """Talks to a launched plugin, over the runtime's end of its socket."""
        self._connect(lambda: it)

    def _connect(self, connect: Callable[[], socket.socket]) -> None:
        self._readers = {PLUGIN: Reader(), RUNTIME: Reader()}
        self._raw = b""
        self.requests: list[tuple[int, ttrpc.Request]] = []
        self.replies: dict[int, ttrpc.Response] = {}
        self.ended = False
        if self._socket is not None:
            self._socket.close()
        self._socket = connect()
        self._socket.setblocking(False)

    def _accepted(self) -> socket.socket:
        found: list[socket.socket] = []

        def accepted() -> bool:
            self._loop.step(0)
            try:
                found.append(self._listener.accept()[0])
            except BlockingIOError:
                return False
            return True

        eventually("a plugin connects", accepted)
        return found[0]

    def set_up(self, *containers: pb.Container, pods: tuple[pb.PodSandbox, ...] = ()) -> None:
        """Registers, configures and synchronises a plugin."""
        self.accept()
        self.configure()
        self.synchronize(*containers, pods=pods)

    def configure(self, **fields: object) -> pb.ConfigureResponse:
        fields = {"NRI_version": "v0.12.3", "request_timeout": self.timeout_milliseconds, **fields}
        request = pb.ConfigureRequest(runtime_name="fake", **fields)  # type: ignore[arg-type]
        return self.call("Configure", request, pb.ConfigureResponse)

    def synchronize(
        self, *containers: pb.Container, pods: tuple[pb.PodSandbox, ...] = (), more: bool = False
    ) -> pb.SynchronizeResponse:
        request = pb.SynchronizeRequest(pods=pods, containers=containers, more=more)
        return self.call("Synchronize", request, pb.SynchronizeResponse)

    def drop(self) -> None:
        """Closes the connection, like a runtime that ends."""
        assert self._socket is not None
        self._socket.close()
        self._socket = None

    def close(self) -> None:
        if self._socket is not None:
            self.drop()
        self._listener.close()

    def begin(self, method: str, request: Proto) -> int:
        """Sends a call to the plugin and returns its stream."""
        stream = self._next_stream
        self._next_stream += 2
        raw = ttrpc.Request(
            service="nri.pkg.api.v1alpha1.Plugin",
            method=method,
            payload=request.SerializeToString(),
        )
        self.send(PLUGIN, stream, 1, raw.SerializeToString())
        return stream

    def call(self, method: str, request: Proto, reply: type[Reply]) -> Reply:
        """The reply to a call that is not refused."""
        response = self.response(self.begin(method, request))
        assert not response.status.code, response.status.message
        return reply.FromString(response.payload)

    def response(self, stream: int) -> ttrpc.Response:
        self.until("a reply", lambda: stream in self.replies)
        return self.replies[stream]

    def respond(self, stream: int, response: ttrpc.Response) -> None:
        self.send(RUNTIME, stream, 2, response.SerializeToString())

    def send(self, connection: int, stream: int, kind: int, payload: bytes) -> None:
        """Sends frames of at most 4096 bytes, like Go's ttrpc."""
        message = struct.pack(">IIBB", len(payload), stream, kind, 0) + payload
        for at in range(0, len(message), BUFFER_BYTES):
            piece = message[at : at + BUFFER_BYTES]
            self.send_raw(struct.pack(">II", connection, len(piece)) + piece)

    def send_raw(self, data: bytes) -> None:
        assert self._socket is not None
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                self._loop.step(0.01)

    def until(self, what: str, check: Callable[[], object]) -> None:
        """Runs the plugin's loop until the check succeeds. Raises FrameLostError."""

        def checked() -> object:
            self._loop.step(0.001)
            self._read()
            return check()

        eventually(what, checked)

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.ended = True
            return
        self._raw += data
        while len(self._raw) >= 8:
            connection, size = struct.unpack_from(">II", self._raw)
            if len(self._raw) < 8 + size:
                break
            self._readers[connection].frame(self._raw[8 : 8 + size])
            self._raw = self._raw[8 + size :]
        for stream, kind, payload in self._take(PLUGIN):
            assert kind == 2
            self.replies[stream] = ttrpc.Response.FromString(payload)
        for stream, kind, payload in self._take(RUNTIME):
            assert kind == 1
            self._called(stream, ttrpc.Request.FromString(payload))

    def _take(self, connection: int) -> list[tuple[int, int, bytes]]:
        reader = self._readers[connection]
        messages, reader.messages = reader.messages, []
        return messages

    def _called(self, stream: int, request: ttrpc.Request) -> None:
        assert stream % 2
        assert not self.requests or stream > self.requests[-1][0], "stream ids increase"
        self.requests.append((stream, request))
        if request.method != "UpdateContainers" or not self.answers_updates:
            return
        update = pb.UpdateContainersRequest.FromString(request.payload)
        self.updates += update.update
        self.respond(stream, ttrpc.Response(status=self.update_error))


def refusal(code: Code, message: str) -> ttrpc.Response:
    return ttrpc.Response(status=ttrpc.Status(code=int(code), message=message))
