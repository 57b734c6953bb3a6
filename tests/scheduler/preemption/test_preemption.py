"""The victims on kube-scheduler's candidates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.apiobjects import GROUP_ANNOTATION, from_object
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.objects import LabelSelector
from agent.model.pod.annotations import DEVICE_ALLOCATED
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


def pending(cpu: int, priority: int = 10, qos: str = "LSR", **spec: Any) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    notes = ONE_NODE if qos else {}
    body = objects.pod("new", requests={"cpu": str(cpu)}, labels=labels, annotations=notes)
    body["spec"].update({"priority": priority, **spec})
    return body


def cluster(*tenants: dict[str, Any]) -> SchedulerCache:
    it = SchedulerCache(agents=False)
    it.nodes_changed([objects.of_node(objects.node("n"))])
    it.topologies_changed([objects.of_topology(objects.topology("n"))])
    it.pods_changed([objects.of_pod(each) for each in tenants])
    return it


FULL = [tenant(name) for name in CPUS]


def preempted(
    of: SchedulerCache,
    pod: dict[str, Any],
    *named: str,
    node: str = "n",
    constrained: bool = False,
    budgets: Budgets | None = None,
) -> tuple[list[str], int] | None:
    """Names of the victims and how many of them no budget allows; None: the node is not a candidate
    any more."""
    victims = {node: MetaVictims(tuple(MetaPod(f"uid-{each}") for each in named))}
    args = ExtenderPreemptionArgs(from_object(pod), victims, constrained)
    preemption = Preemption(of, GroupReservations(of), UnschedulableQueue(), budgets or Budgets())
    answer = preemption(args).victims
    if not answer:
        return None
    (found,) = answer.values()
    return [each.uid.removeprefix("uid-") for each in found.pods], found.num_pdb_violations


def test_victims_of_one_numa_node_replace_kube_schedulers() -> None:
    assert preempted(cluster(*FULL), pending(4), "p0", "p3") == (["p2", "p3"], 0)


def test_named_victims_stay_if_the_pod_requires_more_than_resources() -> None:
    answer = preempted(cluster(*FULL), pending(4), "p0", "p3", constrained=True)
    assert answer == (["p0", "p2", "p3"], 0)


def test_named_victims_stay_if_resources_do_not_explain_them() -> None:
    """One of them alone would release enough in sum."""
    answer = preempted(cluster(*FULL), pending(2), "p0", "p1")
    assert answer == (["p0", "p1"], 0)


def test_victims_release_what_the_pod_needs_in_sum() -> None:
    """CPUs 6 and 7 are free, but other pods may use them: only one of the pods is large enough."""
    small, smaller = tenant("q4"), tenant("s5")
    for body, cpu in ((small, "1500m"), (smaller, "500m")):
        body["metadata"]["labels"] = {"koordinator.sh/qosClass": "LS"}
        body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    full = cluster(*FULL[:3], small, smaller)
    assert preempted(full, pending(2), "q4", "s5") == (["p2"], 0)


def test_lower_priority_is_evicted_before_the_last_started() -> None:
    pods = [tenant(name, 5 if name in ("p2", "p3") else 1) for name in CPUS]
    assert preempted(cluster(*pods), pending(4), "p0", "p3") == (["p0", "p1"], 0)


def test_candidate_without_victims_is_dropped() -> None:
    pods = [tenant(name, 10 if name in ("p0", "p2") else 1) for name in CPUS]
    assert preempted(cluster(*pods), pending(4), "p1", "p3") is None


@pytest.mark.parametrize(
    ("pod", "named", "node"),
    [
        (pending(4), ["p0", "p1"], "another"),
        (pending(4), ["unheard"], "n"),
        (pending(4, preemptionPolicy="Never"), ["p0", "p1"], "n"),
        (pending(4, priority=0), ["p0", "p1"], "n"),
    ],
)
def test_no_candidates(pod: dict[str, Any], named: list[str], node: str) -> None:
    assert preempted(cluster(*FULL), pod, *named, node=node) is None


def test_invalid_pod_has_no_candidates() -> None:
    pod = pending(4)
    pod["metadata"]["annotations"] = {next(iter(ONE_NODE)): "{"}
    assert preempted(cluster(*FULL), pod, "p0") is None


def member(name: str, size: int = 2) -> dict[str, Any]:
    """A member of a group whose pods have two CPUs each."""
    pod = pending(2)
    pod["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    pod["metadata"]["annotations"] = {**ONE_NODE, GROUP_ANNOTATION: f"g/{size}"}
    return pod


def test_pod_with_an_invalid_group_has_no_candidates() -> None:
    pod = member("m0")
    pod["metadata"]["annotations"][GROUP_ANNOTATION] = "no group"
    assert preempted(cluster(*FULL), pod, "p0") is None


@pytest.mark.parametrize(("constrained", "victims"), [(False, ["p2", "p3"]), (True, ["p0", "p3"])])
def test_victims_make_room_for_the_whole_group(constrained: bool, victims: list[str]) -> None:
    """kube-scheduler named one victim, for one member."""
    members = member("m0"), member("m1")
    answer = preempted(cluster(*FULL, *members), members[0], "p0", constrained=constrained)
    assert answer == (victims, 0)


def test_one_pod_evicts_none_for_members_that_are_not_created() -> None:
    """It may name any size."""
    answer = preempted(cluster(*FULL), member("m0"), "p0")
    assert answer is None


def test_no_candidate_if_all_victims_together_are_not_enough_for_the_group() -> None:
    members = [member(f"m{number}", 5) for number in range(5)]
    assert preempted(cluster(*FULL, *members), members[0], "p0") is None


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
            self.cluster.nodes_changed([objects.of_node(objects.node(node))])
            self.cluster.topologies_changed([objects.of_topology(objects.topology(node))])
            for name in CPUS:
                self.tell(node, name)
        self.cluster.pods_changed([objects.of_pod(member(name)) for name in ("m0", "m1")])

    def tell(
        self, node: str, name: str, kind: ChangeKind = ChangeKind.ADDED, **fields: Any
    ) -> None:
        body = tenant(name, **fields.pop("more", {}))
        body["metadata"] |= {"name": f"{node}-{name}", "uid": f"{node}-{name}", **fields}
        body["spec"]["nodeName"] = node
        self.cluster.pods_changed([objects.of_pod(body, kind)])

    def ask(self, name: str, **named: str) -> dict[str, set[str]]:
        """`named`: kube-scheduler's victim on each node."""
        candidates = {
            node: MetaVictims((MetaPod(f"{node}-{each}"),)) for node, each in named.items()
        }
        found = self.preemption(ExtenderPreemptionArgs(from_object(member(name)), candidates))
        return {node: {each.uid for each in fields.pods} for node, fields in found.victims.items()}


