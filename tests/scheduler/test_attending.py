"""Who waits is known from the answers that kube-scheduler gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from agent.kube.objects import ChangeKind
from agent.model.annotations import RESOURCE_STATUS
from agent.model.apipods import from_object
from agent.scheduler.asked import Recent
from agent.scheduler.attending import Attending, Views
from agent.scheduler.cluster import Cluster
from agent.scheduler.demands import OfGroup, OfPod
from agent.scheduler.groupname import GROUP, Group
from agent.scheduler.shapes import Shapes
from agent.scheduler.waiting import Waiting
from agent.scheduler.wire import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
)
from benchmarks.fleet import SMALL, owner
from tests.scheduler import clusters, objects

NODES = ("a", "b")
LSR = {"koordinator.sh/qosClass": "LSR"}


class Answering:
    """Verbs with one answer to every filter."""

    def __init__(self, result: ExtenderFilterResult) -> None:
        self.result = result

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        return self.result

    def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority]:
        return ()

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        return ExtenderPreemptionResult(args.victims)

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        return ExtenderBindingResult()


Ask = Callable[[ExtenderFilterResult], ExtenderFilterResult]


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def asking(waiting: Waiting, body: dict[str, Any]) -> Ask:
    verbs = Answering(ExtenderFilterResult())
    attending = Attending(verbs, Recent(), Cluster(), waiting, clock=lambda: 7.0)

    def ask(result: ExtenderFilterResult) -> ExtenderFilterResult:
        verbs.result = result
        return attending.filter(ExtenderArgs(from_object(body), NODES))

    return ask


REFUSED = ExtenderFilterResult((), {"a": "full"}, {"b": "no agent"})
RAW = ExtenderFilterResult(msgspec.Raw(b"[]"), msgspec.Raw(b'{"a":"full"}'), msgspec.Raw(b"{}"))


@pytest.mark.parametrize("result", [REFUSED, RAW])
def test_refused_pod_waits_with_the_nodes_where_an_eviction_may_help(
    waiting: Waiting, result: ExtenderFilterResult
) -> None:
    assert asking(waiting, objects.pod("p", requests={"cpu": "2"}))(result) is result
    (found,) = waiting.waiters()
    assert (found.uid, found.title, found.refused_at) == ("uid-p", "ns/p", 7.0)
    assert found.candidates == ("a",)
    assert isinstance(found.demand, OfPod)
    assert found.group is None


@pytest.mark.parametrize("names", [("a",), msgspec.Raw(b'["a"]')])
def test_pod_that_is_offered_a_node_waits_no_more(
    waiting: Waiting, names: Sequence[str] | msgspec.Raw
) -> None:
    ask = asking(waiting, objects.pod("p"))
    ask(REFUSED)
    ask(ExtenderFilterResult(names))
    assert waiting.waiters() == []


def test_node_that_is_nominated_for_another_is_not_asked_about(waiting: Waiting) -> None:
    high = objects.pod("high", labels=LSR)
    high["spec"]["priority"] = 5
    high["status"]["nominatedNodeName"] = "a"
    asking(waiting, high)(REFUSED)
    fits = ExtenderFilterResult(NODES)
    answer = asking(waiting, objects.pod("p", labels=LSR))(fits)
    assert answer.failed_and_unresolvable_nodes == {
        "a": "room is being made here for a more important pod"
    }
    assert asking(waiting, objects.pod("plain"))(fits) is fits
    assert asking(waiting, high)(fits) is fits


def test_error_is_no_refusal(waiting: Waiting) -> None:
    asking(waiting, objects.pod("p"))(ExtenderFilterResult(error="busy"))
    assert waiting.waiters() == []


def test_member_of_a_group_waits_for_room_for_all(waiting: Waiting) -> None:
    asking(waiting, objects.pod("p", annotations={GROUP: "g/2"}))(REFUSED)
    (found,) = waiting.waiters()
    assert isinstance(found.demand, OfGroup)
    assert (found.demand.pods, found.group) == (2, Group("ns", "g", 2))
    assert found.candidates == ("a",)


def test_what_is_made_free_for_a_member_is_kept_for_its_group(waiting: Waiting) -> None:
    first, second, stranger = (objects.pod(each, labels=LSR) for each in ("p", "q", "s"))
    first["status"]["nominatedNodeName"] = "a"
    for body in (first, second):
        body["metadata"]["annotations"] = {GROUP: "g/2"}
    asking(waiting, first)(REFUSED)
    fits = ExtenderFilterResult(NODES)
    assert asking(waiting, stranger)(fits).failed_and_unresolvable_nodes.keys() == {"a"}
    assert asking(waiting, second)(fits) is fits


def test_late_member_waits_for_its_companions_node_alone(waiting: Waiting) -> None:
    """It needs no room for the whole group, and no other node helps it."""
    known, late = clusters.cluster({"a": SMALL, "b": SMALL}), owner(8, 8).pod("late")
    first = owner(24, 8).pod("first")
    for body in (first, late):
        body["metadata"]["annotations"][GROUP] = "g/2"
    first["spec"]["nodeName"] = "a"
    first["metadata"]["annotations"][RESOURCE_STATUS] = '{"cpuset":"0-23"}'
    stranger = owner(8, 8).pod("stranger")
    stranger["spec"]["nodeName"] = "a"
    stranger["metadata"]["annotations"][RESOURCE_STATUS] = '{"cpuset":"24-31"}'
    for body in (first, stranger):
        clusters.tell(known, body)
    verbs = Answering(REFUSED)
    Attending(verbs, Recent(), known, waiting).filter(ExtenderArgs(from_object(late), NODES))
    assert [each.candidates for each in waiting.waiters()] == [("a",)]
    views = Views(known, Shapes(known))
    assert waiting.round(views, 0.0) == []
    clusters.tell(known, owner(2, 2).pod("other") | {"spec": {"nodeName": "b", "containers": []}})
    assert waiting.round(views, 10.0) == [], "there is room for all on b"
    clusters.tell(known, stranger, ChangeKind.DELETED)
    assert [each.node for each in waiting.round(views, 20.0)] == ["a"]


def test_pod_that_makes_no_sense_does_not_wait(waiting: Waiting) -> None:
    asking(waiting, objects.pod("p", annotations={"topolet.io/group": "?"}))(REFUSED)
    assert waiting.waiters() == []


@pytest.mark.parametrize(
    ("node", "kind", "waits"),
    [
        ("", ChangeKind.MODIFIED, True),
        ("a", ChangeKind.MODIFIED, False),
        ("", ChangeKind.DELETED, False),
    ],
)
def test_watch_tells_of_those_who_are_bound_or_gone(
    waiting: Waiting, node: str, kind: ChangeKind, waits: bool
) -> None:
    asking(waiting, objects.pod("p"))(REFUSED)
    waiting.pods_changed([objects.of_pod(objects.pod("p", node), kind)])
    assert waiting.waits("uid-p") is waits
