"""Requests to an API server that impersonate a user."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

Object = dict[str, Any]

NODE_NAME = "authentication.kubernetes.io/node-name"
POD_NAME = "authentication.kubernetes.io/pod-name"


class Who(NamedTuple):
    """A user as the authenticators return it; `node` and `pod`: those to which its token is
    bound."""

    name: str = "alice"
    group: str = "system:masters"
    node: str = ""
    pod: str = ""


class RefusedError(Exception):
    """The server refused the request; the text is its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """`token` is that of an administrator, who may impersonate users."""

    def __init__(
        self, url: str, token: str, ca_file: str | None, timeout_seconds: float = 60.0
    ) -> None:
        self._url = url
        self._timeout_seconds = timeout_seconds
        self.warnings: list[str] = []
        """The warnings in the last reply without an error."""
        self._token = token
        self._tls = ssl.create_default_context(cafile=ca_file)
        if ca_file is None:
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE

    def request(
        self,
        method: str,
        path: str,
        body: Object | list[Object] | None = None,
        who: Who | None = None,
        media: str = "application/json",
    ) -> Object:
        """Raises RefusedError."""
        request = urllib.request.Request(
            self._url + path, None if body is None else json.dumps(body).encode(), method=method
        )
        request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", media)
        if who is not None:
            request.add_header("Impersonate-User", who.name)
            if who.group:
                request.add_header("Impersonate-Group", who.group)
            for name, value in ((NODE_NAME, who.node), (POD_NAME, who.pod)):
                if value:
                    key = urllib.parse.quote(name, safe="")
                    request.add_header(f"Impersonate-Extra-{key}", value)
        try:
            with urllib.request.urlopen(
                request, context=self._tls, timeout=self._timeout_seconds
            ) as answer:
                found: Object = json.load(answer)
                self.warnings = answer.headers.get_all("Warning") or []
                return found
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError):
                text = json.loads(text)["message"]
            raise RefusedError(error.code, text) from None

    def apply(
        self,
        body: Object,
        who: Who | None = None,
        manager: str = "test",
        subresource: str = "",
        **options: str,
    ) -> Object:
        """Server-side apply with force. `options`: further parameters of the request."""
        path = path_of(body) + (f"/{subresource}" if subresource else "")
        query = urllib.parse.urlencode({"fieldManager": manager, "force": "true", **options})
        return self.request("PATCH", f"{path}?{query}", body, who, "application/apply-patch+yaml")

    def merge(self, path: str, change: Object, who: Who | None = None) -> Object:
        """A merge patch."""
        return self.request("PATCH", path, change, who, "application/merge-patch+json")

    def namespace(self, name: str, **labels: str) -> None:
        """Creates a namespace with the default account, which pods need."""
        metadata = {"name": name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self.account(name)

    def account(self, namespace: str, name: str = "default") -> None:
        metadata = {"name": name, "namespace": namespace}
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def path_of(body: Object) -> str:
    """The path of an object."""
    group, kind = body["apiVersion"], body["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    namespace = body["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{place}/{plural}/{body['metadata']['name']}"
