"""The victims that the preempt verb selects on kube-scheduler's candidate nodes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.objects import LabelSelector
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.apiobjects import GROUP_ANNOTATION, from_object
from agent.scheduler.extender.extender import ExtenderPreemptionArgs, MetaPod, MetaVictims
from agent.scheduler.preemption.disruption_budgets import Budget, Budgets
from agent.scheduler.preemption.preemption import (
    EVICTION_SECONDS,
    SEARCH_SECONDS,
    Preemption,
)
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import pod_info
from agent.scheduler.unschedulable.queue import UnschedulableQueue, queued_pod
from tests.scheduler import objects

SINGLE_NUMA_NODE = {
    "scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'
}
PROTECTED = {"app": "protected"}
# NUMA node 0 has CPUs 0-3, NUMA node 1 has CPUs 4-7.
CPUS = {"p0": "0-1", "p1": "2-3", "p2": "4-5", "p3": "6-7"}


def bound_pod(name: str, priority: int = 0, **more: Any) -> dict[str, Any]:
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


def pending_pod(cpu: int, priority: int = 10, qos: str = "LSR", **spec: Any) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    body = objects.pod(
        "new",
        requests={"cpu": str(cpu)},
        labels=labels,
        annotations=SINGLE_NUMA_NODE if qos else {},
    )
    body["spec"].update({"priority": priority, **spec})
    return body


def cluster(*pods: dict[str, Any]) -> SchedulerCache:
    cache = SchedulerCache(agents=False)
    cache.nodes_changed([objects.node_change(objects.node("n"))])
    cache.topologies_changed([objects.topology_change(objects.topology("n"))])
    cache.pods_changed([objects.pod_change(each) for each in pods])
    return cache


FULL = [bound_pod(name) for name in CPUS]


def preempt(
    cache: SchedulerCache,
    pod: dict[str, Any],
    *named: str,
    node: str = "n",
    constrained: bool = False,
    budgets: Budgets | None = None,
) -> tuple[list[str], int] | None:
    """Returns the names of the victims and the number of PodDisruptionBudget violations, or None if
    the node is no longer a candidate. `named`: the victims that kube-scheduler selected."""
    victims = {node: MetaVictims(tuple(MetaPod(f"uid-{each}") for each in named))}
    args = ExtenderPreemptionArgs(from_object(pod), victims, constrained)
    preemption = Preemption(
        cache, GroupReservations(cache), UnschedulableQueue(), budgets or Budgets()
    )
    answer = preemption(args).victims
    if not answer:
        return None
    (chosen,) = answer.values()
    return [each.uid.removeprefix("uid-") for each in chosen.pods], chosen.num_pdb_violations


def test_victims_on_one_numa_node_replace_those_of_kube_scheduler() -> None:
    assert preempt(cluster(*FULL), pending_pod(4), "p0", "p3") == (["p2", "p3"], 0)


def test_named_victims_stay_if_the_pod_requires_more_than_resources() -> None:
    answer = preempt(cluster(*FULL), pending_pod(4), "p0", "p3", constrained=True)
    assert answer == (["p0", "p2", "p3"], 0)


def test_named_victims_stay_if_resources_do_not_explain_them() -> None:
    """One of them alone would release enough in sum."""
    answer = preempt(cluster(*FULL), pending_pod(2), "p0", "p1")
    assert answer == (["p0", "p1"], 0)


def test_a_candidate_without_victims_is_removed() -> None:
    pods = [bound_pod(name, 10 if name in ("p0", "p2") else 1) for name in CPUS]
    assert preempt(cluster(*pods), pending_pod(4), "p1", "p3") is None


@pytest.mark.parametrize(
    ("pod", "named", "node"),
    [
        (pending_pod(4), ["p0", "p1"], "another"),
        (pending_pod(4), ["unknown"], "n"),
        (pending_pod(4, preemptionPolicy="Never"), ["p0", "p1"], "n"),
        (pending_pod(4, priority=0), ["p0", "p1"], "n"),
    ],
)
def test_without_possible_victims_there_are_no_candidates(
    pod: dict[str, Any], named: list[str], node: str
) -> None:
    assert preempt(cluster(*FULL), pod, *named, node=node) is None


def test_an_invalid_pod_has_no_candidates() -> None:
    pod = pending_pod(4)
    pod["metadata"]["annotations"] = {next(iter(SINGLE_NUMA_NODE)): "{"}
    assert preempt(cluster(*FULL), pod, "p0") is None


def member(name: str, size: int = 2) -> dict[str, Any]:
    """A member of a group whose pods have two CPUs each."""
    pod = pending_pod(2)
    pod["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    pod["metadata"]["annotations"] = {**SINGLE_NUMA_NODE, GROUP_ANNOTATION: f"g/{size}"}
    return pod


def test_a_pod_with_an_invalid_group_has_no_candidates() -> None:
    pod = member("m0")
    pod["metadata"]["annotations"][GROUP_ANNOTATION] = "no group"
    assert preempt(cluster(*FULL), pod, "p0") is None


@pytest.mark.parametrize(("constrained", "victims"), [(False, ["p2", "p3"]), (True, ["p0", "p3"])])
def test_victims_make_room_for_the_whole_group(constrained: bool, victims: list[str]) -> None:
    """kube-scheduler named one victim, for one member."""
    members = member("m0"), member("m1")
    answer = preempt(cluster(*FULL, *members), members[0], "p0", constrained=constrained)
    assert answer == (victims, 0)


def test_no_victims_for_group_members_that_do_not_exist() -> None:
    """A pod's annotation may name any group size."""
    answer = preempt(cluster(*FULL), member("m0"), "p0")
    assert answer is None


