"""A certificate authority for the API server of tests, its clients and other servers."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = datetime.timedelta(days=2)


class Authority:
    """Writes `NAME.crt` and `NAME.key` to its folder. Its own certificate is `ca.crt`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test-ca")
        builder = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._write("ca", builder.add_extension(usage, critical=True), self._key)

    def bundle(self) -> str:
        """The CA certificate in base64, as in objects of the API."""
        return base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()

    def server(self, name: str, *addresses: str, valid_for: datetime.timedelta = _DAYS) -> None:
        """A server certificate for 127.0.0.1, localhost and these addresses. `valid_for`: the time
        until it expires."""
        names = [
            *(x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", *addresses)),
            x509.DNSName("localhost"),
        ]
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key.public_key(), valid_for)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(name, _for_usage(builder, ExtendedKeyUsageOID.SERVER_AUTH), key)

    def client(self, name: str, *groups: str) -> None:
        """A client certificate of a user with these groups."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name, *groups), self._name, key.public_key())
        self._write(name, _for_usage(builder, ExtendedKeyUsageOID.CLIENT_AUTH), key)

    def signing_key(self, name: str) -> None:
        """Writes `NAME.key` and `NAME.pub`, which sign and verify tokens."""
        key = ec.generate_private_key(ec.SECP256R1())
        (self.folder / f"{name}.key").write_bytes(_private(key))
        (self.folder / f"{name}.pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def _write(
        self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
    ) -> None:
        certificate = builder.sign(self._key, hashes.SHA256())
        (self.folder / f"{name}.crt").write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
        )
        (self.folder / f"{name}.key").write_bytes(_private(key))


def kubeconfig(url: str, folder: Path, user: str) -> dict[str, Any]:
    """The kubeconfig of a user whose certificate is the file `USER.crt` in this folder."""
    certificate, key = folder / f"{user}.crt", folder / f"{user}.key"
    credentials = {"client-certificate": str(certificate), "client-key": str(key)}
    return _kubeconfig(url, folder, credentials)


def token_kubeconfig(url: str, folder: Path, token: str) -> dict[str, Any]:
    """The kubeconfig of a token. The folder contains the certificate of the authority."""
    return _kubeconfig(url, folder, {"token": token})


def _kubeconfig(url: str, folder: Path, credentials: dict[str, str]) -> dict[str, Any]:
    cluster = {"server": url, "certificate-authority": str(folder / "ca.crt")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "user", "user": credentials}],
    }


def serving_secret(namespace: str, service: str) -> dict[str, Any]:
    """The Secret `SERVICE-tls` with a self-signed certificate of the Service, as in
    docs/scheduler.md and docs/webhook.md."""
    host = f"{service}.{namespace}.svc"
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name(host), _name(host), key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{service}-tls", "namespace": namespace},
        "stringData": {
            "tls.crt": certificate,
            "tls.key": _private(key).decode(),
            "ca.crt": certificate,
        },
    }


def _name(name: str, *groups: str) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    valid_for: datetime.timedelta = _DAYS,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + valid_for)
    )


def _for_usage(
    builder: x509.CertificateBuilder, usage: x509.ObjectIdentifier
) -> x509.CertificateBuilder:
    return builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
