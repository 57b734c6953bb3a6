"""Typical reasons for an unschedulable pod: the explanation names the object to change."""

from __future__ import annotations

import json

from agent.model.cpu.policies import BIND_LABEL
from agent.model.nrt.node_annotations import (
    AMPLIFICATION_RATIO,
    CPU_MANAGER_POLICY,
    REFUSED_CLAIMS,
    RESERVATION,
)
from agent.model.objects import LabelSelector
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.apiobjects import GROUP_ANNOTATION
from agent.scheduler.explain import causes as codes
from agent.scheduler.explain import explainer
from agent.scheduler.preemption.disruption_budgets import Budget
from tests.fixtures.fleet import CARDS, SINGLE, SMALL, gpu_pod, guaranteed_pod, ls_pod, owner
from tests.scheduler import zonednodes
from tests.scheduler.explain.scenes import SCHEDULER, Scene, causes

SINGLE_NUMA_NODE = '{"numaTopologyPolicy":"SingleNUMANode"}'
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
REFUSED = {"namespace": "default", "name": "p", "uid": "uid-p", "cpuset": "0-3"}


def test_no_numa_node_has_enough_cpus() -> None:
    scene = Scene(a=SMALL)
    for node in (0, 1):
        scene.run(owner(10, 4), f"on{node}", "a", scene.cpus("a", node, 10))
    pod = owner(8, 4).pod("p")
    pod["metadata"]["annotations"][NUMA_SPEC] = SINGLE_NUMA_NODE
    text = scene.explanation_text(pod)
    assert "none of 1 node has room" in text
    assert "cpu: no NUMA nodes that the policy admits (requested 8, available" in text
    assert "Pod default/p: spec.containers[*].resources.requests, or Node a: its pods" in text
    # The NUMA nodes have enough memory.
    assert "memory" not in text


def test_gpus_that_a_device_plugin_allocated() -> None:
    scene = Scene(a=CARDS)
    scene.plug_gpus("a", *["uid-plugged"] * 8)
    scene.run(guaranteed_pod("1", "1Gi"), "plugged", "a")
    pod = gpu_pod(1).pod("p")
    by_code = causes(scene.explain_pod(pod))
    assert by_code[codes.HELD_BY_PLUGIN].available == 8
    assert list(by_code) == [codes.HELD_BY_PLUGIN, "device-insufficient"]
    more_than_all = causes(scene.explain_pod(gpu_pod(9).pod("p")))
    assert list(more_than_all)[:2] == ["device-insufficient", codes.HELD_BY_PLUGIN]
    text = scene.explanation_text(pod)
    assert "device plugins gave gpu devices to pods without a scheduler's allocation" in text
    assert "Pod default/plugged: spec.schedulerName" in text


def test_a_report_that_counts_unknown_pods() -> None:
    scene = Scene()
    zones = {each: {"cpu": 8000, "memory": 4 * zonednodes.GIB} for each in (0, 1)}
    scene.node(zonednodes.node("z", zones))
    scene.topology(zonednodes.topology("z", zones, pods=("deleted",)))
    pod = zonednodes.pod("p", {"cpu": "2", "memory": "1"}, schedulerName=SCHEDULER)
    assert "stale-report" in causes(scene.explain_pod(pod), "z")
    text = scene.explanation_text(pod)
    assert "counts other pods than the scheduler knows" in text
    assert "NodeResourceTopology z: the fingerprint of its pods" in text


def test_a_node_with_another_policy() -> None:
    scene = Scene(a=SMALL, b=SINGLE)
    scene.relabel("a", {BIND_LABEL: "SpreadByPCPUs"}, {})
    pod = owner(4, 4, "FullPCPUs").pod("p")
    text = scene.explanation_text(pod)
    assert "the node has another CPU bind policy" in text
    assert f"Node a: metadata.labels[{BIND_LABEL}]" in text
    restricted = ls_pod("2", 4, "Restricted").pod("q")
    text = scene.explanation_text(restricted)
    assert "the node has another NUMA policy" in text
    assert "KubeletConfiguration b: topologyManagerPolicy" in text


