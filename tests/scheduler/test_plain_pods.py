"""Pods without claims, through the extender's handlers: the available amounts of the NUMA zones
decide, less those of pods with a reservation and of pods that no report counts yet."""

from __future__ import annotations

import contextlib
import json
import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.kube.auth import FileAccess
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.kube.transport import Transport
from agent.model.cpu.policies import DeviceLocality
from agent.model.nrt.node_annotations import (
    AGENT_SETTINGS,
    AMPLIFICATION_RATIO,
    CPU_MANAGER_POLICY,
    NEAR_DEVICES,
)
from agent.model.pod import apiobjects
from agent.model.pod.annotations import DEVICE_LOCALITY
from agent.model.pod.qos import QOS_LABEL
from agent.scheduler.extender.extender import (
    ExtenderFilterResult,
)
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pods_api import BindingApi
from agent.scheduler.state.records import Unreadable
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Server
from tests.scheduler import clusters, objects, zonednodes
from tests.scheduler.podserver import PodServer
from tests.scheduler.zonednodes import GIB, NIC, Kubelet, Object, pod, topology

TWO_ZONES = {0: {"cpu": 4000, "memory": 8 * GIB}, 1: {"cpu": 4000, "memory": 8 * GIB}}
FOUR_CPUS = {"cpu": "4", "memory": "1"}
ONE_CPU = {"cpu": "1", "memory": "1"}
LSR = {"koordinator.sh/qosClass": "LSR"}


class Scene:
    """The handlers over a cluster, and the API server to which they bind."""

    def __init__(self, server: Server, transport: Transport) -> None:
        self.pods = PodServer(server).pods
        self.cluster = SchedulerCache(agents=False)
        self.extender = clusters.Extender(self.cluster, BindingApi(transport))
        self.names: list[str] = []

    def add_node(self, name: str, zones: zonednodes.Zones, report: Object | None = None) -> None:
        self.names.append(name)
        self.cluster.nodes_changed([objects.node_change(zonednodes.node(name, zones))])
        if report is not None:
            self.report_zones(report)

    def report_zones(self, report: Object) -> None:
        self.cluster.topologies_changed([objects.topology_change(report)])

    def report_pod(self, body: Object, node: str, phase: str = "Running") -> None:
        """A watch reports the pod on that node."""
        bound = {**body, "spec": {**body["spec"], "nodeName": node}, "status": {"phase": phase}}
        self.cluster.pods_changed([objects.pod_change(bound)])

    def delete_pod(self, body: Object, node: str) -> None:
        """A watch reports that the pod was deleted."""
        bound = {**body, "spec": {**body["spec"], "nodeName": node}}
        self.cluster.pods_changed([objects.pod_change(bound, ChangeKind.DELETED)])

    def filter(self, body: Object) -> ExtenderFilterResult:
        return self.extender.filter(apiobjects.from_object(body), self.names)

    def fits(self, body: Object) -> list[str]:
        """The names of the feasible nodes."""
        return list(self.filter(body).node_names)

    def bind(self, body: Object, node: str) -> str:
        """Returns the error, "" if the pod is bound."""
        self.pods["default", body["metadata"]["name"]] = body
        return self.extender.bind(apiobjects.from_object(body), node)


@pytest.fixture
def scene(server: Server, transport: Transport) -> Scene:
    return Scene(server, transport)


def with_koordinator_annotations(report: Object) -> Object:
    annotations = objects.topology("a")["metadata"]["annotations"]
    return {**report, "metadata": {**report["metadata"], "annotations": annotations}}


def used(zone: int, cpu: int, **more: int) -> dict[int, dict[str, int]]:
    return {zone: {"cpu": cpu, **more}}


