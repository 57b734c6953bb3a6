"""A real kube-scheduler that calls `topolet scheduler`, with real objects and no kubelet."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

import pytest

from agent.model.devices.device_object import Device, DeviceTopology
from tests.allocate.devices.builders import CORE, RATIO, RDMA, gpu, nic
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects, workload
from tests.integration.kubescheduler.hosts import Shape
from tests.integration.kubescheduler.schedulers import Topolet, schedulers
from tests.integration.kubescheduler.workload import (
    ONE_NODE,
    Pod,
    Workload,
    cpus,
    devices,
    numa_nodes,
)

PROMISED_SECONDS = 60.0
"""By default kube-scheduler retries an unschedulable pod after five minutes."""
BURST_SECONDS = 300.0
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
GROUP = "topolet.io/group"
# Two NUMA nodes of 8 CPUs.
SHAPE: Shape = (2, 1, 4, 2)
CARDS = (gpu(0, 0, "p0"), gpu(1, 0, "p1"), gpu(2, 1, "p2"), gpu(3, 1, "p3"))
NICS = (nic(0, 0, "p1"), nic(1, 1, "p2"))


@pytest.fixture(scope="module")
def topolet(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topolet]:
    with schedulers(apiserver, tmp_path_factory.mktemp("scheduler")) as it:
        yield it


@pytest.fixture
def here(
    apiserver: ApiServer, topolet: Topolet, request: pytest.FixtureRequest
) -> Iterator[Workload]:
    with workload.workload(apiserver, request.node.name) as it:
        yield it


def test_lse(here: Workload) -> None:
    node = here.hosts.add(SHAPE)
    here.ask("a", {"cpu": "4"}, "LSE")
    pod = here.wait_bound("a")["a"]
    assert pod["spec"]["nodeName"] == node
    assert len(cpus(pod)) == 4


def test_ls_on_a_single_numa_node(here: Workload) -> None:
    here.hosts.add(SHAPE)
    for name in ("a", "b"):
        here.ask(name, {"cpu": "5"}, "LS", ONE_NODE)
    bound = here.wait_bound("a", "b")
    assert sorted(map(numa_nodes, bound.values())) == [[0], [1]]
    here.ask("c", {"cpu": "5"}, "LS", ONE_NODE)
    here.wait_refused("c", "cpu")


def test_gpu_and_rdma_behind_one_switch(here: Workload) -> None:
    here.hosts.add(SHAPE, (*CARDS, *NICS))
    joint = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
    requests = {CORE: "100", RATIO: "100", RDMA: "100"}
    for name in ("a", "b"):
        here.ask(name, requests, notes=joint)
    bound = here.wait_bound("a", "b")
    pairs = sorted(
        (each["gpu"][0]["minor"], each["rdma"][0]["minor"]) for each in map(devices, bound.values())
    )
    assert pairs == [(1, 0), (2, 1)]


def test_shares_of_cards(here: Workload) -> None:
    here.hosts.add(SHAPE, CARDS[:2])
    names = [f"p{number}" for number in range(4)]
    for name in names:
        here.ask(name, {CORE: "50", RATIO: "50"})
    bound = here.wait_bound(*names)
    held: defaultdict[int, int] = defaultdict(int)
    for pod in bound.values():
        (card,) = devices(pod)["gpu"]
        held[card["minor"]] += int(card["resources"][CORE])
    assert held == {0: 100, 1: 100}
    here.ask("more", {CORE: "50", RATIO: "50"})
    here.wait_refused("more", "Insufficient")


def test_devices_of_a_type_that_only_the_device_object_has(here: Workload) -> None:
    """By kube-scheduler's sum the third pod would fit too."""
    xpu = "example.com/xpu"
    here.hosts.add(
        SHAPE,
        [
            Device("xpu", f"x{minor}", minor, {xpu: 100}, topology=DeviceTopology(0, minor, ""))
            for minor in range(2)
        ],
    )
    for name in ("a", "b"):
        here.ask(name, {xpu: "60"})
    bound = here.wait_bound("a", "b")
    held = [device for pod in bound.values() for device in devices(pod)["xpu"]]
    assert sorted(held, key=lambda each: each["minor"]) == [
        {"minor": minor, "id": f"x{minor}", "resources": {xpu: "60"}} for minor in range(2)
    ]
    here.ask("c", {xpu: "60"})
    here.wait_refused("c", "xpu: not enough devices are free")


def test_group_is_on_one_node(here: Workload) -> None:
    """Each node has a card for the first member; only one has cards for all."""
    here.hosts.add(SHAPE, CARDS[:2])
    wide = here.hosts.add(SHAPE, CARDS)
    names = [f"m{number}" for number in range(3)]
    for name in names:
        here.ask(name, {CORE: "100", RATIO: "100"}, notes={GROUP: "g/3"})
    bound = here.wait_bound(*names)
    assert {pod["spec"]["nodeName"] for pod in bound.values()} == {wide}


