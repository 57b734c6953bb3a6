"""A real API server for benchmarks, with our manifests applied, one node, and an agent's account.

etcd and kube-apiserver are those of the tests (built once from their modules, or taken from the
folder KUBEBUILDER_ASSETS).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from peers.packages import NoPackageError, imported

from agent.kube.errors import KubeError

if TYPE_CHECKING:
    from tests.integration.apiserver.server import ApiServer

NODE = "node-19"
"""By its name it is among the first of a fleet to connect."""
AGENT = "system:serviceaccount:topolet-system:topolet-agent"
TOPOLOGY = f"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{NODE}"
WRITING = frozenset({"create", "update", "patch", "delete", "deletecollection"})
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [AGENT]}, {"level": "None"}],
}


class NoClusterError(Exception):
    """Why none can run here."""


class Cluster:
    """`api` is the administrator's hand; it is the server itself that counts."""

    def __init__(self, api: ApiServer, audit: Path, account: Path) -> None:
        self.api = api
        self._audit = audit
        self.flags = [f"--service-account-dir={account}", f"--node-name={NODE}"]
        self.environment = {
            **os.environ,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": api.url.rpartition(":")[2],
        }

    def writes(self) -> list[str]:
        """All that the agent asked the server to change so far, whatever came of it."""
        if not self._audit.exists():
            return []
        events = [json.loads(line) for line in self._audit.read_text().splitlines()]
        return [
            f"{each['verb']} {each['requestURI']}" for each in events if each["verb"] in WRITING
        ]

    def beat(self) -> None:
        """What a kubelet does to its Node all the time."""
        now = {"type": "Ready", "status": "True", "reason": f"beat-{os.urandom(4).hex()}"}
        path = f"/api/v1/nodes/{NODE}/status"
        self.api.admin.merge(path, {"status": {"conditions": [now]}})

    def reported(self) -> dict[str, Any] | None:
        """The agent's NodeResourceTopology, None before there is one."""
        try:
            found: dict[str, Any] = json.loads(self.api.admin.get(TOPOLOGY))
        except KubeError:
            return None
        return found


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Raises NoClusterError."""
    try:
        imported("cryptography pytest", ("cryptography", "pytest"))
    except NoPackageError as error:
        raise NoClusterError(str(error)) from None
    from tests import tools
    from tests.integration.apiserver.server import ApiServer

    programs = []
    for name in ("etcd", "kube-apiserver"):
        program = tools.kubernetes(name)
        if isinstance(program, str):
            raise NoClusterError(program)
        programs.append(program)
    pki, audit, account = folder / "apiserver", folder / "audit.log", folder / "account"
    pki.mkdir()
    account.mkdir()
    policy = folder / "audit.json"
    policy.write_text(json.dumps(AUDIT))
    api = ApiServer(pki, *programs)
    try:
        api.start_etcd()
        api.start_server(f"--audit-policy-file={policy}", f"--audit-log-path={audit}")
        _furnish(api, account)
        yield Cluster(api, audit, account)
    finally:
        api.stop()


def _furnish(api: ApiServer, account: Path) -> None:
    from tests.deploy.manifests import objects

    for each in objects("crds", "base"):
        if each["kind"] != "DaemonSet":
            api.apply(each)
    api.node(NODE)
    api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    api.pod("topolet-system", "agent", NODE, "topolet-agent")
    (account / "ca.crt").write_bytes((api.folder / "ca.crt").read_bytes())
    (account / "token").write_text(api.token("topolet-system", "topolet-agent", pod="agent"))
