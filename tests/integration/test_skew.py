"""The previous release together with this version, on a real containerd and a real API server: the
versions of agent, proxy and scheduler may differ by one (docs/upgrade.md)."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import RESOURCE_STATUS
from tests import tools
from tests.deploy.manifests import objects
from tests.fixtures.pods import PodSpec, run_pod
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.incluster import READ_RULES, WRITE_RULES, Account
from tests.integration.scheduling import Scheduler, binding_args, extender_args
from tests.waiting import eventually

Object = dict[str, Any]

BEFORE = "0ec6eb1ef01df23321eadd82e05a65ac6780c639"
"""The commit whose files and objects `tests/data/releases/0.1.0` has."""
ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
ALLOCATABLE = {"cpu": "2", "memory": "4Gi", "pods": "110"}
TIMEOUT_SECONDS = 60.0

pytestmark = pytest.mark.timeout(600)


def package_before(tmp_path: Path) -> Path:
    """The package of the previous release, from the history. Skips the test without it."""
    kept = tools.cache() / f"topolet-{BEFORE[:8]}"
    if not kept.exists():
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", BEFORE, "agent"], capture_output=True, check=False
        )
        if archive.returncode:
            pytest.skip(f"the history has no {BEFORE[:8]}: {archive.stderr.decode().strip()}")
        fresh = tmp_path / "before"
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
            packed.extractall(fresh, filter="data")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # another test was faster
            fresh.rename(kept)
    return kept


class Releases:
    """Selects the version of the processes that are started in a block."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = patch

    @contextlib.contextmanager
    def of(self, *, before: bool) -> Iterator[None]:
        with self._patch.context() as patch:
            patch.setenv("PYTHONPATH", str(self._folder if before else ROOT))
            # Keeps the working directory out of sys.path.
            patch.setenv("PYTHONSAFEPATH", "1")
            yield


class SkewedNode:
    """A node in the cluster, whose three processes have this or the previous version."""

    def __init__(
        self, api: ApiServer, node: TestNode, releases: Releases, scheduler: Scheduler
    ) -> None:
        self.node = node
        self.scheduler = scheduler
        self._api = api
        self._releases = releases
        self._account = Account(api, node)
        self._name = node.cgroup_root[1:]
        self._pods = f"/api/v1/namespaces/{self._name}/pods"

    def start_agent(self, *, before: bool) -> None:
        self._account.write_token(self._api.token(self._name, "agent"))
        with self._releases.of(before=before):
            self._account.start_agent(self.node, f"--node-name={self._name}")

    def start_proxy(self, *, before: bool) -> None:
        with self._releases.of(before=before):
            self.node.start_proxy()

    def start_scheduler(self, *, before: bool) -> None:
        with self._releases.of(before=before):
            self.scheduler.start("--lease-name=", "--agent-selector=")
        self.scheduler.until_ready()

    def scheduled(self, name: str) -> PodSpec:
        """Lets the scheduler place an LSE pod; the pod with its CPU."""
        one = {"cpu": "1", "memory": "16Mi"}
        labels = {"koordinator.sh/qosClass": "LSE"}
        spec = {
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            "containers": [
                {"name": "main", "image": "none", "resources": {"requests": one, "limits": one}}
            ],
        }
        metadata = {"name": name, "labels": labels}
        pod = self._api.create(self._pods, {"metadata": metadata, "spec": spec})

        def node_is_feasible() -> bool:
            found = self.scheduler.call("filter", extender_args(pod, [self._name]))
            return bool(found["NodeNames"] == [self._name])

        eventually("the scheduler has the agent's report", node_is_feasible, TIMEOUT_SECONDS)
        assert self.scheduler.call("bind", binding_args(pod, self._name)) == {"Error": ""}
        bound = json.loads(self._api.admin.get(f"{self._pods}/{name}"))
        cpus = json.loads(bound["metadata"]["annotations"][RESOURCE_STATUS])["cpuset"]
        uid = bound["metadata"]["uid"]
        return self.node.spec(name, "LSE", cpus, namespace=self._name, uid=uid)


@pytest.fixture
def skewed_node(
    apiserver: ApiServer, node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SkewedNode]:
    folder, name = package_before(tmp_path), node.cgroup_root[1:]
    for each in objects("crds"):
        apiserver.apply(each)
    apiserver.namespace(name)
    apiserver.node(name)
    status = {"capacity": ALLOCATABLE, "allocatable": ALLOCATABLE}
    apiserver.admin.request(
        "PATCH",
        f"/api/v1/nodes/{name}/status",
        None,
        {"status": status},
        "application/merge-patch+json",
    )
    apiserver.account(name, "default", [])
    apiserver.account(name, "agent", [*READ_RULES, *WRITE_RULES])
    apiserver.account(name, "scheduler", EVERYTHING)
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(apiserver.kubeconfig(apiserver.token(name, "scheduler"))))
    with Scheduler(tmp_path, config) as scheduler:
        yield SkewedNode(apiserver, node, Releases(folder, monkeypatch), scheduler)
    apiserver.admin.delete(f"/api/v1/nodes/{name}")


@pytest.mark.parametrize("old", ["agent", "proxy", "scheduler"])
def test_one_part_of_the_previous_release_works_with_the_others_and_is_replaced(
    skewed_node: SkewedNode, old: str
) -> None:
    """An upgrade and a rollback of the part, during which a running pod keeps its CPU."""
    skewed_node.start_proxy(before=old == "proxy")
    skewed_node.start_agent(before=old == "agent")
    skewed_node.start_scheduler(before=old == "scheduler")
    node = skewed_node.node
    pod = skewed_node.scheduled("lse")
    own = pod.cpuset
    _, lse = run_pod(node.proxied, pod)
    _, ls = run_pod(node.proxied, node.spec("ls", "LS"))
    assert node.cpus(lse) == own
    assert not CpuSet.parse(node.cpus(ls)) & CpuSet.parse(own)
    rest = node.cpus(ls)
    for before in (False, True):
        if old == "agent":
            node.stop_agent()
            skewed_node.start_agent(before=before)
        elif old == "proxy":
            node.kill_proxy()
            skewed_node.start_proxy(before=before)
        else:
            skewed_node.scheduler.end()
            skewed_node.start_scheduler(before=before)
        _, late = run_pod(node.proxied, node.spec(f"late-{before}".lower(), "LS"))
        assert node.cpus(late) == rest
        assert (node.cpus(lse), node.cpus(ls)) == (own, rest)