def test_retried_when_the_topology_is_created(here: Workload) -> None:
    """kube-scheduler does not watch that object: without Topolet's retry the pod would wait for
    minutes."""
    node = here.hosts.add(SHAPE, told=False)
    here.ask("a", {"cpu": "2"}, "LSR")
    here.wait_refused("a", "NodeResourceTopology")
    here.hosts.tell(node, SHAPE)
    here.wait_bound("a", seconds=PROMISED_SECONDS)


def test_retried_after_a_restart(here: Workload, topolet: Topolet) -> None:
    """Pods that an earlier process rejected are retried too."""
    node = here.hosts.add(SHAPE, told=False)
    here.ask("a", {"cpu": "2"}, "LSR")
    here.wait_refused("a")
    topolet.kill()
    topolet.start()
    here.hosts.tell(node, SHAPE)
    here.wait_bound("a", seconds=PROMISED_SECONDS)


def test_retried_when_a_device_is_added(here: Workload) -> None:
    node = here.hosts.add(SHAPE, CARDS[:1])
    here.ask("first", {CORE: "100", RATIO: "100"})
    here.wait_bound("first")
    here.hosts.offer(node, CARDS[:2])
    here.ask("second", {CORE: "100", RATIO: "100"})
    here.wait_refused("second")
    here.hosts.tell_devices(node, CARDS[:2])
    here.wait_bound("second", seconds=PROMISED_SECONDS)


def test_no_eviction_unless_it_is_switched_on(here: Workload, apiserver: ApiServer) -> None:
    """Six CPUs are free, three on each NUMA node."""
    here.hosts.add(SHAPE)
    objects.priority(apiserver, "never-mind", 1000)
    for name in ("a", "b"):
        here.ask(name, {"cpu": "5"}, "LS", ONE_NODE)
    here.wait_bound("a", "b")
    here.ask("high", {"cpu": "6"}, "LS", ONE_NODE, priorityClassName="never-mind")
    here.wait_refused("high")
    here.stays("no pod is evicted", lambda: not here.ending())
    objects.end(apiserver, here.name, "a")
    here.wait_bound("high", seconds=PROMISED_SECONDS)


def test_restart_during_scheduling(here: Workload, topolet: Topolet) -> None:
    """A process that is killed while pods are bound restores the same account."""
    node = here.hosts.add((2, 1, 16, 2))
    names = [f"p{number:02}" for number in range(32)]
    for name in names[:16]:
        here.ask(name, {"cpu": "2"}, "LSR")
    here.wait("some are bound", lambda: len(here.bound()) >= 4)
    topolet.kill()
    before = {name: cpus(pod) for name, pod in here.bound().items()}
    for name in names[16:]:
        here.ask(name, {"cpu": "2"}, "LSR")
    topolet.start()
    bound = here.wait_bound(*names)
    assert {pod["spec"]["nodeName"] for pod in bound.values()} == {node}
    assert {name: cpus(bound[name]) for name in before} == before
    assert sorted(cpu for pod in bound.values() for cpu in cpus(pod)) == list(range(64))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_burst(here: Workload) -> None:
    """A thousand pods: 960 fit with their CPUs, and 40 with the 40 cards."""
    shape: Shape = (2, 1, 24, 2)
    for _ in range(15):
        here.hosts.add(shape)
    for _ in range(5):
        here.hosts.add(shape, tuple(gpu(each, each // 4, f"p{each}") for each in range(8)))
    for number in range(40):
        here.ask(f"card{number}", {"cpu": "2", CORE: "100", RATIO: "100"}, "LSR")
    for number in range(960):
        here.ask(f"cpu{number}", {"cpu": "2"}, "LSR")
    here.wait_count(960, BURST_SECONDS)
    bound = here.bound()
    assert len(bound) == 960
    assert all(name in bound for name in (f"card{number}" for number in range(40)))
    by_node: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in bound.values():
        by_node[pod["spec"]["nodeName"]].append(pod)
    assert {len(pods) for pods in by_node.values()} == {48}
    for pods in by_node.values():
        held = [cpu for pod in pods for cpu in cpus(pod)]
        assert len(held) == len(set(held)) == 96
        cards = [each["minor"] for pod in pods for each in _cards(pod)]
        assert len(cards) == len(set(cards))


def _cards(pod: Pod) -> list[Pod]:
    return devices(pod)["gpu"] if workload.ALLOCATED in pod["metadata"]["annotations"] else []
