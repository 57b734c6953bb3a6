"""One client's connection in an epoll loop: handshake, then requests and replies in turn.

The connection does not block and has no thread: a client that is slow, or never ends its request,
occupies a socket and a few bytes. The `listener` applies the limits of `limits` to it.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final, Protocol

from agent.host.loop import READ, WRITE, Loop
from agent.http import requests
from agent.http.limits import ConnectionLimits, ConnectionPhase
from agent.http.requests import BadRequestError, HttpRequest, Reply, RequestHead, text_reply

_MAX_READS: Final = 4
"""In one event, so that a client that sends without end does not delay others."""
_READING: Final = frozenset(
    {ConnectionPhase.HEAD, ConnectionPhase.BODY, ConnectionPhase.IDLE, ConnectionPhase.CLOSING}
)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ByteStream(Protocol):
    """The bytes of a connection. All methods raise OSError."""

    names: frozenset[str] | None
    """See TlsStream."""

    def fileno(self) -> int: ...

    def handshake(self) -> int:
        """Returns the events that the handshake waits for, 0 at its end."""
        ...

    def receive(self, buffer: memoryview) -> int | None:
        """Returns 0 at the end of the stream, None if nothing is received yet."""
        ...

    def pending(self) -> bool: ...

    def send(self, data: memoryview) -> int:
        """Returns 0 if nothing can be sent now."""
        ...

    def end_sending(self) -> None: ...

    def close(self) -> None: ...


class PlainStream:
    """A connection without TLS, over a socket that does not block."""

    names: frozenset[str] | None = None

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted

    def fileno(self) -> int:
        return self._socket.fileno()

    def handshake(self) -> int:
        return 0

    def receive(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    def pending(self) -> bool:
        return False

    def send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


class ConnectionOwner(Protocol):
    """What a connection uses of the listener that accepted it."""

    limits: ConnectionLimits
    loop: Loop
    buffer: memoryview
    draining: bool
    """No further request is read."""

    def crowded(self) -> bool:
        """Whether the connection should be closed after its reply, to make room for others."""
        ...

    def entered(self, connection: HttpConnection, phase: ConnectionPhase) -> None: ...

    def holds(self, connection: HttpConnection, held_bytes: int) -> None:
        """Notes the size of the request's body. May close connections, including this one."""
        ...

    def requested(self, connection: HttpConnection, request: HttpRequest) -> None:
        """A request is complete; `respond` is to be called once."""
        ...

    def certifies(self, connection: HttpConnection, names: frozenset[str] | None) -> bool:
        """Whether a client with a certificate of these names has shown an accepted one."""
        ...

    def ended(self, connection: HttpConnection) -> None: ...


