"""Evictions for a pod: kube-scheduler's preemption with Topolet's victims, and Topolet's own
evictions if only its rules block. The test acts as the kubelet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.model.apiobjects import GROUP_ANNOTATION
from tests.allocate.devices.builders import CORE, RATIO, gpu
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects, workload
from tests.integration.kubescheduler.hosts import Shape
from tests.integration.kubescheduler.schedulers import Topolet, schedulers
from tests.integration.kubescheduler.workload import ONE_NODE, Workload, cpus, numa_nodes

# Two NUMA nodes of 8 CPUs.
SHAPE: Shape = (2, 1, 4, 2)
HIGH = {"priorityClassName": "evict-high"}
MIDDLE = {"priorityClassName": "evict-middle"}
LOW = {"priorityClassName": "evict-low"}
POLITE = {"priorityClassName": "evict-polite"}
CLASSES = {"low": 10, "middle": 20, "high": 1000}
GUARDED = {"app": "guarded"}


@pytest.fixture(scope="module")
def topolet(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topolet]:
    for name, value in CLASSES.items():
        objects.priority(apiserver, f"evict-{name}", value)
    objects.priority(apiserver, "evict-polite", 1000, "Never")
    with schedulers(apiserver, tmp_path_factory.mktemp("scheduler"), "--evict=true") as it:
        yield it


@pytest.fixture
def here(
    apiserver: ApiServer, topolet: Topolet, request: pytest.FixtureRequest
) -> Iterator[Workload]:
    with workload.workload(apiserver, request.node.name) as it:
        yield it


def halves(here: Workload, first: dict[str, str] = LOW, second: dict[str, str] = MIDDLE) -> None:
    """5 of 8 CPUs of each NUMA node are in use, by `a` and by `b`."""
    here.hosts.add(SHAPE)
    here.ask("a", {"cpu": "5"}, "LS", ONE_NODE, **first)
    here.ask("b", {"cpu": "5"}, "LS", ONE_NODE, **second)
    bound = here.wait_bound("a", "b")
    assert sorted(map(numa_nodes, bound.values())) == [[0], [1]]


def nominated(here: Workload, name: str) -> str:
    return str(here.pods()[name]["status"].get("nominatedNodeName", ""))


def test_preemption_takes_victims_of_one_numa_node(here: Workload) -> None:
    """Nothing is free; kube-scheduler would select any two of four pods."""
    here.hosts.add(SHAPE)
    names = [f"p{number}" for number in range(4)]
    for name in names:
        here.ask(name, {"cpu": "4"}, "LSR", ONE_NODE, **LOW)
    homes = {name: {cpu // 8 for cpu in cpus(pod)} for name, pod in here.wait_bound(*names).items()}
    here.ask("high", {"cpu": "8"}, "LSR", ONE_NODE, **HIGH)
    here.wait("victims are ending", lambda: len(here.ending()) >= 2)
    victims = here.ending()
    assert len(victims) == 2
    assert len(set.union(*(homes[name] for name in victims))) == 1
    here.end_terminating()
    assert len(cpus(here.wait_bound("high")["high"])) == 8
    assert here.ending() == set()


def test_preemption_takes_the_fewest_cards(here: Workload) -> None:
    """One card is shared by two pods, the other is allocated whole to one."""
    here.hosts.add(SHAPE, (gpu(0), gpu(1)))
    here.ask("whole", {CORE: "100", RATIO: "100"}, **LOW)
    here.wait_bound("whole")
    for name in ("part1", "part2"):
        here.ask(name, {CORE: "50", RATIO: "50"}, **LOW)
        here.wait_bound(name)
    here.ask("high", {CORE: "100", RATIO: "100"}, **HIGH)
    here.wait("a victim is ending", here.ending)
    assert here.ending() == {"whole"}
    here.end_terminating()
    here.wait_bound("high")
    assert here.bound().keys() == {"part1", "part2", "high"}


def test_evicts_the_lowest_when_only_the_extenders_rule_blocks(here: Workload) -> None:
    """Six CPUs are free, three on each NUMA node: kube-scheduler finds no reason for victims."""
    halves(here)
    here.ask("high", {"cpu": "6"}, "LS", ONE_NODE, **HIGH)
    here.wait("a victim is ending", here.ending)
    assert here.ending() == {"a"}
    here.wait("the node is nominated", lambda: nominated(here, "high") == here.hosts.names[0])
    conditions = here.pods()["a"]["status"]["conditions"]
    (reason,) = [each for each in conditions if each["type"] == "DisruptionTarget"]
    assert reason["reason"] == "PreemptionByScheduler"
    assert here.pods()["a"]["metadata"]["deletionGracePeriodSeconds"] == 30
    here.stays("no other pod is evicted", lambda: here.ending() == {"a"})
    assert nominated(here, "high") == here.hosts.names[0]
    here.end_terminating()
    here.wait_bound("high")
    assert here.bound().keys() == {"b", "high"}


def test_preemption_makes_room_for_a_whole_group(here: Workload) -> None:
    """Two full nodes: kube-scheduler would evict pods of one NUMA node for one member."""
    here.hosts.add(SHAPE)
    here.hosts.add(SHAPE)
    names = [f"p{number}" for number in range(8)]
    for name in names:
        here.ask(name, {"cpu": "4"}, "LSR", ONE_NODE, **LOW)
    homes = {name: pod["spec"]["nodeName"] for name, pod in here.wait_bound(*names).items()}
    members = ("m0", "m1")
    for name in members:
        here.ask(name, {"cpu": "8"}, "LSR", {**ONE_NODE, GROUP_ANNOTATION: "g/2"}, **HIGH)
    here.wait("victims are ending", lambda: len(here.ending()) >= 4)
    here.stays("no other pod is evicted", lambda: len(here.ending()) == 4)
    assert len({homes[name] for name in here.ending()}) == 1
    here.end_terminating()
    bound = here.wait_bound(*members)
    assert len({bound[name]["spec"]["nodeName"] for name in members}) == 1
    assert [len(cpus(bound[name])) for name in members] == [8, 8]
    assert len(here.pods()) == 6


def test_evicts_once_for_a_whole_group(here: Workload) -> None:
    """A member fits in sum: kube-scheduler finds no reason for victims."""
    halves(here)
    members = ("m0", "m1")
    for name in members:
        here.ask(name, {"cpu": "4"}, "LS", {**ONE_NODE, GROUP_ANNOTATION: "g/2"}, **HIGH)
    here.wait("a victim is ending", here.ending)
    here.stays("no other pod is evicted", lambda: here.ending() == {"a"})
    here.end_terminating()
    here.wait_bound(*members)
    assert here.bound().keys() == {"b", *members}


def test_evicts_a_pod_that_shares_a_card(here: Workload) -> None:
    """40 percent of each card are free, 80 in sum."""
    here.hosts.add(SHAPE, (gpu(0), gpu(1)))
    here.ask("low", {CORE: "60", RATIO: "60"}, **LOW)
    here.ask("middle", {CORE: "60", RATIO: "60"}, **MIDDLE)
    here.wait_bound("low", "middle")
    here.ask("high", {CORE: "80", RATIO: "80"}, **HIGH)
    here.wait("a victim is ending", here.ending)
    assert here.ending() == {"low"}
    here.end_terminating()
    here.wait_bound("high")
    assert here.bound().keys() == {"middle", "high"}


def test_freed_resources_are_reserved_against_lower_priorities(here: Workload) -> None:
    halves(here)
    here.ask("high", {"cpu": "6"}, "LS", ONE_NODE, **HIGH)
    here.wait("a victim is ending", here.ending)
    here.ask("lesser", {"cpu": "3"}, "LS", ONE_NODE, **LOW)
    here.wait_refused("lesser")
    here.end_terminating()
    here.wait_bound("high")
    assert numa_nodes(here.wait_bound("lesser")["lesser"]) == numa_nodes(here.bound()["b"])


@pytest.mark.parametrize("allowed", [0, 1])
def test_budget_protects_a_pod(here: Workload, apiserver: ApiServer, allowed: int) -> None:
    guard(apiserver, here, allowed)
    here.hosts.add(SHAPE)
    here.ask("a", {"cpu": "5"}, "LS", ONE_NODE, labels=GUARDED, **LOW)
    here.ask("b", {"cpu": "5"}, "LS", ONE_NODE, **MIDDLE)
    here.wait_bound("a", "b")
    here.ask("high", {"cpu": "6"}, "LS", ONE_NODE, **HIGH)
    here.wait("a victim is ending", here.ending)
    assert here.ending() == ({"a"} if allowed else {"b"})
    here.end_terminating()
    here.wait_bound("high")


def test_no_pod_is_evicted_that_a_budget_protects_or_has_the_same_priority(
    here: Workload, apiserver: ApiServer
) -> None:
    guard(apiserver, here, 0)
    here.hosts.add(SHAPE)
    here.ask("a", {"cpu": "5"}, "LS", ONE_NODE, labels=GUARDED, **LOW)
    here.ask("b", {"cpu": "5"}, "LS", ONE_NODE, **HIGH)
    here.wait_bound("a", "b")
    here.ask("high", {"cpu": "6"}, "LS", ONE_NODE, **HIGH)
    here.wait_refused("high")
    here.stays("no pod is evicted", lambda: not here.ending())
    assert nominated(here, "high") == ""


def test_pod_that_never_preempts_waits(here: Workload) -> None:
    halves(here)
    here.ask("polite", {"cpu": "6"}, "LS", ONE_NODE, **POLITE)
    here.wait_refused("polite")
    here.stays("no pod is evicted", lambda: not here.ending())


def guard(api: ApiServer, here: Workload, allowed: int) -> None:
    """A budget for GUARDED pods, with the status that its controller would write."""
    path = f"/apis/policy/v1/namespaces/{here.name}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": GUARDED}}
    api.create(path, {"metadata": {"name": "guard"}, "spec": spec})
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed,
        "desiredHealthy": 1,
        "expectedPods": 1 + allowed,
    }
    api.admin.merge(f"{path}/guard/status", {"status": status})
