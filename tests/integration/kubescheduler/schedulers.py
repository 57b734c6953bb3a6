"""Processes of `topolet scheduler` and of a kube-scheduler that calls it, with the configuration of
the manifests."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import objects as manifests
from tests.fixtures.ports import free_port
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import nodes, process
from tests.integration.kubescheduler.nodes import SYSTEM
from tests.waiting import eventually

START_SECONDS = 60.0
ACCOUNT = "topolet-scheduler"
PROFILE = "topolet-scheduler"
"""The schedulerName of pods that Topolet schedules."""

_OVERLAY = "overlays/scheduler-evict"
_RBAC_KINDS = frozenset(
    ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
)
_numbers = itertools.count(1)


class Topolet:
    """A process of `topolet scheduler` with the roles of the manifests."""

    def __init__(self, api: ApiServer, folder: Path, *flags: str) -> None:
        self._log = folder / f"topolet-{next(_numbers)}.log"
        self.port, self._http_port = free_port(), free_port()
        kubeconfig = folder / "topolet.kubeconfig"
        kubeconfig.write_text(json.dumps(api.kubeconfig(api.token(SYSTEM, ACCOUNT))))
        pki = api.folder
        self._command = [
            sys.executable,
            "-m",
            "agent",
            "scheduler",
            f"--kubeconfig={kubeconfig}",
            f"--https=127.0.0.1:{self.port}",
            f"--http=127.0.0.1:{self._http_port}",
            f"--tls-dir={pki}",
            f"--client-ca-file={pki}/ca.crt",
            f"--release-namespace={SYSTEM}",
            f"--state-dir={folder}",
            "--lease-seconds=9",
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        """Returns when the process leads and has read the objects of the cluster."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        eventually("topolet scheduler is ready", self._ready, START_SECONDS)

    def kill(self) -> None:
        """Sends SIGKILL, so that the process cannot close its connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log[-3000:]
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


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
        topolet.start()
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
