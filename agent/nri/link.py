"""The connection to the runtime, in the process's epoll loop. `PluginLink` keeps a session open: it
connects, registers the plugin, and connects again after the session's end."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import Final

from agent.host.log_once import Problem
from agent.host.loop import READ, WRITE, Loop, Timer
from agent.model.linux_resources import LinuxResources
from agent.model.verdict import Code
from agent.nri import messages
from agent.nri.service import OpenCall, Plugin, PluginService, PluginStats
from agent.nri.ttrpc import MuxError, Session
from agent.proto import DecodeError
from agent.proto import nri_pb2 as pb
from agent.rpc.grpc import RpcError
from agent.rpc.held_calls import HeldCalls

SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_REGISTRATION_SECONDS: Final = 12.0
"""The runtime registers one client after the other and waits 5 s for a silent one (NRI:
pkg/adaptation/adaptation.go, acceptPluginConnections; DefaultPluginRegistrationTimeout)."""
_MAX_HELD: Final = 1_024
_MAX_HELD_BYTES: Final = 40 << 20
"""Held calls and their requests: a runtime makes one call at a time."""
_READ_BYTES: Final = 1 << 18
_MAX_UNSENT_BYTES: Final = 8 << 20


class _PluginConnection:
    """One session's socket, timers and calls."""

    def __init__(
        self,
        loop: Loop,
        connected: socket.socket,
        plugin: Plugin,
        stats: PluginStats,
        held: HeldCalls[OpenCall],
        synchronized: Callable[[], None],
        ended: Callable[[str, float], None],
    ) -> None:
        """`synchronized` is called when the runtime has reported all containers, `ended` at the end
        of the session with its reason and the seconds that it lasted."""
        self.ready = False
        self._loop = loop
        self._socket = connected
        self._synchronized = synchronized
        self._ended = ended
        self._began = time.monotonic()
        self._service = PluginService(
            plugin, stats, held, self._on_synchronized, self._send_answers
        )
        self._session = Session(self._service.serve)
        self._open = True
        self._interest = READ
        connected.setblocking(False)
        loop.register(connected.fileno(), READ, self._on_events)

    @property
    def accepts_updates(self) -> bool:
        return self.ready and self._service.accepts_updates

    def register(self, name: str, index: str) -> None:
        """Registers the plugin. The session ends if the runtime refuses."""

        def registered(reply: bytes | RpcError) -> None:
            if isinstance(reply, RpcError):
                self.close(f"plugin {index}-{name} is not registered: {reply}")

        request = pb.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        self._call("RegisterPlugin", request.SerializeToString(), _REGISTRATION_SECONDS, registered)

    def update(
        self,
        container_id: str,
        changes: LinuxResources,
        seconds: float,
        done: Callable[[RpcError | None], None],
    ) -> None:
        """Asks the runtime for the changes. If the runtime does not answer in time, the session
        ends: the runtime's server for the plugin's calls may have stopped while the connection
        stays open (NRI: pkg/net/multiplex/mux.go, conn.Read)."""

        def updated(reply: bytes | RpcError) -> None:
            error = reply if isinstance(reply, RpcError) else update_failure(reply)
            done(error)
            if error is not None and error.code == Code.DEADLINE_EXCEEDED:
                self.close("the runtime does not answer UpdateContainers")

        request = pb.UpdateContainersRequest(update=[messages.update(container_id, changes)])
        self._call("UpdateContainers", request.SerializeToString(), seconds, updated)

    def finish(self) -> None:
        """Answers the held calls, sends what the socket accepts without blocking, and closes."""
        self._service.finish()
        self._flush()
        self.close("the plugin ends")

    def close(self, why: str) -> None:
        """Closes the connection and reports the end, once."""
        if not self._open:
            return
        self._open = self.ready = False
        self._loop.unregister(self._socket.fileno())
        self._socket.close()
        self._session.close(why)
        self._service.close()
        self._ended(why, time.monotonic() - self._began)

    def _on_synchronized(self) -> None:
        self.ready = True
        self._synchronized()

    def _call(
        self, method: str, payload: bytes, seconds: float, done: Callable[[bytes | RpcError], None]
    ) -> None:
        def finished(reply: bytes | RpcError) -> None:
            timer.cancel()
            done(reply)

        timer = self._loop.after(seconds, lambda: self._session.cancel_call(stream))
        try:
            stream = self._session.call(SERVICE, method, payload, seconds, finished)
        except MuxError as error:
            finished(RpcError(Code.RESOURCE_EXHAUSTED, str(error)))
            return
        self._flush()

    def _on_events(self, events: int) -> None:
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
            self.close("the runtime closed the connection")
            return
        try:
            self._session.receive(data)
        except MuxError as error:
            self.close(f"malformed: {error}")
            return
        self._send_answers()

    def _send_answers(self) -> None:
        if self._open:
            self._flush()

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
        # A runtime that does not read its replies must not send more calls.
        interest = (READ if len(unsent) < _MAX_UNSENT_BYTES else 0) | (WRITE if unsent else 0)
        if interest != self._interest:
            self._interest = interest
            self._loop.modify(self._socket.fileno(), interest)


