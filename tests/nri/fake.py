"""The runtime's end of NRI, with the defect of the real one: it loses frames that are larger than
its read buffer."""

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
    """A frame that a reader in Go could not read: its connection is dead."""


class Reader:
    """Messages (stream, type, payload) of one connection, read as ttrpc in Go reads them: through a
    buffer of 4096 bytes, directly for larger reads, with one whole frame for each read below."""

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
    """Listens where a plugin connects; runs the plugin's loop while it waits for something."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self.path = str(folder / "nri.sock")
        self.patience = 60_000
        """In milliseconds; a call is held for half of it."""
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

    # the session
    def accept(self) -> pb.RegisterPluginRequest:
        """Accepts the next plugin's registration, and answers it."""
        registration = self.accept_silently()
        self.respond(*registration)
        return pb.RegisterPluginRequest.FromString(self.requests[0][1].payload)

    def accept_silently(self) -> tuple[int, ttrpc.Response]:
        """The stream of the registration, and its answer."""
        self._adopt(self._accepted)
        self.until("registration", lambda: self.requests)
        stream, request = self.requests[0]
        assert request.service == "nri.pkg.api.v1alpha1.Runtime"
        assert request.method == "RegisterPlugin"
        return stream, ttrpc.Response()

    def inherit(self, it: socket.socket) -> None:
        """The runtime's end of a launched plugin's socket."""
        self._adopt(lambda: it)

    def _adopt(self, connect: Callable[[], socket.socket]) -> None:
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

        def tried() -> bool:
            self._loop.step(0)
            try:
                found.append(self._listener.accept()[0])
            except BlockingIOError:
                return False
            return True

        eventually("a plugin connects", tried)
        return found[0]

    def set_up(self, *containers: pb.Container, pods: tuple[pb.PodSandbox, ...] = ()) -> None:
        """Registration, configuration and synchronisation."""
        self.accept()
        self.configure()
        self.synchronize(*containers, pods=pods)

    def configure(self, **fields: object) -> pb.ConfigureResponse:
        fields = {"NRI_version": "v0.12.3", "request_timeout": self.patience, **fields}
        request = pb.ConfigureRequest(runtime_name="fake", **fields)  # type: ignore[arg-type]
        return self.call("Configure", request, pb.ConfigureResponse)

    def synchronize(
        self, *containers: pb.Container, pods: tuple[pb.PodSandbox, ...] = (), more: bool = False
    ) -> pb.SynchronizeResponse:
        request = pb.SynchronizeRequest(pods=pods, containers=containers, more=more)
        return self.call("Synchronize", request, pb.SynchronizeResponse)

    def drop(self) -> None:
        """Closes the connection, as a runtime that ends."""
        assert self._socket is not None
        self._socket.close()
        self._socket = None

    def close(self) -> None:
        if self._socket is not None:
            self.drop()
        self._listener.close()

    # calls
    def begin(self, method: str, request: Proto) -> int:
        """The stream of a call to the plugin."""
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
        """The reply of a call that is not refused."""
        response = self.response(self.begin(method, request))
        assert not response.status.code, response.status.message
        return reply.FromString(response.payload)

    def response(self, stream: int) -> ttrpc.Response:
        self.until("a reply", lambda: stream in self.replies)
        return self.replies[stream]

    def respond(self, stream: int, response: ttrpc.Response) -> None:
        self.send(RUNTIME, stream, 2, response.SerializeToString())

    def send(self, connection: int, stream: int, kind: int, payload: bytes) -> None:
        """Split at 4096 bytes, as in Go."""
        whole = struct.pack(">IIBB", len(payload), stream, kind, 0) + payload
        for at in range(0, len(whole), BUFFER_BYTES):
            piece = whole[at : at + BUFFER_BYTES]
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

        def turned() -> object:
            self._loop.step(0.001)
            self._read()
            return check()

        eventually(what, turned)

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
        assert not self.requests or stream > self.requests[-1][0], "ids grow"
        self.requests.append((stream, request))
        if request.method != "UpdateContainers" or not self.answers_updates:
            return
        update = pb.UpdateContainersRequest.FromString(request.payload)
        self.updates += update.update
        self.respond(stream, ttrpc.Response(status=self.update_error))


def refusal(code: Code, message: str) -> ttrpc.Response:
    return ttrpc.Response(status=ttrpc.Status(code=int(code), message=message))
