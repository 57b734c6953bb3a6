from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_files import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices.device_object import Device
from agent.model.devices.gpus import Ancestor, GpuInfo, GpuPair
from agent.model.devices.visibility import DeviceNode, VisibleGpu
from agent.model.nrt.node_annotations import SYSTEM_QOS
from agent.model.pod import apiobjects, pods
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import ApiNode, ApiPod
from agent.model.pod.pods import PodMetadata
from agent.model.pod.qos import QOS_LABEL
from agent.node import cluster_view
from agent.node.cluster_view import CachedState, ClusterCache, ClusterState, merged
from agent.node.device_listing import Published
from agent.node.sources import Sources
from tests.node.world import World, claim


def api_pod(uid: str, qos: str = "", cpus: str = "", **metadata: Any) -> ApiPod:
    phase = metadata.pop("phase", "Pending")
    annotations = metadata.pop("annotations", {})
    body = {
        "metadata": {
            "name": uid,
            "namespace": "ns",
            "uid": uid,
            "labels": {QOS_LABEL: qos} if qos else {},
            "annotations": {**annotations, **claim(cpus)},
            **metadata,
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": phase, "qosClass": "Burstable"},
    }
    return apiobjects.from_object(body)


class UnreadCluster:
    """A cluster of which nothing was read yet."""

    def now(self) -> ClusterState:
        return ClusterState()


def cache(path: str | Path) -> ClusterCache:
    return ClusterCache(UnreadCluster(), str(path))


def assigned(*pods: ApiPod, node: ApiNode | None = None) -> ClusterState:
    return ClusterState(node, {each.uid: each for each in pods}, True)


DELETED_AT = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("api", "claims"),
    [
        (api_pod("a", "LSE", "1"), True),
        (api_pod("a", "LSE", "1", phase="Running"), True),
        (api_pod("a", "LSE", "1", phase="Succeeded"), False),
        (api_pod("a", "LSE", "1", phase="Failed"), False),
        (api_pod("a", "LSE", "1", deletionTimestamp=DELETED_AT), False),
    ],
)
def test_a_pod_of_the_api_server_claims_its_cpus_before_the_runtime_lists_it(
    tmp_path: Path, api: ApiPod, claims: bool
) -> None:
    world = World(tmp_path)
    ls = world.container(world.sandbox("ls", "LS"))
    world.cluster_objects.pods = {api.uid: api}
    world.agent().reconcile()
    assert world.cpus(f"kubepods/burstable/podls/{ls.id}") == ("0,2-3" if claims else "0-3")
    assert ("a" in world.snapshot().pods) is claims