def test_a_group_that_waits_for_room() -> None:
    scene = Scene(a=SMALL)
    pods = [owner(10, 4).pod(f"m{number}", group="training/3") for number in range(3)]
    for pod in pods:
        pod["metadata"]["annotations"][NUMA_SPEC] = SINGLE_NUMA_NODE
        scene.report_pod(pod)
    explanation = scene.explain_pod(pods[0])
    assert explanation.group is not None
    assert explanation.group.waiting == 3
    assert [each.code for each in explanation.causes] == [explainer.GROUP_WAITS]
    assert explainer.NO_ROOM_FOR_GROUP in causes(explanation)
    text = scene.explanation_text(pods[0])
    assert "group default/training waits for room for 3 pods on one node" in text
    assert f"Pod default/m0: metadata.annotations[{GROUP_ANNOTATION}]" in text


def run_protected(scene: Scene, name: str, count: int, cpus: str, allowed: int) -> None:
    """Runs a pod of lower priority. Its budget allows this number of disruptions."""
    body = owner(count, 4).pod(name, node="a", cpus=cpus)
    body["metadata"]["labels"]["app"] = "db"
    body["spec"]["priority"] = 9000
    scene.report_pod(body)
    budget = Budget("default", "db", LabelSelector({"app": "db"}), allowed)
    scene.add_budget("default", "db", budget)


def test_a_budget_that_protects_a_victim() -> None:
    scene = Scene(a=SMALL)
    run_protected(scene, "protected", 28, "0-27", allowed=0)
    pod = owner(8, 4).pod("p")
    explanation = scene.explain_pod(pod)
    assert explainer.BUDGET_PROTECTS in causes(explanation)
    text = scene.explanation_text(pod)
    expected = "1 PodDisruptionBudget protects 1 of the 1 pods whose eviction would make room"
    assert expected in text
    assert "PodDisruptionBudget default/db: spec" in text
    hidden = scene.explain(pod, names=False)[0]
    assert "default/db" not in repr(hidden)
    assert "default/protected" not in repr(hidden)


def test_a_budget_that_allows_fewer_disruptions_than_needed() -> None:
    """The budget allows one disruption, and two pods must be evicted to make room."""
    scene = Scene(a=SMALL)
    run_protected(scene, "one", 16, "0-15", allowed=1)
    run_protected(scene, "two", 16, "16-31", allowed=1)
    (verdict,) = scene.explain_pod(owner(20, 4).pod("p")).nodes
    assert verdict.eviction is not None
    assert (verdict.eviction.pods, verdict.eviction.protected) == (2, 1)
    assert verdict.eviction.budgets == ("default/db",)


def test_a_pod_with_a_claim_of_reserved_cpus() -> None:
    scene = Scene(a=SMALL)
    refused = {**REFUSED, "reason": "CPUs 0-1 are kept"}
    manager = {"policy": "none", "reservedCPUs": "0-1"}
    scene.annotate_topology("a", {CPU_MANAGER_POLICY: manager, REFUSED_CLAIMS: [refused]})
    scene.run(owner(4, 4), "p", "a", "0-3")
    explanation = scene.explain_pod(owner(4, 4).pod("p", node="a"))
    assert [each.code for each in explanation.causes] == [explainer.CLAIM_REFUSED]
    text = scene.explanation_text(owner(4, 4).pod("p", node="a"))
    assert "node a refuses the claim of CPUs 0-3" in text
    assert "KubeletConfiguration a: reservedSystemCPUs" in text
    assert "--owners-on-reserved" in text


