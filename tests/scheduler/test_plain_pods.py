"""Plain pods through the handlers: the zones of nodes decide, with all pods that are reserved or
not reported yet."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.node_allocator.properties import AllocatorRules
from agent.kube.auth import FileAccess
from agent.kube.objects import ChangeKind
from agent.kube.transport import Transport
from agent.model import apiobjects
from agent.model.cpu.policies import Strategy
from agent.model.settings.plugin_args import ZoneScoring
from agent.scheduler.extender.equivalence_cache import EquivalenceCache
from agent.scheduler.extender.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderFilterResult,
)
from agent.scheduler.state.binder import Binder
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfoCache, pod_info
from agent.scheduler.state.pods_api import BindingApi
from agent.scheduler.unschedulable.queue import UnschedulableQueue, queued_pod
from tests.kube import fake_api_server
from tests.scheduler import clusters, objects, zonednodes
from tests.scheduler.podserver import PodServer
from tests.scheduler.zonednodes import GIB, NIC, Kubelet, Object, pod, topology

TWO = {0: {"cpu": 4000, "memory": 8 * GIB}, 1: {"cpu": 4000, "memory": 8 * GIB}}
NICS = {0: {**TWO[0], NIC: 0}, 1: {**TWO[1], NIC: 2}}
FOUR = {"cpu": "4", "memory": "1"}
ONE = {"cpu": "1", "memory": "1"}
LSR = {"koordinator.sh/qosClass": "LSR"}


class Scene:
    """The handlers over a cluster, and the API server to which they bind."""

    def __init__(self, server: fake_api_server.Server, strategy: str = "LeastAllocated") -> None:
        self.pods = PodServer(server).pods
        rules = AllocatorRules(zones=ZoneScoring(Strategy(strategy)))
        self.cluster = SchedulerCache(agents=False, rules=rules)
        self.transport = Transport(FileAccess(server.url))
        groups, pod_infos = GroupReservations(self.cluster), PodInfoCache()
        binder = Binder(self.cluster, groups, BindingApi(self.transport), pod_infos)
        self.verbs = clusters.handlers(self.cluster, groups, binder.bind, pod_infos)
        self.names: list[str] = []

    def node(self, name: str, zones: zonednodes.Zones, told: Object | None = None) -> None:
        self.names.append(name)
        self.cluster.nodes_changed([objects.of_node(zonednodes.node(name, zones))])
        if told is not None:
            self.tell(told)

    def tell(self, told: Object) -> None:
        self.cluster.topologies_changed([objects.of_topology(told)])

    def see(self, told: Object, node: str, phase: str = "Running") -> None:
        """A watch reports the pod on that node."""
        spec = {**told["spec"], "nodeName": node}
        shown = {**told, "spec": spec, "status": {"phase": phase}}
        self.cluster.pods_changed([objects.of_pod(shown)])

    def forget(self, told: Object, node: str) -> None:
        """It is deleted."""
        spec = {**told["spec"], "nodeName": node}
        self.cluster.pods_changed([objects.of_pod({**told, "spec": spec}, ChangeKind.DELETED)])

    def filter(self, told: Object) -> ExtenderFilterResult:
        return self.verbs.filter(ExtenderArgs(apiobjects.from_object(told), self.names))

    def fits(self, told: Object) -> list[str]:
        names = self.filter(told).node_names
        return list(names)

    def scores(self, told: Object) -> dict[str, int]:
        raw = self.verbs.prioritize(ExtenderArgs(apiobjects.from_object(told), self.names))
        entries = json.loads(bytes(raw))
        return {each["Host"]: each["Score"] for each in entries}

    def bind(self, told: Object, node: str) -> str:
        metadata = told["metadata"]
        self.pods["default", metadata["name"]] = told
        args = ExtenderBindingArgs(metadata["name"], "default", metadata["uid"], node)
        return self.verbs.bind(args).error


@pytest.fixture
def scene(server: fake_api_server.Server) -> Iterator[Scene]:
    it = Scene(server)
    yield it
    it.transport.close()


def used(zone: int, cpu: int, **more: int) -> dict[int, dict[str, int]]:
    return {zone: {"cpu": cpu, **more}}


def test_insufficient_zones_have_a_readable_reason(scene: Scene) -> None:
    scene.node("full", TWO, topology("full", TWO, {0: {"cpu": 2000}, 1: {"cpu": 1000}}))
    scene.node("free", TWO, topology("free", TWO))
    scene.node("untold", TWO)
    result = scene.filter(pod("p", FOUR))
    assert list(result.node_names) == ["free", "untold"]
    assert result.failed_nodes == {
        "full": "container c0 requests 4 cpu: NUMA nodes 0, 1 have at most 3 left each"
    }


def test_reasons_that_no_eviction_resolves_are_unresolvable(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO, used(0, 1000)))
    result = scene.filter(pod("p", {"cpu": "5", "memory": "1"}))
    assert list(result.failed_and_unresolvable_nodes) == ["a"]
    result = scene.filter(pod("q", {"cpu": "1", "memory": "1", "hugepages-2Mi": "1"}))
    assert result.failed_and_unresolvable_nodes == {
        "a": "container c0 requests 1 hugepages-2Mi: the node has none"
    }


def test_containers_may_be_on_different_zones_only_in_container_scope(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO))
    scene.node("b", TWO, topology("b", TWO, scope="pod"))
    assert scene.fits(pod("p", FOUR, ONE)) == ["a"]


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_kubelets_that_reject_no_pod_get_all_pods(scene: Scene, policy: str) -> None:
    scene.node("a", TWO, topology("a", TWO, used(0, 4000), policy=policy))
    assert scene.fits(pod("p", {"cpu": "7", "memory": "1"})) == ["a"]


def test_zones_ignore_pods_without_exclusive_resources(scene: Scene) -> None:
    """Not even those of a node whose report counts unknown pods."""
    scene.node("a", TWO, topology("a", TWO, used(0, 4000), ("stranger",)))
    for told in (pod("p"), pod("q", {"cpu": "8", "memory": "1"}, limited=False)):
        assert scene.fits(told) == ["a"]


def test_two_pods_never_get_the_resources_of_one(scene: Scene) -> None:
    """The kubelet may place the first one on either NUMA node, before the agent reports it."""
    scene.node("a", {0: TWO[0], 1: {**TWO[1], "cpu": 5000}}, None)
    scene.tell(topology("a", {0: TWO[0], 1: {**TWO[1], "cpu": 5000}}))
    first, second = pod("p", FOUR), pod("q", FOUR)
    assert scene.fits(second) == ["a"]
    assert scene.bind(first, "a") == ""
    assert scene.filter(second).failed_nodes == {
        "a": "container c0 requests 4 cpu: NUMA nodes 0, 1 have at most 1 left each"
    }
    assert "container c0 requests 4 cpu" in scene.bind(second, "a")
    assert scene.fits(pod("r", ONE)) == ["a"]


def test_a_failed_binding_releases_the_reservation(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO))
    told = pod("p", FOUR)
    scene.fits(told)
    args = ExtenderBindingArgs("p", "default", "uid-p", "a")
    assert "404" in scene.verbs.bind(args).error
    assert scene.fits(pod("q", FOUR)) == ["a"]


def test_a_report_that_counts_the_pod_replaces_the_assumption(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO))
    first, second = pod("p", FOUR), pod("q", FOUR)
    scene.bind(first, "a")
    scene.see(first, "a", "Pending")
    assert scene.fits(second) == []
    scene.see(first, "a")
    assert scene.fits(second) == []
    scene.tell(topology("a", TWO, used(0, 4000), ("p",)))
    assert scene.fits(second) == ["a"]


def test_a_pod_of_another_scheduler_counts_as_soon_as_a_watch_shows_it(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO))
    scene.see(pod("foreign", FOUR), "a", "Pending")
    assert scene.fits(pod("q", FOUR)) == []
    assert scene.fits(pod("r", ONE)) == []


def test_reports_of_unknown_pods_wait_for_the_watch(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO))
    scene.tell(topology("a", TWO, used(0, 4000), ("early",)))
    refused = scene.filter(pod("q", FOUR))
    assert refused.failed_and_unresolvable_nodes == {
        "a": "the report of its NUMA nodes counts other pods than the scheduler knows"
    }
    scene.see(pod("early", FOUR), "a")
    assert scene.fits(pod("q", FOUR)) == ["a"]


def test_a_report_may_count_a_running_pod_before_the_watch_reports_it(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO))
    slow, fast = pod("slow", ONE), pod("fast", ONE)
    for each in (slow, fast):
        scene.see(each, "a", "Pending")
    scene.tell(topology("a", TWO, used(0, 1000), ("fast",)))
    assert scene.fits(pod("q", {"cpu": "3", "memory": "1"})) == []
    scene.see(fast, "a")
    assert scene.fits(pod("q", {"cpu": "3", "memory": "1"})) == ["a"]
    assert scene.fits(pod("r", FOUR)) == []


@pytest.mark.parametrize("last_word", ["a", ""])
def test_only_the_amounts_of_a_deleted_pod_stay_unavailable(scene: Scene, last_word: str) -> None:
    told = pod("old", FOUR)
    scene.node("a", TWO, topology("a", TWO, used(0, 4000), ("old",)))
    scene.see(told, "a")
    scene.forget(told, last_word)
    assert scene.fits(pod("q", FOUR)) == ["a"]
    assert scene.fits(pod("r", FOUR, FOUR)) == []


def test_an_unschedulable_pod_is_retried_after_a_report_with_room(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO, {0: {"cpu": 4000}, 1: {"cpu": 4000}}))
    told = pod("p", FOUR)
    queue, views = UnschedulableQueue(), EquivalenceCache(scene.cluster)
    queue.add(queued_pod(pod_info(apiobjects.from_object(told)), scene.cluster, 0.0))
    assert queue.retryable(views, 1.0) == []
    scene.tell(topology("a", TWO, used(0, 1000)))
    assert [(each.queued.name, each.node) for each in queue.retryable(views, 2.0)] == [("p", "a")]


def test_a_deleted_pod_keeps_its_zone_until_the_next_report(scene: Scene) -> None:
    told = pod("old", FOUR)
    scene.node("a", TWO, topology("a", TWO, used(0, 4000), ("old",)))
    scene.see(told, "a")
    other = pod("p", FOUR)
    scene.bind(other, "a")
    assert scene.fits(pod("q", FOUR)) == []
    scene.forget(told, "a")
    assert scene.fits(pod("q", FOUR)) == []
    scene.see(other, "a")
    scene.tell(topology("a", TWO, used(1, 4000), ("p",)))
    assert scene.fits(pod("q", FOUR)) == ["a"]


def test_a_terminated_pod_is_in_reports_until_it_is_deleted(scene: Scene) -> None:
    old, older = pod("old", FOUR), pod("older", FOUR)
    for each in (older, old):
        scene.see(each, "a", "Succeeded")
    scene.see(pod("p", ONE), "a")
    scene.node("a", TWO, topology("a", TWO, used(0, 1000), ("older", "old", "p")))
    assert scene.fits(pod("q", FOUR)) == ["a"]
    scene.tell(topology("a", TWO, used(0, 1000), ("old", "p")))
    assert scene.fits(pod("q", FOUR)) == []
    scene.forget(older, "a")
    assert scene.fits(pod("q", FOUR)) == ["a"]


def test_other_reporters_name_only_pods_that_have_not_ended(scene: Scene) -> None:
    scene.node("a", TWO, topology("a", TWO, used(0, 4000), ("p",)))
    scene.see(pod("old", ONE), "a", "Failed")
    scene.see(pod("p", FOUR), "a")
    assert scene.fits(pod("q", FOUR)) == ["a"]


def test_other_reporters_count_pods_that_the_kubelet_has_admitted(scene: Scene) -> None:
    """It pulls their images still."""
    scene.node("a", TWO, topology("a", TWO))
    for name in ("p", "late"):
        scene.see(pod(name, FOUR if name == "p" else ONE), "a", "Pending")
    scene.tell(topology("a", TWO, used(0, 4000), ("p",)))
    assert scene.fits(pod("q", FOUR)) == []
    assert scene.fits(pod("r", {"cpu": "3", "memory": "1"})) == ["a"]
    scene.tell(topology("a", TWO, used(0, 4000), ("p", "late")))
    assert scene.fits(pod("q", FOUR)) == ["a"]


def test_a_pod_with_the_name_of_a_deleted_one_is_not_counted_by_its_report(
    scene: Scene,
) -> None:
    before = pod("web-0", FOUR)
    scene.node("a", TWO, topology("a", TWO, used(0, 4000), ("web-0",)))
    scene.see(before, "a")
    scene.forget(before, "a")
    again = pod("web-0", FOUR)
    again["metadata"]["uid"] = "uid-again"
    scene.see(again, "a", "Pending")
    assert scene.fits(pod("q", FOUR)) == []
    assert scene.fits(pod("r", ONE)) == []


def test_reports_that_count_only_owners(scene: Scene) -> None:
    few = "with-exclusive-resources"
    scene.node("a", TWO, topology("a", TWO, used(0, 4000), ("owner",), method=few))
    scene.see(pod("sharer", {"cpu": "1", "memory": "1"}, limited=False), "a")
    assert scene.fits(pod("q", FOUR)) == []
    scene.see(pod("owner", FOUR), "a")
    assert scene.fits(pod("q", FOUR)) == ["a"]


@pytest.mark.parametrize("phases", [("Running",), ("Pending", "Running")])
def test_a_node_without_a_fingerprint_counts_all_that_began_before_its_report(
    scene: Scene, phases: tuple[str, ...]
) -> None:
    scene.node("a", TWO, topology("a", TWO, pods=None))
    first, second = pod("p", FOUR), pod("q", FOUR)
    scene.bind(first, "a")
    for cpu, phase in enumerate(phases):
        scene.tell(topology("a", TWO, used(0, cpu), pods=None))
        assert scene.fits(second) == []
        scene.see(first, "a", phase)
        assert scene.fits(second) == []
    scene.tell(topology("a", TWO, used(0, 4000), pods=None))
    assert scene.fits(second) == ["a"]


def test_pods_with_claims_take_from_their_allocated_numa_nodes(scene: Scene) -> None:
    """LSR pods get CPUs from Topolet, whatever the kubelet reports of them."""
    machine = objects.topology("a")
    told = topology("a", TWO)
    told["metadata"] |= {"annotations": machine["metadata"]["annotations"]}
    scene.node("a", TWO, told)
    owner = pod("owner", {"cpu": "2", "memory": "1"}, labels=LSR, priority=9500)
    assert scene.fits(owner) == ["a"]
    assert scene.bind(owner, "a") == ""
    assert scene.fits(pod("q", FOUR)) == ["a"]
    (binding,) = [each for each in scene.pods.values() if each["spec"]["nodeName"]]
    scene.see(binding, "a")
    assert scene.fits(pod("q", FOUR)) == ["a"]
    assert scene.bind(pod("q", FOUR), "a") == ""
    assert scene.fits(pod("r", {"cpu": "3", "memory": "1"})) == []


def test_koordinators_pods_are_not_checked_by_zones(scene: Scene) -> None:
    """Its policy applies to LS pods too, with their shared CPUs: zones report only exclusive
    CPUs."""
    told = topology("a", TWO, {0: {"cpu": 4000}, 1: {"cpu": 4000}}, ("stranger",))
    told["metadata"] |= {"annotations": objects.topology("a")["metadata"]["annotations"]}
    scene.node("a", TWO, told)
    assert scene.fits(pod("p", ONE, labels={"koordinator.sh/qosClass": "LS"})) == ["a"]
    assert scene.fits(pod("q", ONE)) == []


@pytest.mark.parametrize(
    ("strategy", "policy", "expected"),
    [
        ("LeastAllocated", "single-numa-node", "free"),
        ("MostAllocated", "single-numa-node", "busy"),
        ("LeastNUMANodes", "best-effort", "free"),
    ],
)
def test_the_configured_strategy_chooses_the_node(
    server: fake_api_server.Server, strategy: str, policy: str, expected: str
) -> None:
    scene = Scene(server, strategy)
    most = {zone: {"cpu": 1000, "memory": 4 * GIB} for zone in TWO}
    scene.node("busy", TWO, topology("busy", TWO, most, policy=policy))
    scene.node("free", TWO, topology("free", TWO, policy=policy))
    cpus = "4" if policy == "best-effort" else "2"
    scores = scene.scores(pod("p", {"cpu": cpus, "memory": str(GIB)}))
    assert [name for name, each in scores.items() if each == 10] == [expected]
    scene.transport.close()


class World:
    """One scheduler, two nodes with kubelets, and watches that report at any time."""

    NODES = ("n1", "n2")

    def __init__(
        self, server: fake_api_server.Server, luck: random.Random, *, others: bool = False
    ) -> None:
        """`others`: another scheduler binds pods too, without the extender."""
        self.luck = luck
        self._others = others
        self.scene = Scene(server)
        self.kubelets: dict[str, Kubelet] = {}
        self.api: dict[str, Object] = {}
        self.events: dict[str, deque[tuple[Object, ChangeKind]]] = {
            kind: deque() for kind in ("pods", "zones")
        }
        self.told: dict[str, Object] = {}
        self.made = 0
        for name in self.NODES:
            zones = {
                zone: {"cpu": 1000 * luck.randrange(2, 7), "memory": 16, NIC: luck.randrange(3)}
                for zone in luck.choice(((0,), (0, 1), (0, 2, 5)))
            }
            self.kubelets[name] = Kubelet(name, zones, luck.choice(("pod", "container")))
            self.scene.node(name, zones)
            self.agent_reports(name)
            self.watch_tells("zones")

    def pod_is_bound(self) -> None:
        """A plain pod is created, and bound to a node that the filter returns, if there is one."""
        told = self._made()
        if self._others and self.luck.random() < 0.3:
            self._bound(told, self.luck.choice(self.NODES))
        elif offered := self.scene.fits(told):
            node = self.luck.choice(offered)
            error = self.scene.bind(told, node)
            if "another scheduler bound a pod to it since the filter" in error:
                assert self._others
                return
            assert error == ""
            assert self._bound(told, node) or self._others, (told, node)

    def _made(self) -> Object:
        self.made += 1
        name = f"p{self.made}"
        pod_info = {"cpu": str(self.luck.randrange(1, 5)), "memory": str(self.luck.randrange(1, 9))}
        parts = [pod_info]
        if self.luck.random() < 0.3:
            pod_info[NIC] = "1"
        elif self.luck.random() < 0.3:
            parts.append({"cpu": "1", "memory": "1"})
        return pod(name, *parts, limited=self.luck.random() < 0.8)

    def _bound(self, told: Object, node: str) -> bool:
        """Whether the kubelet admits the pod; if not, it has failed."""
        guaranteed = bool(told["spec"]["containers"][0]["resources"]["limits"])
        admitted = not guaranteed or self.kubelets[node].admits(told)
        status = {"phase": "Pending" if admitted else "Failed"}
        bound = {**told, "spec": {**told["spec"], "nodeName": node}, "status": status}
        self.api[told["metadata"]["name"]] = bound
        self._event("pods", bound)
        return admitted

    def pod_runs(self) -> None:
        self._phase("Pending", "Running")

    def pod_ends(self) -> None:
        if (told := self._phase("Running", "Succeeded")) is not None:
            self._kubelet(told).ends(told["metadata"]["name"])

    def pod_is_dropped(self) -> None:
        if self.api:
            name = self.luck.choice(sorted(self.api))
            told = self.api.pop(name)
            self._kubelet(told).ends(name)
            self._event("pods", told, ChangeKind.DELETED)

    def agent_reports(self, node: str = "") -> None:
        """It writes only changes."""
        name = node or self.luck.choice(self.NODES)
        begun = tuple(
            each["metadata"]["name"]
            for each in self.api.values()
            if each["spec"]["nodeName"] == name and each["status"]["phase"] != "Pending"
        )
        told = self.kubelets[name].report(begun)
        if self.told.get(name) != told:
            self.told[name] = told
            self._event("zones", told)

    def watch_tells(self, kind: str = "") -> None:
        queue = self.events[kind or self.luck.choice(sorted(self.events))]
        if not queue:
            return
        told, change = queue.popleft()
        if queue is self.events["zones"]:
            self.scene.cluster.topologies_changed([objects.of_topology(told, change)])
        else:
            self.scene.cluster.pods_changed([objects.of_pod(told, change)])

    ACTS = (
        (pod_is_bound, 6),
        (pod_runs, 4),
        (pod_ends, 1),
        (pod_is_dropped, 2),
        (agent_reports, 4),
        (watch_tells, 9),
    )

    def act(self) -> None:
        acts, weights = zip(*self.ACTS, strict=True)
        self.luck.choices(acts, weights)[0](self)

    def settle(self) -> None:
        for name in self.NODES:
            self.agent_reports(name)
        for kind in self.luck.sample(sorted(self.events), 2):
            while self.events[kind]:
                self.watch_tells(kind)

    def _phase(self, before: str, after: str) -> Object | None:
        names = [name for name, each in self.api.items() if each["status"]["phase"] == before]
        if not names:
            return None
        name = self.luck.choice(names)
        told = self.api[name] = {**self.api[name], "status": {"phase": after}}
        self._event("pods", told)
        return told

    def _kubelet(self, told: Object) -> Kubelet:
        return self.kubelets[told["spec"]["nodeName"]]

    def _event(self, kind: str, told: Object, change: ChangeKind = ChangeKind.MODIFIED) -> None:
        self.events[kind].append((told, change))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 80), others=st.booleans())
def test_no_zone_is_allocated_twice_or_lost(seed: int, steps: int, others: bool) -> None:
    """Whenever the agents and the watches report: no kubelet rejects a pod while no other scheduler
    binds any, and once everything is reported the scheduler offers what the kubelets have."""
    with fake_api_server.serving() as server:
        world = World(server, random.Random(seed), others=others)
        for _ in range(steps):
            world.act()
        while any(each["status"]["phase"] == "Pending" for each in world.api.values()):
            world.pod_runs()
        world.settle()
        for name, kubelet in world.kubelets.items():
            for cpus in range(1, 7):
                pod_info = pod(f"last-{name}-{cpus}", {"cpu": str(cpus), "memory": "1"})
                fits = kubelet.admits(pod_info)
                kubelet.ends(pod_info["metadata"]["name"])
                assert (name in world.scene.fits(pod_info)) is fits, (name, cpus)
        world.scene.transport.close()
