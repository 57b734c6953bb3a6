"""Evictions for a pod: kube-scheduler's preemption with victims that Topolet selects, and evictions
by Topolet if only its own rules reject the pod. The tests remove terminating pods as a kubelet
does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.model.pod.apiobjects import GROUP_ANNOTATION
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects
from tests.integration.kubescheduler.nodes import Shape
from tests.integration.kubescheduler.schedulers import Topolet, schedulers
from tests.integration.kubescheduler.workload import (
    ONE_NODE,
    Workload,
    cpus,
    numa_nodes,
    workload_for,
)

# Two NUMA nodes of 8 CPUs.
SHAPE: Shape = (2, 1, 4, 2)
HIGH = {"priorityClassName": "evict-high"}
MIDDLE = {"priorityClassName": "evict-middle"}
LOW = {"priorityClassName": "evict-low"}
NON_PREEMPTING = {"priorityClassName": "evict-non-preempting"}
CLASSES = {"low": 10, "middle": 20, "high": 1000}
GUARDED = {"app": "guarded"}


@pytest.fixture(scope="module")
def topolet(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topolet]:
    for name, value in CLASSES.items():
        objects.priority_class(apiserver, f"evict-{name}", value)
    objects.priority_class(apiserver, "evict-non-preempting", 1000, "Never")
    with schedulers(apiserver, tmp_path_factory.mktemp("scheduler"), "--evict=true") as it:
        yield it


@pytest.fixture
def workload(
    apiserver: ApiServer, topolet: Topolet, request: pytest.FixtureRequest
) -> Iterator[Workload]:
    with workload_for(apiserver, request.node.name) as it:
        yield it


def halves(
    workload: Workload, first: dict[str, str] = LOW, second: dict[str, str] = MIDDLE
) -> None:
    """Pods `a` and `b` use 5 of the 8 CPUs of a NUMA node each."""
    workload.nodes.add(SHAPE)
    workload.create_pod("a", {"cpu": "5"}, "LS", ONE_NODE, **first)
    workload.create_pod("b", {"cpu": "5"}, "LS", ONE_NODE, **second)
    bound = workload.wait_bound("a", "b")
    assert sorted(map(numa_nodes, bound.values())) == [[0], [1]]


def nominated(workload: Workload, name: str) -> str:
    return str(workload.pods()[name]["status"].get("nominatedNodeName", ""))


def test_preemption_evicts_pods_of_one_numa_node(workload: Workload) -> None:
    """No CPU is free. kube-scheduler alone would select any two of the four pods."""
    workload.nodes.add(SHAPE)
    names = [f"p{number}" for number in range(4)]
    for name in names:
        workload.create_pod(name, {"cpu": "4"}, "LSR", ONE_NODE, **LOW)
    placed = {
        name: {cpu // 8 for cpu in cpus(pod)} for name, pod in workload.wait_bound(*names).items()
    }
    workload.create_pod("high", {"cpu": "8"}, "LSR", ONE_NODE, **HIGH)
    workload.wait("victims are ending", lambda: len(workload.terminating()) >= 2)
    victims = workload.terminating()
    assert len(victims) == 2
    assert len(set.union(*(placed[name] for name in victims))) == 1
    workload.remove_terminating()
    assert len(cpus(workload.wait_bound("high")["high"])) == 8
    assert workload.terminating() == set()


def test_the_lowest_priority_is_evicted_if_only_topolet_rejects_the_pod(workload: Workload) -> None:
    """Six CPUs are free, three on each NUMA node, so kube-scheduler does not preempt."""
    halves(workload)
    workload.create_pod("high", {"cpu": "6"}, "LS", ONE_NODE, **HIGH)
    workload.wait("a victim is ending", workload.terminating)
    assert workload.terminating() == {"a"}
    workload.wait(
        "the node is nominated", lambda: nominated(workload, "high") == workload.nodes.names[0]
    )
    conditions = workload.pods()["a"]["status"]["conditions"]
    (reason,) = [each for each in conditions if each["type"] == "DisruptionTarget"]
    assert reason["reason"] == "PreemptionByScheduler"
    assert workload.pods()["a"]["metadata"]["deletionGracePeriodSeconds"] == 30
    workload.assert_stays("no other pod is evicted", lambda: workload.terminating() == {"a"})
    assert nominated(workload, "high") == workload.nodes.names[0]
    workload.remove_terminating()
    workload.wait_bound("high")
    assert workload.bound().keys() == {"b", "high"}


def test_preemption_makes_room_for_a_whole_group(workload: Workload) -> None:
    """Two nodes are full. kube-scheduler alone would make room for one member."""
    workload.nodes.add(SHAPE)
    workload.nodes.add(SHAPE)
    names = [f"p{number}" for number in range(8)]
    for name in names:
        workload.create_pod(name, {"cpu": "4"}, "LSR", ONE_NODE, **LOW)
    placed = {name: pod["spec"]["nodeName"] for name, pod in workload.wait_bound(*names).items()}
    members = ("m0", "m1")
    for name in members:
        workload.create_pod(
            name, {"cpu": "8"}, "LSR", {**ONE_NODE, GROUP_ANNOTATION: "g/2"}, **HIGH
        )
    workload.wait("victims are ending", lambda: len(workload.terminating()) >= 4)
    workload.assert_stays("no other pod is evicted", lambda: len(workload.terminating()) == 4)
    assert len({placed[name] for name in workload.terminating()}) == 1
    workload.remove_terminating()
    bound = workload.wait_bound(*members)
    assert len({bound[name]["spec"]["nodeName"] for name in members}) == 1
    assert [len(cpus(bound[name])) for name in members] == [8, 8]
    assert len(workload.pods()) == 6


def test_freed_resources_are_reserved_against_lower_priorities(workload: Workload) -> None:
    halves(workload)
    workload.create_pod("high", {"cpu": "6"}, "LS", ONE_NODE, **HIGH)
    workload.wait("a victim is ending", workload.terminating)
    workload.create_pod("lower", {"cpu": "3"}, "LS", ONE_NODE, **LOW)
    workload.wait_unschedulable("lower")
    workload.remove_terminating()
    workload.wait_bound("high")
    assert numa_nodes(workload.wait_bound("lower")["lower"]) == numa_nodes(workload.bound()["b"])


def test_a_budget_protects_a_pod(workload: Workload, apiserver: ApiServer) -> None:
    create_budget(apiserver, workload)
    workload.nodes.add(SHAPE)
    workload.create_pod("a", {"cpu": "5"}, "LS", ONE_NODE, labels=GUARDED, **LOW)
    workload.create_pod("b", {"cpu": "5"}, "LS", ONE_NODE, **MIDDLE)
    workload.wait_bound("a", "b")
    workload.create_pod("high", {"cpu": "6"}, "LS", ONE_NODE, **HIGH)
    workload.wait("a victim is ending", workload.terminating)
    assert workload.terminating() == {"b"}
    workload.remove_terminating()
    workload.wait_bound("high")


def test_protected_pods_and_pods_of_the_same_priority_are_not_evicted(
    workload: Workload, apiserver: ApiServer
) -> None:
    create_budget(apiserver, workload)
    workload.nodes.add(SHAPE)
    workload.create_pod("a", {"cpu": "5"}, "LS", ONE_NODE, labels=GUARDED, **LOW)
    workload.create_pod("b", {"cpu": "5"}, "LS", ONE_NODE, **HIGH)
    workload.wait_bound("a", "b")
    workload.create_pod("high", {"cpu": "6"}, "LS", ONE_NODE, **HIGH)
    workload.wait_unschedulable("high")
    workload.assert_stays("no pod is evicted", lambda: not workload.terminating())
    assert nominated(workload, "high") == ""


def test_no_pod_is_evicted_for_a_pod_that_never_preempts(workload: Workload) -> None:
    halves(workload)
    workload.create_pod("waiting", {"cpu": "6"}, "LS", ONE_NODE, **NON_PREEMPTING)
    workload.wait_unschedulable("waiting")
    workload.assert_stays("no pod is evicted", lambda: not workload.terminating())


def create_budget(api: ApiServer, workload: Workload) -> None:
    """Creates a budget that allows no eviction of GUARDED pods, with the status that its controller
    would write."""
    path = f"/apis/policy/v1/namespaces/{workload.name}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": GUARDED}}
    api.create(path, {"metadata": {"name": "guard"}, "spec": spec})
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
    }
    api.admin.merge(f"{path}/guard/status", {"status": status})
