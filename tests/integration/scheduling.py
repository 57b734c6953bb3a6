"""`topolet scheduler` as a process, and a client that acts as kube-scheduler."""

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
"""For agents that do not run in pods."""
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
    """Its log is a file below `folder`."""

    def __init__(self, folder: Path, kubeconfig: Path, name: str = "scheduler") -> None:
        super().__init__("scheduler", folder / f"{name}.log", "extender listens")
        self.port, self.pages_port = free_port(), free_port()
        self._kubeconfig = kubeconfig

    def start(self, *flags: str) -> None:
        """Returns when it listens, in plain HTTP unless the flags differ."""
        self.run(
            f"--extender-address=127.0.0.1:{self.port}",
            f"--scheduler-http=127.0.0.1:{self.pages_port}",
            "--tls-certificate-file=",
            "--lease-seconds=9",
            f"--kubeconfig={self._kubeconfig}",
            *flags,
        )

    def ready(self) -> tuple[int, str]:
        return self._page("readyz")

    def page(self, name: str) -> str:
        return self._page(name)[1]

    def _page(self, name: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.pages_port, timeout=10)
        return post(connection, name)

    def until_ready(self) -> None:
        eventually("ready", lambda: self.alive() and self.ready()[0] == 200)

    def ask(self, verb: str, body: object) -> Any:
        """The answer to a request in plain HTTP, which must be 200."""
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
    """Status and text of one answer."""
    try:
        method = "GET" if body is None else "POST"
        connection.request(method, f"/{page}", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def args(pod: Object, nodes: Iterable[str]) -> Object:
    """ExtenderArgs of a pod as the API server has it."""
    return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}


def binding(pod: Object, node: str) -> Object:
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def write_kubeconfig(apiserver: ApiServer, path: Path, url: str = "") -> None:
    """For the account of the scheduler, with the role of its overlay. `url`: of a relay to the
    server."""
    for each in [*objects("crds"), *objects("overlays/scheduler")]:
        if each["kind"] in _MANIFESTS:
            apiserver.apply(each)
    token = apiserver.token("topolet-system", "topolet-scheduler")
    made = apiserver.kubeconfig(token)
    if url:
        made["clusters"][0]["cluster"] = {"server": url}
    path.write_text(json.dumps(made))
