"""The DaemonSet with everything it refers to: image, flags, mounts, account, role and policies, on
a real runtime and a real API server."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from tests.deploy.api import Api, Who
from tests.deploy.manifests import SCHEDULER, arguments, environment, objects, pod_of
from tests.discover import fakenvml, gpumachines
from tests.fixtures.pods import run_pod
from tests.fixtures.ports import free_port
from tests.integration import deployed
from tests.integration.apiserver.server import ApiServer
from tests.integration.gpunode import GpuHost
from tests.integration.harness import TestNode, fresh_node
from tests.integration.image import Image, Mount
from tests.waiting import eventually

# The image and its base may have to be built first.
pytestmark = pytest.mark.timeout(900)

Object = dict[str, Any]
NAMESPACE = "topolet-system"
GUARD = "nri-guard"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


PERMISSION_ERRORS = re.compile(
    "Permission denied|Operation not permitted|Read-only file|no role allows| 403 |Traceback"
)


class DaemonSetPod:
    """A pod of the DaemonSet on the node `name`, started as a kubelet would."""

    def __init__(
        self,
        image: Image,
        server: ApiServer,
        node: TestNode,
        folder: Path,
        overlay: str,
        gpus: GpuHost | None = None,
    ) -> None:
        """`gpus`: the GPUs of the machine; the container then also has the files that a runtime
        class adds."""
        self.name = f"daemonset-{overlay}"
        self.spec: Object = pod_of(overlay)
        self.node = node
        self.ports: dict[str, int] = {}
        self._image = image
        self._folder = folder
        self._environ = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": server.url.rpartition(":")[2],
        }
        account = self.spec["serviceAccountName"]
        server.node(self.name)
        server.pod(NAMESPACE, self.name, self.name, account)
        secret = folder / "account"
        secret.mkdir()
        (secret / "token").write_text(server.token(NAMESPACE, account, self.name))
        (secret / "ca.crt").write_bytes((server.folder / "ca.crt").read_bytes())
        kubelet = folder / "kubelet"
        kubelet.mkdir()
        node.state.mkdir()
        self._volumes = {each["name"]: each["hostPath"]["path"] for each in self.spec["volumes"]}
        self._host_paths = {
            "/run/containerd": str(node.containerd.folder),
            "/var/run/nri": str(node.containerd.folder),
            "/run/topolet": str(node.state),
            "/var/lib/kubelet": str(kubelet),
        }
        self._mounts = [Mount(ACCOUNT, str(secret))]
        if gpus is not None:
            (gpus.root / "sys/fs/cgroup").mkdir(parents=True)
            self._host_paths["/sys"] = str(gpus.root / "sys")
            self._environ |= gpus.environ
            library = gpus.driver.root / "usr/lib64" / fakenvml.SONAME
            self._mounts += [
                Mount(f"/usr/lib/x86_64-linux-gnu/{fakenvml.SONAME}", str(library)),
                Mount(str(gpus.driver.facts), str(gpus.driver.facts)),
            ]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Runs all containers of the pod during the block."""
        with contextlib.ExitStack() as stack:
            for each in self.spec["containers"]:
                process = stack.enter_context(self._started(each))
                eventually(f"{each['name']} is ready", lambda c=each, p=process: self._ready(c, p))
            yield

    def log(self, container: str) -> str:
        return (self._folder / f"{container}.log").read_text()

    def _started(
        self, container: Object
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        name = container["name"]
        self.ports[name] = free_port()
        words = arguments(container)
        mounts = [
            Mount(
                each["mountPath"],
                self._host_paths.get(self._volumes[each["name"]], self._volumes[each["name"]]),
                each.get("readOnly", False),
            )
            for each in container["volumeMounts"]
        ]
        return self._image.running(
            self._folder / f"{name}.log",
            [
                *self._image.configuration["Entrypoint"],
                *words,
                *([] if name == GUARD else [f"--http=127.0.0.1:{self.ports[name]}"]),
            ],
            env={**environment(container), "TOPOLET_NODE_NAME": self.name, **self._environ},
            mounts=[*mounts, *self._mounts],
            host_network=True,
        )

    def _ready(self, container: Object, process: subprocess.Popen[bytes]) -> bool:
        name = container["name"]
        assert process.poll() is None, self.log(name)[-3000:]
        if name == GUARD:  # it has no port: the agent reads its status
            return "registered with the runtime as" in self.log(name)
        page, text = ("readyz", "") if name == "agent" else ("metrics", "topolet_nri_ready 1")
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self.ports[name]}/{page}"
            with urllib.request.urlopen(url, timeout=5) as reply:
                return text in reply.read().decode()
        return False