def test_a_node_without_room_has_a_readable_reason(scene: Scene) -> None:
    scene.add_node(
        "full", TWO_ZONES, topology("full", TWO_ZONES, {0: {"cpu": 2000}, 1: {"cpu": 1000}})
    )
    scene.add_node("free", TWO_ZONES, topology("free", TWO_ZONES))
    scene.add_node("unreported", TWO_ZONES)
    result = scene.filter(pod("p", FOUR_CPUS))
    assert list(result.node_names) == ["free", "unreported"]
    assert result.failed_nodes == {
        "full": "container c0 requests 4 cpu: NUMA nodes 0, 1 have at most 3 left each"
    }


def test_two_pods_never_get_the_resources_of_one(scene: Scene) -> None:
    """The kubelet may place the first one on either NUMA node, before the agent reports it."""
    scene.add_node("a", {0: TWO_ZONES[0], 1: {**TWO_ZONES[1], "cpu": 5000}}, None)
    scene.report_zones(topology("a", {0: TWO_ZONES[0], 1: {**TWO_ZONES[1], "cpu": 5000}}))
    first, second = pod("p", FOUR_CPUS), pod("q", FOUR_CPUS)
    assert scene.fits(second) == ["a"]
    assert scene.bind(first, "a") == ""
    assert scene.filter(second).failed_nodes == {
        "a": "container c0 requests 4 cpu: NUMA nodes 0, 1 have at most 1 left each"
    }
    assert "container c0 requests 4 cpu" in scene.bind(second, "a")
    assert scene.fits(pod("r", ONE_CPU)) == ["a"]


def test_other_agents_report_only_pods_that_are_not_terminated(scene: Scene) -> None:
    scene.add_node("a", TWO_ZONES, topology("a", TWO_ZONES, used(0, 4000), ("p",)))
    scene.report_pod(pod("old", ONE_CPU), "a", "Failed")
    scene.report_pod(pod("p", FOUR_CPUS), "a")
    assert scene.fits(pod("q", FOUR_CPUS)) == ["a"]


def test_other_agents_report_pods_that_the_kubelet_has_admitted(scene: Scene) -> None:
    """Their phase is Pending while the kubelet pulls images."""
    scene.add_node("a", TWO_ZONES, topology("a", TWO_ZONES))
    for name in ("p", "late"):
        scene.report_pod(pod(name, FOUR_CPUS if name == "p" else ONE_CPU), "a", "Pending")
    scene.report_zones(topology("a", TWO_ZONES, used(0, 4000), ("p",)))
    assert scene.fits(pod("q", FOUR_CPUS)) == []
    assert scene.fits(pod("r", {"cpu": "3", "memory": "1"})) == ["a"]
    scene.report_zones(topology("a", TWO_ZONES, used(0, 4000), ("p", "late")))
    assert scene.fits(pod("q", FOUR_CPUS)) == ["a"]


def test_a_pod_with_the_name_of_a_deleted_one_is_not_counted_by_its_report(
    scene: Scene,
) -> None:
    before = pod("web-0", FOUR_CPUS)
    scene.add_node("a", TWO_ZONES, topology("a", TWO_ZONES, used(0, 4000), ("web-0",)))
    scene.report_pod(before, "a")
    scene.delete_pod(before, "a")
    again = pod("web-0", FOUR_CPUS)
    again["metadata"]["uid"] = "uid-again"
    scene.report_pod(again, "a", "Pending")
    assert scene.fits(pod("q", FOUR_CPUS)) == []
    assert scene.fits(pod("r", ONE_CPU)) == []


def test_a_report_may_count_only_pods_with_exclusive_resources(scene: Scene) -> None:
    method = "with-exclusive-resources"
    scene.add_node(
        "a", TWO_ZONES, topology("a", TWO_ZONES, used(0, 4000), ("exclusive",), method=method)
    )
    scene.report_pod(pod("shared", {"cpu": "1", "memory": "1"}, limited=False), "a")
    assert scene.fits(pod("q", FOUR_CPUS)) == []
    scene.report_pod(pod("exclusive", FOUR_CPUS), "a")
    assert scene.fits(pod("q", FOUR_CPUS)) == ["a"]


