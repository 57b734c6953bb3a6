"""etcd, API server, controller manager and scheduler in a world, with kubeadm's paths."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.cluster import world
from tests.cluster.machine import ProgramError
from tests.cluster.world import World
from tests.integration.apiserver.certificates import Authority, kubeconfig
from tests.integration.apiserver.server import (
    ENVIRONMENT,
    START_SECONDS,
    etcd_flags,
    feature_gates,
    gate_flags,
    server_flags,
)
from tests.waiting import eventually

PKI = Path("/etc/kubernetes/pki")
ADDRESS, PORT = world.ADDRESS, 6443
SERVICE_ADDRESS = "10.96.0.1"
"""The address of the Service `kubernetes`, the first one in the range of `server_flags`."""

_ETCD, _PEER = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
_ADMIN = "admin"
_USERS = {
    _ADMIN: ("system:masters",),
    "kubelet-client": ("system:masters",),
    "system:kube-scheduler": (),
    "system:kube-controller-manager": (),
    "system:kube-proxy": (),
}
"""Users with their groups; the API server is a client of kubelets."""

_RESTARTED = ("sh", "-c", 'while :; do "$@"; sleep 1; done', "sh")
"""Restarts a program when it ends, as a kubelet does with kubeadm's static pods. kube-scheduler
exits if an outage hid that a pod was deleted and another was created with its name (UpdatePod in
pkg/scheduler/backend/cache/cache.go: "Scheduler cache is corrupted")."""


class ControlPlane:
    """One API server, at ADDRESS in the world and at SERVICE_ADDRESS from everywhere."""

    def __init__(self, place: World) -> None:
        self.world = place
        self._gates = feature_gates()
        self._scheduler_pid = self._server_pid = 0
        self._folder = place.folder / "kubernetes" / "pki"
        self._folder.mkdir()
        self._authority = Authority(self._folder)
        self._authority.server("apiserver", ADDRESS, SERVICE_ADDRESS)
        self._authority.signing_key("sa")
        for user, groups in _USERS.items():
            self._authority.client(user, *groups)
            self._write_config(user, f"https://{ADDRESS}:{PORT}")

    def start(self) -> None:
        """Returns when the API server is ready; the other programs may still be starting."""
        self.world.start("etcd", "etcd", *etcd_flags(Path(self.world.folder, "etcd"), _ETCD, _PEER))
        eventually("etcd is healthy", self._etcd_healthy, START_SECONDS)
        self.start_server()
        config = self.config("system:kube-controller-manager")
        self.world.start(
            "kube-controller-manager",
            *_RESTARTED,
            "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={PKI}/sa.key",
            f"--root-ca-file={PKI}/ca.crt",
            "--bind-address=127.0.0.1",
        )
        self._start_scheduler()

    def _start_scheduler(self) -> None:
        config = self.config("system:kube-scheduler")
        self._scheduler_pid = self.world.start(
            "kube-scheduler",
            *_RESTARTED,
            "kube-scheduler",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            # A second kube-scheduler, in a pod, may use the host's network and the default port.
            "--secure-port=10359",
            *gate_flags(self._gates),
        )

    def start_server(self) -> None:
        """Returns when it is ready."""
        self._server_pid = self.world.start(
            "kube-apiserver",
            "kube-apiserver",
            *server_flags(PKI, _ETCD, PORT),
            f"--advertise-address={ADDRESS}",
            "--allow-privileged=true",
            f"--requestheader-client-ca-file={PKI}/ca.crt",
            "--requestheader-allowed-names=front-proxy",
            f"--kubelet-client-certificate={PKI}/kubelet-client.crt",
            f"--kubelet-client-key={PKI}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            *gate_flags(self._gates),
            env=ENVIRONMENT,
        )
        eventually("kube-apiserver is ready", self._ready, START_SECONDS)

    def stop_server(self, number: int = signal.SIGKILL) -> None:
        """Ends the API server: its connections break, and new ones are refused."""
        self.world.end("kube-apiserver", number)

    def signal_server(self, number: int) -> None:
        self.world.run("kill", f"-{number}", str(self._server_pid))

    def restart_with(self, gates: Mapping[str, bool]) -> None:
        """Kills API server and scheduler, and starts them with these feature gates."""
        self._gates = dict(gates)
        self.stop_server()
        self.world.run("kill", "-KILL", "--", f"-{self._scheduler_pid}")
        self.start_server()
        self._start_scheduler()

    def node_config(self, name: str, url: str) -> str:
        """Writes a kubelet's kubeconfig; its path in the world."""
        return self.user_config(f"system:node:{name}", url, "system:nodes")

    def user_config(self, user: str, url: str, *groups: str) -> str:
        """Writes the kubeconfig of a new user; its path in the world."""
        self._authority.client(user, *groups)
        self._write_config(user, url)
        return self.config(user)

    @staticmethod
    def config(user: str) -> str:
        return f"{PKI}/{user}.conf"

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Runs kubectl as the administrator. Raises ProgramError."""
        return self.world.run(
            *("kubectl", "--kubeconfig", self.config(_ADMIN), *words),
            stdin=stdin,
            env={"HOME": str(self.world.folder)},
        )

    def _write_config(self, user: str, url: str) -> None:
        (self._folder / f"{user}.conf").write_text(json.dumps(kubeconfig(url, PKI, user)))

    def _etcd_healthy(self) -> bool:
        return self.world.alive("etcd") and self._output_contains(
            "true", "busybox", "wget", "-q", "-O-", f"{_ETCD}/health"
        )

    def _ready(self) -> bool:
        words = ("kubectl", "--kubeconfig", self.config(_ADMIN), "get", "--raw", "/readyz")
        return self.world.alive("kube-apiserver") and self._output_contains("ok", *words)

    def _output_contains(self, text: str, *words: str) -> bool:
        try:
            return text in self.world.run(*words)
        except ProgramError:
            return False