@pytest.fixture(scope="module")
def api(apiserver: ApiServer) -> Iterator[Api]:
    made = deployed.administrator(apiserver, "daemonset-deployer")
    deployed.apply(made, deployed.served(apiserver, objects("overlays/reconcile")))
    made.account("default")
    yield made
    deployed.remove_policies(apiserver)


def scheduled(api: Api, node: str, name: str, qos: str, cpuset: str) -> str:
    """Creates a pod as the scheduler binds it; its uid."""
    amounts = {"cpu": "1"} if qos == "LSE" else {}
    claim = {RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
    resources = {"requests": amounts, "limits": amounts}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {QOS_LABEL: qos}, "annotations": claim},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "i", "resources": resources}],
        },
    }
    made = api.request("POST", "/api/v1/namespaces/default/pods", body, Who(SCHEDULER))
    return str(made["metadata"]["uid"])


@pytest.mark.parametrize(
    ("overlay", "runtime"), [("reconcile", "containerd"), ("nri", "containerd2")]
)
def test_the_daemonset_works(
    image: Image,
    apiserver: ApiServer,
    api: Api,
    tmp_path: Path,
    overlay: str,
    runtime: str,
    request: pytest.FixtureRequest,
) -> None:
    with fresh_node(request.getfixturevalue(runtime)) as node:
        pod = DaemonSetPod(image, apiserver, node, tmp_path, overlay)
        with pod.running():
            cpus = {}
            for qos, cpuset, expected in (("LSE", "1", "1"), ("LS", "", "0")):
                name = f"{overlay}-{qos.lower()}"
                uid = scheduled(api, pod.name, name, qos, cpuset)
                _, container = run_pod(node.direct, node.spec(name, qos, cpuset, uid=uid))
                cpus[container] = expected
                if overlay == "nri":
                    assert node.cpus(container) == expected, "at its creation"
            for container, expected in cpus.items():
                eventually("on its CPUs", lambda c=container, w=expected: node.cpus(c) == w)
            path = f"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{pod.name}"
            eventually("the node is reported", lambda: deployed.exists(api, path))
        for each in pod.ports:
            assert not PERMISSION_ERRORS.search(pod.log(each)), pod.log(each)


def test_a_node_with_gpus_has_a_device_object(
    image: Image, apiserver: ApiServer, api: Api, tmp_path: Path, node: TestNode
) -> None:
    """With the overlay for NVIDIA's runtime class, which adds the driver's library to the
    container; here the test adds it."""
    gpus = GpuHost(tmp_path / "machine", gpumachines.dgx1())
    pod = DaemonSetPod(image, apiserver, node, tmp_path, "nvidia", gpus)
    assert pod.spec["runtimeClassName"] == "nvidia"
    path = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{pod.name}"
    with pod.running():
        eventually("a Device object", lambda: deployed.exists(api, path))
        device = api.request("GET", path)
    listed = {each["id"]: each["health"] for each in device["spec"]["devices"]}
    assert listed == dict.fromkeys((card.uuid for card in gpus.machine.cards), True)
    amounts = api.request("GET", f"/api/v1/nodes/{pod.name}")["status"]["allocatable"]
    assert amounts["koordinator.sh/gpu-core"] == "800"
    assert not PERMISSION_ERRORS.search(pod.log("agent")), pod.log("agent")
