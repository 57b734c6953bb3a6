from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.allocate.refusal import Refusal
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.kube.transport import Transport
from agent.model.cpu.policies import PlacementPolicy
from agent.model.pod.apiobjects import GROUP_ANNOTATION, ApiPod
from agent.model.pod_request import PodRequest, Reads
from agent.scheduler.extender import handlers
from agent.scheduler.extender.extender import (
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
)
from agent.scheduler.state import records
from agent.scheduler.state.pods_seen import PodsSeen, apply_placement, capacities
from agent.scheduler.state.records import AgentSelector
from tests.fixtures.fleet import (
    CARDS,
    NOTHING,
    SINGLE,
    SMALL,
    Kind,
    gpu_pod,
    gpu_share_pod,
    guaranteed_pod,
    owner,
)
from tests.kube.fake_api_server import Server
from tests.scheduler import clusters
from tests.scheduler.extender.scene import NODES, Scene


@pytest.mark.parametrize("kind", [owner(8, 8), gpu_pod(1)], ids=["CPUs", "devices"])
def test_a_pod_that_needs_cpus_or_devices_is_offered_only_its_best_node(
    scene: Scene, kind: Kind
) -> None:
    clusters.add_node(scene.cluster, "d", CARDS)
    nodes, pod = [*NODES, "d"], scene.pod(kind, "p")
    (best,) = scene.fits(pod, nodes)
    scores = scene.scores(pod, nodes)
    assert scores[best] == 10
    assert all(score < 10 for node, score in scores.items() if node != best)


def test_all_fitting_nodes_are_offered_if_configured(server: Server, transport: Transport) -> None:
    scene = Scene(server, transport, best_only=False)
    assert scene.fits(scene.pod(owner(8, 8), "p")) == NODES
    result = scene.filter(scene.pod(owner(40, 8), "q"))
    assert result.node_names == ["c"]
    assert set(result.failed_nodes) == {"a", "b"}


def test_a_pod_that_needs_nothing_is_offered_all_nodes(scene: Scene) -> None:
    assert scene.fits(scene.pod(NOTHING, "p")) == NODES


def test_a_pod_that_needs_nothing_has_equal_scores(scene: Scene) -> None:
    """Also if one node is infeasible: the plugins of kube-scheduler choose among the others."""
    clusters.add_node(scene.cluster, "s", SINGLE)
    wide = scene.pod(guaranteed_pod("60", "8Gi"), "p")
    assert scene.fits(wide, ["c", "b", "s"]) == ["c", "b"]
    assert set(scene.scores(wide, ["c", "b", "s"]).values()) == {10}


@pytest.mark.parametrize(
    ("kind", "notes", "reason"),
    [
        (owner(2, 2), {GROUP_ANNOTATION: "g"}, "annotation topolet.io/group: 'g' is not NAME/SIZE"),
        (
            owner(2, 2),
            {"scheduling.koordinator.sh/resource-spec": "{"},
            "annotation scheduling.koordinator.sh/resource-spec: ",
        ),
    ],
)
def test_an_invalid_pod_is_offered_no_node(
    scene: Scene, kind: Kind, notes: dict[str, str], reason: str
) -> None:
    pod = scene.pod(kind, "p", **notes)
    result = scene.filter(pod)
    reasons = dict(result.failed_and_unresolvable_nodes)  # type: ignore[arg-type]
    assert reasons.keys() == set(NODES)
    assert all(f"pod default/p: {reason}" in each for each in reasons.values())
    assert scene.scores(pod) == {}


def test_a_pod_whose_binding_has_an_unknown_outcome_is_offered_only_that_node(scene: Scene) -> None:
    pod = scene.pod(owner(32, 8), "p")
    scene.pods.intercept = lambda *_: False
    assert scene.bind(pod, "a") != ""
    assert scene.fits(pod) == ["a"]
    scene.pods.intercept = None
    assert scene.bind(pod, "a") == ""


def in_pod_group(kind: Kind, name: str, **annotations: str) -> ApiPod:
    body = kind.pod(name)
    body["metadata"]["annotations"] |= annotations
    body["spec"]["schedulingGroup"] = {"podGroupName": "workers"}
    return clusters.api_pod(body)


def test_simulated_cycles_of_a_pod_group_leave_nothing_reserved(scene: Scene) -> None:
    """kube-scheduler filters and scores the pods of a PodGroup, and binds none of them if one does
    not fit."""
    kinds = (owner(8, 8), gpu_pod(1), gpu_share_pod(50), NOTHING)
    cluster = scene.cluster
    allocators = [state.allocator for state in map(cluster.node, NODES) if state is not None]

    def states() -> list[object]:
        return [each.state(Reads.DEVICES if each.devices else Reads.CPUS) for each in allocators]

    before = states()
    for number in range(1000):
        pod = in_pod_group(kinds[number % len(kinds)], f"p{number}")
        assert scene.scores(pod, scene.fits(pod)) or not number % len(kinds) < 3
    assert states() == before
    assert not any(map(cluster.has_reservation, NODES))


def test_a_pod_of_a_pod_group_reserves_no_node_for_a_group_of_its_annotation(scene: Scene) -> None:
    pod = in_pod_group(owner(12, 8), "p", **{GROUP_ANNOTATION: "g/2"})
    reasons = scene.filter(pod).failed_and_unresolvable_nodes
    assert set(reasons.values()) == {
        "pod default/p: annotation topolet.io/group: the pod belongs to PodGroup 'workers' "
        "(spec.schedulingGroup), and can't belong to two groups"
    }
    assert not any(map(scene.cluster.has_reservation, NODES))


