"""etcd and kube-apiserver processes of a test."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
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
"""A limit for a busy machine. An idle machine needs five seconds."""
ENVIRONMENT = {"GOGC": "400"}
"""A server of a test lives shortly: with fewer garbage collections its start takes a fifth less CPU
time."""

PARTS_GATE = "DRAConsumableCapacity"
_SLICE_WRITES = re.compile(
    r'^apiserver_request_total\{.*resource="resourceslices".*verb="(?:APPLY|PATCH|POST|PUT|DELETE)"'
    r".*\} (\d+)$",
    re.MULTILINE,
)


def etcd_flags(data: Path, client: str, peer: str) -> tuple[str, ...]:
    """The flags of a single member with these URLs. Its data may be lost if the machine crashes."""
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
    """The flags of a kube-apiserver with the certificates and keys of this folder. They are those
    of kubeadm where it matters to a test."""
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


def feature_gates() -> dict[str, bool]:
    """Those that ResourceClaims on CPUs need and that are off by default (docs/dra.md)."""
    if 34 <= tools.kubernetes_minor() < 36:
        return dict.fromkeys((PARTS_GATE, "DRAExtendedResource"), True)
    return {}


def gates_without_parts() -> dict[str, bool]:
    """Gates with which a claim gets no part of a device, as by default before Kubernetes 1.36."""
    others = {PARTS_GATE: False}
    if tools.kubernetes_minor() > 36:
        others["DRAFractionalCapacityRange"] = False  # needs the other one
    return feature_gates() | others


def gate_flags(gates: Mapping[str, bool]) -> tuple[str, ...]:
    """The flag of any program of Kubernetes for these feature gates."""
    text = ",".join(f"{name}={str(on).lower()}" for name, on in gates.items())
    return (f"--feature-gates={text}",) if gates else ()


def slice_writes(metrics: str) -> int:
    """The requests to write ResourceSlices that a server has had, by its metrics."""
    return sum(map(int, _SLICE_WRITES.findall(metrics)))


class ApiServer:
    """`url` does not change in a restart. `folder` contains the certificates and the logs."""

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
        """The access of the administrator, or with the token in the file `token`."""
        ca = str(self.folder / "ca.crt")
        if token is not None:
            return FileAccess(self.url, ca=ca, token=token)
        certificate, key = self.folder / "admin.crt", self.folder / "admin.key"
        return FileAccess(self.url, ca=ca, certificate=str(certificate), key=str(key))

    # processes
    def start(self) -> None:
        """Starts etcd and the server. Returns when the server is ready."""
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
        """Returns when the server is ready. `flags` override the default flags."""
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
            *gate_flags(feature_gates()),
            *flags,
        )
        eventually(
            "kube-apiserver is ready",
            lambda: self._alive("kube-apiserver") and self._ready(),
            START_SECONDS,
        )

    def kill_server(self) -> None:
        """Sends SIGKILL, which breaks connections."""
        self._end("kube-apiserver", signal.SIGKILL)

    def suspend_server(self) -> None:
        """Stops the server process: connections stay open, and no request is answered."""
        self._processes["kube-apiserver"].send_signal(signal.SIGSTOP)

    def resume_server(self) -> None:
        """Returns when the server is ready."""
        self._processes["kube-apiserver"].send_signal(signal.SIGCONT)
        eventually("kube-apiserver is ready", self._ready, START_SECONDS)

    @contextlib.contextmanager
    def outage(self, seconds: float) -> Iterator[None]:
        """Kills the server. At the end of the block, waits until this time has passed, compacts
        etcd, and starts the server again."""
        began = time.monotonic()
        self.kill_server()
        try:
            self.write_other_keys()
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
        """Sends SIGKILL. The data stays on disk."""
        self._end("etcd", signal.SIGKILL)

    def compact(self) -> None:
        """Compacts etcd at the current revision. The watch cache of the server is not changed."""
        kept = self._etcd("kv/range", key=_base64("\0"), range_end=_base64("\0"), count_only=True)
        revision = kept["header"]["revision"]
        self._etcd("kv/compaction", revision=revision, physical=True)

    def write_other_keys(self) -> None:
        """Creates new revisions of keys that are not objects of the API server."""
        for _ in range(5):
            self._etcd("kv/put", key=_base64("/other"), value=_base64("1"))

    def stop(self) -> None:
        for name in list(self._processes):
            self._end(name, signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    # requests of the administrator
    def create(self, path: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Sends a POST request. Returns the stored object."""
        made: dict[str, Any] = json.loads(self.admin.create(path, wanted))
        return made

    def serves(self, version: str, kind: str) -> bool:
        """Whether the server serves the kind in this group and version, such as "apps/v1"."""
        try:
            found = json.loads(self.admin.get(f"/apis/{version}"))
        except NotFoundError:
            return False
        return any(each["kind"] == kind for each in found["resources"])

    def answers(self, *paths: str) -> bool:
        """Whether the server serves these collections: a kind that was just added, or its storage,
        may not be there yet."""
        try:
            for path in paths:
                self.admin.get(path, {"limit": "1"})
        except (NotFoundError, TooManyRequestsError):
            return False
        return True

    @property
    def minor(self) -> int:
        """The minor version of the server."""
        return int(json.loads(self.admin.get("/version"))["minor"].rstrip("+"))

    def namespace(self, name: str) -> None:
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})

    def account(self, namespace: str, name: str, rules: list[dict[str, Any]]) -> None:
        """Creates a service account with a cluster role of these rules."""
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
        """Applies a manifest. Waits until its kind is served, and until a kind that it defines is
        served. An object that is being deleted is created again after its deletion."""
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
            except (NotFoundError, TooManyRequestsError):  # the kind was just added
                return False
            return "deletionTimestamp" not in stored["metadata"]

        eventually(f"{kind} is served", applied)
        if kind == "CustomResourceDefinition":
            self._until_served(wanted["spec"])

    def _until_served(self, definition: dict[str, Any]) -> None:
        """Waits until the server has seen a new kind in its watch."""
        group, plural = definition["group"], definition["names"]["plural"]
        versions = [each["name"] for each in definition["versions"] if each["served"]]
        paths = [f"/apis/{group}/{version}/{plural}" for version in versions]
        eventually(f"{plural} are served", lambda: self.answers(*paths))

    def default_account(self, namespace: str) -> None:
        """Creates the account that pods need, unless it exists."""
        account = {"name": "default", "namespace": namespace}
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def node(self, name: str) -> None:
        self.create("/api/v1/nodes", {"metadata": {"name": name}})

    def pod(
        self, namespace: str, name: str, node: str, account: str = "default", **metadata: Any
    ) -> dict[str, Any]:
        """Creates a pod on a node. No kubelet runs it."""
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
        """A token of the account for an hour. `pod`: the pod to which it is bound."""
        spec: dict[str, Any] = {"audiences": [], "expirationSeconds": 3600}
        if pod is not None:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        return str(self.create(path, {**kind, "spec": spec})["status"]["token"])

    def kubeconfig(self, token: str) -> dict[str, Any]:
        return token_kubeconfig(self.url, self.folder, token)

    def _run(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **ENVIRONMENT}
            )

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

    def _etcd(self, method: str, **fields: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._etcd_port}/v3/{method}", json.dumps(fields).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer


@contextlib.contextmanager
def running(folder: Path, authorization: Path | None = None) -> Iterator[ApiServer]:
    """Runs a server. Skips the test if the programs are not available. `authorization`: the file
    with the authorizers."""
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
