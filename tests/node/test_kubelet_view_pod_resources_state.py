from __future__ import annotations

from pathlib import Path

import pytest

from agent.allocate.reserved_cpus import KubeletCpus
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pod_resources import (
    Allocatable,
    ContainerResources,
    MemoryBlock,
    PluginDevice,
    PodResources,
)
from agent.node.kubelet_view import PodResourcesAnswer, PodResourcesState, PodResourcesStateView
from tests.builders import machine, pod
from tests.node.world import Kubelet, World

GPU = PluginDevice("nvidia.com/gpu", "GPU-1", (0,))


def resources(name: str, cpus: str = "", memory: int = 0, *devices: PluginDevice) -> PodResources:
    blocks = (MemoryBlock("memory", memory, (0,)),) if memory else ()
    container = ContainerResources("main", CpuSet.parse(cpus), blocks, devices)
    return PodResources("ns", name, (container,))


def answer_of(*pods: PodResources) -> PodResourcesAnswer:
    return PodResourcesAnswer(pods, Allocatable(CpuSet.parse("1-3"), (), (GPU,)), 0.0)


@pytest.fixture
def kubelet() -> Kubelet:
    return Kubelet()


def test_no_state_without_a_kubelet(kubelet: Kubelet) -> None:
    assert PodResourcesStateView(kubelet).now(machine(), (pod("a"),)) == PodResourcesState()


def test_cpus_of_pods_that_topolet_allocates_are_left_out(kubelet: Kubelet) -> None:
    kubelet.answer = answer_of(resources("a", "2", 5), resources("b", "3", 7))
    pods = pod("a", kube_class="guaranteed"), pod("b", "LS", kube_class="guaranteed")
    held = PodResourcesStateView(kubelet).now(machine(), pods).held
    assert {uid: (str(each.cpus), each.amounts) for uid, each in held.items()} == {
        "a": ("2", {0: {"memory": 5}}),
        "b": ("", {0: {"memory": 7}}),
    }


def test_resources_that_the_kubelet_does_not_list_any_more_count_while_the_pod_runs(
    kubelet: Kubelet,
) -> None:
    view = PodResourcesStateView(kubelet)
    guaranteed = pod("a", kube_class="guaranteed")
    kubelet.answer = answer_of(resources("a", "2"))
    before = view.now(machine(), (guaranteed,)).held
    kubelet.answer = answer_of()
    assert view.now(machine(), (guaranteed,)).held == before != {}
    assert view.now(machine(), ()).held == {}


def test_pods_without_running_containers_have_no_resources(kubelet: Kubelet) -> None:
    kubelet.answer = answer_of(resources("deleted", "2", 5, GPU))
    state = PodResourcesStateView(kubelet).now(machine(), ())
    assert state.held == {}
    assert [each.held for each in state.portions] == [0]


def test_impossible_values_are_logged_once(
    kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    view = PodResourcesStateView(kubelet)
    kubelet.answer = PodResourcesAnswer((resources("a", "2,77"),), None, 0.0)
    for _ in range(3):
        view.now(machine(), (pod("a", kube_class="guaranteed"),))
    assert [each.getMessage() for each in caplog.records] == [
        "pod-resources-content: pod ns/a: this machine has no CPUs 77"
    ]


def test_pod_resources_are_in_the_report(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.pod_resources.answer = answer_of(resources("a", "2", 1 << 20, GPU))
    world.sandbox("a", parent="/kubepods/poda")
    world.agent().reconcile()
    (zone,) = (world.store.get("NodeResourceTopology", "n") or {})["zones"]
    amounts = {each["name"]: each for each in zone["resources"]}
    assert amounts["cpu"]["available"] == "2"  # neither the pod's CPU 2 nor the reserved CPU 0
    memory = amounts["memory"]
    assert int(memory["allocatable"]) - int(memory["available"]) == 1 << 20
    assert amounts["nvidia.com/gpu"] == {
        "name": "nvidia.com/gpu",
        "capacity": "1",
        "allocatable": "1",
        "available": "0",
    }


def test_pod_resources_agree_with_the_state_file(kubelet: Kubelet) -> None:
    kubelet.answer = answer_of(resources("a", "2"), resources("b", "3"))
    pods = pod("a", kube_class="guaranteed"), pod("b", "LSE", "3", kube_class="guaranteed")
    state = PodResourcesStateView(kubelet).now(machine(), pods)
    assert str(state.reserved_cpus) == "0"
    assert state.cpus is not None
    assert state.cpus.static
    assert {
        (uid, name): str(cpus)
        for uid, containers in state.cpus.containers.items()
        for name, cpus in containers.items()
    } == {("a", "main"): "2", ("b", "main"): "3"}
    assert {uid: str(cpus) for uid, cpus in state.cpus.by_uid.items()} == {"a": "2", "b": "3"}
    kubelet.answer = PodResourcesAnswer((), Allocatable(CpuSet(), (), ()), 0.0)
    assert PodResourcesStateView(kubelet).now(machine(), pods).cpus == KubeletCpus()
    kubelet.answer = PodResourcesAnswer((), None, 0.0)
    assert PodResourcesStateView(kubelet).now(machine(), pods).cpus is None


def test_pod_resources_are_used_while_the_state_file_was_never_readable(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.pod_resources.answer = answer_of(resources("a", "2"))
    (world.kubelet / "cpu_manager_state").write_text('{"policyName":')
    guaranteed = world.sandbox("a", parent="/kubepods/poda")
    world.container(guaranteed, cpuset="2")
    shared = world.container(world.sandbox("b", "LS"))
    world.agent().reconcile()
    assert world.cpus(f"kubepods/burstable/podb/{shared.id}") == "0-1,3"
    assert world.cpus("kubepods/poda/c-a-main") == "2"