@pytest.mark.parametrize(
    "api",
    [
        api_pod("a", "LSE", "1", phase="Succeeded"),
        api_pod("a", "LSE", "1", deletionTimestamp=DELETED_AT),
        api_pod("b", "LS"),
    ],
)
def test_a_running_pod_keeps_its_cpus_if_the_api_server_reports_its_end(
    tmp_path: Path, api: ApiPod
) -> None:
    world = World(tmp_path)
    world.container(world.sandbox("a", "LSE", "1"))
    world.cluster_objects.pods = {api.uid: api}
    world.agent().reconcile()
    assert [each.cpuset for each in world.snapshot().owners] == ["1"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_claim_stays_when_its_pod_ends_in_the_api(tmp_path: Path, restart: bool) -> None:
    """A controller may set the phase of a pod while the runtime still has its containers."""
    world = World(tmp_path)
    container = world.container(world.sandbox("a", "LS"))
    world.cluster_objects.pods = {"a": api_pod("a", "LSE", "2")}
    agent = world.agent()
    agent.reconcile()
    group = f"kubepods/burstable/poda/{container.id}"
    assert world.cpus(group) == "2"
    agent = world.agent() if restart else agent
    world.cluster_objects.pods = {"a": api_pod("a", phase="Failed")}
    agent.reconcile()
    assert world.cpus(group) == "2"


def test_a_newer_claim_of_the_api_server_stays_after_a_restart_and_a_deletion(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    container = world.container(world.sandbox("a", "LSE", "1"))
    world.agent().reconcile()
    world.cluster_objects.pods = {"a": api_pod("a", "LSE", "2")}
    world.agent().reconcile()
    group = f"kubepods/burstable/poda/{container.id}"
    assert world.cpus(group) == "2"
    world.cluster_objects.pods = {}
    world.agent().reconcile()
    assert world.cpus(group) == "2", (
        "the server is not reachable, or the object was deleted by force"
    )


def test_two_pods_with_one_name_are_separate(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.container(world.sandbox("old", "LSE", "1"))
    new = msgspec.structs.replace(api_pod("new", "LSE", "2"), name="old")
    world.cluster_objects.pods = {"new": new}
    world.agent().reconcile()
    assert {each.uid: each.cpuset for each in world.snapshot().owners} == {"old": "1", "new": "2"}


def test_node_annotations_are_kept_while_no_server_answers(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.json")
    node = ApiNode("u", {"other": "x"}, {SYSTEM_QOS: "{}", "other": "y"})
    first = cache(path)
    first.update(assigned(node=node), [])
    second = cache(path)
    assert second.known == CachedState(ApiNode("u", {}, {SYSTEM_QOS: "{}"}))
    assert second.update(ClusterState(), []) == second.known


def test_published_devices_are_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.json")
    nic = Device("rdma", "0000:17:00.0", 5, {"koordinator.sh/rdma": 100})
    pairs = (GpuPair("GPU-0", "GPU-1", Ancestor.SWITCH, None, 2, 50_000),)
    published = Published((nic,), {"rdma": {"0000:1a:00.0": 4}}, GpuInfo("nvidia"), pairs)
    nodes = (DeviceNode("/dev/infiniband/uverbs0", 231, 192),)
    card = CardFiles(VisibleGpu("GPU-0", "0", nodes), 3, True, (VisibleGpu("MIG-0", "0:1"),))
    adapter = OtherFiles("rdma", "0000:17:00.0", 5, nodes, {"0000:17:00.1": nodes})
    files = DeviceFiles((card,), (adapter,), {"rdma": nodes})
    cache(path).store_devices(published, files)
    second = cache(path)
    assert (second.known.devices, second.known.files) == (published, files)
    updated = second.update(ClusterState(), ["a"])
    assert (updated.devices, updated.files) == (published, files)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pods": 3}', b"\xff"])
def test_a_corrupt_cache_is_empty(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cluster.json"
    path.write_bytes(content)
    first = cache(path)
    assert first.known == CachedState()
    assert "is lost" in caplog.text
    first.update(assigned(api_pod("a", "LS")), ["a"])
    assert cache(path).known.pods == {"a": PodMetadata({QOS_LABEL: "LS"})}


def test_a_cache_beyond_its_bound_is_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.json"
    cache(path).update(assigned(api_pod("a", "LS")), ["a"])
    assert cache(path).known != CachedState()
    monkeypatch.setattr(cluster_view, "MAX_BYTES", 10)
    assert cache(path).known == CachedState()
    assert "more than 10 bytes" in caplog.text


def test_stored_metadata_of_a_pod_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    hostile = dict.fromkeys((*pods.ANNOTATIONS, "other"), "x" * 200000)
    pod = msgspec.structs.replace(api_pod("a", "LS"), annotations=hostile)
    cache(path).update(assigned(pod), ["a"])
    assert path.stat().st_size < sum(pods.ANNOTATIONS.values()) + 1_000


def test_a_cache_that_cannot_be_written_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = cache(tmp_path / "nowhere" / "cluster.json")
    assert first.update(assigned(api_pod("a", "LS")), ["a"]).pods
    assert "is not stored" in caplog.text


names = st.sampled_from("abcd")


@given(st.sets(names), st.sets(names), st.sets(names))
def test_annotations_are_the_newest_of_listed_pods(
    listed: set[str], before: set[str], now: set[str]
) -> None:
    last = CachedState(
        pods={uid: PodMetadata(annotations={RESOURCE_STATUS: "old"}) for uid in before}
    )
    listed_pods = [api_pod(uid, annotations={RESOURCE_STATUS: "new"}) for uid in now]
    found = merged(last, assigned(*listed_pods), listed).pods
    assert found.keys() == listed & (before | now)
    for uid, metadata in found.items():
        assert metadata.annotations[RESOURCE_STATUS] == ("new" if uid in now else "old")


def test_the_kubelets_configuration_survives_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.json")
    first = cache(path)
    assert first.known.configuration is None
    first.store_kubelet(None)
    static = KubeletConfiguration("kubelet 7", "static", reserved_cpus=CpuSet.parse("0-1"))
    first.store_kubelet(static)
    first.update(ClusterState(), ())
    second = cache(path).known.configuration
    assert second is not None
    assert (second.static, str(second.reserved_cpus)) == (True, "0-1")
    Path(path).write_text('{"kubelet":{"cpuManagerPolicy":[]}}')
    assert cache(path).known.configuration is None


def test_a_cache_that_could_not_be_written_is_written_as_soon_as_it_can(tmp_path: Path) -> None:
    """Also if no pod changes: the problem of a full disk must not stay."""
    path, sources = tmp_path / "later" / "cluster.json", Sources()
    first = ClusterCache(UnreadCluster(), str(path), sources)
    state = assigned(api_pod("a", "LS"))
    first.update(state, ["a"])
    assert sources.problems
    path.parent.mkdir()
    first.update(state, ["a"])
    assert not sources.problems
    assert path.exists()