@pytest.mark.parametrize("phases", [("Running",), ("Pending", "Running")])
def test_a_report_without_a_fingerprint_counts_all_pods_that_started_before_it(
    scene: Scene, phases: tuple[str, ...]
) -> None:
    scene.add_node("a", TWO_ZONES, topology("a", TWO_ZONES, pods=None))
    first, second = pod("p", FOUR_CPUS), pod("q", FOUR_CPUS)
    scene.bind(first, "a")
    for cpu, phase in enumerate(phases):
        scene.report_zones(topology("a", TWO_ZONES, used(0, cpu), pods=None))
        assert scene.fits(second) == []
        scene.report_pod(first, "a", phase)
        assert scene.fits(second) == []
    scene.report_zones(topology("a", TWO_ZONES, used(0, 4000), pods=None))
    assert scene.fits(second) == ["a"]


def test_pods_with_claims_use_resources_of_their_allocated_numa_nodes(scene: Scene) -> None:
    """Topolet allocates the CPUs of LSR pods, whatever the report counts for them."""
    scene.add_node("a", TWO_ZONES, with_koordinator_annotations(topology("a", TWO_ZONES)))
    lsr_pod = pod("lsr", {"cpu": "2", "memory": "1"}, labels=LSR, priority=9500)
    assert scene.fits(lsr_pod) == ["a"]
    assert scene.bind(lsr_pod, "a") == ""
    assert scene.fits(pod("q", FOUR_CPUS)) == ["a"]
    (binding,) = [each for each in scene.pods.values() if each["spec"]["nodeName"]]
    scene.report_pod(binding, "a")
    assert scene.fits(pod("q", FOUR_CPUS)) == ["a"]
    assert scene.bind(pod("q", FOUR_CPUS), "a") == ""
    assert scene.fits(pod("r", {"cpu": "3", "memory": "1"})) == []


def test_the_cores_of_a_kubelet_with_full_pcpus_only_are_counted(scene: Scene) -> None:
    """Three of four cores are not reserved. Node b has another kubelet."""
    manager = {"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0"}
    for name, policy in (("a", manager), ("b", {"policy": "none"})):
        report = with_koordinator_annotations(topology(name, TWO_ZONES, policy="none"))
        annotations = {**report["metadata"]["annotations"], CPU_MANAGER_POLICY: json.dumps(policy)}
        report["metadata"]["annotations"] = annotations
        scene.add_node(name, TWO_ZONES, report)
    first, second = pod("first", FOUR_CPUS), pod("second", FOUR_CPUS)
    assert scene.fits(pod("three", {"cpu": "3", "memory": "1"})) == ["b"]
    assert scene.fits(first) == ["a", "b"]
    assert scene.bind(first, "a") == ""
    assert scene.fits(second) == ["b"]
    reason = scene.filter(second).failed_nodes["a"]
    assert reason.startswith("cpu: not enough CPUs that suit the bind policy (container c0, ")
    assert "available 2" in reason
    scene.report_pod(first, "a")
    assert scene.fits(second) == ["b"]
    scene.delete_pod(first, "a")
    assert scene.fits(second) == ["a", "b"]


def test_pods_with_a_koordinator_qos_class_are_not_checked_by_zones(scene: Scene) -> None:
    """Koordinator's NUMA policy applies to LS pods too, with their shared CPUs; zones count only
    exclusive CPUs."""
    report = topology("a", TWO_ZONES, {0: {"cpu": 4000}, 1: {"cpu": 4000}}, ("unknown",))
    scene.add_node("a", TWO_ZONES, with_koordinator_annotations(report))
    assert scene.fits(pod("p", ONE_CPU, labels={"koordinator.sh/qosClass": "LS"})) == ["a"]
    assert scene.fits(pod("q", ONE_CPU)) == []


