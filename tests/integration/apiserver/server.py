"""etcd and kube-apiserver as processes of the test."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.kube.auth import FileAccess
from agent.kube.errors import KubeError, NotFoundError, TooManyRequestsError
from agent.kube.transport import Transport
from tests import tools
from tests.fixtures.ports import free_port
from tests.integration.apiserver.certificates import Authority, token_kubeconfig
from tests.waiting import eventually

START_SECONDS = 120.0
"""For a busy machine; an idle one needs five."""


def etcd_flags(data: Path, client: str, peer: str) -> tuple[str, ...]:
    """Of one member alone, at these URLs; what it holds survives its end, but not the machine's."""
    return (
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
    )


def server_flags(
    pki: Path, etcd: str, port: int, authorization: str = "--authorization-mode=Node,RBAC"
) -> tuple[str, ...]:
    """Of a kube-apiserver with the certificates and keys of that folder. As kubeadm configures it,
    where a test can tell."""
    return (
        f"--etcd-servers={etcd}",
        f"--secure-port={port}",
        f"--cert-dir={pki}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        authorization,
        "--enable-admission-plugins=NodeRestriction",
        "--profiling=false",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--shutdown-delay-duration=0s",
    )


class ApiServer:
    """`url` and the port are the same after restarts. `folder` has the certificates and the
    logs."""

    def __init__(self, folder: Path, etcd: Path, program: Path) -> None:
        self.folder = folder
        self._etcd_program = etcd
        self._program = program
        self._port = free_port()
        self._etcd_port, self._peer_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.authority = Authority(folder)
        self.authority.server("apiserver")
        self.authority.client("admin", "system:masters")
        self.authority.signing_key("sa")
        self.admin = Transport(self.access())
        self.authorization = "--authorization-mode=Node,RBAC"

    def access(self, token: str | None = None) -> FileAccess:
        """The administrator's access, or that of the token in a file."""
        ca = str(self.folder / "ca.crt")
        if token is not None:
            return FileAccess(self.url, ca=ca, token=token)
        certificate, key = self.folder / "admin.crt", self.folder / "admin.key"
        return FileAccess(self.url, ca=ca, certificate=str(certificate), key=str(key))

    # processes
    def start(self) -> None:
        """Starts both; returns when the server is ready."""
        self.start_etcd()
        self.start_server()

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._run(
            "etcd",
            str(self._etcd_program),
            *etcd_flags(self.folder / "etcd", client, peer),
        )
        eventually(
            "etcd is healthy", lambda: self._alive("etcd") and self._healthy(), START_SECONDS
        )

    def start_server(self, *flags: str) -> None:
        """Returns when it is ready. Further flags win over ours."""
        self._run(
            "kube-apiserver",
            str(self._program),
            *server_flags(
                self.folder,
                f"http://127.0.0.1:{self._etcd_port}",
                self._port,
                self.authorization,
            ),
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            *flags,
        )
        eventually(
            "kube-apiserver is ready",
            lambda: self._alive("kube-apiserver") and self._ready(),
            START_SECONDS,
        )

    def kill_server(self) -> None:
        """SIGKILL: connections break."""
        self._end("kube-apiserver", signal.SIGKILL)

    def suspend_server(self) -> None:
        """It hangs: what it has accepted stays open, and nothing is answered."""
        self._processes["kube-apiserver"].send_signal(signal.SIGSTOP)

    def resume_server(self) -> None:
        """Returns when it is ready."""
        self._processes["kube-apiserver"].send_signal(signal.SIGCONT)
        eventually("kube-apiserver is ready", self._ready, START_SECONDS)

    @contextlib.contextmanager
    def outage(self, seconds: float) -> Iterator[None]:
        """Killed at the beginning. At the end of the block so many seconds have passed, all
        revisions before are forgotten, and it is ready again."""
        began = time.monotonic()
        self.kill_server()
        try:
            self.write_beside()
            yield
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            self.compact()
        finally:
            self.start_server()

    def restart_server(self, *flags: str) -> None:
        """Kills the server and starts it again; returns when it is ready."""
        self.kill_server()
        self.start_server(*flags)

    def kill_etcd(self) -> None:
        """SIGKILL; what it holds stays on disk."""
        self._end("etcd", signal.SIGKILL)

    def compact(self) -> None:
        """Forgets all revisions before now. What the API server holds in memory stays there."""
        kept = self._etcd("kv/range", key=_base64("\0"), range_end=_base64("\0"), count_only=True)
        revision = kept["header"]["revision"]
        self._etcd("kv/compaction", revision=revision, physical=True)

    def write_beside(self) -> None:
        """Creates a few more revisions, of keys outside the API server's."""
        for _ in range(5):
            self._etcd("kv/put", key=_base64("/beside"), value=_base64("1"))

    def stop(self) -> None:
        for name in list(self._processes):
            self._end(name, signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    # the administrator's work
    def create(self, path: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """POST; the stored object."""
        made: dict[str, Any] = json.loads(self.admin.create(path, wanted))
        return made

    def serves(self, version: str, kind: str) -> bool:
        """Whether it serves the kind in that version of its group, as "apps/v1"."""
        try:
            found = json.loads(self.admin.get(f"/apis/{version}"))
        except NotFoundError:
            return False
        return any(each["kind"] == kind for each in found["resources"])

    @property
    def minor(self) -> int:
        """The second number of its version."""
        return int(json.loads(self.admin.get("/version"))["minor"].rstrip("+"))

    def namespace(self, name: str) -> None:
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})

    def account(self, namespace: str, name: str, rules: list[dict[str, Any]]) -> None:
        """A service account with a cluster role of these rules."""
        self.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        full = f"{namespace}-{name}"
        self.create(f"{rbac}/clusterroles", {"metadata": {"name": full}, "rules": rules})
        self.create(
            f"{rbac}/clusterrolebindings",
            {
                "metadata": {"name": full},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": full,
                },
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            },
        )

    def apply(self, wanted: dict[str, Any]) -> None:
        """A manifest; waits until the server knows its kind, and the one that it defines. An object
        that is being deleted is made again when it is gone."""
        version, kind = wanted["apiVersion"], wanted["kind"]
        metadata = wanted["metadata"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if "namespace" in metadata:
            base += f"/namespaces/{metadata['namespace']}"
        plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
        path = f"{base}/{plural}/{metadata['name']}"

        def applied() -> bool:
            try:
                stored = json.loads(self.admin.apply(path, wanted).body)
            except (NotFoundError, TooManyRequestsError):  # a kind that was just added
                return False
            return "deletionTimestamp" not in stored["metadata"]

        eventually(f"{kind} is served", applied)
        if kind == "CustomResourceDefinition":
            self._until_served(wanted["spec"])

    def _until_served(self, definition: dict[str, Any]) -> None:
        """A server hears of a kind by a watch of its own."""
        group, plural = definition["group"], definition["names"]["plural"]
        for version in (each["name"] for each in definition["versions"] if each["served"]):

            def served(path: str = f"/apis/{group}/{version}/{plural}") -> bool:
                try:
                    self.admin.get(path, {"limit": "1"})
                except (NotFoundError, TooManyRequestsError):
                    return False
                return True

            eventually(f"{plural} {version} is served", served)

    def node(self, name: str) -> None:
        self.create("/api/v1/nodes", {"metadata": {"name": name}})

    def pod(
        self, namespace: str, name: str, node: str, account: str = "default", **metadata: Any
    ) -> dict[str, Any]:
        """On that node, never run by anybody."""
        return self.create(
            f"/api/v1/namespaces/{namespace}/pods",
            {
                "metadata": {"name": name, **metadata},
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": account,
                    "automountServiceAccountToken": False,
                    "containers": [{"name": "c", "image": "none"}],
                },
            },
        )

    def token(self, namespace: str, account: str, pod: str | None = None) -> str:
        """A token of the account for an hour; bound to the pod, and so to the pod's node."""
        spec: dict[str, Any] = {"audiences": [], "expirationSeconds": 3600}
        if pod is not None:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        return str(self.create(path, {**kind, "spec": spec})["status"]["token"])

    def kubeconfig(self, token: str) -> dict[str, Any]:
        return token_kubeconfig(self.url, self.folder, token)

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(words, stdout=log, stderr=log)

    def _end(self, name: str, number: int) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.send_signal(number)
            process.wait()

    def _alive(self, name: str) -> bool:
        assert self._processes[name].poll() is None, self.log(name)[-2000:]
        return True

    def _healthy(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(
                f"http://127.0.0.1:{self._etcd_port}/health", timeout=5
            ) as reply,
        ):
            return b"true" in reply.read()
        time.sleep(0.05)
        return False

    def _ready(self) -> bool:
        try:
            return self.admin.get("/readyz") == b"ok"
        except KubeError:
            time.sleep(0.05)
            return False

    def _etcd(self, method: str, **words: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._etcd_port}/v3/{method}", json.dumps(words).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer


@contextlib.contextmanager
def running(folder: Path, authorization: Path | None = None) -> Iterator[ApiServer]:
    """Skips the test if the programs are not available. `authorization`: the file of its
    authorizers."""
    programs = []
    for name in ("etcd", "kube-apiserver"):
        program = tools.kubernetes(name)
        if isinstance(program, str):
            pytest.skip(program)
        programs.append(program)
    server = ApiServer(folder, *programs)
    if authorization is not None:
        server.authorization = f"--authorization-config={authorization}"
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
