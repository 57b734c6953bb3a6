"""An agent as a pod of a cluster: the folder of a service account, and the server's address."""

from __future__ import annotations

import json
from typing import Any

from agent.kube.errors import KubeError
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode


class Account:
    """The files that a kubelet mounts into a pod for one service account."""

    def __init__(self, api: ApiServer, node: TestNode) -> None:
        self._api = api
        self.folder = node.folder / "account"
        self.folder.mkdir()
        (self.folder / "ca.crt").write_bytes((api.folder / "ca.crt").read_bytes())

    def write_token(self, token: str) -> None:
        """Writes a token in place of the last one."""
        fresh = self.folder / "fresh"
        fresh.write_text(token)
        fresh.replace(self.folder / "token")

    def start_agent(
        self, node: TestNode, *flags: str, variables: dict[str, str] | None = None
    ) -> None:
        """Starts the node's agent in the cluster."""
        port = self._api.url.rpartition(":")[2]
        node.start_agent(
            f"--kubeconfig={self.folder}",
            *flags,
            environ={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port},
            variables=variables,
        )


READ_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
]
WRITE_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["patch"]},
    {"apiGroups": ["topology.node.k8s.io"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["scheduling.koordinator.sh"], "resources": ["*"], "verbs": ["*"]},
]


STATUS = "scheduling.koordinator.sh/resource-status"
QOS = "koordinator.sh/qosClass"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/"


class ClusterNode:
    """A Node object, and an account with these RBAC rules for its agent."""

    def __init__(self, api: ApiServer, node: TestNode, name: str, rules: list[Any]) -> None:
        self.api = api
        self.name = name
        api.namespace(name)
        api.node(name)
        api.account(name, "agent", rules)
        self.account = Account(api, node)
        self.account.write_token(api.token(name, "agent"))

    def start_agent(
        self, node: TestNode, *flags: str, variables: dict[str, str] | None = None
    ) -> None:
        self.account.start_agent(node, f"--node-name={self.name}", *flags, variables=variables)

    def pod(self, name: str, qos: str, cpuset: str) -> str:
        """Creates a pod that is bound to the node; its uid."""
        self.api.account(self.name, "default", [])
        status = json.dumps({"cpuset": cpuset})
        made = self.api.pod(
            self.name, name, self.name, labels={QOS: qos}, annotations={STATUS: status}
        )
        return str(made["metadata"]["uid"])

    def reported(self) -> dict[str, Any] | None:
        """The NodeResourceTopology; None before the agent has written it."""
        try:
            found: dict[str, Any] = json.loads(self.api.admin.get(TOPOLOGY + self.name))
        except KubeError:
            return None
        return found
