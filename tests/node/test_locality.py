"""Containers with devices run near to them, on a node without a runtime."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import pytest

from agent.allocate.device_holders.names import Target
from agent.allocate.locality import LocalityInput, NearNodes
from agent.allocate.visibility.pod_devices import DeviceVisibility, PodVisibility
from agent.kube.events import Regarding
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import DeviceLocality
from agent.model.devices.device_object import Device, DeviceTopology
from agent.model.devices.holding import DeviceHolding, DeviceNodes, Form, HoldingSource
from agent.model.devices.pci import Function
from agent.model.devices.resource_slice import DraDevice, DraLocation
from agent.model.devices.visibility import NodeVisibility, Visibility
from agent.model.pod.annotations import DEVICE_LOCALITY
from agent.model.pod.apiobjects import ApiContainer, ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QoS
from agent.model.snapshot import Patterns, PodWanted, Snapshot, Wanted
from agent.node.change_log import PodEvents
from agent.node.devices import DeviceState
from agent.node.locality import REST_SECONDS, LocalityView
from agent.node.node_resource_topology import DeviceReport
from tests.builders import machine, pod
from tests.hooks.snapshots import EMPTY as EMPTY_SNAPSHOT
from tests.node.world import Recorded, World

Fact = TypeVar("Fact")

TWO = machine(2, 4)
MAIN = "main"


@pytest.fixture
def two_nodes(tmp_path: Path) -> World:
    return World(tmp_path, sockets=2)


def write_checkpoint(world: World, *entries: tuple[str, str, dict[str, list[str]]]) -> None:
    """Containers, by uid and name, have these devices of a plugin by NUMA node."""
    path = world.kubelet / "device-plugins" / "kubelet_internal_checkpoint"
    path.parent.mkdir(exist_ok=True)
    devices = [
        {"PodUID": uid, "ContainerName": name, "ResourceName": "example.com/card", "DeviceIDs": ids}
        for uid, name, ids in entries
    ]
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": devices}}))


def test_a_container_with_a_device_runs_on_the_pool_near_to_it(two_nodes: World) -> None:
    sandbox = two_nodes.sandbox("card")
    two_nodes.container(sandbox, MAIN)
    two_nodes.container(sandbox, "side")
    write_checkpoint(two_nodes, ("card", MAIN, {"1": ["card-1"]}))
    two_nodes.container(two_nodes.sandbox("owner", "LSE", "5"))
    two_nodes.agent().reconcile()
    group = "kubepods/burstable/podcard"
    assert two_nodes.cpus(f"{group}/c-card-main") == "4,6-7"
    assert two_nodes.cpus(f"{group}/c-card-side") == "0-4,6-7"
    wanted = two_nodes.snapshot().pods["card"]
    assert wanted.of(MAIN).cpuset == "4,6-7", "the frontends know it before the container starts"
    assert not wanted.of(MAIN).exclusive
    assert wanted.of(MAIN).resources.mems is None
    assert (wanted.of(MAIN).numa_nodes, wanted.of("side").numa_nodes) == ("1", "")
    reasons = {
        each.container: each.message for each in two_nodes.records if each.title == "ns/card"
    }
    assert reasons[MAIN].startswith(
        "a container of class LS shares its pool on NUMA nodes 1, by its devices"
    )


def test_containers_stay_while_the_checkpoint_cannot_be_read_or_no_longer_names_them(
    two_nodes: World,
) -> None:
    two_nodes.container(two_nodes.sandbox("card"))
    write_checkpoint(two_nodes, ("card", MAIN, {"1": ["card-1"]}))
    agent = two_nodes.agent()
    agent.reconcile()
    path = two_nodes.kubelet / "device-plugins" / "kubelet_internal_checkpoint"
    for text in ("{", json.dumps({"Data": {"PodDeviceEntries": []}})):
        path.write_text(text)
        for each in (agent, two_nodes.agent()):
            each.reconcile()
            assert two_nodes.snapshot().pods["card"].of(MAIN).cpuset == "4-7"


@pytest.mark.parametrize(
    ("value", "cpus", "refused"),
    [
        ("off", "0-7", ""),
        ("prefer", "4-7", ""),
        ("bind", "4-7", ""),
        ("require", "4-7", ""),
        ("near", "4-7", "value: 'near' is not one of off, prefer, bind, require"),
    ],
)
def test_the_annotation_of_the_pod_decides(
    two_nodes: World, value: str, cpus: str, refused: str
) -> None:
    sandbox = two_nodes.sandbox("card")
    sandbox.annotations[DEVICE_LOCALITY] = value
    two_nodes.container(sandbox)
    write_checkpoint(two_nodes, ("card", MAIN, {"1": ["card-1"]}))
    two_nodes.agent().reconcile()
    wanted = two_nodes.snapshot().pods["card"]
    assert (wanted.of(MAIN).cpuset, wanted.refused) == (cpus, refused)


def test_a_pod_that_a_scheduler_bound_to_numa_nodes_stays_there(two_nodes: World) -> None:
    sandbox = two_nodes.sandbox("card")
    sandbox.annotations.update(pod("card", numa_nodes=(0,)).annotations)
    two_nodes.container(sandbox)
    write_checkpoint(two_nodes, ("card", MAIN, {"1": ["card-1"]}))
    two_nodes.agent().reconcile()
    assert two_nodes.snapshot().pods["card"].of(MAIN).cpuset == "0-3"


def test_a_container_far_from_its_devices_is_reported(
    two_nodes: World, caplog: pytest.LogCaptureFixture
) -> None:
    two_nodes.container(two_nodes.sandbox("card"))
    two_nodes.cluster_objects.pods["card"] = ApiPod(
        "card", "ns", "card", "n", Phase.RUNNING, {}, {}, "burstable", 0
    )
    write_checkpoint(two_nodes, ("card", MAIN, {"1": ["card-1"]}))
    events = Recorded()
    agent = two_nodes.agent(pod_events=PodEvents(events))
    agent.reconcile()
    assert two_nodes.metric('topolet_containers_far_from_devices{reason="no_cpus"}') == 0
    two_nodes.container(two_nodes.sandbox("owner", "LSE", "4-7"))
    for _ in range(2):
        agent.reconcile()
    text = (
        "container main runs on NUMA nodes 0-1, and its devices are near 1: its pool has no CPU"
        " there"
    )
    assert events.events == [(Regarding("ns", "card", "card"), "FarFromDevices", text)]
    assert two_nodes.metric('topolet_containers_far_from_devices{reason="no_cpus"}') == 1
    assert caplog.text.count(f"pod ns/card: {text}") == 1
    assert two_nodes.snapshot().pods["card"].far == {MAIN: text}
    assert two_nodes.cpus("kubepods/burstable/podcard/c-card-main") == "0-3"


@pytest.mark.parametrize("limit_bytes", [1 << 30, 1 << 40])
def test_memory_is_bound_to_the_numa_nodes_of_the_devices_if_it_fits(
    two_nodes: World, limit_bytes: int
) -> None:
    two_nodes.container(two_nodes.sandbox("card"))
    spec = (ApiContainer(MAIN, limits={"memory": limit_bytes}),)
    notes = {DEVICE_LOCALITY: "bind"}
    two_nodes.cluster_objects.pods["card"] = ApiPod(
        "card", "ns", "card", "n", Phase.RUNNING, {}, notes, "burstable", 0, containers=spec
    )
    write_checkpoint(two_nodes, ("card", MAIN, {"1": ["card-1"]}))
    events = Recorded()
    two_nodes.agent(pod_events=PodEvents(events)).reconcile()
    resources = two_nodes.snapshot().pods["card"].of(MAIN).resources
    fits = limit_bytes == 1 << 30
    assert (resources.cpuset, resources.mems) == ("4-7", "1" if fits else None)
    assert [note for _, _, note in events.events] == (
        []
        if fits
        else [
            "container main has memory of any NUMA node: containers that are bound to NUMA nodes 1"
            " may use more than these have"
        ]
    )


def test_an_owner_with_devices_is_told_the_numa_nodes_of_its_cpus(two_nodes: World) -> None:
    two_nodes.container(two_nodes.sandbox("owner", "LSE", "2,5"))
    write_checkpoint(two_nodes, ("owner", MAIN, {"1": ["card-1"]}))
    two_nodes.agent().reconcile()
    owner = two_nodes.snapshot().pods["owner"].of(MAIN)
    assert (owner.cpuset, owner.exclusive, owner.numa_nodes) == ("2,5", True, "0-1")


class Facts(Generic[Fact]):
    """Facts that were read from an API server."""

    def __init__(self) -> None:
        self.read: dict[object, Fact] = {}

    def facts(self, keys: Collection[object]) -> dict[object, Fact]:
        return {each: self.read[each] for each in keys if each in self.read}


class Node:
    """The view of a node with two NUMA nodes of four CPUs, and a card on each."""

    def __init__(self, policy: DeviceLocality = DeviceLocality.PREFER) -> None:
        self.now = 0.0
        self.slices, self.namespaces = Facts[DraLocation](), Facts[DeviceLocality | None]()
        self.locations = self.slices.read
        self.claimed: dict[tuple[str, str], tuple[DraDevice, ...]] = {}
        self.reads = 0
        self.last: Snapshot | None = None
        self.exclude: Patterns = ()
        self.namespaces.read["ns"] = None
        self.topology = TWO
        self.view = LocalityView(
            policy, lambda: self.now, self.slices, self.namespaces, self._read_claims
        )
        self.pods: tuple[Pod, ...] = ()
        self.api_pods: list[ApiPod] = []
        self.plugins: DeviceNodes | None = {}
        self.holds: dict[str, CpuSet] = {}
        self.visible: dict[str, PodVisibility] = {}
        devices = tuple(
            Device("gpu", f"GPU-{node}", node, {}, topology=DeviceTopology(node, node))
            for node in (0, 1)
        )
        self.devices = DeviceState(
            DeviceReport(devices), keys={each.uuid: Target("gpu", each.uuid) for each in devices}
        )

    def _read_claims(self) -> None:
        self.reads += 1

    def input(self) -> LocalityInput | None:
        visibility = DeviceVisibility(self.visible, NodeVisibility())
        return self.view.decision_input(
            self.topology,
            self.pods,
            self.api_pods,
            self.plugins,
            self.claimed,
            self.devices,
            visibility,
            self.holds,
            self.last,
            self.exclude,
        )

    def near(self) -> dict[str, str]:
        wanted = self.input()
        return {each.name: str(each.near) for each in wanted.containers} if wanted else {}


def with_containers(name: str, *containers: str, shares: int = 0) -> Pod:
    state = ContainerState.RUNNING
    return pod(
        name,
        containers=tuple(
            Container(f"{name}-{each}", each, state, shares=shares) for each in containers
        ),
    )


def api_pod(name: str, **fields: object) -> ApiPod:
    running = ApiPod(name, "ns", name, "n", Phase.RUNNING, {}, {}, "burstable", 0)
    return msgspec.structs.replace(running, **fields)


@pytest.fixture
def node() -> Node:
    return Node()


def told(name: str, numa_nodes: str) -> Snapshot:
    """The snapshot of the last agent, in which the container `a` of a pod was near to a device."""
    wanted = PodWanted(f"ns/{name}", QoS.LS, Wanted(), {"a": Wanted(numa_nodes=numa_nodes)})
    return msgspec.structs.replace(EMPTY_SNAPSHOT, pods={name: wanted})


def test_after_a_restart_a_silent_source_moves_no_container(node: Node) -> None:
    node.pods = (with_containers("p", "a"),)
    node.last = told("p", "0-1")
    node.plugins = {("p", "a"): (CpuSet((1,)),)}
    for _ in range(2):
        assert node.near() == {"a": "0-1"}
        node.view.decided({})
    node.now += REST_SECONDS
    assert node.near() == {"a": "1"}


def test_a_source_that_falls_silent_moves_no_container(node: Node) -> None:
    node.pods = (with_containers("p", "a"),)
    for plugins, near in (((1,), "1"), ((0, 1), "0-1"), ((1,), "0-1"), ((), "0-1")):
        node.plugins = {("p", "a"): tuple(CpuSet((each,)) for each in plugins)}
        assert node.near() == {"a": near}
    node.topology = machine(2, 2)
    assert node.near() == {"a": "0-1"}, "nor does a CPU that goes offline"


def test_while_the_label_of_a_namespace_is_unread_containers_stay_and_new_pods_wait(
    node: Node,
) -> None:
    del node.namespaces.read["ns"]
    node.pods = (with_containers("p", "a"), with_containers("q", "b"), pod("new"))
    node.plugins = {(name, each): (CpuSet((1,)),) for name, each in ("pa", "qb", ("new", "c"))}
    node.last = told("p", "1")
    assert node.near() == {"a": "1"}
    assert node.view.unplaced == {"new"}
    node.namespaces.read["ns"] = None
    assert node.near() == {"a": "1", "b": "1", "c": "1"}
    assert node.view.unplaced == set()


def test_until_the_spec_of_a_pod_is_known_no_sidecar_counts_as_a_holder(node: Node) -> None:
    gpu = frozenset({"GPU-1"})
    node.pods = (with_containers("p", "gpu", "side"),)
    node.visible = {"p": PodVisibility(Visibility(), devices=gpu)}
    assert node.near() == {}
    node.visible = {"p": PodVisibility(Visibility(), devices=gpu, of_containers={"gpu": gpu})}
    assert node.near() == {"gpu": "1"}


def test_excluded_containers_have_no_place(node: Node) -> None:
    node.pods = (with_containers("p", "a", "b"),)
    node.plugins = {("p", name): (CpuSet((1,)),) for name in ("a", "b")}
    node.exclude = ("ns/p/a",)
    assert node.near() == {"b": "1"}


def test_init_containers_that_end_take_no_place_of_others(node: Node) -> None:
    node.pods = (with_containers("p", "init", "sidecar", "main"),)
    node.plugins = {("p", name): (CpuSet((1,)),) for name in ("init", "sidecar", "main")}
    init = ApiContainer("init", {"cpu": 9000}), ApiContainer("sidecar", {"cpu": 500}, sidecar=True)
    node.api_pods = [
        api_pod("p", init_containers=init, containers=(ApiContainer("main", {"cpu": 1000}),))
    ]
    wanted = node.input()
    assert wanted is not None
    requests = {each.name: each.cpu_milli for each in wanted.containers}
    assert requests == {"init": 0, "sidecar": 500, "main": 1000}


def test_devices_that_the_runtime_shows_have_the_numa_node_of_the_machine(node: Node) -> None:
    node.pods = (with_containers("p", "a", "b", "c"),)
    node.plugins = {("p", "b"): (CpuSet((0,)),), ("p", "c"): (CpuSet(),)}
    node.devices = msgspec.structs.replace(
        node.devices,
        existing=tuple(
            DeviceHolding("p", name, "", "gpu", "GPU-1", Form.WHOLE, source=source)
            for name, source in (
                ("a", HoldingSource.CLAIM),
                ("b", HoldingSource.CHECKPOINT),
                ("c", HoldingSource.CHECKPOINT),
            )
        ),
    )
    assert node.near() == {"a": "1", "b": "0", "c": "1"}, "a plugin knows its own devices"
    lost = msgspec.structs.replace(node.devices.report, devices=())
    node.devices = msgspec.structs.replace(node.devices, report=lost, existing=(), keys={})
    assert node.near() == {"a": "1", "b": "0", "c": "1"}, "a lost card moves no container"


def test_devices_of_claims_are_where_their_slices_say(node: Node) -> None:
    device = {name: DraDevice("d", "n", name) for name in ("named", "on-bus", "unknown", "unread")}
    node.pods = (with_containers("p", *device),)
    node.claimed = {("p", name): (each,) for name, each in device.items()}
    node.claimed["p", "named"] += (device["unread"],)
    node.locations |= {
        device["named"]: DraLocation(CpuSet((1,)), "0000:02:00.0"),
        device["on-bus"]: DraLocation(bus="0000:01:00.0"),
        device["unknown"]: DraLocation(bus="0000:03:00.0"),
    }
    functions = {
        bus: Function(bus, node=numa_node)
        for bus, numa_node in (("0000:01:00.0", 1), ("0000:02:00.0", 0))
    }
    node.devices = msgspec.structs.replace(node.devices, functions=functions)
    assert node.near() == {"named": "1", "on-bus": "1"}
    node.claimed = {}
    assert node.near() == {"named": "1", "on-bus": "1"}, "a claim that goes moves no container"


def test_network_devices_in_the_namespace_of_a_pod_have_the_numa_node_of_their_function(
    node: Node,
) -> None:
    node.pods = (with_containers("p", "a", "b"), with_containers("q", "c"))
    node.plugins = {("p", "b"): (CpuSet((0,)),)}
    functions = {bus: Function(bus, node=at) for bus, at in (("net", 1), ("unknown", -1))}
    network = {("p", "a"): ("net",), ("p", "b"): ("net",), ("q", "c"): ("unknown", "gone")}
    node.devices = msgspec.structs.replace(node.devices, functions=functions, network=network)
    assert node.near() == {"a": "1", "b": "0-1"}


def test_pods_whose_claims_are_not_reported_yet_are_read_at_once(node: Node) -> None:
    node.api_pods = [
        ApiPod(name, "ns", name, "n", Phase.PENDING, {}, {}, "burstable", 0, has_claims=claims)
        for name, claims in (("new", True), ("without", False), ("runs", True))
    ]
    node.pods = (pod("new"), pod("without"), with_containers("runs", "a"))
    for _ in range(2):
        node.input()
        assert node.view.unplaced == {"new"}
        assert node.reads == 1
    device = DraDevice("d", "n", "x")
    node.claimed["new", "a"] = (device,)
    node.input()
    assert node.view.unplaced == {"new"}, "the slices were not read yet"
    node.locations[device] = DraLocation()
    node.input()
    assert node.view.unplaced == set()


@pytest.mark.parametrize("off", [False, True])
def test_no_container_waits_for_its_claims_where_its_place_is_not_decided(off: bool) -> None:
    node = Node(DeviceLocality.OFF if off else DeviceLocality.PREFER)
    node.topology = TWO if off else machine(1, 8)
    node.api_pods = [
        ApiPod("new", "ns", "new", "n", Phase.PENDING, {}, {}, "burstable", 0, has_claims=True)
    ]
    node.pods = (pod("new"),)
    assert node.near() == {}
    assert node.view.unplaced == set()
    assert node.reads == 0


def test_devices_that_a_scheduler_allocated_count_for_the_containers_that_request_them(
    node: Node,
) -> None:
    of_all = msgspec.structs.replace(with_containers("all", "a", "b"), named=("a", "b"))
    node.pods = (of_all, with_containers("some", "c", "d"))
    gpu = frozenset({"GPU-1"})
    node.visible = {
        "all": PodVisibility(Visibility(), devices=gpu),
        "some": PodVisibility(Visibility(), devices=gpu, of_containers={"d": gpu}),
    }
    assert node.near() == {"a": "1", "b": "1", "d": "1"}


def test_the_requests_are_those_of_the_api_else_those_of_the_runtime(node: Node) -> None:
    node.pods = (
        with_containers("api", "a", shares=2048),
        with_containers("alone", "b", shares=512),
    )
    node.plugins = {("api", "a"): (CpuSet((1,)),), ("alone", "b"): (CpuSet((1,)),)}
    spec = (ApiContainer("a", {"cpu": 3000}),)
    node.api_pods = [
        ApiPod("api", "ns", "api", "n", Phase.RUNNING, {}, {}, "burstable", 0, containers=spec)
    ]
    wanted = node.input()
    assert wanted is not None
    assert {each.name: each.cpu_milli for each in wanted.containers} == {"a": 3000, "b": 500}


def test_a_container_that_moved_rests(node: Node) -> None:
    node.pods = (with_containers("p", "a"),)
    node.plugins = {("p", "a"): (CpuSet((1,)),)}
    key, near = ("p", "a"), CpuSet((1,))
    resting = []
    for nodes in (near, near, CpuSet((0, 1)), CpuSet((0, 1))):
        wanted = node.input()
        assert wanted is not None
        resting.append(key in wanted.resting)
        node.view.decided({key: NearNodes(nodes, near)})
    assert resting == [False, False, False, True]
    node.now += REST_SECONDS
    wanted = node.input()
    assert wanted is not None
    assert wanted.resting == frozenset()
    assert wanted.before == {key: CpuSet((0, 1))}


def test_after_a_restart_the_cpus_of_containers_are_the_last_decision(node: Node) -> None:
    node.pods = (with_containers("p", "near", "wide", "else"),)
    node.plugins = {("p", name): (CpuSet((1,)),) for name in ("near", "wide", "else")}
    node.holds = {
        "p-near": CpuSet.parse("4-7"),
        "p-wide": CpuSet.parse("0-7"),
        "p-else": CpuSet.parse("0-3"),
    }
    wanted = node.input()
    assert wanted is not None
    assert wanted.before == {("p", "wide"): CpuSet((0, 1))}


@pytest.mark.parametrize("label", [None, DeviceLocality.BIND, DeviceLocality.OFF])
def test_the_annotation_overrides_the_label_of_the_namespace_and_that_the_setting(
    label: DeviceLocality | None,
) -> None:
    node = Node(DeviceLocality.PREFER)
    if label:
        node.namespaces.read["ns"] = label
    annotated = with_containers("p", "a")
    annotated.annotations[DEVICE_LOCALITY] = "prefer"
    node.pods = (annotated, with_containers("q", "b"))
    node.api_pods = [api_pod("p"), api_pod("q")]
    node.plugins = {("p", "a"): (CpuSet((1,)),), ("q", "b"): (CpuSet((1,)),)}
    wanted = node.input()
    assert wanted is not None
    others = [] if label is DeviceLocality.OFF else [("b", label is DeviceLocality.BIND)]
    assert [(each.name, each.bound) for each in wanted.containers] == [("a", False), *others]


def test_the_policy_of_the_settings_applies_to_pods_without_the_annotation() -> None:
    node = Node(DeviceLocality.OFF)
    annotated = with_containers("p", "a")
    annotated.annotations[DEVICE_LOCALITY] = "prefer"
    node.pods = (annotated, with_containers("q", "b"))
    node.plugins = {("p", "a"): (CpuSet((1,)),), ("q", "b"): (CpuSet((1,)),)}
    assert node.near() == {"a": "1"}


def test_frontends_wait_for_places_where_the_node_has_several_numa_nodes(tmp_path: Path) -> None:
    decides = {}
    for sockets in (1, 2):
        folder = tmp_path / str(sockets)
        folder.mkdir()
        world = World(folder, sockets=sockets)
        world.agent().reconcile()
        decides[sockets] = world.snapshot().places_devices
    assert decides == {1: False, 2: True}
    assert not LocalityView(DeviceLocality.OFF).decides(TWO)