def test_cpus_that_the_kubelet_reserves() -> None:
    scene = Scene(a=SMALL)
    manager = {"policy": "none", "reservedCPUs": "0-3"}
    scene.annotate_topology("a", {CPU_MANAGER_POLICY: manager})
    by_code = causes(scene.explain_pod(owner(30, 4).pod("p")))
    assert next(iter(by_code)) == codes.RESERVED_CPUS
    cause = by_code[codes.RESERVED_CPUS]
    assert cause.message.endswith(": 0-3")
    assert cause.objects[0].kind == "KubeletConfiguration"


def test_a_container_for_which_the_kubelet_would_split_a_core() -> None:
    scene = Scene(a=SMALL)
    manager = {"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0"}
    scene.annotate_topology("a", {CPU_MANAGER_POLICY: manager})
    cause = causes(scene.explain_pod(guaranteed_pod("3", "4Gi").pod("p")))["smt-alignment"]
    assert cause.message.startswith("cpu: CPUs are not a multiple of a core's threads (container ")
    assert [(each.kind, each.field) for each in cause.objects] == [
        ("Pod", "spec.containers[*].resources.requests"),
        ("KubeletConfiguration", "cpuManagerPolicyOptions[full-pcpus-only]"),
    ]


def test_cpus_that_the_node_reserves() -> None:
    scene = Scene(a=SMALL)
    refused = {**REFUSED, "reason": "CPUs 0-1 are reserved by the node"}
    reservation = {"reservedCPUs": "0-1"}
    scene.annotate_topology("a", {RESERVATION: reservation, REFUSED_CLAIMS: [refused]})
    cause = causes(scene.explain_pod(owner(32, 4).pod("q")))[codes.RESERVED_CPUS]
    assert cause.message == "the Node reserves CPUs, which no pod may own: 0-1"
    place = f"Node a: metadata.annotations[{RESERVATION}]"
    assert f"which no pod may own: 0-1 change {place}" in scene.explanation_text(
        owner(32, 4).pod("q")
    )
    scene.run(owner(4, 4), "p", "a", "0-3")
    text = scene.explanation_text(owner(4, 4).pod("p", node="a"))
    expected = "node a refuses the claim of CPUs 0-3: CPUs 0-1 are reserved by the node change"
    assert f"{expected} {place}" in text


def test_a_pcie_switch_without_free_devices() -> None:
    scene = Scene(a=CARDS)
    whole_gpu = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    allocated = {
        "gpu": [{"minor": each, "resources": whole_gpu} for each in range(4)],
        "rdma": [{"minor": 1, "resources": {"koordinator.sh/rdma": "100"}}],
    }
    scene.run(gpu_pod(4, rdma=100), "other", "a", **{DEVICE_ALLOCATED: json.dumps(allocated)})
    pod = gpu_pod(2, rdma=1).pod("p")
    pod["metadata"]["annotations"][JOINT] = json.dumps(
        {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
    )
    assert codes.FULL_SWITCH in causes(scene.explain_pod(pod))
    text = scene.explanation_text(pod)
    assert "rdma: not enough are free under the switches of the other devices" in text
    assert f"Pod default/p: metadata.annotations[{JOINT}]" in text


def test_an_amplified_node() -> None:
    scene = Scene(a=SMALL)
    scene.relabel("a", {}, {AMPLIFICATION_RATIO: '{"cpu": 2}'})
    pod = owner(20, 4).pod("p")
    assert "amplified-cpu" in causes(scene.explain_pod(pod))
    text = scene.explanation_text(pod)
    assert "cpu: not enough amplified CPU" in text
    assert f"Node a: metadata.annotations[{AMPLIFICATION_RATIO}]" in text


def test_a_pod_of_another_scheduler() -> None:
    scene = Scene(a=SMALL)
    pod = owner(4, 4).pod("p")
    pod["spec"]["schedulerName"] = "default-scheduler"
    explanation = scene.explain_pod(pod)
    assert [each.code for each in explanation.causes] == [explainer.OTHER_SCHEDULER]
    text = scene.explanation_text(pod)
    assert "default-scheduler places this pod" in text
    assert "Pod default/p: spec.schedulerName" in text