def test_no_candidate_if_all_victims_together_are_not_enough_for_the_group() -> None:
    members = [member(f"m{number}", 5) for number in range(5)]
    assert preempt(cluster(*FULL, *members), members[0], "p0") is None


class Scene:
    """A cluster of full nodes, and preempt requests for the two members of a group."""

    def __init__(self, *nodes: str) -> None:
        self.now = 0.0
        self.queue = UnschedulableQueue()
        self.cluster = SchedulerCache(agents=False)
        self.groups = GroupReservations(self.cluster, clock=lambda: self.now)
        self.preemption = Preemption(
            self.cluster, self.groups, self.queue, Budgets(), clock=lambda: self.now
        )
        for node in nodes:
            self.cluster.nodes_changed([objects.node_change(objects.node(node))])
            self.cluster.topologies_changed([objects.topology_change(objects.topology(node))])
            for name in CPUS:
                self.report_pod(node, name)
        self.cluster.pods_changed([objects.pod_change(member(name)) for name in ("m0", "m1")])

    def report_pod(
        self, node: str, name: str, kind: ChangeKind = ChangeKind.ADDED, **fields: Any
    ) -> None:
        body = bound_pod(name, **fields.pop("more", {}))
        body["metadata"] |= {"name": f"{node}-{name}", "uid": f"{node}-{name}", **fields}
        body["spec"]["nodeName"] = node
        self.cluster.pods_changed([objects.pod_change(body, kind)])

    def preempt(self, name: str, **named: str) -> dict[str, set[str]]:
        """Returns the victims by node. `named`: kube-scheduler's victim on each node."""
        candidates = {
            node: MetaVictims((MetaPod(f"{node}-{each}"),)) for node, each in named.items()
        }
        result = self.preemption(ExtenderPreemptionArgs(from_object(member(name)), candidates))
        return {node: {each.uid for each in fields.pods} for node, fields in result.victims.items()}


TERMINATING = {"deletionTimestamp": "2026-01-01T00:01:00Z"}


def test_only_the_best_node_has_victims_for_a_group_and_only_once() -> None:
    scene = Scene("a", "b")
    scene.report_pod("a", "p3", more={"priority": 5})
    victims = {"b": {"b-p2", "b-p3"}}
    assert scene.preempt("m0", a="p0", b="p0") == victims
    assert scene.preempt("m1", a="p0", b="p0") == {}
    scene.now = EVICTION_SECONDS
    assert scene.preempt("m1", a="p0", b="p0") == victims, "no victim was deleted"
    scene.report_pod("b", "p2", **TERMINATING)
    for _ in range(3):
        scene.now += EVICTION_SECONDS
        assert scene.preempt("m0", a="p0", b="p0") == {}, "a victim is terminating"
    for victim in ("p2", "p3"):
        scene.report_pod("b", victim, ChangeKind.DELETED)
    scene.now += EVICTION_SECONDS - 1
    assert scene.preempt("m1", a="p0") == {}, "there is room for a member"
    scene.now += 1
    assert scene.preempt("m1", a="p0") == {"a": {"a-p2", "a-p1"}}


def test_the_search_has_a_time_limit() -> None:
    """kube-scheduler receives the candidates that were found in time."""
    scene = Scene("a", "b", "c")
    times = itertools.count(0, SEARCH_SECONDS / 4)
    preemption = Preemption(
        scene.cluster, scene.groups, scene.queue, Budgets(), clock=lambda: next(times)
    )
    candidates = {node: MetaVictims((MetaPod(f"{node}-p0"),)) for node in "abc"}
    result = preemption(ExtenderPreemptionArgs(from_object(pending_pod(2)), candidates))
    assert result.victims.keys() == {"a"}


def test_no_victims_if_an_eviction_plan_makes_room() -> None:
    scene = Scene("a")
    info = pod_info(from_object(member("m0")))
    scene.queue.add(queued_pod(info, scene.cluster, 0.0))
    scene.queue.nominate("uid-m0", "b")
    assert scene.preempt("m1", a="p0") == {}
    scene.queue.withdraw("uid-m0", "b")
    assert scene.preempt("m1", a="p0") != {}