def update_failure(reply: bytes) -> RpcError | None:
    """Of an encoded UpdateContainersResponse; None if the runtime changed the container."""
    try:
        response = pb.UpdateContainersResponse.FromString(reply)
    except DecodeError as error:
        return RpcError(Code.INTERNAL, f"the reply is not an UpdateContainersResponse: {error}")
    if response.failed:
        return RpcError(Code.UNKNOWN, "the runtime could not change the container")
    return None


_UPDATE_SECONDS: Final = 10.0
"""The runtime handles one request at a time, and gives each plugin 2 s for its part."""
_FIRST_DELAY_SECONDS: Final = 0.2
_LONGEST_DELAY_SECONDS: Final = 5.0
_STEADY_SECONDS: Final = 10.0
"""After a session that lasted so long, the next one is tried after the first delay."""

log = logging.getLogger(__name__)


class PluginLink:
    """Keeps one session open until `close`. With `connected`, a socket that the runtime connected
    before it started this process, there is only one session, and `on_end` is called at its end:
    the runtime starts another process when it needs one."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        name: str,
        index: str,
        plugin: Plugin,
        *,
        connected: socket.socket | None = None,
        on_end: Callable[[], None] | None = None,
        update_seconds: float = _UPDATE_SECONDS,
    ) -> None:
        self.stats = PluginStats()
        self.held: HeldCalls[OpenCall] = HeldCalls(
            loop.after, max_calls=_MAX_HELD, max_bytes=_MAX_HELD_BYTES
        )
        self.sessions = 0
        """The number of sessions so far."""
        self.failed_sessions = 0
        self._loop = loop
        self._path = path
        self._name = name
        self._index = index
        self._plugin = plugin
        self._connected = connected
        self._on_end = on_end
        self._update_seconds = update_seconds
        self._connection: _PluginConnection | None = None
        self._delay_seconds = _FIRST_DELAY_SECONDS
        self._problem = Problem(log, "no session with the runtime: ")
        self._retry: Timer | None = None
        self._closing = False

    @property
    def ready(self) -> bool:
        """Whether the runtime has reported all containers and calls the hooks for each new one."""
        return self._connection is not None and self._connection.ready

    @property
    def problem(self) -> str:
        """Why the last attempt to start a session failed; "" if a session exists, or before the
        first attempt."""
        return self._problem.text or ""

    @property
    def accepts_updates(self) -> bool:
        """Whether the link is ready, and an update can't cause a deadlock in the runtime."""
        return self._connection is not None and self._connection.accepts_updates

    def start(self) -> None:
        """Connects, and tries again later if that fails."""
        self._retry = None
        try:
            connected = self._connected or _connect(self._path)
        except OSError as error:
            self._ended(f"{self._path}: {error.strerror}", 0.0)
            return
        self._connected = None
        self.sessions += 1
        self._connection = _PluginConnection(
            self._loop, connected, self._plugin, self.stats, self.held, self._ready, self._ended
        )
        self._connection.register(self._name, self._index)

    def update(
        self, container_id: str, changes: LinuxResources, done: Callable[[RpcError | None], None]
    ) -> None:
        """Asks the runtime to change one container. The protocol allows several in one call, but
        the runtime's answer is then one error for all of them, also for those that it changed
        (containerd: internal/nri/domain.go, updateContainers). An answer without an error does not
        prove that anything has changed."""
        if self._connection is None:
            done(RpcError(Code.UNAVAILABLE, "no session with the runtime"))
            return
        self._connection.update(container_id, changes, self._update_seconds, done)

    def close(self) -> None:
        """Ends the session for good."""
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
        if self._connection is not None:
            self._connection.finish()

    def _ready(self) -> None:
        self._problem.clear()
        log.info("registered with the runtime as %s-%s", self._index, self._name)

    def _ended(self, why: str, lasted_seconds: float) -> None:
        was_up, self._connection = self._connection is not None, None
        if self._closing:
            return
        self.failed_sessions += was_up
        self._problem.report(why, again=was_up)
        if self._on_end is not None:
            self._on_end()
            return
        if lasted_seconds >= _STEADY_SECONDS:
            self._delay_seconds = _FIRST_DELAY_SECONDS
        self._retry = self._loop.after(self._delay_seconds, self.start)
        self._delay_seconds = min(self._delay_seconds * 2, _LONGEST_DELAY_SECONDS)


def _connect(path: str) -> socket.socket:
    """Raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.setblocking(False)
    try:
        connected.connect(path)
    except OSError:
        connected.close()
        raise
    return connected
