"""The queue of unschedulable pods, which the results of the filter fill and empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agent.kube.objects import ChangeKind
from agent.model.pod.apiobjects import GROUP_ANNOTATION, PodGroup, from_object
from agent.scheduler.extender.equivalence_cache import EquivalenceCache
from agent.scheduler.extender.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
)
from agent.scheduler.extender.handlers import QueueingExtender
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import GroupRequirements, PodInfoCache, PodRequirements
from agent.scheduler.unschedulable.queue import UnschedulableQueue
from tests.fixtures.fleet import SMALL, owner
from tests.scheduler import clusters, objects

NODES = ("a", "b")
LSR = {"koordinator.sh/qosClass": "LSR"}


class FixedResult:
    """Handlers whose filter always returns `result`."""

    def __init__(self, result: ExtenderFilterResult) -> None:
        self.result = result

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        return self.result

    def prioritize(self, args: ExtenderArgs) -> msgspec.Raw:
        return msgspec.Raw(b"[]")

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        return ExtenderPreemptionResult(args.victims)

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        return ExtenderBindingResult()


Filter = Callable[[ExtenderFilterResult], ExtenderFilterResult]


@pytest.fixture
def queue() -> UnschedulableQueue:
    return UnschedulableQueue()


def filter_of(queue: UnschedulableQueue, body: dict[str, Any]) -> Filter:
    handlers = FixedResult(ExtenderFilterResult())
    queueing_extender = QueueingExtender(
        handlers, PodInfoCache(), SchedulerCache(), queue, clock=lambda: 7.0
    )

    def filtered(result: ExtenderFilterResult) -> ExtenderFilterResult:
        handlers.result = result
        return queueing_extender.filter(ExtenderArgs(from_object(body), NODES))

    return filtered


REJECTED = ExtenderFilterResult((), {"a": "full"}, {"b": "no agent"})


def test_a_rejected_pod_is_queued_with_its_candidate_nodes(
    queue: UnschedulableQueue,
) -> None:
    assert filter_of(queue, objects.pod("p", requests={"cpu": "2"}))(REJECTED) is REJECTED
    (found,) = queue.pods()
    assert (found.uid, found.title, found.rejected_at) == ("uid-p", "ns/p", 7.0)
    assert found.candidates == ("a",)
    assert isinstance(found.requirements, PodRequirements)
    assert found.group is None


def test_a_pod_that_is_offered_a_node_leaves_the_queue(queue: UnschedulableQueue) -> None:
    filtered = filter_of(queue, objects.pod("p"))
    filtered(REJECTED)
    filtered(ExtenderFilterResult(("a",)))
    assert queue.pods() == []


def test_a_node_that_is_nominated_for_another_pod_is_not_offered(
    queue: UnschedulableQueue,
) -> None:
    high = objects.pod("high", labels=LSR)
    high["spec"]["priority"] = 5
    high["status"]["nominatedNodeName"] = "a"
    filter_of(queue, high)(REJECTED)
    fits = ExtenderFilterResult(NODES)
    answer = filter_of(queue, objects.pod("p", labels=LSR))(fits)
    assert answer.failed_and_unresolvable_nodes == {
        "a": "the node is nominated for a more important pod"
    }
    assert filter_of(queue, objects.pod("plain"))(fits) is fits
    assert filter_of(queue, high)(fits) is fits


def test_an_error_is_not_a_rejection(queue: UnschedulableQueue) -> None:
    filter_of(queue, objects.pod("p"))(ExtenderFilterResult(error="busy"))
    assert queue.pods() == []


def test_a_member_of_a_group_is_queued_until_all_members_fit(queue: UnschedulableQueue) -> None:
    filter_of(queue, objects.pod("p", annotations={GROUP_ANNOTATION: "g/2"}))(REJECTED)
    (found,) = queue.pods()
    assert isinstance(found.requirements, GroupRequirements)
    assert (found.requirements.pods, found.group) == (2, PodGroup("ns", "g", 2))
    assert found.candidates == ("a",)


def test_a_node_that_is_nominated_for_a_member_is_reserved_for_its_group(
    queue: UnschedulableQueue,
) -> None:
    first, second, other_pod = (objects.pod(each, labels=LSR) for each in ("p", "q", "s"))
    first["status"]["nominatedNodeName"] = "a"
    for body in (first, second):
        body["metadata"]["annotations"] = {GROUP_ANNOTATION: "g/2"}
    filter_of(queue, first)(REJECTED)
    fits = ExtenderFilterResult(NODES)
    assert filter_of(queue, other_pod)(fits).failed_and_unresolvable_nodes.keys() == {"a"}
    assert filter_of(queue, second)(fits) is fits


def test_a_late_member_is_queued_only_for_the_node_of_its_group(queue: UnschedulableQueue) -> None:
    """It does not need room for the whole group, and cannot run on other nodes."""
    cache = clusters.cluster({"a": SMALL, "b": SMALL})
    late = owner(8, 8).pod("late", group="g/2")
    first = owner(24, 8).pod("first", node="a", cpus="0-23", group="g/2")
    other_pod = owner(8, 8).pod("nonmember", node="a", cpus="24-31")
    for body in (first, other_pod):
        clusters.report_pod(cache, body)
    handlers = FixedResult(REJECTED)
    QueueingExtender(handlers, PodInfoCache(), cache, queue).filter(
        ExtenderArgs(from_object(late), NODES)
    )
    assert [each.candidates for each in queue.pods()] == [("a",)]
    results = EquivalenceCache(cache)
    assert queue.retryable(results, 0.0) == []
    clusters.report_pod(
        cache, owner(2, 2).pod("other") | {"spec": {"nodeName": "b", "containers": []}}
    )
    assert queue.retryable(results, 10.0) == [], "there is room for all on b"
    clusters.report_pod(cache, other_pod, ChangeKind.DELETED)
    assert [each.node for each in queue.retryable(results, 20.0)] == ["a"]


def test_an_invalid_pod_is_not_queued(queue: UnschedulableQueue) -> None:
    filter_of(queue, objects.pod("p", annotations={"topolet.io/group": "?"}))(REJECTED)
    assert queue.pods() == []


@pytest.mark.parametrize(
    ("node", "kind", "queued"),
    [
        ("", ChangeKind.MODIFIED, True),
        ("a", ChangeKind.MODIFIED, False),
        ("", ChangeKind.DELETED, False),
    ],
)
def test_bound_and_deleted_pods_leave_the_queue(
    queue: UnschedulableQueue, node: str, kind: ChangeKind, queued: bool
) -> None:
    filter_of(queue, objects.pod("p"))(REJECTED)
    queue.pods_changed([objects.pod_change(objects.pod("p", node), kind)])
    assert queue.contains("uid-p") is queued
