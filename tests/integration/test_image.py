"""The image: what the manifests run, as they run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.main import COMMANDS
from agent.model.annotations import RESOURCE_STATUS
from agent.model.qos import QOS_LABEL
from demo.pods import run_pod
from demo.stage import free_port
from tests.deploy.api import Api, Who
from tests.deploy.manifests import SCHEDULER, objects, of_kind, pod_of
from tests.integration import deployed, image
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.image import MACHINE, Image, Mount
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with image.built(tmp_path_factory.mktemp("image")) as it:
        yield it


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_command_is_the_entrypoint(built: Image) -> None:
    assert built.configuration["Entrypoint"] == ["topolet"]
    for name in ("agent", "nri", "webhook"):
        assert good(built.run("topolet", name, "--help")).startswith(f"usage: topolet {name} ")
    told = good(built.run(*built.configuration["Entrypoint"], "--help"))
    assert all(f"  {name} " in told for name in COMMANDS)


def test_it_sees_the_machine_through_the_mounts(built: Image) -> None:
    words = ("topolet", "topology", "--output", "json")
    inside = json.loads(good(built.run(*words, "--root", "/host", mounts=MACHINE)))
    outside = subprocess.run(
        [sys.executable, "-m", "agent", *words[1:]], capture_output=True, check=True, text=True
    )
    assert inside == json.loads(outside.stdout)


def test_the_webhook_runs_as_nobody(built: Image) -> None:
    """As far as it can come without a cluster."""
    pod = of_kind("Deployment")["topolet-webhook"]["spec"]["template"]["spec"]
    done = built.run("topolet", "webhook", user=pod["securityContext"]["runAsUser"])
    assert done.returncode == 1
    assert "not in a cluster" in done.stderr.splitlines()[-1]


def test_what_the_modes_need_is_there(built: Image) -> None:
    good(built.run("/opt/topolet/bin/python3", "-c", "import cheroot, grpc"))
    done = built.run("/opt/topolet/bin/python3", "-c", "import pytest")
    assert "No module named 'pytest'" in done.stderr


def test_bytecode_is_there_and_nobody_asks_whether_it_is_old(built: Image) -> None:
    library = built.root / "opt" / "topolet" / "lib"
    sources = list(library.rglob("*.py"))
    assert len(sources) > 300
    for source in sources:
        (compiled,) = (source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")
        assert compiled.read_bytes()[4:8] == b"\x01\0\0\0", f"{compiled}: not unchecked-hash"


@pytest.mark.parametrize(
    "words", [("--help",), ("agent", "--help"), ("topology", "--root", "/host")]
)
def test_a_start_compiles_nothing(built: Image, words: tuple[str, ...]) -> None:
    """The command's own file of five lines is no module, and has no bytecode."""
    done = built.run("topolet", *words, env={"PYTHONVERBOSE": "1"}, mounts=MACHINE)
    good(done)
    read = re.findall(r"# code object from '?([^'\n]+)", done.stderr)
    assert [each for each in read if each.endswith(".pyc")]
    assert [each for each in read if not each.endswith(".pyc")] == []


NODE = "image-node"


def scheduled(api: Api, name: str, qos: str, cpuset: str) -> str:
    """The uid of a pod on our node, as our scheduler left it."""
    amounts = {"cpu": "1"} if qos == "LSE" else {}
    claim = {RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {QOS_LABEL: qos}, "annotations": claim},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": "i",
                    "resources": {"requests": amounts, "limits": amounts},
                }
            ],
        },
    }
    made = api.request("POST", "/api/v1/namespaces/default/pods", body, Who(SCHEDULER))
    return str(made["metadata"]["uid"])


def test_the_daemonset_does_its_work_with_what_it_is_given(
    built: Image, apiserver: ApiServer, node: TestNode, tmp_path: Path
) -> None:
    """Its flags, mounts, account, role and policies, on a real runtime and a real API server."""
    api = deployed.administrator(apiserver, "image-deployer")
    deployed.apply(api, objects("overlays/reconcile"))
    apiserver.node(NODE)
    pod = pod_of("reconcile")
    (container,) = pod["containers"]
    namespace, account = "topolet-system", pod["serviceAccountName"]
    apiserver.pod(namespace, "image-agent", NODE, account)
    secret = tmp_path / "serviceaccount"
    secret.mkdir()
    (secret / "token").write_text(apiserver.token(namespace, account, "image-agent"))
    (secret / "ca.crt").write_text((apiserver.folder / "ca.crt").read_text())
    kubelet = tmp_path / "kubelet"
    kubelet.mkdir()
    node.state.mkdir()
    here = {
        "/run/containerd": str(node.containerd.folder),
        "/run/topolet": str(node.state),
        "/var/lib/kubelet": str(kubelet),
    }
    places = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    mounts = [
        Mount(
            each["mountPath"],
            here.get(places[each["name"]], places[each["name"]]),
            each.get("readOnly", False),
        )
        for each in container["volumeMounts"]
    ]
    mounts.append(Mount("/var/run/secrets/kubernetes.io/serviceaccount", str(secret)))
    node.http_port = free_port()
    words = [each.replace("$(NODE_NAME)", NODE) for each in container["args"]]
    env = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": apiserver.url.rpartition(":")[2],
    }
    log = tmp_path / "agent.log"
    containers: dict[str, str] = {}
    with built.running(
        log,
        [*built.configuration["Entrypoint"], *words, f"--http=127.0.0.1:{node.http_port}"],
        env=env,
        mounts=mounts,
        host_network=True,
    ) as process:

        def ready() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            return node.get("/readyz")[0] == 200

        eventually("ready", ready, 30)
        for name, qos, cpuset in (("image-ls", "LS", ""), ("image-lse", "LSE", "1")):
            uid = scheduled(api, name, qos, cpuset)
            _, containers[qos] = run_pod(node.direct, node.spec(name, qos, cpuset, uid=uid))
        eventually("LSE on 1", lambda: node.cpus(containers["LSE"]) == "1", 30)
        eventually("LS on 0", lambda: node.cpus(containers["LS"]) == "0", 30)
        path = f"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{NODE}"
        eventually("the node is reported", lambda: deployed.there(api, path), 30)
    assert " level=error " not in log.read_text(), log.read_text()