CARD = "vendor.com/card"
CARDS = {zone: {"cpu": 16000, CARD: 4} for zone in (0, 1)}


def with_agent(report: Object, policy: str = "prefer", near: Object | None = None) -> Object:
    """The report of an agent with this device locality. `near`: the requests near to devices in
    milli-CPU, by NUMA nodes."""
    requests = [
        {"numaNodes": nodes, "cpuMilli": cpu_milli} for nodes, cpu_milli in (near or {}).items()
    ]
    annotations = {
        AGENT_SETTINGS: json.dumps({"deviceLocality": policy}),
        NEAR_DEVICES: json.dumps(requests),
    }
    return {**report, "metadata": {**report["metadata"], "annotations": annotations}}


def cards_used(name: str, *used_of_zones: int, policy: str = "best-effort") -> Object:
    of_zones = {zone: {CARD: cards} for zone, cards in enumerate(used_of_zones)}
    return topology(name, CARDS, of_zones, policy=policy)


def with_cards(name: str, count: int, locality: str = "") -> Object:
    """A Burstable pod."""
    body = pod(name, {"cpu": "4", CARD: str(count)}, limited=False)
    body["metadata"]["annotations"] = {DEVICE_LOCALITY: locality} if locality else {}
    return body


def test_nodes_where_devices_and_cpus_are_near_are_preferred(scene: Scene) -> None:
    scene.add_node("apart", CARDS, with_agent(cards_used("apart", 3, 3)))
    scene.add_node("no-cpus", CARDS, with_agent(cards_used("no-cpus", 2, 2), near={"0": 13000}))
    scene.add_node("near", CARDS, with_agent(cards_used("near", 2, 2), near={"0": 12000}))
    scene.add_node("empty", CARDS, with_agent(cards_used("empty", 0, 0)))
    scene.add_node("without-report", CARDS)
    body = with_cards("p", 2)
    assert scene.fits(body) == scene.names, "no node is excluded"
    scores = scene.extender.scores(apiobjects.from_object(body), scene.names)
    assert sorted(scores, key=lambda name: -scores[name])[:2] == ["near", "empty"]
    assert scores["near"] == 10
    assert max(scores["apart"], scores["no-cpus"], scores["without-report"]) < scores["empty"]


@pytest.mark.parametrize(
    ("node", "of_namespace", "of_pod", "nodes"),
    [
        ("prefer", None, "require", ["near"]),
        ("prefer", "require", "", ["near"]),
        ("require", None, "", ["near"]),
        ("require", "prefer", "", ["apart", "near"]),
        ("prefer", "require", "off", ["apart", "near"]),
        ("off", None, "require", ["near"]),
    ],
)
def test_the_pod_or_else_its_namespace_or_else_the_node_requires_it(
    scene: Scene, node: str, of_namespace: str | None, of_pod: str, nodes: list[str]
) -> None:
    scene.add_node("apart", CARDS, with_agent(cards_used("apart", 3, 3), node))
    scene.add_node("near", CARDS, with_agent(cards_used("near", 2, 2), node))
    if of_namespace is not None:
        locality = DeviceLocality(of_namespace)
        scene.cluster.namespaces_changed(
            [Change(ChangeKind.ADDED, ObjectKey("", "default"), locality)]
        )
    assert scene.fits(with_cards("p", 2, of_pod)) == nodes


