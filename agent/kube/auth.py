"""The address of the API server, and the credentials for it."""

from __future__ import annotations

import base64
import importlib
import os
import ssl
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from agent import WHEEL
from agent.host.files import Stamp, stamp
from agent.kube import documents
from agent.kube.errors import StoreError


class AccessError(StoreError):
    """The address or the credentials are missing or invalid; the message names the file or
    variable."""


class Access(Protocol):
    """The address of the server, and what a request to it needs: headers and TLS."""

    @property
    def server(self) -> str:
        """The URL, without a slash at its end."""
        ...

    @property
    def server_name(self) -> str | None:
        """The name in the server's certificate where it differs from the URL's host."""
        ...

    def headers(self) -> dict[str, str]:
        """The headers of every request. Raises AccessError."""
        ...

    def tls(self) -> ssl.SSLContext | None:
        """Returns the same context while its files are the same; None for plain HTTP. Raises
        AccessError."""
        ...

    def renew(self) -> bool:
        """Reads the credentials again after the server refused them. Returns False if they are the
        same. Raises AccessError."""
        ...


class FileAccess:
    """Credentials in files that others replace: the kubelet replaces the token, an operator the
    certificates.

    A file is read again when it changes, a token also after a refusal. While a token's file is
    empty or missing, the last token stays in use.
    """

    def __init__(
        self,
        server: str,
        *,
        ca: str = "",
        token: str = "",
        certificate: str = "",
        key: str = "",
        server_name: str | None = None,
        verify: bool = True,
    ) -> None:
        """The paths of `ca`, `token`, `certificate` and `key` are empty for none."""
        self.server = server.rstrip("/")
        self.server_name = server_name
        self._ca = ca
        self._token_path = token
        self._certificate = certificate
        self._key = key
        self._verify = verify
        self._token = ""
        self._token_stamp: Stamp = ()
        self._context: ssl.SSLContext | None = None
        self._context_stamp: Stamp = ()

    def headers(self) -> dict[str, str]:
        if not self._token_path:
            return {}
        now = stamp(self._token_path)
        if now != self._token_stamp or not self._token:
            self._read_token()
            self._token_stamp = now
        return {"Authorization": f"Bearer {self._token}"}

    def tls(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        now = stamp(self._ca, self._certificate, self._key)
        if self._context is None or now != self._context_stamp:
            try:
                self._context = self._new_context()
            except AccessError:
                if self._context is None:
                    raise
            else:
                self._context_stamp = now
        return self._context

    def renew(self) -> bool:
        before = self._token
        if self._token_path:
            self._read_token()
        return self._token != before

    def _read_token(self) -> None:
        try:
            with open(self._token_path, encoding="ascii") as file:
                token = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._token:
                return
            raise AccessError(f"token {self._token_path}: {error}") from error
        if not token.isprintable() or not (token or self._token):
            raise AccessError(f"token {self._token_path}: empty or more than one line")
        self._token = token or self._token

    def _new_context(self) -> ssl.SSLContext:
        reading = f"CA bundle {self._ca}"
        try:
            context = ssl.create_default_context(cafile=self._ca or None)
            if not self._verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self._certificate:
                reading = f"client certificate {self._certificate}, key {self._key}"
                context.load_cert_chain(self._certificate, self._key or None)
        except (OSError, ValueError) as error:
            raise AccessError(f"{reading}: {error}") from error
        return context


def in_cluster(folder: str, environ: Mapping[str, str] = os.environ) -> FileAccess:
    """The pod's service account, whose token is in the folder. Raises AccessError outside a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise AccessError("KUBERNETES_SERVICE_HOST and _PORT are not set: not in a cluster")
    return FileAccess(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca=os.path.join(folder, "ca.crt"),
        token=os.path.join(folder, "token"),
    )


SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder of a pod's service account, with `token`, `ca.crt` and `namespace`."""


def service_account(kubeconfig: str) -> str:
    """The folder of the service account, "" if `kubeconfig` is a file."""
    folder = kubeconfig or SERVICE_ACCOUNT
    return folder if not kubeconfig or os.path.isdir(folder) else ""


class _Named(msgspec.Struct, frozen=True):
    name: str


class _PodClaims(msgspec.Struct, frozen=True):
    namespace: str
    pod: _Named


class _TokenClaims(msgspec.Struct, frozen=True):
    of_pod: _PodClaims = msgspec.field(name="kubernetes.io")


def own_pod(kubeconfig: str) -> tuple[str, str] | None:
    """Namespace and name of the pod for which a kubelet has requested the token of the service
    account (Kubernetes: pkg/serviceaccount/claims.go); None for other credentials."""
    folder = service_account(kubeconfig)
    try:
        with open(os.path.join(folder, "token"), encoding="ascii") as file:
            payload = file.read().split(".")[1]
        decoded = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        claims = msgspec.json.decode(decoded, type=_TokenClaims).of_pod
    except (OSError, ValueError, IndexError):
        return None
    return claims.namespace, claims.pod.name


def access(kubeconfig: str) -> Access:
    """Returns the access of a kubeconfig file, of the service account in a folder, or, if
    `kubeconfig` is empty, of that of this pod. Raises AccessError."""
    folder = service_account(kubeconfig)
    return in_cluster(folder) if folder else KubeconfigAccess(kubeconfig)


class KubeconfigAccess:
    """A kubeconfig file, read by the package `kubernetes`, which supports exec plugins. The package
    is imported only here, since it needs 20 MB."""

    def __init__(self, path: str) -> None:
        """Raises AccessError."""
        self._path = path
        self._load()

    @property
    def server(self) -> str:
        return self._files.server

    @property
    def server_name(self) -> str | None:
        return self._files.server_name

    def headers(self) -> dict[str, str]:
        authorization = self._configuration.get_api_key_with_prefix("BearerToken", "authorization")
        return {"Authorization": authorization} if authorization else {}

    def tls(self) -> ssl.SSLContext | None:
        return self._files.tls()

    def renew(self) -> bool:
        self._load()
        return True

    def _load(self) -> None:
        try:
            config = importlib.import_module("kubernetes.config")
            client = importlib.import_module("kubernetes.client")
        except ImportError as error:
            raise AccessError(
                f"kubeconfig {self._path}: needs the package kubernetes, "
                f"pip install '{WHEEL}[kubeconfig]'"
            ) from error
        from yaml import YAMLError

        if not os.path.exists(self._path):
            raise AccessError(f"kubeconfig {self._path}: no such file")
        configuration: Any = client.Configuration()
        try:
            config.load_kube_config(
                self._path, client_configuration=configuration, persist_config=False
            )
        except (config.ConfigException, OSError) as error:
            raise AccessError(f"kubeconfig {self._path}: {error}") from error
        except (YAMLError, ValueError, TypeError) as error:
            raise AccessError(f"kubeconfig {self._path}: {documents.fault(error)}") from error
        self._configuration = configuration
        self._files = FileAccess(
            configuration.host,
            ca=configuration.ssl_ca_cert or "",
            certificate=configuration.cert_file or "",
            key=configuration.key_file or "",
            server_name=configuration.tls_server_name or None,
            verify=configuration.verify_ssl,
        )
