"""kube-scheduler's candidates, rewritten."""

from __future__ import annotations

from typing import Any

import pytest

from agent.kube.objects import Change, ChangeKind, Key
from agent.model.apipods import from_object
from agent.model.selectors import LabelSelector
from agent.scheduler.cluster import Cluster
from agent.scheduler.disruption import Budget, Budgets
from agent.scheduler.groupname import GROUP
from agent.scheduler.preempt import Preemption
from agent.scheduler.tenants import Tenants
from agent.scheduler.wire import ExtenderPreemptionArgs, MetaPod, MetaVictims
from tests.scheduler import objects

ONE_NODE = {
    "scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'
}
GUARDED = {"app": "guarded"}
# NUMA node 0 has CPUs 0-3, the other one 4-7.
CPUS = {"p0": "0-1", "p1": "2-3", "p2": "4-5", "p3": "6-7"}


def tenant(name: str, priority: int = 0, **more: Any) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": "LSR", **more.pop("labels", {})}
    body = objects.pod(
        name,
        "n",
        cpus=CPUS.get(name, ""),
        requests={"cpu": "2"} if name in CPUS else {},
        labels=labels,
        started=f"2026-01-01T00:00:0{name[-1]}Z",
        **more,
    )
    body["spec"]["priority"] = priority
    return body


def asking(cpu: int, priority: int = 10, qos: str = "LSR", **spec: Any) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    notes = ONE_NODE if qos else {}
    body = objects.pod("new", requests={"cpu": str(cpu)}, labels=labels, annotations=notes)
    body["spec"].update({"priority": priority, **spec})
    return body


def cluster(*tenants: dict[str, Any]) -> Cluster:
    it = Cluster(agents=False)
    it.nodes_changed([objects.of_node(objects.node("n"))])
    it.topologies_changed([objects.of_topology(objects.topology("n"))])
    it.pods_changed([objects.of_pod(each) for each in tenants])
    return it


FULL = [tenant(name) for name in CPUS]


def preempted(
    of: Cluster,
    asked: dict[str, Any],
    *named: str,
    node: str = "n",
    constrained: bool = False,
    budgets: Budgets | None = None,
) -> tuple[list[str], int] | None:
    """Names of the victims and how many of them no budget allows; None: the node is no candidate
    any more."""
    victims = {node: MetaVictims(tuple(MetaPod(f"uid-{each}") for each in named))}
    args = ExtenderPreemptionArgs(from_object(asked), victims, constrained)
    answer = Preemption(Tenants(of), budgets or Budgets())(args).victims
    if not answer:
        return None
    (found,) = answer.values()
    return [each.uid.removeprefix("uid-") for each in found.pods], found.num_pdb_violations


def test_victims_of_one_numa_node_in_place_of_those_named() -> None:
    assert preempted(cluster(*FULL), asking(4), "p0", "p3") == (["p2", "p3"], 0)


def test_named_ones_stay_where_more_than_resources_may_be_why() -> None:
    answer = preempted(cluster(*FULL), asking(4), "p0", "p3", constrained=True)
    assert answer == (["p0", "p2", "p3"], 0)


def test_named_ones_stay_where_resources_are_not_why() -> None:
    """One of them alone would give back enough in sum."""
    answer = preempted(cluster(*FULL), asking(2), "p0", "p1")
    assert answer == (["p0", "p1"], 0)


def test_victims_give_back_what_the_pod_needs_in_sum() -> None:
    """CPUs 6 and 7 are nobody's, but others may use them: of the pods one alone is large enough."""
    small, smaller = tenant("q4"), tenant("s5")
    for body, cpu in ((small, "1500m"), (smaller, "500m")):
        body["metadata"]["labels"] = {"koordinator.sh/qosClass": "LS"}
        body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    full = cluster(*FULL[:3], small, smaller)
    assert preempted(full, asking(2), "q4", "s5") == (["p2"], 0)


def test_lower_priority_goes_before_the_last_started() -> None:
    pods = [tenant(name, 5 if name in ("p2", "p3") else 1) for name in CPUS]
    assert preempted(cluster(*pods), asking(4), "p0", "p3") == (["p0", "p1"], 0)


def test_candidate_where_nobody_helps_is_dropped() -> None:
    pods = [tenant(name, 10 if name in ("p0", "p2") else 1) for name in CPUS]
    assert preempted(cluster(*pods), asking(4), "p1", "p3") is None


@pytest.mark.parametrize(
    ("asked", "named", "node"),
    [
        (asking(4), ["p0", "p1"], "another"),
        (asking(4), ["unheard"], "n"),
        (asking(4, preemptionPolicy="Never"), ["p0", "p1"], "n"),
        (asking(4, priority=0), ["p0", "p1"], "n"),
    ],
)
def test_no_candidates(asked: dict[str, Any], named: list[str], node: str) -> None:
    assert preempted(cluster(*FULL), asked, *named, node=node) is None


def test_pod_that_makes_no_sense_has_no_candidates() -> None:
    asked = asking(4)
    asked["metadata"]["annotations"] = {next(iter(ONE_NODE)): "{"}
    assert preempted(cluster(*FULL), asked, "p0") is None


@pytest.mark.parametrize("group", ["g/2", "no group"])
def test_nobody_ends_for_a_member_of_a_group(group: str) -> None:
    """The victims of one member would end, and the group would have no room still."""
    asked = asking(2)
    asked["metadata"]["annotations"] = {**ONE_NODE, GROUP: group}
    assert preempted(cluster(*FULL), asked, "p0") is None


def test_pod_that_needs_nothing_of_us_has_the_victims_that_were_named() -> None:
    assert preempted(cluster(*FULL), asking(1, qos=""), "p0", "p3") == (["p0", "p3"], 0)


def test_budget() -> None:
    budgets = Budgets()
    budget = Budget("ns", "b", LabelSelector(GUARDED), 1)
    budgets.changed([Change(ChangeKind.ADDED, Key("ns", "b"), budget)])
    guarded = [tenant(name, labels=GUARDED if name in ("p2", "p3") else {}) for name in CPUS]
    assert preempted(cluster(*guarded), asking(4), "p0", "p3", budgets=budgets) == (
        ["p0", "p1"],
        0,
    )
    everyone = [tenant(name, labels=GUARDED) for name in CPUS]
    assert preempted(cluster(*everyone), asking(4), "p0", "p3", budgets=budgets) == (
        ["p2", "p3"],
        1,
    )


def test_mirror_of_a_static_pod_is_no_victim() -> None:
    mirror = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x"}
    pods = [tenant(name, annotations=mirror if name == "p3" else {}) for name in CPUS]
    assert preempted(cluster(*pods), asking(4), "p0", "p3") == (["p0", "p1"], 0)
    assert preempted(cluster(*pods), asking(4), "p0", "p3", constrained=True) is None


def test_who_leaves_already_goes_first() -> None:
    pods = [tenant(name) for name in CPUS]
    for each in pods[:2]:
        each["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    assert preempted(cluster(*pods), asking(4), "p0", "p3") == (["p0", "p1"], 0)