def test_a_member_with_a_reservation_keeps_kube_schedulers_victims() -> None:
    scene = Scene("a", "b")
    for victim in CPUS:
        scene.report_pod("a", victim, ChangeKind.DELETED)
    info = pod_info(from_object(member("m0")))
    assert info.group is not None
    assert scene.groups.reserve(info.group, info.pod_request, "a") is None
    assert scene.preempt("m1", a="p0", b="p0") == {"a": {"a-p0"}}


def test_a_late_member_preempts_other_pods_on_the_node_of_its_group() -> None:
    scene = Scene("a", "b")
    bound = bound_pod("p0", annotations={GROUP_ANNOTATION: "g/2"})
    bound["metadata"] |= {"uid": "a-p0"}
    bound["spec"]["nodeName"] = "a"
    scene.cluster.pods_changed([objects.pod_change(bound, ChangeKind.MODIFIED)])
    assert scene.preempt("m1", a="p1", b="p1") == {"a": {"a-p3"}}
    assert scene.preempt("m1", b="p1") == {}


def test_a_pod_without_topolet_requirements_keeps_the_named_victims() -> None:
    assert preempt(cluster(*FULL), pending_pod(1, qos=""), "p0", "p3") == (["p0", "p3"], 0)


def test_pods_without_a_budget_are_preferred_and_violations_are_counted() -> None:
    budgets = Budgets()
    budget = Budget("ns", "b", LabelSelector(PROTECTED), 1)
    budgets.changed([Change(ChangeKind.ADDED, ObjectKey("ns", "b"), budget)])
    protected = [bound_pod(name, labels=PROTECTED if name in ("p2", "p3") else {}) for name in CPUS]
    assert preempt(cluster(*protected), pending_pod(4), "p0", "p3", budgets=budgets) == (
        ["p0", "p1"],
        0,
    )
    all_protected = [bound_pod(name, labels=PROTECTED) for name in CPUS]
    assert preempt(cluster(*all_protected), pending_pod(4), "p0", "p3", budgets=budgets) == (
        ["p2", "p3"],
        1,
    )


def test_a_mirror_pod_is_not_a_victim() -> None:
    mirror = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x"}
    pods = [bound_pod(name, annotations=mirror if name == "p3" else {}) for name in CPUS]
    assert preempt(cluster(*pods), pending_pod(4), "p0", "p3") == (["p0", "p1"], 0)
    assert preempt(cluster(*pods), pending_pod(4), "p0", "p3", constrained=True) is None


def test_terminating_pods_are_selected_first() -> None:
    pods = [bound_pod(name) for name in CPUS]
    for each in pods[:2]:
        each["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    assert preempt(cluster(*pods), pending_pod(4), "p0", "p3") == (["p0", "p1"], 0)


XPU = "example.com/xpu"


def with_xpus(*pods: dict[str, Any], extended_resource: bool) -> SchedulerCache:
    """A node whose Device object has two devices. `extended_resource`: the node has only the
    extended resource, and the Device object belongs to another node."""
    cache = cluster()
    node = objects.node("n")
    node["status"]["allocatable"][XPU] = "200"
    cache.nodes_changed([objects.node_change(node)])
    devices = [Device("xpu", f"x{minor}", minor, {XPU: 100}) for minor in range(2)]
    body = device_object.encode("other" if extended_resource else "n", devices)
    cache.devices_changed([objects.devices_change(body)])
    cache.pods_changed([objects.pod_change(each) for each in pods])
    return cache


def pod_with_xpu(name: str, minor: int, amount: int) -> dict[str, Any]:
    allocation = {"xpu": [{"minor": minor, "resources": {XPU: str(amount)}}]}
    annotations = {DEVICE_ALLOCATED: json.dumps(allocation)}
    body = objects.pod(name, "n", requests={XPU: str(amount)}, annotations=annotations)
    body["spec"]["priority"] = 0
    return body


def test_victims_release_one_whole_device_of_a_type_in_the_device_object() -> None:
    """Halves of two devices are not a whole device: these replace the victims that kube-scheduler
    selects by the sum."""
    pods = [pod_with_xpu(f"u{at}", at // 2, 50) for at in range(4)]
    new = objects.pod("new", requests={XPU: "100"})
    new["spec"]["priority"] = 10
    answer = preempt(with_xpus(*pods, extended_resource=False), new, "u0", "u2")
    assert answer is not None
    assert set(answer[0]) in ({"u0", "u1"}, {"u2", "u3"})
    without_devices = with_xpus(*pods, extended_resource=True)
    assert preempt(without_devices, new, "u0", "u2") == (["u0", "u2"], 0)
