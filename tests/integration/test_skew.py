"""The release before beside this version, on a real containerd and a real API server: agent, proxy
and scheduler may be one apart, either way (docs/upgrade.md)."""

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


def tree(tmp_path: Path) -> Path:
    """The package of the release before, from the history; the test is skipped without it."""
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
    """Processes that start in the block are of this version or of the one before."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = patch

    @contextlib.contextmanager
    def of(self, *, before: bool) -> Iterator[None]:
        with self._patch.context() as patch:
            patch.setenv("PYTHONPATH", str(self._folder if before else ROOT))
            # Not the folder in which the process starts.
            patch.setenv("PYTHONSAFEPATH", "1")
            yield


class Place:
    """A node in the cluster with its three processes, each of this version or of the one before."""

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
        """An LSE pod with the CPU that the scheduler gave it."""
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

        def known() -> bool:
            found = self.scheduler.call("filter", extender_args(pod, [self._name]))
            return bool(found["NodeNames"] == [self._name])

        eventually("the scheduler has the agent's report", known, TIMEOUT_SECONDS)
        assert self.scheduler.call("bind", binding_args(pod, self._name)) == {"Error": ""}
        bound = json.loads(self._api.admin.get(f"{self._pods}/{name}"))
        cpus = json.loads(bound["metadata"]["annotations"][RESOURCE_STATUS])["cpuset"]
        uid = bound["metadata"]["uid"]
        return self.node.spec(name, "LSE", cpus, namespace=self._name, uid=uid)


@pytest.fixture
def place(
    apiserver: ApiServer, node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    folder, name = tree(tmp_path), node.cgroup_root[1:]
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
        yield Place(apiserver, node, Releases(folder, monkeypatch), scheduler)
    apiserver.admin.delete(f"/api/v1/nodes/{name}")


@pytest.mark.parametrize("old", ["agent", "proxy", "scheduler"])
def test_one_part_of_the_release_before_works_with_the_others_and_is_replaced(
    place: Place, old: str
) -> None:
    """Forwards, and back to it, with a running pod that keeps its CPU."""
    place.start_proxy(before=old == "proxy")
    place.start_agent(before=old == "agent")
    place.start_scheduler(before=old == "scheduler")
    node = place.node
    pod = place.scheduled("lse")
    own = pod.cpuset
    _, lse = run_pod(node.proxied, pod)
    _, ls = run_pod(node.proxied, node.spec("ls", "LS"))
    assert node.cpus(lse) == own
    assert not CpuSet.parse(node.cpus(ls)) & CpuSet.parse(own)
    rest = node.cpus(ls)
    for before in (False, True):
        if old == "agent":
            node.stop_agent()
            place.start_agent(before=before)
        elif old == "proxy":
            node.kill_proxy()
            place.start_proxy(before=before)
        else:
            place.scheduler.end()
            place.start_scheduler(before=before)
        _, late = run_pod(node.proxied, node.spec(f"late-{before}".lower(), "LS"))
        assert node.cpus(late) == rest
        assert (node.cpus(lse), node.cpus(ls)) == (own, rest)
