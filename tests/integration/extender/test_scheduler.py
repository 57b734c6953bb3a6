"""A real kube-scheduler that calls `topolet scheduler`, with a real API server and no kubelet."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.allocate.devices.builders import CORE, RATIO, RDMA, gpu, nic
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects
from tests.integration.kubescheduler.nodes import Shape
from tests.integration.kubescheduler.schedulers import Topolet, schedulers
from tests.integration.kubescheduler.workload import (
    ALLOCATED,
    ONE_NODE,
    Pod,
    Workload,
    cpus,
    devices,
    workload_for,
)

RETRY_LIMIT_SECONDS = 60.0
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
def workload(
    apiserver: ApiServer, topolet: Topolet, request: pytest.FixtureRequest
) -> Iterator[Workload]:
    with workload_for(apiserver, request.node.name) as it:
        yield it


def test_an_lse_pod_gets_exclusive_cpus(workload: Workload) -> None:
    node = workload.nodes.add(SHAPE)
    workload.create_pod("a", {"cpu": "4"}, "LSE")
    pod = workload.wait_bound("a")["a"]
    assert pod["spec"]["nodeName"] == node
    assert len(cpus(pod)) == 4


def test_gpu_and_rdma_device_are_behind_one_switch(workload: Workload) -> None:
    workload.nodes.add(SHAPE, (*CARDS, *NICS))
    joint = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
    requests = {CORE: "100", RATIO: "100", RDMA: "100"}
    for name in ("a", "b"):
        workload.create_pod(name, requests, notes=joint)
    bound = workload.wait_bound("a", "b")
    pairs = sorted(
        (each["gpu"][0]["minor"], each["rdma"][0]["minor"]) for each in map(devices, bound.values())
    )
    assert pairs == [(1, 0), (2, 1)]


def test_a_group_is_bound_to_one_node(workload: Workload) -> None:
    """Each node has a card for the first member; only one has cards for all."""
    workload.nodes.add(SHAPE, CARDS[:2])
    wide = workload.nodes.add(SHAPE, CARDS)
    names = [f"m{number}" for number in range(3)]
    for name in names:
        workload.create_pod(name, {CORE: "100", RATIO: "100"}, notes={GROUP: "g/3"})
    bound = workload.wait_bound(*names)
    assert {pod["spec"]["nodeName"] for pod in bound.values()} == {wide}


def test_a_pod_is_retried_when_the_topology_is_created(workload: Workload) -> None:
    """kube-scheduler does not watch that object: without Topolet's retry the pod would wait for
    minutes."""
    node = workload.nodes.add(SHAPE, with_topology=False)
    workload.create_pod("a", {"cpu": "2"}, "LSR")
    workload.wait_unschedulable("a", "NodeResourceTopology")
    workload.nodes.report_topology(node, SHAPE)
    workload.wait_bound("a", seconds=RETRY_LIMIT_SECONDS)


def test_a_pod_is_retried_after_a_restart(workload: Workload, topolet: Topolet) -> None:
    """Pods that an earlier process rejected are retried too."""
    node = workload.nodes.add(SHAPE, with_topology=False)
    workload.create_pod("a", {"cpu": "2"}, "LSR")
    workload.wait_unschedulable("a")
    topolet.kill()
    topolet.lead()
    workload.nodes.report_topology(node, SHAPE)
    workload.wait_bound("a", seconds=RETRY_LIMIT_SECONDS)


def test_no_pod_is_evicted_by_default(workload: Workload, apiserver: ApiServer) -> None:
    """Six CPUs are free, three on each NUMA node."""
    workload.nodes.add(SHAPE)
    objects.priority_class(apiserver, "default-high", 1000)
    for name in ("a", "b"):
        workload.create_pod(name, {"cpu": "5"}, "LS", ONE_NODE)
    workload.wait_bound("a", "b")
    workload.create_pod("high", {"cpu": "6"}, "LS", ONE_NODE, priorityClassName="default-high")
    workload.wait_unschedulable("high")
    workload.assert_stays("no pod is evicted", lambda: not workload.terminating())
    objects.force_delete(apiserver, workload.name, "a")
    workload.wait_bound("high", seconds=RETRY_LIMIT_SECONDS)


def test_a_restart_while_pods_are_bound_keeps_their_allocations(
    workload: Workload, topolet: Topolet
) -> None:
    """The next process restores the allocations that the killed one has made."""
    node = workload.nodes.add((2, 1, 16, 2))
    names = [f"p{number:02}" for number in range(32)]
    for name in names[:16]:
        workload.create_pod(name, {"cpu": "2"}, "LSR")
    workload.wait("some are bound", lambda: len(workload.bound()) >= 4)
    topolet.kill()
    before = {name: cpus(pod) for name, pod in workload.bound().items()}
    for name in names[16:]:
        workload.create_pod(name, {"cpu": "2"}, "LSR")
    topolet.lead()
    bound = workload.wait_bound(*names)
    assert {pod["spec"]["nodeName"] for pod in bound.values()} == {node}
    assert {name: cpus(bound[name]) for name in before} == before
    assert sorted(cpu for pod in bound.values() for cpu in cpus(pod)) == list(range(64))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_thousand_pods_are_bound_without_overlap(workload: Workload) -> None:
    """A thousand pods: 960 fit with their CPUs, and 40 with the 40 cards."""
    shape: Shape = (2, 1, 24, 2)
    for _ in range(15):
        workload.nodes.add(shape)
    for _ in range(5):
        workload.nodes.add(shape, tuple(gpu(each, each // 4, f"p{each}") for each in range(8)))
    for number in range(40):
        workload.create_pod(f"card{number}", {"cpu": "2", CORE: "100", RATIO: "100"}, "LSR")
    for number in range(960):
        workload.create_pod(f"cpu{number}", {"cpu": "2"}, "LSR")
    workload.wait_bound_count(960, BURST_SECONDS)
    bound = workload.bound()
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
    return devices(pod)["gpu"] if ALLOCATED in pod["metadata"]["annotations"] else []
