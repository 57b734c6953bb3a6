"""The agent's objects in its cluster: the applied manifests, its Node, its service account."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.manifests import objects
from tests.integration.apiserver.server import ApiServer

NAMESPACE, ACCOUNT = "topolet-system", "topolet-agent"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"


def furnish(api: ApiServer, node: str, account: Path) -> None:
    """Fills `account` with the files of the service account of the agent's pod on that node, and
    allows pods in `default`."""
    for each in objects("crds", "base"):
        if each["kind"] != "DaemonSet":
            api.apply(each)
    api.node(node)
    api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    api.pod(NAMESPACE, "agent", node, ACCOUNT)
    account.mkdir()
    (account / "ca.crt").write_bytes((api.folder / "ca.crt").read_bytes())
    (account / "token").write_text(api.token(NAMESPACE, ACCOUNT, pod="agent"))


def environment(api: ApiServer) -> dict[str, str]:
    """What a pod's processes are told of the server."""
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": api.url.rpartition(":")[2],
    }
