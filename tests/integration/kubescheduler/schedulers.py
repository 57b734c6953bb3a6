"""Processes of `topolet scheduler` and of a kube-scheduler that calls it, with the configuration of
the manifests."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import objects as manifests
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import nodes, process
from tests.integration.kubescheduler.nodes import SYSTEM
from tests.integration.scheduling import Scheduler

ACCOUNT = "topolet-scheduler"
PROFILE = "topolet-scheduler"
"""The schedulerName of pods that Topolet schedules."""

_OVERLAY = "overlays/scheduler-evict"
_RBAC_KINDS = frozenset(
    ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
)
_numbers = itertools.count(1)


class Topolet(Scheduler):
    """A process of `topolet scheduler` with the roles of the manifests and the certificates of the
    server, unless the flags differ."""

    def __init__(self, api: ApiServer, folder: Path, *flags: str) -> None:
        kubeconfig = folder / "topolet.kubeconfig"
        kubeconfig.write_text(json.dumps(api.kubeconfig(api.token(SYSTEM, ACCOUNT))))
        super().__init__(folder, kubeconfig, f"topolet-{next(_numbers)}")
        pki = api.folder
        self._flags = (f"--tls-dir={pki}", f"--client-ca-file={pki}/ca.crt", *flags)

    def lead(self) -> None:
        """Starts the process; returns when it leads and has read the objects of the cluster."""
        self.start(*self._flags)
        self.until_ready()

    def kill(self) -> None:
        """Sends SIGKILL, so that the process cannot close its connections."""
        if self.running:
            self.end(signal.SIGKILL)


def shipped_configuration(api: ApiServer, port: int) -> dict[str, Any]:
    """The kube-scheduler configuration of the manifests, with addresses and files of the test."""
    (found,) = (
        each
        for each in manifests(_OVERLAY)
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "topolet-kube-scheduler"
    )
    settings: dict[str, Any] = yaml.safe_load(found["data"]["kube-scheduler.yaml"])
    settings["leaderElection"] = {"leaderElect": False}
    settings.setdefault("clientConnection", {})["kubeconfig"] = str(process.credentials(api))
    (extender,) = settings["extenders"]
    extender["urlPrefix"] = f"https://127.0.0.1:{port}"
    extender["tlsConfig"] = {
        "certFile": f"{api.folder}/extender-client.crt",
        "keyFile": f"{api.folder}/extender-client.key",
        "caFile": f"{api.folder}/ca.crt",
    }
    return settings


@contextlib.contextmanager
def schedulers(api: ApiServer, folder: Path, *flags: str) -> Iterator[Topolet]:
    """Runs both processes. Skips the test if kube-scheduler is not available."""
    process.program_or_skip()
    install(api)
    topolet = Topolet(api, folder, *flags)
    try:
        topolet.lead()
        with process.scheduling(api, shipped_configuration(api, topolet.port), folder):
            yield topolet
    finally:
        topolet.kill()


def install(api: ApiServer) -> None:
    """Applies CRDs, service accounts and roles, and creates certificates, once per server."""
    if (api.folder / "tls.crt").exists():
        return
    nodes.install(api)
    for each in manifests(_OVERLAY):
        if each["kind"] in _RBAC_KINDS:
            api.apply(each)
    api.authority.server("tls")
    api.authority.client("extender-client")