class HttpConnection:
    """The states of a connection from `start` to `close`. All methods are called in the loop's
    thread, except `encoded` and `send_at_once`.

    `local`: the client is on the node.
    `loopback`: the client has a loopback address."""

    def __init__(
        self,
        owner: ConnectionOwner,
        stream: ByteStream,
        peer: str,
        local: bool,
        loopback: bool = False,
    ) -> None:
        self.peer = peer
        self.local = local
        self._loopback = loopback
        self._owner = owner
        self._stream = stream
        self._phase: ConnectionPhase | None = ConnectionPhase.HANDSHAKE
        """None after `close`."""
        self._interest = 0
        self._received = bytearray()
        self._searched = 0
        self._head: RequestHead | None = None
        self._unsent = memoryview(b"")
        self._close_after = False
        self._certified = False

    def start(self) -> None:
        self._ready(READ)

    def respond(self, reply: Reply) -> None:
        """Replies to the request that is being handled."""
        self.send(memoryview(self.encoded(reply)))

    def send(self, rest: memoryview) -> None:
        """Sends the rest of a reply whose beginning `send_at_once` has sent."""
        if self._phase is not ConnectionPhase.HANDLING:
            return
        self._unsent = rest
        self._owner.holds(self, 0)
        self._enter(ConnectionPhase.REPLY)
        self._ready(WRITE)

    def encoded(self, reply: Reply) -> bytes:
        """The bytes of the reply to the request that is being handled. May be called in another
        thread meanwhile."""
        head = self._head
        # 503 may come from a process that is not the leader: a new connection may reach the leader.
        if head is None or not self._keeps_open(head) or reply.status == 503:
            self._close_after = True
        with_body = head is None or head.method != "HEAD"
        return requests.encode_reply(reply, with_body=with_body, close=self._close_after)

    def send_at_once(self, data: memoryview) -> int:
        """Sends as much of a reply as the socket takes, and returns the number of bytes. May be
        called in another thread while the request is being handled. An error is reported when the
        rest is sent."""
        with contextlib.suppress(OSError):
            return self._stream.send(data)
        return 0

    def expire(self, phase: ConnectionPhase) -> None:
        """Closes the connection, because the phase has lasted too long; replies first if the client
        has begun a request."""
        has_begun = phase is ConnectionPhase.BODY or (
            phase is ConnectionPhase.HEAD and self._received
        )
        if has_begun:
            self._refuse(text_reply(408, "the request did not end in time"))
        else:
            self.close()

    def drain(self) -> None:
        """Closes the connection, at once if no request is being handled, otherwise after the
        reply."""
        if self._phase not in (
            ConnectionPhase.HANDLING,
            ConnectionPhase.REPLY,
            ConnectionPhase.CLOSING,
        ):
            self.close()

    def close(self) -> None:
        """Closes the stream and calls `ended` of the owner; does nothing the second time."""
        if self._interest:
            self._owner.loop.unregister(self._stream.fileno())
            self._interest = 0
        if self._phase is not None:
            self._phase = None
            self._stream.close()
            self._received = bytearray()
            self._unsent = memoryview(b"")
            self._owner.ended(self)

    def _ready(self, events: int) -> None:
        try:
            if self._phase is ConnectionPhase.HANDSHAKE:
                self._handshake()
            elif self._phase is ConnectionPhase.REPLY:
                self._send()
            else:
                self._receive()
        except OSError:
            self.close()

    def _handshake(self) -> None:
        waits_for = self._stream.handshake()
        if waits_for:
            self._watch(waits_for)
            return
        self._certified = self._owner.certifies(self, self._stream.names)
        if self._stream.names is not None and not self._certified:
            self._refuse(text_reply(403, "the client certificate has no accepted name"))
            return
        self._enter(ConnectionPhase.HEAD)
        self._receive()

    def _receive(self) -> None:
        """Reads until nothing is received, a request is complete, or _MAX_READS is reached."""
        buffer, reads = self._owner.buffer, 0
        while self._phase in _READING and (reads < _MAX_READS or self._stream.pending()):
            size = self._stream.receive(buffer)
            if size is None:
                break
            if not size:
                self._ended_by_client()
                return
            reads += 1
            if self._phase is ConnectionPhase.CLOSING:
                continue
            self._received += buffer[:size]
            self._advance()
        if self._phase in _READING:
            self._watch(READ)

    def _ended_by_client(self) -> None:
        if self._phase is ConnectionPhase.BODY:
            self._refuse(text_reply(400, "the body ended early"))
        else:
            self.close()

    def _advance(self) -> None:
        """Reads head and body from the received bytes, as far as they have arrived."""
        if self._phase is ConnectionPhase.IDLE and self._received:
            self._enter(ConnectionPhase.HEAD)
        try:
            if self._phase is ConnectionPhase.HEAD and not self._read_head():
                return
        except BadRequestError as error:
            self._refuse(text_reply(error.status, str(error)))
            return
        if self._phase is ConnectionPhase.BODY:
            self._read_body()

    def _read_head(self) -> bool:
        limits = self._owner.limits
        end = requests.head_end(self._received, self._searched, limits.head_bytes)
        self._searched = len(self._received)
        if not end:
            return False
        head = requests.parse_head(bytes(self._received[:end]))
        del self._received[:end]
        self._searched = 0
        if (head.content_length or 0) > limits.body_bytes:
            text = f"the body exceeds the maximum of {limits.body_bytes} bytes"
            raise BadRequestError(text, 413)
        self._head = head
        self._enter(ConnectionPhase.BODY)
        if head.expects_continue and head.content_length and not self._received:
            self._stream.send(memoryview(_CONTINUE))
        return True

    def _read_body(self) -> None:
        head = self._head
        assert head is not None
        length = head.content_length
        missing = (length or 0) - len(self._received)
        self._owner.holds(self, min(len(self._received), length or 0))
        if missing > 0 or self._phase is not ConnectionPhase.BODY:
            return
        body = None
        if length is None:
            self._close_after = True
        else:
            body = bytes(self._received[:length])
            del self._received[:length]
        self._enter(ConnectionPhase.HANDLING)
        self._watch(0)
        if not self.local and self._owner.crowded():
            self._close_after = True
        request = HttpRequest(
            head.method,
            head.path,
            head.content_type,
            body,
            self._certified,
            head.host,
            self._loopback,
            not isinstance(self._stream, PlainStream),
        )
        self._owner.requested(self, request)

    def _refuse(self, reply: Reply) -> None:
        """Replies to a request that is not read to its end."""
        self._head = None
        self._received = bytearray()
        self._enter(ConnectionPhase.HANDLING)
        self.respond(reply)

    def _send(self) -> None:
        while self._unsent:
            sent = self._stream.send(self._unsent)
            if not sent:
                self._watch(WRITE)
                return
            self._unsent = self._unsent[sent:]
        if self._close_after or self._owner.draining:
            self._end()
            return
        self._head = None
        self._enter(ConnectionPhase.IDLE)
        self._advance()
        if self._phase in _READING:
            self._watch(READ)

    def _end(self) -> None:
        """Closes the connection after the reply. The kernel resets a socket that is closed with
        unread bytes, and the client may lose the reply: so what the client still sends is dropped
        for a while."""
        self._stream.end_sending()
        self._enter(ConnectionPhase.CLOSING)
        self._receive()

    def _keeps_open(self, head: RequestHead) -> bool:
        return head.keep_alive and self._owner.limits.idle_seconds > 0

    def _enter(self, phase: ConnectionPhase) -> None:
        self._phase = phase
        self._owner.entered(self, phase)

    def _watch(self, events: int) -> None:
        if events == self._interest:
            return
        loop, descriptor = self._owner.loop, self._stream.fileno()
        if not events:
            loop.unregister(descriptor)
        elif self._interest:
            loop.modify(descriptor, events)
        else:
            loop.register(descriptor, events, self._ready)
        self._interest = events
