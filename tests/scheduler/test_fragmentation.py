"""What a cluster loses to fragmentation."""

from __future__ import annotations

import json

import pytest

from agent.allocate.node_allocator.pod_request import PodRequestError
from agent.model.fragmentation import ClusterFragmentation, NodeFragmentation
from agent.model.pod.annotations import DEVICE_ALLOCATED, NUMA_TOPOLOGY_SPEC, RESOURCE_STATUS
from agent.scheduler.fragmentation import fragmentation
from agent.view.fragmentation import draw
from tests.fixtures.fleet import CARDS, SMALL, Kind, carder, owner, part, plain
from tests.scheduler import clusters


class Scene:
    """Two small nodes and one with cards, and the pods on them."""

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

    def found(self, sample: Kind | None = None) -> ClusterFragmentation:
        pod = None if sample is None else clusters.pod(sample, "sample")
        return fragmentation(self.cluster, self.pods, pod)

    def node(self, name: str) -> NodeFragmentation:
        (found,) = (each for each in self.found().nodes if each.node == name)
        return found


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_empty_cluster_loses_nothing(scene: Scene) -> None:
    found = scene.found()
    assert (found.cpus, found.free_cpus, found.gpus, found.free_gpus) == (160, 160, 8, 8)
    assert found.nodes[0].lost == (0, 0)
    assert found.rebind_nodes == 0
    assert draw(found, 100).splitlines()[-1] == "No rebind improves a node."


def test_the_other_threads_of_owned_cores_are_on_broken_cores(scene: Scene) -> None:
    """CPUs n and n + 16 are one core."""
    scene.run(owner(2, 2), "p", "a", cpus={"cpuset": "0,2"})
    assert scene.node("a").cpus_on_broken_cores == 2
    assert scene.node("b").cpus_on_broken_cores == 0
    assert scene.found().cpus_on_broken_cores == 2


def test_a_rest_of_a_numa_node_is_lost_for_the_pods_that_own_more(scene: Scene) -> None:
    """Two pods own 12 CPUs, one 4: the 4 CPUs beside 12 suffice for one of three."""
    scene.run(owner(12, 2), "p", "a", cpus={"cpuset": "0-7,16-19"})
    scene.run(owner(12, 2), "q", "b", cpus={"cpuset": "0-7,16-19"})
    scene.run(owner(4, 2), "r", "c", cpus={"cpuset": "0-3"})
    assert scene.node("a").cpus_on_small_numa_rests == pytest.approx(4 * 2 / 3, abs=0.001)
    assert scene.node("c").cpus_on_small_numa_rests == 0


def test_what_is_left_of_a_card_is_worth_the_parts_that_fit(scene: Scene) -> None:
    """Parts of 30 percent: three fit into a card, two beside the first."""
    given = {
        "gpu": [
            {
                "minor": 0,
                "resources": {"koordinator.sh/gpu-core": 30, "koordinator.sh/gpu-memory-ratio": 30},
            }
        ]
    }
    scene.run(part(30), "p", "c", devices=given)
    node = scene.node("c")
    assert node.free_gpus == 7.7
    assert node.gpus_lost_to_shares == pytest.approx(0.7 - 2 / 3, abs=0.001)


def test_cards_without_cpus_are_expected_to_stay_idle(scene: Scene) -> None:
    whole = [{"minor": 0, "resources": {"koordinator.sh/gpu-core": 100}}]
    scene.run(carder(1, 8), "p", "c", devices={"gpu": whole}, cpus={"cpuset": "0-7"})
    scene.run(plain("84", "8Gi"), "q", "c")
    assert scene.node("c").gpus_without_cpu_or_memory == pytest.approx(6.5, abs=0.01)


def test_a_rebind_gathers_a_pod(scene: Scene) -> None:
    scene.run(owner(2, 2), "p", "a", cpus={"cpuset": "0,8"})
    found = scene.found()
    assert (found.rebind_nodes, found.rebind_pods) == (1, 1)
    assert found.numa_crossings_mended_by_rebind == 1
    gain = scene.node("a").rebind
    assert gain is not None
    assert gain.after.numa_crossings == 0


@pytest.mark.parametrize(
    "kind", [owner(6, 4, "FullPCPUs"), carder(2, 8), part(30), plain("7", "1Gi")]
)
def test_as_many_pods_fit_as_the_scheduler_takes(scene: Scene, kind: Kind) -> None:
    scene.run(owner(2, 2), "p", "a", cpus={"cpuset": "0,2"})
    fitting = {each.node: each.fitting for each in scene.found(kind).nodes}
    assert scene.found(kind).fitting == sum(each or 0 for each in fitting.values())
    for node, expected in fitting.items():
        taken = 0
        while _sums_suffice(scene, node, kind) and clusters.reserve(
            scene.cluster, kind, node, f"{node}-{taken}"
        ):
            taken += 1
        assert taken == expected


def _sums_suffice(scene: Scene, node: str, kind: Kind) -> bool:
    """As kube-scheduler adds the CPUs of the pods."""
    info = scene.cluster.node(node)
    assert info is not None
    request = clusters.pod_request(kind).requests["cpu"]
    return info.allocator.requested["cpu"] + request <= info.allocator.properties.allocatable["cpu"]


def test_a_sample_that_can_not_be_read_is_named(scene: Scene) -> None:
    bad = Kind({"cpu": "1"}, annotations={NUMA_TOPOLOGY_SPEC: "{"})
    with pytest.raises(PodRequestError, match="pod default/sample"):
        scene.found(bad)


def test_the_words_name_the_nodes_that_lose_most_first(scene: Scene) -> None:
    scene.run(owner(2, 2), "p", "b", cpus={"cpuset": "0,2"})
    lines = draw(scene.found(owner(4, 4)), 120).splitlines()
    assert "  2 of these are on broken cores: another CPU of the core has an owner." in lines
    assert any(line.endswith("more pods like this fit.") for line in lines)
    assert lines[-1].split()[:3] == ["b", "30", "2"]