ENDING = {"deletionTimestamp": "2026-01-01T00:01:00Z"}


def test_room_for_a_group_is_made_once_on_the_best_node() -> None:
    scene = Scene("a", "b")
    scene.tell("a", "p3", more={"priority": 5})
    made = {"b": {"b-p2", "b-p3"}}
    assert scene.ask("m0", a="p0", b="p0") == made
    assert scene.ask("m1", a="p0", b="p0") == {}
    scene.now = EVICTION_SECONDS
    assert scene.ask("m1", a="p0", b="p0") == made, "no pod ended"
    scene.tell("b", "p2", **ENDING)
    for _ in range(3):
        scene.now += EVICTION_SECONDS
        assert scene.ask("m0", a="p0", b="p0") == {}, "it ends still"
    for victim in ("p2", "p3"):
        scene.tell("b", victim, ChangeKind.DELETED)
    scene.now += EVICTION_SECONDS - 1
    assert scene.ask("m1", a="p0") == {}, "there is room, and a member finds it"
    scene.now += 1
    assert scene.ask("m1", a="p0") == {"a": {"a-p2", "a-p1"}}


def test_search_has_a_time_limit() -> None:
    """kube-scheduler receives those that were found by then."""
    scene = Scene("a", "b", "c")
    seen = iter((0.0, 1.0, SEARCH_SECONDS))
    preemption = Preemption(
        scene.cluster, scene.groups, scene.queue, Budgets(), clock=lambda: next(seen)
    )
    candidates = {node: MetaVictims((MetaPod(f"{node}-p0"),)) for node in "abc"}
    found = preemption(ExtenderPreemptionArgs(from_object(pending(2)), candidates))
    assert found.victims.keys() == {"a"}


def test_no_victims_if_an_eviction_plan_makes_room() -> None:
    scene = Scene("a")
    info = pod_info(from_object(member("m0")))
    scene.queue.add(queued_pod(info, scene.cluster, 0.0))
    scene.queue.nominate("uid-m0", "b")
    assert scene.ask("m1", a="p0") == {}
    scene.queue.withdraw("uid-m0", "b")
    assert scene.ask("m1", a="p0") != {}


