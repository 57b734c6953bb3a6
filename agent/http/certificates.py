"""TLS of a server: certificate, key and client CA, from files that are read again when they change;
and the stream of a connection over TLS. The import of this module loads ssl (5 MB)."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final

from agent.host.files import Stamp, stamp
from agent.host.loop import READ, WRITE

log = logging.getLogger(__name__)


class CertificateError(RuntimeError):
    """The certificate files can't be read at the start; the message names them."""


def in_folder(folder: str) -> tuple[str, str]:
    """The certificate and the key, as a Secret of type kubernetes.io/tls has them."""
    return os.path.join(folder, "tls.crt"), os.path.join(folder, "tls.key")


class CertificateFiles:
    """Reads the files again when they change. The previous certificate stays in use while the files
    can't be used, for example because only one of certificate and key was replaced yet.

    `client_ca`: the CA of the certificate that a client must show; if it is empty, none is
        requested.
    `client_optional`: a client may also connect without one.

    Raises CertificateError."""

    def __init__(
        self, certificate: str, key: str, client_ca: str = "", *, client_optional: bool = False
    ) -> None:
        self._paths = (certificate, key, client_ca) if client_ca else (certificate, key)
        self._client_ca = client_ca
        self.client_optional = client_optional
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

    def stream(self, accepted: socket.socket) -> TlsStream:
        """A connection over TLS. Raises OSError."""
        return TlsStream(accepted, self.context())

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A client could let the server compute handshakes on one connection without end.
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(*self._paths[:2])
        except (OSError, ValueError) as error:
            certificate, key = self._paths[:2]
            raise CertificateError(f"certificate {certificate}, key {key}: {error}") from error
        if self._client_ca:
            context.verify_mode = ssl.CERT_OPTIONAL if self.client_optional else ssl.CERT_REQUIRED
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


class TlsStream:
    """A connection over TLS, as `connection.ByteStream`; all calls raise OSError.

    `accepted`: a socket that does not block. It is detached, or closed after an OSError."""

    def __init__(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        try:
            self._socket = context.wrap_socket(
                accepted, server_side=True, do_handshake_on_connect=False
            )
        except OSError:
            accepted.close()
            raise
        self.names: frozenset[str] | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def handshake(self) -> int:
        """Continues the handshake. Returns the events that it waits for, 0 at its end. Then `names`
        has the names in the client's certificate, None if the client has shown none."""
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return WRITE
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                with contextlib.suppress(OSError):
                    socket.socket.send(self._socket, _NO_TLS)
            raise
        shown = self._socket.getpeercert()
        self.names = certificate_names(shown) if shown else None
        return 0

    def receive(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return None

    def pending(self) -> bool:
        """Whether decrypted bytes can be received, which epoll does not report."""
        return bool(self._socket.pending())

    def send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def end_sending(self) -> None:
        """Ends the TLS session and the sending side of the connection. Bytes that are received
        after this call are not decrypted, so the reader must drop them."""
        with contextlib.suppress(OSError):
            self._socket.unwrap()  # sends the end, and does not wait for the client's
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"this port serves HTTPS only\n"
)
