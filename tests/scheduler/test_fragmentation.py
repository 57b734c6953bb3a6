"""The resources that a cluster loses to fragmentation."""

from __future__ import annotations

import json

import pytest

from agent.model.pod.annotations import DEVICE_ALLOCATED, NUMA_TOPOLOGY_SPEC, RESOURCE_STATUS
from agent.model.pod_request import PodRequestError
from agent.scheduler.fragmentation import fragmentation
from agent.view.fragmentation import ClusterFragmentation, NodeFragmentation, draw
from tests.fixtures.fleet import CARDS, SMALL, Kind, gpu_pod, gpu_share_pod, guaranteed_pod, owner
from tests.scheduler import clusters


class Scene:
    """Two small nodes and one with GPUs, and the pods on them."""

    def __init__(self) -> None:
        self.cluster = clusters.cluster({"a": SMALL, "b": SMALL, "c": CARDS})
        self.pods = []

    def run(self, kind: Kind, name: str, node: str, **annotations: object) -> None:
        body = kind.pod(name, node=node)
        keys = {"cpus": RESOURCE_STATUS, "devices": DEVICE_ALLOCATED}
        for key, value in annotations.items():
            body["metadata"]["annotations"][keys[key]] = json.dumps(value)
        clusters.report_pod(self.cluster, body)
        self.pods.append(clusters.api_pod(body))

    def report(self, sample: Kind | None = None) -> ClusterFragmentation:
        pod = None if sample is None else clusters.pod(sample, "sample")
        return fragmentation(self.cluster, self.pods, pod)

    def node(self, name: str) -> NodeFragmentation:
        (node,) = (each for each in self.report().nodes if each.node == name)
        return node


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_empty_cluster_loses_nothing(scene: Scene) -> None:
    report = scene.report()
    assert (report.cpus, report.free_cpus, report.gpus, report.free_gpus) == (160, 160, 8, 8)
    assert report.nodes[0].lost == (0, 0)
    assert report.rebind_nodes == 0
    assert draw(report, 100).splitlines()[-1] == "No rebind improves a node."


def test_the_other_threads_of_exclusive_cpus_are_on_broken_cores(scene: Scene) -> None:
    """CPUs n and n + 16 are one core."""
    scene.run(owner(2, 2), "p", "a", cpus={"cpuset": "0,2"})
    assert scene.node("a").cpus_on_broken_cores == 2
    assert scene.node("b").cpus_on_broken_cores == 0
    assert scene.report().cpus_on_broken_cores == 2


def test_a_small_rest_of_a_numa_node_is_lost_for_pods_that_request_more(scene: Scene) -> None:
    """Two pods have 12 exclusive CPUs, one has 4: a rest of 4 CPUs is enough for one of three."""
    scene.run(owner(12, 2), "p", "a", cpus={"cpuset": "0-7,16-19"})
    scene.run(owner(12, 2), "q", "b", cpus={"cpuset": "0-7,16-19"})
    scene.run(owner(4, 2), "r", "c", cpus={"cpuset": "0-3"})
    assert scene.node("a").cpus_on_small_numa_rests == pytest.approx(4 * 2 / 3, abs=0.001)
    assert scene.node("c").cpus_on_small_numa_rests == 0


def test_the_rest_of_a_shared_gpu_counts_as_the_shares_that_fit(scene: Scene) -> None:
    """Shares of 30 percent: three fit on a GPU, and two more fit after the first one."""
    devices = {
        "gpu": [
            {
                "minor": 0,
                "resources": {"koordinator.sh/gpu-core": 30, "koordinator.sh/gpu-memory-ratio": 30},
            }
        ]
    }
    scene.run(gpu_share_pod(30), "p", "c", devices=devices)
    node = scene.node("c")
    assert node.free_gpus == 7.7
    assert node.gpus_lost_to_shares == pytest.approx(0.7 - 2 / 3, abs=0.001)


def test_gpus_without_free_cpus_are_expected_to_stay_idle(scene: Scene) -> None:
    whole = [{"minor": 0, "resources": {"koordinator.sh/gpu-core": 100}}]
    scene.run(gpu_pod(1, 8), "p", "c", devices={"gpu": whole}, cpus={"cpuset": "0-7"})
    scene.run(guaranteed_pod("84", "8Gi"), "q", "c")
    assert scene.node("c").gpus_without_cpu_or_memory == pytest.approx(6.5, abs=0.01)


def test_a_rebind_moves_a_pod_to_one_numa_node(scene: Scene) -> None:
    scene.run(owner(2, 2), "p", "a", cpus={"cpuset": "0,8"})
    report = scene.report()
    assert (report.rebind_nodes, report.rebind_pods) == (1, 1)
    assert report.numa_crossings_mended_by_rebind == 1
    gain = scene.node("a").rebind
    assert gain is not None
    assert gain.after.numa_crossings == 0


@pytest.mark.parametrize(
    "kind", [owner(6, 4, "FullPCPUs"), gpu_pod(2, 8), gpu_share_pod(30), guaranteed_pod("7", "1Gi")]
)
def test_as_many_pods_fit_as_the_scheduler_places(scene: Scene, kind: Kind) -> None:
    scene.run(owner(2, 2), "p", "a", cpus={"cpuset": "0,2"})
    fitting = {each.node: each.fitting for each in scene.report(kind).nodes}
    assert scene.report(kind).fitting == sum(each or 0 for each in fitting.values())
    for node, expected in fitting.items():
        placed = 0
        while _sums_suffice(scene, node, kind) and clusters.reserve(
            scene.cluster, kind, node, f"{node}-{placed}"
        ):
            placed += 1
        assert placed == expected


def _sums_suffice(scene: Scene, node: str, kind: Kind) -> bool:
    """As kube-scheduler adds the CPUs of the pods."""
    info = scene.cluster.node(node)
    assert info is not None
    request = clusters.pod_request(kind).requests["cpu"]
    return info.allocator.requested["cpu"] + request <= info.allocator.properties.allocatable["cpu"]


def test_the_error_for_an_invalid_sample_pod_names_it(scene: Scene) -> None:
    invalid = Kind({"cpu": "1"}, annotations={NUMA_TOPOLOGY_SPEC: "{"})
    with pytest.raises(PodRequestError, match="pod default/sample"):
        scene.report(invalid)


def test_the_nodes_that_lose_most_are_drawn_first(scene: Scene) -> None:
    scene.run(owner(2, 2), "p", "b", cpus={"cpuset": "0,2"})
    lines = draw(scene.report(owner(4, 4)), 120).splitlines()
    assert "  2 of these are on broken cores: another CPU of the core has an owner." in lines
    assert any(line.endswith("more pods like this fit.") for line in lines)
    assert lines[-1].split()[:3] == ["b", "30", "2"]
