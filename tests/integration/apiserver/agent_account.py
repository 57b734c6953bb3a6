"""The objects of an agent on an API server: manifests, Node, pod and service account."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.manifests import objects
from tests.integration.apiserver.server import ApiServer

NAMESPACE, ACCOUNT = "topolet-system", "topolet-agent"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"


def install(api: ApiServer, node: str, account: Path) -> None:
    """Applies the manifests, creates the node and the agent's pod, and writes the files of the
    pod's service account to `account`. Afterwards pods can be created in namespace `default`."""
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
    """The variables with the server's address in a pod."""
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": api.url.rpartition(":")[2],
    }