@pytest.mark.parametrize(
    ("labels", "of_node"),
    [
        ({QOS_LABEL: "LS"}, {}),
        ({QOS_LABEL: "BE"}, {}),
        ({}, {AMPLIFICATION_RATIO: '{"cpu": 1.5}'}),
    ],
)
def test_pods_that_koordinators_rules_bind_to_nothing_meet_the_requirement_too(
    scene: Scene, labels: dict[str, str], of_node: dict[str, str]
) -> None:
    """`of_node`: the annotations of the Nodes."""
    for name, cards in (("apart", 3), ("near", 2)):
        body = zonednodes.node(name, CARDS)
        body["metadata"]["annotations"] = of_node
        scene.names.append(name)
        scene.cluster.nodes_changed([objects.node_change(body)])
        report = with_agent(cards_used(name, cards, cards, policy="none"))
        of_cpus = objects.topology("a")["metadata"]["annotations"]
        report["metadata"]["annotations"] = {**of_cpus, **report["metadata"]["annotations"]}
        scene.report_zones(report)
    requiring, preferring = with_cards("p", 2, "require"), with_cards("q", 2)
    for body in (requiring, preferring):
        body["metadata"]["labels"] = labels
    assert scene.fits(requiring) == ["near"]
    assert scene.bind(requiring, "near") == ""
    assert scene.bind(with_cards("r", 2, "require"), "near") != ""
    assert scene.fits(preferring) == ["apart", "near"]


def test_a_report_of_devices_concerns_no_pods_without_any(scene: Scene) -> None:
    scene.add_node("a", CARDS, with_agent(cards_used("a", 0, 0, policy="none")))
    logs = (scene.cluster.changed_since, scene.cluster.zones_changed_since)

    def logged(used: int, policy: str) -> list[bool]:
        assert scene.fits(pod("p", ONE_CPU)) == ["a"], "the node has read its last report"
        serials = [log(0).serial for log in logs]
        scene.report_zones(with_agent(cards_used("a", used, used, policy=policy)))
        return [bool(log(serial).names) for log, serial in zip(logs, serials, strict=True)]

    assert logged(3, "none") == [True, False]
    assert logged(3, "restricted") == [True, True]
    assert logged(2, "restricted") == [True, True]
    assert logged(2, "none") == [True, True]


def test_a_node_whose_agent_ignores_devices_is_not_preferred(scene: Scene) -> None:
    scene.add_node("ignored", CARDS, with_agent(cards_used("ignored", 0, 0), "off"))
    scene.add_node("near", CARDS, with_agent(cards_used("near", 0, 0)))
    body = with_cards("p", 2)
    assert scene.fits(body) == ["ignored", "near"]
    scores = scene.extender.scores(apiobjects.from_object(body), scene.names)
    assert scores["near"] > scores["ignored"]


def test_a_node_that_does_not_meet_the_requirement_has_a_reason(scene: Scene) -> None:
    scene.add_node("apart", CARDS, with_agent(cards_used("apart", 3, 3)))
    scene.add_node("full", CARDS, with_agent(cards_used("full", 2, 2), near={"0": 13000}))
    scene.add_node("other-agent", CARDS, cards_used("other-agent", 0, 0))
    scene.add_node("without-report", CARDS)
    result = scene.filter(with_cards("p", 2, "require"))
    assert result.failed_nodes == {
        "apart": "container c0 requests 2 vendor.com/card: the free ones are on more NUMA nodes "
        "than on an empty machine: NUMA nodes 0, 1",
        "full": "container c0 requests 4 cpu: NUMA nodes 0 of its devices have 3 left",
    }
    unreported = (
        "vendor.com/card: CPUs do not follow devices there "
        "(no report of a current Topolet agent lists them)"
    )
    assert result.failed_and_unresolvable_nodes == {
        "other-agent": unreported,
        "without-report": unreported,
    }
    refused = scene.filter(with_cards("q", 2, "near")).failed_and_unresolvable_nodes
    assert set(refused.values()) == {
        "pod default/q: annotation topolet.io/device-locality: value: 'near' is not one of off, "
        "prefer, bind, require"
    }


