"""A node's files as kubeadm itself writes them, below a root in which it runs by chroot."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import tools
from tests.install import kubelets
from tests.install.host import Host
from tests.install.kubelets import CONFIG, ENV, PACKAGE, Kubelet
from tests.integration.apiserver.server import ApiServer

PKI = "/etc/kubernetes/pki"
ADMIN = "/etc/kubernetes/super-admin.conf"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
_ADDRESS = "192.0.2.1"
"""The address of the node: kubeadm refuses one of the loopback interface."""
_SETTINGS = "/etc/kubeadm.yaml"
_PHASES = ("certs all", "kubeconfig all", "kubelet-start", "control-plane scheduler")
_SECONDS = 60.0


def program(release: str) -> Path:
    """kubeadm of this release. Skips the test without it."""
    where = tools.built(tools.KUBEADM[release])
    if isinstance(where, str):
        pytest.skip(where)
    return where / "kubeadm"


class KubeadmHost(Host):
    """A host whose kubelet is started by the units of its package, with kubeadm's files.

    `socket`: kubeadm gets this socket of the runtime."""

    def __init__(self, root: Path, api: ApiServer, release: str, socket: str) -> None:
        super().__init__(root, Kubelet(f"kubeadm {release}", (), PACKAGE, {}, socket))
        self.api = api
        self._name = ""
        self._release = release
        self._port = api.url.rpartition(":")[2]
        (root / "run").mkdir(parents=True)
        (root / "var").mkdir()
        (root / "var/run").symlink_to("/run")

    # kubeadm
    def init(
        self, name: str, kubelet: Mapping[str, Any], scheduler: Mapping[str, Any] | None = None
    ) -> None:
        """Writes the files of a control plane, except those of API server, controller manager and
        etcd: the test's API server is theirs.

        `kubelet`, `scheduler`: fields of the KubeletConfiguration, and of the scheduler in the
        ClusterConfiguration."""
        self._name = name
        pki = self.root / PKI.lstrip("/")
        pki.mkdir(parents=True)
        for file in ("ca.crt", "ca.key", "sa.key", "sa.pub"):
            shutil.copy(self.api.folder / file, pki / file)
        version = tools.version(tools.KUBEADM[self._release])
        self._settings(
            {
                "kind": "InitConfiguration",
                "nodeRegistration": {"name": name, "criSocket": self.kubelet.runtime},
                "localAPIEndpoint": {"advertiseAddress": _ADDRESS, "bindPort": int(self._port)},
            },
            {
                "kind": "ClusterConfiguration",
                "kubernetesVersion": version,
                "controlPlaneEndpoint": f"127.0.0.1:{self._port}",
                "encryptionAlgorithm": "ECDSA-P256",
                "scheduler": scheduler or {},
            },
            {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
            | dict(kubelet),
        )
        for phase in _PHASES:
            self.phase("init", phase, f"--config={_SETTINGS}")
        for path in (self.root / "etc/kubernetes").glob("*.conf"):
            path.write_text(path.read_text().replace(_ADDRESS, "127.0.0.1"))
        self._start()

    def publish(self) -> None:
        """Writes to the API server what upgraded and new nodes read, after the Node that a kubelet
        registers: kubeadm up to 1.33 annotates it."""
        labels = {"kubernetes.io/hostname": self._name}
        self.api.create("/api/v1/nodes", {"metadata": {"name": self._name, "labels": labels}})
        for phase in ("upload-config all", "bootstrap-token"):
            self.phase("init", phase, f"--config={_SETTINGS}", f"--kubeconfig={ADMIN}")

    def join(self, name: str, first: KubeadmHost) -> None:
        """Writes the files of a node that joins `first`."""
        credentials = self.root / "etc/discovery.conf"
        credentials.parent.mkdir(exist_ok=True)
        shutil.copy(first.root / ADMIN.lstrip("/"), credentials)
        self._settings(
            {
                "kind": "JoinConfiguration",
                "nodeRegistration": {
                    "name": name,
                    "criSocket": self.kubelet.runtime,
                    "taints": [{"key": "a.example/b", "value": "c", "effect": "NoSchedule"}],
                },
                "discovery": {"file": {"kubeConfigPath": "/etc/discovery.conf"}},
            }
        )
        self.phase("join", "kubelet-start", f"--config={_SETTINGS}")
        self._start()

    def upgrade(self, release: str) -> None:
        """Upgrades the node's files by kubeadm of this release, and restarts the kubelet."""
        self._release = release
        self.phase("upgrade node", "kubelet-config", f"--kubeconfig={ADMIN}")
        self.restart_kubelet()

    def phase(self, command: str, phase: str, *flags: str) -> None:
        words = (*command.split(), "phase", *phase.split(), *flags, f"--rootfs={self.root}")
        done = subprocess.run(
            [program(self._release), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert not done.returncode, f"{shlex.join(words)}: {done.stdout}{done.stderr}"

    def _settings(self, *documents: Mapping[str, Any]) -> None:
        version = {"apiVersion": "kubeadm.k8s.io/v1beta4"}
        path = self.root / _SETTINGS.lstrip("/")
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n---\n".join(json.dumps(version | dict(each)) for each in documents))

    # the kubelet
    def _start(self) -> None:
        kubelets.write(self.root, self.kubelet)
        self.restart_kubelet()

    def restart_kubelet(self) -> None:
        given = shlex.split(self.text(ENV).partition("=")[2])
        flags = ("--kubeconfig=/etc/kubernetes/kubelet.conf", f"--config={CONFIG}")
        argv = ("/usr/bin/kubelet", *flags, *(word for text in given for word in text.split()))
        kubelets.run(self.root, self.kubelet._replace(argv=argv))
        self.loaded = self.configured_endpoint()

    def configured_endpoint(self) -> str:
        flag = re.search(r"--container-runtime-endpoint=([^\s\"]+)", self.text(ENV))
        return flag[1] if flag else str(self.configuration()["containerRuntimeEndpoint"])

    # files
    def text(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def configuration(self) -> dict[str, Any]:
        """The kubelet's."""
        content: dict[str, Any] = yaml.safe_load(self.text(CONFIG))
        return content

    def contents(self) -> dict[str, tuple[int, bytes]]:
        """Mode and content of each file, without the processes."""
        return {
            f"/{path.relative_to(self.root)}": (path.stat().st_mode, path.read_bytes())
            for path in self.root.rglob("*")
            if path.is_file() and path.relative_to(self.root).parts[0] != "proc"
        }
