"""TLS certificate, key and client CA, read again when their files change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import Any

from agent.host.files import Stamp, stamp


class StartError(RuntimeError):
    """A process of this package can't start; the message names what is missing."""


log = logging.getLogger(__name__)


class CertificateError(StartError):
    """The certificate files can't be read at the start; the message names them."""


class CertificateFiles:
    """Reads the files again when they change. While certificate and key do not match, as between
    the replacement of the one and of the other, the last ones stay in use."""

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
                log.warning("the last certificate stays in force: %s", error)
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


def names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Returns the common name and the alternative names, of any kind, of a certificate as
    SSLSocket.getpeercert returns it."""
    subject = certificate.get("subject", ())
    common = (value for part in subject for key, value in part if key == "commonName")
    return frozenset((*common, *(value for _, value in certificate.get("subjectAltName", ()))))
