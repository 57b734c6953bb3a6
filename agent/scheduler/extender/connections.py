"""Client connections: certificates, the TLS handshake, time limits, buffered reads and full writes.

The certificate files are read again when they change. cheroot's streams are those of Python's `io`,
which copy a body of 5,000 names five times; the streams of this module read into one buffer and
write from one.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

from agent.host.files import Stamp, stamp

T = TypeVar("T")
log = logging.getLogger(__name__)


class StartError(RuntimeError):
    """A process of this package can't start; the message names what is missing."""


class CertificateError(StartError):
    """The certificate files can't be read at the start; the message names them."""


class CertificateFiles:
    """Reads the files again when they change. While certificate and key do not match, as when only
    one of them was replaced yet, the previous ones stay in use."""

    def __init__(self, certificate: str, key: str, client_ca: str = "") -> None:
        """`client_ca`: a client must show a certificate of that CA; empty for none. Raises
        CertificateError."""
        self._paths = (certificate, key, client_ca) if client_ca else (certificate, key)
        self._client_ca = client_ca
        self._refused: Stamp | None = None
        self._stamp = stamp(*self._paths)
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """Returns the same context while the files are the same."""
        now = stamp(*self._paths)
        if now not in (self._stamp, self._refused):
            try:
                self._context = self._read()
            except CertificateError as error:
                log.warning("the previous certificate stays in use: %s", error)
                self._refused = now
            else:
                log.info("certificate %s was replaced", self._paths[0])
                self._stamp = now
        return self._context

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(*self._paths[:2])
        except (OSError, ValueError) as error:
            certificate, key = self._paths[:2]
            raise CertificateError(f"certificate {certificate}, key {key}: {error}") from error
        if self._client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ValueError) as error:
                raise CertificateError(f"client CA {self._client_ca}: {error}") from error
        return context


def certificate_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Returns the common name and the alternative names, of any kind, of a certificate as
    SSLSocket.getpeercert returns it."""
    subject = certificate.get("subject", ())
    common = (value for part in subject for key, value in part if key == "commonName")
    return frozenset((*common, *(value for _, value in certificate.get("subjectAltName", ()))))


_READ_BYTES: Final = 16 << 10
# The pause within a request while other requests wait for a thread.
_HURRY_SECONDS: Final = 0.25


class SocketStream(Protocol):
    """The socket methods that are used here. They raise OSError."""

    def recv_into(self, buffer: memoryview | bytearray) -> int: ...

    def send(self, data: memoryview) -> int: ...

    def pending(self) -> int:
        """The number of received bytes that poll on the connection does not report."""
        ...


class RequestReader:
    """The file that the HTTP server reads."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._kept = bytearray()
        self.bytes_read = 0
        self.closed = False

    def has_data(self) -> bool:
        """Whether received data has not been read yet."""
        return bool(self._kept) or bool(self._stream.pending())

    def readline(self, size: int) -> bytes:
        """Returns at most `size` bytes. The line end is missing if the line is longer, or if the
        stream ended."""
        searched = 0
        while (end := self._kept.find(b"\n", searched, size)) < 0:
            searched = len(self._kept)
            if searched >= size or not self._receive():
                return self._take(size)
        return self._take(end + 1)

    def read(self, size: int) -> bytes:
        """Returns fewer bytes only if the stream ended."""
        first = self._take(size)
        if len(first) == size:
            return first
        whole = memoryview(bytearray(size))
        have = len(first)
        whole[:have] = first
        while have < size:
            received = self._stream.recv_into(whole[have:])
            if not received:
                break
            have += received
        self.bytes_read += have - len(first)
        return bytes(whole[:have])

    def close(self) -> None:
        """Does not close the socket."""
        self.closed = True

    def _receive(self) -> int:
        buffer = bytearray(_READ_BYTES)
        received = self._stream.recv_into(buffer)
        self._kept += memoryview(buffer)[:received]
        return received

    def _take(self, size: int) -> bytes:
        data = bytes(memoryview(self._kept)[:size])
        del self._kept[: len(data)]
        self.bytes_read += len(data)
        return data