def test_member_with_a_reserved_part_has_kube_schedulers_victims() -> None:
    scene = Scene("a", "b")
    for victim in CPUS:
        scene.tell("a", victim, ChangeKind.DELETED)
    info = pod_info(from_object(member("m0")))
    assert info.group is not None
    assert scene.groups.reserve(info.group, info.pod_request, "a") is None
    assert scene.ask("m1", a="p0", b="p0") == {"a": {"a-p0"}}


def test_late_member_gets_room_on_the_node_of_the_others_without_their_eviction() -> None:
    scene = Scene("a", "b")
    bound = tenant("p0", annotations={GROUP_ANNOTATION: "g/2"})
    bound["metadata"] |= {"uid": "a-p0"}
    bound["spec"]["nodeName"] = "a"
    scene.cluster.pods_changed([objects.of_pod(bound, ChangeKind.MODIFIED)])
    assert scene.ask("m1", a="p1", b="p1") == {"a": {"a-p3"}}
    assert scene.ask("m1", b="p1") == {}


def test_pod_without_topolet_requirements_keeps_the_named_victims() -> None:
    assert preempted(cluster(*FULL), pending(1, qos=""), "p0", "p3") == (["p0", "p3"], 0)


def test_budget() -> None:
    budgets = Budgets()
    budget = Budget("ns", "b", LabelSelector(GUARDED), 1)
    budgets.changed([Change(ChangeKind.ADDED, ObjectKey("ns", "b"), budget)])
    guarded = [tenant(name, labels=GUARDED if name in ("p2", "p3") else {}) for name in CPUS]
    assert preempted(cluster(*guarded), pending(4), "p0", "p3", budgets=budgets) == (
        ["p0", "p1"],
        0,
    )
    everyone = [tenant(name, labels=GUARDED) for name in CPUS]
    assert preempted(cluster(*everyone), pending(4), "p0", "p3", budgets=budgets) == (
        ["p2", "p3"],
        1,
    )


def test_mirror_of_a_static_pod_is_not_a_victim() -> None:
    mirror = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x"}
    pods = [tenant(name, annotations=mirror if name == "p3" else {}) for name in CPUS]
    assert preempted(cluster(*pods), pending(4), "p0", "p3") == (["p0", "p1"], 0)
    assert preempted(cluster(*pods), pending(4), "p0", "p3", constrained=True) is None


def test_terminating_pods_are_selected_first() -> None:
    pods = [tenant(name) for name in CPUS]
    for each in pods[:2]:
        each["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    assert preempted(cluster(*pods), pending(4), "p0", "p3") == (["p0", "p1"], 0)


XPU = "example.com/xpu"


def with_xpus(*tenants: dict[str, Any], of_kubelet: bool) -> SchedulerCache:
    """A node with two devices, or a node whose kubelet has them beside another node with a Device
    object."""
    it = cluster()
    node = objects.node("n")
    node["status"]["allocatable"][XPU] = "200"
    it.nodes_changed([objects.of_node(node)])
    devices = [Device("xpu", f"x{minor}", minor, {XPU: 100}) for minor in range(2)]
    body = device_object.encode("other" if of_kubelet else "n", devices)
    it.devices_changed([objects.of_devices(body)])
    it.pods_changed([objects.of_pod(each) for each in tenants])
    return it


def user_of_xpu(name: str, minor: int, amount: int) -> dict[str, Any]:
    allocation = {"xpu": [{"minor": minor, "resources": {XPU: str(amount)}}]}
    notes = {DEVICE_ALLOCATED: json.dumps(allocation)}
    body = objects.pod(name, "n", requests={XPU: str(amount)}, annotations=notes)
    body["spec"]["priority"] = 0
    return body


def test_victims_release_a_device_of_a_type_that_only_the_device_object_has() -> None:
    """Two halves of different devices are not one device: the victims that kube-scheduler selects
    by the sum are replaced."""
    users = [user_of_xpu(f"u{at}", at // 2, 50) for at in range(4)]
    new = objects.pod("new", requests={XPU: "100"})
    new["spec"]["priority"] = 10
    answer = preempted(with_xpus(*users, of_kubelet=False), new, "u0", "u2")
    assert answer is not None
    assert set(answer[0]) in ({"u0", "u1"}, {"u2", "u3"})
    on_kubelet = with_xpus(*users, of_kubelet=True)
    assert preempted(on_kubelet, new, "u0", "u2") == (["u0", "u2"], 0)
