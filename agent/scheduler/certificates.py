"""A server's certificate and key in files that others replace."""

from __future__ import annotations

import logging
import ssl

from agent.host.files import Stamp, stamp

log = logging.getLogger(__name__)


class CertificateError(RuntimeError):
    """No certificate to begin with; the message names the files."""


class CertificateFiles:
    """Read again when they change. While they don't fit each other, as between the replacement of
    the one and of the other, the last ones stay in force."""

    def __init__(self, certificate: str, key: str) -> None:
        """Paths. Raises CertificateError."""
        self._paths = certificate, key
        self._refused: Stamp | None = None
        self._stamp = stamp(certificate, key)
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """The same one while the files are the same."""
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
            context.load_cert_chain(*self._paths)
        except (OSError, ValueError) as error:
            certificate, key = self._paths
            raise CertificateError(f"certificate {certificate}, key {key}: {error}") from error
        return context
