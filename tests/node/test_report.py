from __future__ import annotations

import json
from typing import Any

from agent.allocate.pools import KubeletCpus, decide
from agent.model.cpuset import CpuSet
from agent.model.pods import Pod
from agent.node.report import Reporter
from tests.builders import machine, pod


class Remembering:
    """A store that keeps what it is given."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []

    def apply(self, wanted: dict[str, Any]) -> bool:
        self.applied.append(wanted)
        return True


def report(
    reporter: Reporter, *pods: Pod, kubelet: KubeletCpus | None = None, nodes: int = 2
) -> bool:
    kubelet = kubelet or KubeletCpus()
    topology = machine(nodes, 2)
    return reporter.report(topology, decide(topology, pods, kubelet, (), {}), pods, kubelet)


def notes(store: Remembering) -> dict[str, Any]:
    topology = next(each for each in store.applied[::-1] if each["kind"] != "Node")
    return {
        key.partition("/")[2]: json.loads(value)
        for key, value in topology["metadata"]["annotations"].items()
    }


def test_annotations_of_koordinator() -> None:
    store = Remembering()
    kubelet = KubeletCpus(True, {"g": CpuSet([3]), "gone": CpuSet([2])})
    guaranteed = pod("g", kube_class="guaranteed")
    assert report(Reporter(store, "n"), pod("a", "LSR", "1"), guaranteed, kubelet=kubelet)
    assert [each["kind"] for each in store.applied] == ["NodeResourceTopology", "Node"]
    found = notes(store)
    assert found["cpu-topology"]["detail"][3] == {"id": 3, "core": 3, "socket": 1, "node": 1}
    assert found["cpu-shared-pools"] == [{"socket": 0, "node": 0, "cpuset": "0"}]
    assert found["be-cpu-shared-pools"] == [{"socket": 0, "node": 0, "cpuset": "0-1"}]
    assert found["cpu-manager-policy"] == {"policy": "static"}
    assert found["pod-cpu-allocs"] == [
        {"namespace": "ns", "name": "g", "uid": "g", "cpuset": "3", "managedByKubelet": True},
        {"namespace": "", "name": "", "uid": "gone", "cpuset": "2", "managedByKubelet": True},
    ]
    zones = store.applied[0]["zones"]
    available = [zone["resources"][0]["available"] for zone in zones]
    assert available == ["1", "0"]


def test_applied_again_only_for_another_content() -> None:
    store = Remembering()
    reporter = Reporter(store, "n")
    assert report(reporter, pod("a", "LS"))
    assert not report(reporter, pod("b", "LS"))
    assert len(store.applied) == 2
    assert report(reporter, pod("b", "LSE", "1"))
    assert report(reporter, pod("b", "LSE", "1"), nodes=3)
    assert report(reporter, pod("b", "LSE", "1"), nodes=3, kubelet=KubeletCpus(True, {}))
    assert notes(store)["cpu-manager-policy"] == {"policy": "static"}
