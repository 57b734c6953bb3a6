"""An explanation agrees with the results of the extender's filter."""

from __future__ import annotations

import time

import pytest

from agent.model.pod.apiobjects import GROUP_ANNOTATION, from_object
from agent.scheduler.explain import causes as codes
from agent.scheduler.explain import explainer
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.extender.handlers import best_node
from agent.scheduler.state.pod_info import (
    Feasible,
    PodInfo,
    PodRequirements,
    RequirementsCheck,
    pod_info,
)
from tests.fixtures import fleet
from tests.fixtures.fleet import CARDS, EIGHT, SINGLE, SMALL, owner
from tests.scheduler.explain.scenes import SCHEDULER, Scene, causes

KINDS = fleet.kinds()
NODES = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def used() -> Scene:
    """One node of each model, half of whose CPUs are allocated."""
    scene = Scene(a=SMALL, b=SINGLE, c=CARDS, d=EIGHT)
    for name in NODES:
        for number, numa_node in enumerate((0, 0, 1)):
            first = scene.cpus(name, numa_node, 12).split(",")
            cpus = ",".join(first[number * 4 : number * 4 + 4])
            scene.run(owner(4, 8), f"{name}-{number}", name, cpus)
    return scene


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_node_has_an_offer_if_the_filter_returns_it(used: Scene, number: int) -> None:
    body = KINDS[number].pod("p")
    explanation = used.explain_pod(body)
    info = pod_info(from_object(body), used.cluster.pod_defaults)
    check = RequirementsCheck(used.cluster, PodRequirements(info.pod_request))
    results = [check.run(name, {}) for name in NODES]
    for verdict, result in zip(explanation.nodes, results, strict=True):
        only_sums = {each.code for each in verdict.causes} == {codes.NODE_RESOURCES}
        # kube-scheduler checks the sums of a Node's resources.
        assert isinstance(result, Feasible) == (verdict.offer is not None or only_sums)
        assert bool(verdict.causes) == (verdict.offer is None)
        assert all(each.objects and each.message and each.summary for each in verdict.causes)
    if not any(codes.NODE_RESOURCES in causes(explanation, name) for name in NODES):
        assert explanation.winner == (best_node(NODES, results) or "")


def test_explaining_changes_nothing(used: Scene) -> None:
    before = used.cluster.changed_since(0)
    assigned_pods = {each.name: dict(each.allocator.assigned_pods) for each in used.cluster.nodes()}
    used.explain(*(owner(8, 8).pod(f"p{each}") for each in range(4)), drained=("a",))
    assert used.cluster.changed_since(0) == before
    assert assigned_pods == {
        each.name: dict(each.allocator.assigned_pods) for each in used.cluster.nodes()
    }


def test_the_offers_to_earlier_pods_count_for_later_pods() -> None:
    scene = Scene(a=SMALL)
    explanations = scene.explain(*(owner(20, 8).pod(f"p{each}") for each in range(2)))
    assert [each.winner for each in explanations] == ["a", ""]


def test_nodes_that_are_not_explained_in_time_are_counted() -> None:
    scene = Scene(a=SMALL, b=SMALL)
    pod = from_object(owner(4, 4).pod("p"))
    (explanation,) = Explainer(scene.cluster, SCHEDULER).explain_all(
        [pod], until=time.monotonic() - 1
    )
    assert (explanation.nodes, explanation.nodes_left_out, explanation.winner) == ((), 2, "")


def test_a_node_that_is_nominated_for_other_pods_is_infeasible() -> None:
    scene = Scene(a=SMALL)

    def nominated(info: PodInfo) -> frozenset[str]:
        return frozenset({"a"})

    nominating_explainer = Explainer(scene.cluster, SCHEDULER, nominated=nominated)
    (explanation,) = nominating_explainer.explain_all([from_object(owner(4, 4).pod("p"))])
    assert list(causes(explanation)) == [explainer.NOMINATED]


def test_an_invalid_pod_is_explained_without_nodes() -> None:
    scene = Scene(a=SMALL)
    explanation = scene.explain_pod(owner(4, 4).pod("p", group="no size"))
    assert [each.code for each in explanation.causes] == [explainer.INVALID]
    assert GROUP_ANNOTATION in explanation.causes[0].message
    assert explanation.nodes == ()


def test_a_member_of_a_group_is_placed_on_the_node_of_the_other_members() -> None:
    scene = Scene(a=SMALL, b=SMALL)
    scene.run(owner(4, 4), "m0", "a", "0-3", **{GROUP_ANNOTATION: "g/2"})
    member = owner(4, 4).pod("m1", group="g/2")
    scene.report_pod(member)
    explanation = scene.explain_pod(member)
    assert explanation.winner == "a"
    assert list(causes(explanation, "b")) == [explainer.GROUP_ELSEWHERE]
    member = owner(4, 4).pod("m1", group="g/3")
    scene.report_pod(member)
    assert [each.code for each in scene.explain_pod(member).causes] == [explainer.GROUP_SIZE]
