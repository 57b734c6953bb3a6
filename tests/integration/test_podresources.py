"""A real kubelet's PodResources API, compared with its state files and the kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.kubelet import cpu_manager_state, memory_manager_state
from agent.kubelet.podresources import RateLimitError
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import Portion
from agent.model.pod.pod_resources import (
    ContainerResources,
    MemoryBlock,
    PluginDevice,
    PodResources,
)
from agent.node.kubelet_view import PodResourcesView, device_portions, kubelet_resources, reserved
from agent.node.node_resource_topology import Allocated, Reserved
from tests.integration.harness import kernel_cpus
from tests.integration.kubelet import standalone
from tests.integration.kubelet.plugin import RESOURCE, DevicePlugin
from tests.integration.kubelet.standalone import (
    MIB,
    RESERVED_BYTES,
    Kubelet,
    container,
    running_pid,
)
from tests.waiting import eventually

START_SECONDS = standalone.START_SECONDS


@contextlib.contextmanager
def pod(
    kubelet: Kubelet, name: str, *containers: dict[str, object], **spec: object
) -> Iterator[str]:
    """A pod that runs during the block."""
    full = kubelet.run(name, containers, **spec)
    try:
        eventually(f"pod {name} is listed", lambda: kubelet.listed(full), START_SECONDS)
        yield full
    finally:
        kubelet.end(name)


def unreserved_cpus(kubelet: Kubelet) -> CpuSet:
    """The CPUs that the kubelet may assign to pods."""
    return kubelet.topology.online - kubelet.reserved


def test_cpus_and_memory_of_an_integer_guaranteed_pod(kubelet: Kubelet) -> None:
    with (
        pod(kubelet, "shared", container("main", "")),
        pod(kubelet, "own", container("main", "1")) as own,
    ):
        eventually("it runs", lambda: running_pid(kubelet, own, "main"), START_SECONDS)
        listed = kubelet.listed(own)
        assert listed is not None
        (main,) = listed.containers
        assert len(main.cpus) == 1
        assert main.cpus <= unreserved_cpus(kubelet)
        assert CpuSet.parse(kernel_cpus(running_pid(kubelet, own, "main"))) == main.cpus
        state = cpu_manager_state.read(str(kubelet.root / cpu_manager_state.FILE_NAME))
        ((uid, cpus),) = state.by_uid.items()
        assert cpus == main.cpus
        blocks = memory_manager_state.read(str(kubelet.root / memory_manager_state.FILE_NAME))
        (block,) = blocks.entries[uid]["main"]
        assert main.memory == (MemoryBlock("memory", 32 * MIB, block.nodes),)
        assert kubelet.client.pod("default", own) == listed

        allocated = kubelet_resources(
            kubelet.client.pods(), kubelet.topology, kubelet.client.allocatable()
        )
        assert allocated.problems == ()
        (node,) = block.nodes
        expected = Allocated(main.cpus, {node: {"memory": 32 * MIB}})
        assert allocated.pods == {("default", own): expected}, (
            "a pod that shares CPUs has no allocation"
        )
    assert kubelet.client.pods() == ()


def test_memory_of_several_numa_nodes_is_where_the_kubelet_allocates_it(kubelet: Kubelet) -> None:
    sizes = [
        each.size_bytes for each in kubelet.client.allocatable().memory if "huge" not in each.kind
    ]
    if len(sizes) < 2:
        pytest.skip("needs two NUMA nodes with memory")
    large = container("main", "1", f"{max(sizes) // MIB + 64}Mi")
    with pod(kubelet, "large", large) as name:
        # The kubelet lists a pod before it allocates its resources.
        eventually("it runs", lambda: running_pid(kubelet, name, "main"), START_SECONDS)
        allocated = kubelet_resources(
            kubelet.client.pods(), kubelet.topology, kubelet.client.allocatable()
        ).pods[("default", name)]
        state = memory_manager_state.read(str(kubelet.root / memory_manager_state.FILE_NAME))
        given = {
            node: {"memory": of_node.memory["memory"].reserved_bytes}
            for node, of_node in state.machine.items()
            if of_node.memory["memory"].reserved_bytes
        }
        assert len(given) > 1
        assert allocated.amounts == given


def test_reserved_memory_is_that_of_the_kubelets_configuration(kubelet: Kubelet) -> None:
    nodes = {node.id: 0 for node in kubelet.topology.numa_nodes if node.memory_bytes}
    assert reserved(kubelet.topology, kubelet.client.allocatable()) == Reserved(
        kubelet.reserved, nodes | {0: RESERVED_BYTES}
    )


def test_devices_of_a_plugin_with_and_without_a_numa_node(kubelet: Kubelet) -> None:
    plugin = DevicePlugin(kubelet.shared / "device-plugins")
    plugin.start({"d0": (0,), "d1": ()})
    try:
        near, far = PluginDevice(RESOURCE, "d0", (0,)), PluginDevice(RESOURCE, "d1")
        eventually(
            "both are known",
            lambda: kubelet.client.allocatable().devices == (near, far),
            START_SECONDS,
        )
        amounts = {"cpu": "10m", "memory": "8Mi", RESOURCE: "2"}
        taker = container("main", "", resources={"requests": amounts, "limits": amounts})
        with pod(kubelet, "taker", taker) as name:
            block = MemoryBlock("memory", 8 * MIB, (0,))
            taken = ContainerResources("main", memory=(block,), devices=(near, far))
            expected = PodResources("default", name, (taken,))
            eventually("it has them", lambda: kubelet.listed(name) == expected, START_SECONDS)
            plugin.report({"d1": ()}, unhealthy={"d0": (0,)})
            eventually(
                "one is unhealthy",
                lambda: kubelet.client.allocatable().devices == (far,),
                START_SECONDS,
            )
            pods, allocatable = kubelet.client.pods(), kubelet.client.allocatable()
            assert device_portions(pods, allocatable) == (Portion(RESOURCE, 0, 1, 0, 1),)
            allocated = kubelet_resources(pods, kubelet.topology, allocatable).pods
            assert allocated[("default", name)].amounts == {0: {"memory": 8 * MIB, RESOURCE: 1}}
    finally:
        plugin.stop()


def test_too_frequent_calls_are_a_rate_limit_error(kubelet: Kubelet) -> None:
    def too_often() -> bool:
        try:
            kubelet.client.allocatable()
        except RateLimitError as error:
            return "rejected by rate limit" in str(error)
        return False

    # A single caller on a busy machine never exceeds the limit.
    with ThreadPoolExecutor(8) as together:
        once = lambda: any(together.map(lambda _: too_often(), range(200)))  # noqa: E731
        eventually("calls exceed the limit", once, START_SECONDS)
    eventually("calls are allowed again", lambda: not too_often(), START_SECONDS)


def test_view_outlives_the_kubelet(kubelet: Kubelet) -> None:
    view = PodResourcesView(kubelet.socket, None, 0.5, 0.1)
    try:
        with pod(kubelet, "stays", container("main", "1")) as name:

            def cpus() -> CpuSet:
                answer = view.last_answer()
                pods = answer.pods if answer is not None else ()
                return next(
                    (each.containers[0].cpus for each in pods if each.name == name), CpuSet()
                )

            view.refresh()
            eventually("the view has it", cpus, START_SECONDS)
            first = cpus()
            kubelet.kill()
            view.refresh()
            assert cpus() == first
            kubelet.start()
            before = view.last_answer()
            assert before is not None
            eventually(
                "the view has another answer",
                lambda: view.last_answer() is not before,
                START_SECONDS,
            )
            eventually("the same", lambda: cpus() == first, START_SECONDS)
    finally:
        view.close()