def test_cards_that_no_device_object_lists_are_placed_by_zones(scene: Scene) -> None:
    """Without the report of Topolet's agent, it is not known whether the node's Device object is
    only missing yet."""
    zones = {zone: {"cpu": 16000, "nvidia.com/gpu": 4} for zone in (0, 1)}
    scene.add_node("without-agent", zones, topology("without-agent", zones, policy="none"))
    scene.add_node("of-plugin", zones, with_agent(topology("of-plugin", zones, policy="none")))
    body = pod("p", {"cpu": "4", "nvidia.com/gpu": "2"}, limited=False)
    assert scene.fits(body) == ["of-plugin"]
    unreadable = Unreadable("Device of-plugin: has too many devices")
    key = ObjectKey("", "of-plugin")
    scene.cluster.devices_changed([Change(ChangeKind.ADDED, key, unreadable)])
    assert scene.filter(body).failed_and_unresolvable_nodes["of-plugin"] == unreadable.text
    scene.cluster.devices_changed([Change(ChangeKind.DELETED, key, unreadable)])
    assert scene.bind(body, "of-plugin") == ""


def test_a_bound_pod_counts_near_to_its_devices_before_a_report_does(scene: Scene) -> None:
    scene.add_node("a", CARDS, with_agent(cards_used("a", 0, 0), near={"0": 9000}))
    first, second = with_cards("p", 1, "require"), with_cards("q", 1, "require")
    assert scene.fits(second) == ["a"]
    assert scene.bind(first, "a") == ""
    assert scene.fits(second) == []
    assert "NUMA nodes 0 of its devices have 3 left" in scene.bind(second, "a")


