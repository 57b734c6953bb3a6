"""A real API server for benchmarks, with Topolet's manifests, one node, and an agent's account.

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
"""An agent on a node of this name is among the first of a fleet to connect."""
TOPOLOGY = f"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{NODE}"
WRITING = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class NoClusterError(Exception):
    """The reason why no API server can run here."""


class Cluster:
    """`api` has the administrator's account; writes are counted from the server's audit log."""

    def __init__(
        self, api: ApiServer, audit: Path, flags: list[str], environment: dict[str, str]
    ) -> None:
        """`flags`, `environment`: for an agent."""
        self.api = api
        self.flags = flags
        self.environment = environment
        self._audit = audit

    def writes(self) -> list[str]:
        """All write requests of the agent so far, also those that failed."""
        if not self._audit.exists():
            return []
        events = [json.loads(line) for line in self._audit.read_text().splitlines()]
        return [
            f"{each['verb']} {each['requestURI']}" for each in events if each["verb"] in WRITING
        ]

    def heartbeat(self) -> None:
        """Updates the Node's status as a kubelet does regularly."""
        now = {"type": "Ready", "status": "True", "reason": f"beat-{os.urandom(4).hex()}"}
        path = f"/api/v1/nodes/{NODE}/status"
        self.api.admin.merge(path, {"status": {"conditions": [now]}})

    def reported(self) -> dict[str, Any] | None:
        """The agent's NodeResourceTopology, None before it exists."""
        try:
            found: dict[str, Any] = json.loads(self.api.admin.get(TOPOLOGY))
        except KubeError:
            return None
        return found


def audited(user: str) -> dict[str, Any]:
    """The audit policy that records every request of the user after its answer."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [user]}, {"level": "None"}],
    }


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Raises NoClusterError."""
    try:
        imported("cryptography pytest", ("cryptography", "pytest"))
    except NoPackageError as error:
        raise NoClusterError(str(error)) from None
    from tests import tools
    from tests.integration.apiserver import agent_account
    from tests.integration.apiserver.server import ApiServer

    programs = []
    for name in ("etcd", "kube-apiserver"):
        program = tools.kubernetes(name)
        if isinstance(program, str):
            raise NoClusterError(program)
        programs.append(program)
    pki, audit, account = folder / "apiserver", folder / "audit.log", folder / "account"
    pki.mkdir()
    policy = folder / "audit.json"
    policy.write_text(json.dumps(audited(agent_account.USER)))
    api = ApiServer(pki, *programs)
    try:
        api.start_etcd()
        api.start_server(f"--audit-policy-file={policy}", f"--audit-log-path={audit}")
        agent_account.install(api, NODE, account)
        flags = [f"--kubeconfig={account}", f"--node-name={NODE}"]
        yield Cluster(api, audit, flags, {**os.environ, **agent_account.environment(api)})
    finally:
        api.stop()
