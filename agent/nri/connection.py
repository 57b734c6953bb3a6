"""One session with the runtime on its socket: bytes in and out, timers, our calls."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from agent.hooks.changes import Changes
from agent.host.loop import READ, WRITE, Loop, Timer
from agent.model.verdict import Code
from agent.nri import messages
from agent.nri.plugin import Plugin, PluginStats
from agent.nri.service import PluginService
from agent.nri.session import Session
from agent.proto import nri_pb2 as pb
from agent.rpc.grpc import RpcError
from agent.rpc.mux import MuxError

SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
REGISTRATION_SECONDS: Final = 12.0
"""The runtime registers one client after the other and waits 5 s for a silent one (NRI:
pkg/adaptation/adaptation.go, acceptPluginConnections; DefaultPluginRegistrationTimeout)."""
_ASK_AGAIN_SECONDS: Final = 0.005
_READ_BYTES: Final = 1 << 18


class PluginConnection:
    """One session's socket, timers and calls."""

    def __init__(
        self,
        loop: Loop,
        it: socket.socket,
        plugin: Plugin,
        stats: PluginStats,
        synchronized: Callable[[], None],
        ended: Callable[[str, float], None],
    ) -> None:
        self.ready = False
        self._loop = loop
        self._socket = it
        self._synchronized = synchronized
        self._ended = ended
        self._began = time.monotonic()
        self._service = PluginService(plugin, stats, self._is_ready)
        self._session = Session(self._service.serve)
        self._again: Timer | None = None
        self._open = True
        self._interest = READ
        it.setblocking(False)
        loop.register(it.fileno(), READ, self._on_ready)

    @property
    def takes_updates(self) -> bool:
        return self.ready and self._service.takes_updates

    def register(self, name: str, index: str) -> None:
        """A runtime that refuses says why; the session then ends."""

        def registered(reply: bytes | RpcError) -> None:
            if isinstance(reply, RpcError):
                self.close(f"plugin {index}-{name} is not registered: {reply}")

        request = pb.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        self._call("RegisterPlugin", request.SerializeToString(), REGISTRATION_SECONDS, registered)

    def update(
        self,
        container_id: str,
        changes: Changes,
        seconds: float,
        done: Callable[[RpcError | None], None],
    ) -> None:
        """Where the runtime does not answer in time, the session ends: its server for our calls may
        have stopped while the connection stays open (NRI: pkg/net/multiplex/mux.go, conn.Read)."""

        def updated(reply: bytes | RpcError) -> None:
            error = reply if isinstance(reply, RpcError) else _failure(reply)
            done(error)
            if error is not None and error.code == Code.DEADLINE_EXCEEDED:
                self.close("the runtime does not answer UpdateContainers")

        request = pb.UpdateContainersRequest(update=[messages.update(container_id, changes)])
        self._call("UpdateContainers", request.SerializeToString(), seconds, updated)

    def finish(self) -> None:
        """Says what is still to be said, as far as the socket takes it, and closes."""
        self._service.finish()
        self._flush()
        self.close("we end")

    def close(self, why: str) -> None:
        """Once."""
        if not self._open:
            return
        self._open = self.ready = False
        if self._again is not None:
            self._again.cancel()
        self._loop.unregister(self._socket.fileno())
        self._socket.close()
        self._session.close(why)
        self._service.close()
        self._ended(why, time.monotonic() - self._began)

    def _is_ready(self) -> None:
        self.ready = True
        self._synchronized()

    def _call(
        self, method: str, payload: bytes, seconds: float, done: Callable[[bytes | RpcError], None]
    ) -> None:
        def finished(reply: bytes | RpcError) -> None:
            timer.cancel()
            done(reply)

        timer = self._loop.after(seconds, lambda: self._session.give_up(stream))
        try:
            stream = self._session.call(SERVICE, method, payload, seconds, finished)
        except MuxError as error:
            finished(RpcError(Code.RESOURCE_EXHAUSTED, str(error)))
            return
        self._flush()

    def _on_ready(self, events: int) -> None:
        try:
            if events & WRITE:
                self._flush()
            if self._open and events & ~WRITE:
                self._read()
        except BlockingIOError:
            return
        except OSError as error:
            self.close(error.strerror or repr(error))

    def _read(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            self.close("the runtime closed it")
            return
        try:
            self._session.receive(data)
        except MuxError as error:
            self.close(f"malformed: {error}")
            return
        self._settle()

    def _settle(self) -> None:
        """After calls were served."""
        if not self._open:
            return
        self._flush()
        if self._open and self._service.holds and self._again is None:
            self._again = self._loop.after(_ASK_AGAIN_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        self._again = None
        self._service.again()
        self._settle()

    def _flush(self) -> None:
        unsent = self._session.unsent
        try:
            while unsent:
                del unsent[: self._socket.send(unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(error.strerror or repr(error))
            return
        interest = READ | WRITE if unsent else READ
        if interest != self._interest:
            self._interest = interest
            self._loop.modify(self._socket.fileno(), interest)


def _failure(reply: bytes) -> RpcError | None:
    try:
        response = pb.UpdateContainersResponse.FromString(reply)
    except DecodeError as error:
        return RpcError(Code.INTERNAL, f"the reply is no UpdateContainersResponse: {error}")
    if response.failed:
        return RpcError(Code.UNKNOWN, "the runtime could not change the container")
    return None
