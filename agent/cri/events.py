"""The runtime's container events, without their content.

containerd before 2.0 sends each event to only one of the callers of GetContainerEvents (its issue
7318, solved by its pull request 9661), so a second caller would take events from the kubelet; CRI-O
did the same at first (its issue 6466). The agent does not subscribe to the events of such a
runtime. It only keeps a connection open, whose end shows that the runtime ended."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final

from agent.host.log_once import Problem
from agent.model.verdict import Code
from agent.proto import DecodeError
from agent.proto import cri_pb2 as pb
from agent.rpc import unary
from agent.rpc.channel import Connection
from agent.rpc.grpc import RpcError

_SERVICE: Final = "/runtime.v1.RuntimeService"
_ANSWER_SECONDS: Final = 10.0
FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_LARGEST_EVENT_BYTES: Final = 16 << 20
_MAJOR: Final = re.compile(r"v?([0-9]{1,9})\.")

log = logging.getLogger(__name__)


def serves_all_callers(runtime_name: str, runtime_version: str) -> bool:
    """Whether every caller of GetContainerEvents gets every event."""
    major = _MAJOR.match(runtime_version)
    return runtime_name == "containerd" and major is not None and int(major[1]) >= 2


class ContainerEvents:
    """Calls `on_event` from a thread of its own: after events, and when the runtime starts or ends.

    `streaming`: whether the stream of events is open."""

    def __init__(self, socket_path: str, on_event: Callable[[], None]) -> None:
        self._path = socket_path
        self._on_event = on_event
        self.streaming = False
        self._no_events = Problem(log, "", logging.INFO)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="container-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                self._connection.interrupt()
        self._thread.join(_ANSWER_SECONDS)

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                self._follow()
            except RpcError as error:
                log.debug("container events: %s", error)
            if time.monotonic() - began > _LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _follow(self) -> None:
        """Connects, and returns when the connection ends. Raises RpcError."""
        connection = Connection(
            self._path, _LARGEST_EVENT_BYTES, time.monotonic() + _ANSWER_SECONDS
        )
        with self._lock:
            self._connection = connection
        try:
            if self._closed.is_set():
                return
            if self._has_events(connection):
                self._stream(connection)
            self._on_event()
            connection.wait_for_end()
        finally:
            with self._lock:
                self._connection = None
            connection.close()
            self._on_event()

    def _stream(self, connection: Connection) -> None:
        """Follows the events. Returns if the runtime does not have this call; raises RpcError when
        the stream ends."""
        try:
            for _ in connection.messages(f"{_SERVICE}/GetContainerEvents", b""):
                self.streaming = True
                self._on_event()
        except RpcError as error:
            if error.code != Code.UNIMPLEMENTED:
                raise
            self._no_events.report(
                "the runtime has no events; cgroup events and passes replace them"
            )
        finally:
            self.streaming = False

    def _has_events(self, connection: Connection) -> bool:
        """Whether the runtime sends all events to this caller too. Raises RpcError."""
        request = pb.VersionRequest().SerializeToString()
        try:
            raw = connection.call(
                f"{_SERVICE}/Version", request, time.monotonic() + _ANSWER_SECONDS
            )
            reply = pb.VersionResponse.FromString(raw)
        except (DecodeError, unary.ProtocolError) as error:
            raise RpcError(Code.INTERNAL, f"Version: {error}") from None
        if serves_all_callers(reply.runtime_name, reply.runtime_version):
            return True
        self._no_events.report(
            f"{reply.runtime_name} {reply.runtime_version} may have container events for one "
            "caller only, which are the kubelet's; cgroup events and passes replace them"
        )
        return False
