from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.store import EmbeddedStore
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_files import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices.device_object import Device
from agent.model.devices.gpus import Ancestor, GpuInfo, GpuPair
from agent.model.devices.visibility import DeviceNode, VisibleGpu
from agent.model.nrt.node_annotations import SYSTEM_QOS
from agent.model.pod import apiobjects, pods
from agent.model.pod.annotations import (
    NUMA_PLACEMENT_OBSERVED,
    RESOURCE_STATUS,
    STRATEGY_BYTES,
)
from agent.model.pod.apiobjects import ApiNode, ApiPod, Phase
from agent.model.pod.pods import ANNOTATIONS, PodMetadata
from agent.model.pod.qos import PRIORITY_CLASS_LABEL, QOS_LABEL
from agent.node import cluster_view
from agent.node.cluster_view import CachedState, ClusterCache, ClusterState, ClusterWatches, merged
from agent.node.device_listing import Published
from agent.node.sources import Sources
from tests.node.world import World, claim
from tests.waiting import eventually


class Notifications:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def notifications() -> Notifications:
    return Notifications()


@pytest.fixture
def watches(tmp_path: Path, notifications: Notifications) -> Iterator[ClusterWatches]:
    watches = ClusterWatches(EmbeddedStore(str(tmp_path), period_seconds=0.01), "n", notifications)
    yield watches
    watches.stop()
    assert not [each for each in threading.enumerate() if "watch" in each.name]


def put(folder: Path, name: str, status: Any = None, **metadata: Any) -> Path:
    path = folder / "pod" / "ns" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": name, **metadata},
        "spec": {"nodeName": "n"},
        "status": status or {"phase": "Running"},
    }
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(body))
    new.replace(path)
    return path


def wait_until(watches: ClusterWatches, check: Callable[[], bool]) -> None:
    eventually("the watch reports the change", check)


def test_pods_are_unknown_before_the_start(
    watches: ClusterWatches, notifications: Notifications
) -> None:
    assert watches.now().pods_listed is False
    watches.start()
    assert watches.now().pods_listed is True, "a folder is read at once"
    assert watches.now().node is None
    assert notifications.count == 1, "an empty list is a change"


def test_pods_and_node_are_followed(
    tmp_path: Path, watches: ClusterWatches, notifications: Notifications
) -> None:
    path = put(tmp_path, "a")
    store = EmbeddedStore(str(tmp_path))
    store.apply({"kind": "Node", "metadata": {"name": "n", "uid": "u", "labels": {"x": "1"}}})
    watches.start()
    assert watches.now().pods["a"].phase is Phase.RUNNING
    node = watches.now().node
    assert node is not None
    assert (node.uid, node.labels) == ("u", {"x": "1"})
    before = notifications.count
    put(tmp_path, "a", status={"phase": "Failed", "message": "why"})
    wait_until(watches, lambda: watches.now().pods["a"].phase is Phase.FAILED)
    eventually("the agent is notified", lambda: notifications.count == before + 1)
    path.unlink()
    wait_until(watches, lambda: not watches.now().pods)


KEPT = {*ANNOTATIONS, NUMA_PLACEMENT_OBSERVED, *STRATEGY_BYTES}


def test_only_the_name_of_an_ended_pod_is_kept(tmp_path: Path, watches: ClusterWatches) -> None:
    """A user may bind any number of pods to the node by name; its kubelet fails them at once."""
    for name, phase in (("a", "Running"), ("b", "Failed"), ("c", "Succeeded")):
        put(
            tmp_path,
            name,
            labels={QOS_LABEL: "LSE", PRIORITY_CLASS_LABEL: "koord-mid", "other": ""},
            annotations=dict.fromkeys((*KEPT, "other"), "x" * 1_000),
            status={"phase": phase},
        )
    watches.start()
    pods = watches.now().pods
    assert pods.keys() == {"a", "b", "c"}
    assert pods["a"].annotations.keys() == KEPT
    assert pods["a"].labels == {QOS_LABEL: "LSE", PRIORITY_CLASS_LABEL: "koord-mid"}
    for name in "bc":
        assert pods[name].terminal
        assert (pods[name].annotations, pods[name].labels, pods[name].containers) == ({}, {}, ())


def test_changes_of_unused_fields_do_not_wake_the_agent(
    tmp_path: Path, watches: ClusterWatches, notifications: Notifications
) -> None:
    put(tmp_path, "a")
    watches.start()
    before = notifications.count
    put(tmp_path, "a", status={"phase": "Running", "podIP": "10.0.0.1"})
    put(tmp_path, "b")
    wait_until(watches, lambda: "b" in watches.now().pods)
    eventually("the agent is notified", lambda: notifications.count > before)
    assert notifications.count == before + 1


def test_an_invalid_pod_keeps_its_last_valid_state(
    tmp_path: Path, watches: ClusterWatches, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a", labels={QOS_LABEL: "LSR"})
    watches.start()
    put(tmp_path, "a", labels={QOS_LABEL: "BE"}, creationTimestamp="yesterday")
    eventually("the error is logged", lambda: "'yesterday' is not a time" in caplog.text)
    assert watches.now().pods["a"].labels == {QOS_LABEL: "LSR"}
    assert "Pod ns/a: metadata.creationTimestamp" in caplog.text


def test_another_pod_with_the_same_name_replaces_the_first(
    tmp_path: Path, watches: ClusterWatches
) -> None:
    put(tmp_path, "a", uid="1")
    watches.start()
    put(tmp_path, "a", uid="2")
    wait_until(watches, lambda: list(watches.now().pods) == ["2"])


def test_a_failure_is_reported_and_changes_nothing(tmp_path: Path, watches: ClusterWatches) -> None:
    path = put(tmp_path, "a")
    watches.start()
    path.write_text("{")
    eventually(
        "the failure is reported",
        lambda: any("Pod ns/a" in each for each in watches.problems()),
    )
    assert list(watches.now().pods) == ["a"]


def test_age_is_since_the_last_read_of_the_folder(tmp_path: Path, watches: ClusterWatches) -> None:
    path = put(tmp_path, "a")
    watches.start()
    assert watches.ages_seconds().keys() == {"pods", "nodes"}
    path.write_text("{")

    def pods_are_older_seconds() -> float:
        ages = watches.ages_seconds()
        return ages["pods"] - ages["nodes"]

    eventually("pods grow old, nodes do not", lambda: pods_are_older_seconds() > 2)


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