def test_the_first_member_reserves_a_node_for_all(scene: Scene) -> None:
    pods = [scene.pod(owner(12, 8), name, **{GROUP_ANNOTATION: "g/2"}) for name in ("p", "q")]
    (node,) = scene.fits(pods[0], ["a", "b"])
    assert scene.scores(pods[0], [node]) == {node: 10}
    other = "b" if node == "a" else "a"
    other_pod = scene.pod(owner(12, 8), "other")
    assert scene.fits(other_pod, ["a", "b"]) == [other], "the parts are reserved for the group"
    result = scene.filter(pods[1], ["a", "b"])
    assert result.node_names == (node,)
    assert result.failed_and_unresolvable_nodes == {other: f"group default/g is on node {node}"}
    for pod in pods:
        assert scene.bind(pod, node) == ""


def test_a_group_that_fits_on_no_node_has_a_reason(scene: Scene) -> None:
    pod = scene.pod(owner(24, 8), "p", **{GROUP_ANNOTATION: "g/2"})
    result = scene.filter(pod, ["a"])
    assert not result.node_names
    (reason,) = dict(result.failed_nodes).values()  # type: ignore[arg-type]
    assert reason.startswith("no room for the whole group: cpu: not enough free CPUs")


def test_a_group_is_also_checked_on_nodes_that_are_not_the_best_for_one_member(
    scene: Scene,
) -> None:
    """Nodes are checked for the group in batches. Only the last of many equal nodes has room for
    all members, and each node has room for one."""
    nodes = [f"n{number:03}" for number in range(150)]
    for node in nodes:
        clusters.add_node(scene.cluster, node, SMALL)
    for node in nodes[:-1]:
        assert clusters.reserve(scene.cluster, owner(12, 8), node, f"on-{node}")
    pod = scene.pod(owner(8, 8), "p", **{GROUP_ANNOTATION: "g/3"})
    assert scene.fits(pod, nodes) == nodes[-1:]


def test_a_reserved_group_is_offered_only_its_node(scene: Scene) -> None:
    pod = scene.pod(owner(12, 8), "p", **{GROUP_ANNOTATION: "g/2"})
    assert scene.fits(pod, ["a"]) == ["a"]
    later = scene.pod(owner(12, 8), "q", **{GROUP_ANNOTATION: "g/2"})
    assert scene.fits(later, ["b"]) == []
    scene.now += 60
    assert scene.fits(later, ["b"]) == ["b"]


def test_the_full_node_of_a_group_may_be_freed_for_a_late_member_by_an_eviction(
    scene: Scene,
) -> None:
    for pod in (
        owner(12, 8).pod("p", node="a", cpus="0-11", group="g/2"),
        owner(16, 8).pod("other", node="a", cpus="12-27"),
    ):
        clusters.report_pod(scene.cluster, pod)
    result = scene.filter(scene.pod(owner(12, 8), "q", **{GROUP_ANNOTATION: "g/2"}), ["a", "b"])
    assert not result.node_names
    for rejected, node in ((result.failed_nodes, "a"), (result.failed_and_unresolvable_nodes, "b")):
        assert isinstance(rejected, dict)
        assert rejected.keys() == {node}
        assert rejected[node].startswith("group default/g is on node a: cpu: not enough free CPUs")


def test_the_result_of_preempt_is_passed_on(scene: Scene) -> None:
    args = ExtenderPreemptionArgs(scene.pod(NOTHING, "p"), {})
    assert scene.handlers.preempt(args) == ExtenderPreemptionResult({})


def test_a_placement_also_scores_plain_pods(server: Server, transport: Transport) -> None:
    scene = Scene(server, transport, placing=True)
    seen = PodsSeen()
    body = guaranteed_pod("500m", "1Gi").pod("seen", node="a")
    read = records.pods(AgentSelector(), kinds=True)(json.dumps(body).encode())
    seen.pods_changed([Change(ChangeKind.ADDED, ObjectKey("default", "seen"), read)])
    nodes = capacities(scene.cluster)
    apply_placement(seen, scene.cluster, AllocatorRules(), PlacementPolicy.RESIDUAL, nodes)
    entries = scene.scores(scene.pod(guaranteed_pod("500m", "1Gi"), "p"), NODES)
    assert sorted(entries) == NODES
    assert list(entries.values()).count(handlers.MAX_PRIORITY) == 1


def test_another_pod_is_filtered_while_a_group_is_tried_on_a_node(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of 256 pods takes up to a second on a node with a hostile report: in the filter, and
    when its parts are reserved."""
    offer_all, answered = NodeAllocator.offer_all, []

    def slow(
        allocator: NodeAllocator, pod_requests: Sequence[PodRequest]
    ) -> tuple[NodeOffer, ...] | Refusal:
        pod = scene.pod(owner(2, 4), "other")
        other = threading.Thread(target=lambda: answered.append(scene.fits(pod, ["b"])))
        other.start()
        other.join(10)
        assert not other.is_alive()
        return offer_all(allocator, pod_requests)

    monkeypatch.setattr(NodeAllocator, "offer_all", slow)
    member = scene.pod(owner(4, 4), "p", **{"topolet.io/group": "g/2"})
    assert scene.fits(member, ["a"]) == ["a"]
    assert answered == [["b"], ["b"]]
