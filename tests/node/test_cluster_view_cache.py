from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kubelet.configuration import KubeletConfiguration
from agent.model import apiobjects
from agent.model.apiobjects import ApiNode, ApiPod
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_files import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices.device_object import Device
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.devices.listing import Published
from agent.model.devices.visibility import DeviceNode, VisibleGpu
from agent.model.nrt.node_annotations import SYSTEM_QOS
from agent.model.nrt.node_status import GpuInfo
from agent.model.pod import pods
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.pods import PodMetadata
from agent.model.pod.qos import QOS_LABEL
from agent.node import cluster_view
from agent.node.cluster_view import CachedState, ClusterCache, ClusterState, merged
from agent.node.sources import Sources
from tests.node.world import World


def claim(cpus: str) -> dict[str, str]:
    return {RESOURCE_STATUS: f'{{"cpuset": "{cpus}"}}'}


def api_pod(uid: str, qos: str = "", cpus: str = "", **metadata: Any) -> ApiPod:
    phase = metadata.pop("phase", "Pending")
    notes = metadata.pop("annotations", {})
    body = {
        "metadata": {
            "name": uid,
            "namespace": "ns",
            "uid": uid,
            "labels": {QOS_LABEL: qos} if qos else {},
            "annotations": {**notes, **(claim(cpus) if cpus else {})},
            **metadata,
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": phase, "qosClass": "Burstable"},
    }
    return apiobjects.from_object(body)


class Source:
    """A cluster that is not read."""

    def now(self) -> ClusterState:
        return ClusterState()


def cache(path: str | Path) -> ClusterCache:
    return ClusterCache(Source(), str(path))


def assigned(*pods: ApiPod, node: ApiNode | None = None) -> ClusterState:
    return ClusterState(node, {each.uid: each for each in pods}, True)


ENDS = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("given", "claims"),
    [
        (api_pod("a", "LSE", "1"), True),
        (api_pod("a", "LSE", "1", phase="Running"), True),
        (api_pod("a", "LSE", "1", phase="Succeeded"), False),
        (api_pod("a", "LSE", "1", phase="Failed"), False),
        (api_pod("a", "LSE", "1", deletionTimestamp=ENDS), False),
    ],
)
def test_a_pod_of_the_cluster_claims_before_the_runtime_has_it(
    tmp_path: Path, given: ApiPod, claims: bool
) -> None:
    world = World(tmp_path)
    ls = world.container(world.sandbox("ls", "LS"))
    world.cluster_objects.pods = {given.uid: given}
    world.agent().reconcile()
    assert world.cpus(f"kubepods/burstable/podls/{ls.id}") == ("0,2-3" if claims else "0-3")
    assert ("a" in world.snapshot().pods) is claims


@pytest.mark.parametrize(
    "given",
    [
        api_pod("a", "LSE", "1", phase="Succeeded"),
        api_pod("a", "LSE", "1", deletionTimestamp=ENDS),
        api_pod("b", "LS"),
    ],
)
def test_a_running_pod_keeps_its_cpus_whatever_the_cluster_reports(
    tmp_path: Path, given: ApiPod
) -> None:
    world = World(tmp_path)
    world.container(world.sandbox("a", "LSE", "1"))
    world.cluster_objects.pods = {given.uid: given}
    world.agent().reconcile()
    assert [each.cpuset for each in world.snapshot().owners] == ["1"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_claim_of_the_cluster_outlives_the_end_of_its_pod_there(
    tmp_path: Path, restart: bool
) -> None:
    """The runtime may still have containers of a pod whose phase a controller has set."""
    world = World(tmp_path)
    own = world.container(world.sandbox("a", "LS"))
    world.cluster_objects.pods = {"a": api_pod("a", "LSE", "2")}
    agent = world.agent()
    agent.reconcile()
    group = f"kubepods/burstable/poda/{own.id}"
    assert world.cpus(group) == "2"
    agent = world.agent() if restart else agent
    world.cluster_objects.pods = {"a": api_pod("a", phase="Failed")}
    agent.reconcile()
    assert world.cpus(group) == "2"


def test_another_claim_in_the_cluster_counts_and_outlives_restart_and_deletion(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    own = world.container(world.sandbox("a", "LSE", "1"))
    world.agent().reconcile()
    world.cluster_objects.pods = {"a": api_pod("a", "LSE", "2")}
    world.agent().reconcile()
    group = f"kubepods/burstable/poda/{own.id}"
    assert world.cpus(group) == "2"
    world.cluster_objects.pods = {}
    world.agent().reconcile()
    assert world.cpus(group) == "2", "a server that is away, or an object that was removed by force"


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
    memory = cache(path)
    memory.update(assigned(node=node), [])
    again = cache(path)
    assert again.known == CachedState(ApiNode("u", {}, {SYSTEM_QOS: "{}"}))
    assert again.update(ClusterState(), []) == again.known


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
    again = cache(path)
    assert (again.known.devices, again.known.files) == (published, files)
    updated = again.update(ClusterState(), ["a"])
    assert (updated.devices, updated.files) == (published, files)


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"pods": 3}', b"\xff"])
def test_a_corrupt_cache_is_empty(
    tmp_path: Path, torn: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cluster.json"
    path.write_bytes(torn)
    memory = cache(path)
    assert memory.known == CachedState()
    assert "is lost" in caplog.text
    memory.update(assigned(api_pod("a", "LS")), ["a"])
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
    memory = cache(tmp_path / "nowhere" / "cluster.json")
    assert memory.update(assigned(api_pod("a", "LS")), ["a"]).pods
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
    for uid, words in found.items():
        assert words.annotations[RESOURCE_STATUS] == ("new" if uid in now else "old")


def test_the_kubelets_configuration_survives_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.json")
    memory = cache(path)
    assert memory.known.configuration is None
    memory.store_kubelet(None)
    static = KubeletConfiguration("kubelet 7", "static", reserved_cpus=CpuSet.parse("0-1"))
    memory.store_kubelet(static)
    memory.update(ClusterState(), ())
    again = cache(path).known.configuration
    assert again is not None
    assert (again.static, str(again.reserved_cpus)) == (True, "0-1")
    Path(path).write_text('{"kubelet":{"cpuManagerPolicy":[]}}')
    assert cache(path).known.configuration is None


def test_a_cache_that_could_not_be_written_is_written_as_soon_as_it_can(tmp_path: Path) -> None:
    """Without another change of the pods: a disk that was full for a while left a problem."""
    path, sources = tmp_path / "later" / "cluster.json", Sources()
    memory = ClusterCache(Source(), str(path), sources)
    state = assigned(api_pod("a", "LS"))
    memory.update(state, ["a"])
    assert sources.problems
    path.parent.mkdir()
    memory.update(state, ["a"])
    assert not sources.problems
    assert path.exists()