class World:
    """One scheduler, two nodes with kubelets, and watches that deliver their events at any time."""

    NODES = ("n1", "n2")

    def __init__(self, scene: Scene, rng: random.Random, *, other_scheduler: bool) -> None:
        """`other_scheduler`: another scheduler binds pods too, without the extender."""
        self.rng = rng
        self._other_scheduler = other_scheduler
        self.scene = scene
        self.kubelets: dict[str, Kubelet] = {}
        self.api: dict[str, Object] = {}
        self.events: dict[str, deque[tuple[Object, ChangeKind]]] = {
            kind: deque() for kind in ("pods", "zones")
        }
        self.reports: dict[str, Object] = {}
        self.created = 0
        for name in self.NODES:
            zones = {
                zone: {"cpu": 1000 * rng.randrange(2, 7), "memory": 16, NIC: rng.randrange(3)}
                for zone in rng.choice(((0,), (0, 1), (0, 2, 5)))
            }
            self.kubelets[name] = Kubelet(name, zones, rng.choice(("pod", "container")))
            self.scene.add_node(name, zones)
            self.report_zones(name)
            self.deliver_event("zones")

    def create_and_bind_pod(self) -> None:
        """Creates a pod without claims and binds it to a feasible node, if there is one."""
        body = self._created_pod()
        if self._other_scheduler and self.rng.random() < 0.3:
            self._bind(body, self.rng.choice(self.NODES))
        elif feasible := self.scene.fits(body):
            node = self.rng.choice(feasible)
            error = self.scene.bind(body, node)
            if "another scheduler bound a pod to it since the filter" in error:
                assert self._other_scheduler
                return
            assert error == ""
            assert self._bind(body, node) or self._other_scheduler, (body, node)

    def _created_pod(self) -> Object:
        self.created += 1
        name = f"p{self.created}"
        first = {"cpu": str(self.rng.randrange(1, 5)), "memory": str(self.rng.randrange(1, 9))}
        containers = [first]
        if self.rng.random() < 0.3:
            first[NIC] = "1"
        elif self.rng.random() < 0.3:
            containers.append({"cpu": "1", "memory": "1"})
        return pod(name, *containers, limited=self.rng.random() < 0.8)

    def _bind(self, body: Object, node: str) -> bool:
        """Binds the pod. Returns whether the kubelet admits it; otherwise the pod fails."""
        guaranteed = bool(body["spec"]["containers"][0]["resources"]["limits"])
        admitted = not guaranteed or self.kubelets[node].admit(body)
        status = {"phase": "Pending" if admitted else "Failed"}
        bound = {**body, "spec": {**body["spec"], "nodeName": node}, "status": status}
        self.api[body["metadata"]["name"]] = bound
        self._event("pods", bound)
        return admitted

    def start_pod(self) -> None:
        self._change_phase("Pending", "Running")

    def terminate_pod(self) -> None:
        if (body := self._change_phase("Running", "Succeeded")) is not None:
            self._kubelet(body).terminate(body["metadata"]["name"])

    def delete_pod(self) -> None:
        if self.api:
            name = self.rng.choice(sorted(self.api))
            deleted = self.api.pop(name)
            self._kubelet(deleted).terminate(name)
            self._event("pods", deleted, ChangeKind.DELETED)

    def report_zones(self, node: str = "") -> None:
        """An agent writes its report if it changed."""
        name = node or self.rng.choice(self.NODES)
        started = tuple(
            each["metadata"]["name"]
            for each in self.api.values()
            if each["spec"]["nodeName"] == name and each["status"]["phase"] != "Pending"
        )
        report = self.kubelets[name].report(started)
        if self.reports.get(name) != report:
            self.reports[name] = report
            self._event("zones", report)

    def deliver_event(self, kind: str = "") -> None:
        queue = self.events[kind or self.rng.choice(sorted(self.events))]
        if not queue:
            return
        body, change_kind = queue.popleft()
        if queue is self.events["zones"]:
            self.scene.cluster.topologies_changed([objects.topology_change(body, change_kind)])
        else:
            self.scene.cluster.pods_changed([objects.pod_change(body, change_kind)])

    ACTIONS = (
        (create_and_bind_pod, 6),
        (start_pod, 4),
        (terminate_pod, 1),
        (delete_pod, 2),
        (report_zones, 4),
        (deliver_event, 9),
    )

    def step(self) -> None:
        actions, weights = zip(*self.ACTIONS, strict=True)
        self.rng.choices(actions, weights)[0](self)

    def settle(self) -> None:
        for name in self.NODES:
            self.report_zones(name)
        for kind in self.rng.sample(sorted(self.events), 2):
            while self.events[kind]:
                self.deliver_event(kind)

    def _change_phase(self, before: str, after: str) -> Object | None:
        names = [name for name, each in self.api.items() if each["status"]["phase"] == before]
        if not names:
            return None
        name = self.rng.choice(names)
        body = self.api[name] = {**self.api[name], "status": {"phase": after}}
        self._event("pods", body)
        return body

    def _kubelet(self, body: Object) -> Kubelet:
        return self.kubelets[body["spec"]["nodeName"]]

    def _event(
        self, kind: str, body: Object, change_kind: ChangeKind = ChangeKind.MODIFIED
    ) -> None:
        self.events[kind].append((body, change_kind))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 80), other_scheduler=st.booleans())
def test_no_zone_resource_is_allocated_twice_or_lost(
    seed: int, steps: int, other_scheduler: bool
) -> None:
    """In any order of reports and events, no kubelet rejects a pod unless another scheduler binds
    pods too. Once all events are delivered, the filter returns the nodes whose kubelet has room."""
    with (
        fake_api_server.serving() as server,
        contextlib.closing(Transport(FileAccess(server.url))) as transport,
    ):
        scene = Scene(server, transport)
        world = World(scene, random.Random(seed), other_scheduler=other_scheduler)
        for _ in range(steps):
            world.step()
        while any(each["status"]["phase"] == "Pending" for each in world.api.values()):
            world.start_pod()
        world.settle()
        for name, kubelet in world.kubelets.items():
            for cpus in range(1, 7):
                body = pod(f"last-{name}-{cpus}", {"cpu": str(cpus), "memory": "1"})
                fits = kubelet.admit(body)
                kubelet.terminate(body["metadata"]["name"])
                assert (name in scene.fits(body)) is fits, (name, cpus)