class Writer:
    """The file that the HTTP server writes."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self.bytes_written = 0

    def write(self, data: bytes) -> int:
        """Writes all of it."""
        left = memoryview(data)
        while left:
            left = left[self._stream.send(left) :]
        self.bytes_written += len(data)
        return len(data)


class BoundedSocket(socket.socket):
    """Limits the time of a whole request and of its reply: a client that sends or reads one byte at
    a time would otherwise occupy a thread without limit. While requests wait for a thread
    (`pressed`), a pause within a request must be short."""

    request_seconds = 0.0
    pressed: Callable[[], bool] = staticmethod(lambda: False)
    _reading = False
    _since = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """Raises TimeoutError, which the HTTP server answers with 408."""
        receive = super().recv_into
        return self._received(lambda: receive(*args, **kwargs))

    def send(self, *args: Any, **kwargs: Any) -> int:
        """Raises TimeoutError."""
        self.settimeout(self._left(reading=False))
        return super().send(*args, **kwargs)

    def pending(self) -> int:
        return 0

    def _received(self, receive: Callable[[], T]) -> T:
        while True:
            left = self._left(reading=True)
            self.settimeout(min(left, _HURRY_SECONDS))
            try:
                return receive()
            except TimeoutError:
                if left <= _HURRY_SECONDS or self.pressed():
                    raise

    def _left(self, reading: bool) -> float:
        now = time.monotonic()
        if reading is not self._reading:
            self._reading, self._since = reading, now
        left = self.request_seconds - (now - self._since)
        if left <= 0:
            raise TimeoutError("timed out")
        return left


def with_deadline(
    sock: socket.socket, request_seconds: float, pressed: Callable[[], bool]
) -> BoundedSocket:
    """Returns the same connection with these limits; `sock` is detached."""
    made = BoundedSocket(sock.family, sock.type, sock.proto, sock.detach())
    made.request_seconds, made.pressed = request_seconds, pressed
    return made


class TlsSocket(BoundedSocket, ssl.SSLSocket):
    """Does the handshake at the first read, within the time of the first request. A failed
    handshake closes the connection with an OSError."""

    clients: frozenset[str] = frozenset()
    _handshaken = False

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        if not self._handshaken:
            self._handshake()
        return super().recv_into(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> int:
        if not self._handshaken:
            raise _dropped("the TLS handshake did not end in time")
        return super().send(*args, **kwargs)

    def pending(self) -> int:
        return ssl.SSLSocket.pending(self)

    def _handshake(self) -> None:
        try:
            self._received(self.do_handshake)
        except OSError as error:
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                socket.socket.send(self, _NO_TLS)
            log.debug("TLS: %s", error)
            raise _dropped(str(error)) from error
        if self.clients:
            names = certificate_names(self.getpeercert() or {})
            if self.clients.isdisjoint(names):
                log.warning("client certificate refused: names %s", ", ".join(sorted(names)))
                super().send(_NO_CLIENT)
                raise _dropped("the client certificate has no accepted name")
        self._handshaken = True


def with_tls(
    sock: socket.socket,
    context: ssl.SSLContext,
    request_seconds: float,
    pressed: Callable[[], bool],
    clients: frozenset[str],
) -> TlsSocket:
    """Returns the same connection over TLS. Raises OSError."""
    context.sslsocket_class = TlsSocket
    made = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    assert isinstance(made, TlsSocket)
    made.request_seconds, made.pressed = request_seconds, pressed
    made.clients = clients
    return made


def _dropped(reason: str) -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, reason)


_CLOSING: Final = b"Connection: close\r\nContent-Type: text/plain\r\n\r\n"
_NO_TLS: Final = b"HTTP/1.1 400 Bad Request\r\n" + _CLOSING + b"this port serves HTTPS only\n"
_NO_CLIENT: Final = (
    b"HTTP/1.1 403 Forbidden\r\n" + _CLOSING + b"the client certificate has no accepted name\n"
)
