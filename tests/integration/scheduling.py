"""`topolet scheduler` as a process, and a client that calls it as kube-scheduler does."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.deploy.manifests import objects
from tests.fixtures.ports import free_port
from tests.integration.apiserver.server import ApiServer
from tests.integration.command import Command
from tests.waiting import eventually

Object = dict[str, Any]

REBINDS = "/apis/scheduling.koordinator.sh/v1alpha1/rebindresources"
NO_AGENT_PODS = "--agent-selector="
"""Flag of a scheduler whose cluster has no agents in pods."""
_MANIFESTS = (
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "CustomResourceDefinition",
)


class Scheduler(Command):
    """The log is a file below `folder`."""

    def __init__(self, folder: Path, kubeconfig: Path, name: str = "scheduler") -> None:
        super().__init__("scheduler", folder / f"{name}.log", "extender listens")
        self.port, self.pages_port = free_port(), free_port()
        self._kubeconfig = kubeconfig
        self._state_dir = folder / f"{name}.state"

    def start(self, *flags: str, constants: dict[str, float] | None = None) -> None:
        """Returns when it listens: without TLS, unless the flags configure it. With other values of
        `constants`."""
        self.run(
            f"--https=127.0.0.1:{self.port}",
            f"--http=127.0.0.1:{self.pages_port}",
            "--tls-dir=",
            "--lease-seconds=9",
            f"--kubeconfig={self._kubeconfig}",
            f"--state-dir={self._state_dir}",
            *flags,
            constants=constants,
        )

    def ready(self) -> tuple[int, str]:
        return self._page("readyz")

    def page(self, name: str) -> str:
        return self._page(name)[1]

    def _page(self, name: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.pages_port, timeout=10)
        return post(connection, name)

    def until_ready(self) -> None:
        eventually("the scheduler is ready", lambda: self.alive() and self.ready()[0] == 200)

    def call(self, verb: str, body: object) -> Any:
        """The body of the response to a request without TLS, whose status must be 200."""
        status, text = self.reply(verb, body)
        assert status == 200, (status, text, self.log()[-2000:])
        return json.loads(text)

    def reply(self, verb: str, body: object) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        return post(connection, verb, json.dumps(body).encode())

    def reply_tls(self, context: ssl.SSLContext, verb: str, body: object) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(
            "localhost", self.port, context=context, timeout=30
        )
        return post(connection, verb, json.dumps(body).encode())


def post(
    connection: http.client.HTTPConnection, page: str, body: bytes | None = None
) -> tuple[int, str]:
    """Status and text of the response."""
    try:
        method = "GET" if body is None else "POST"
        connection.request(method, f"/{page}", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def extender_args(pod: Object, nodes: Iterable[str]) -> Object:
    """ExtenderArgs with a pod of the API server."""
    return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}


def binding_args(pod: Object, node: str) -> Object:
    """ExtenderBindingArgs of a pod of the API server."""
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def write_kubeconfig(apiserver: ApiServer, path: Path) -> None:
    """Writes a kubeconfig of the scheduler's service account, and applies the objects that give the
    account its roles."""
    for each in [*objects("crds"), *objects("overlays/scheduler")]:
        if each["kind"] in _MANIFESTS:
            apiserver.apply(each)
    token = apiserver.token("topolet-system", "topolet-scheduler")
    path.write_text(json.dumps(apiserver.kubeconfig(token)))
