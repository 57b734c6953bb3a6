"""The agent's corrected PodResources API, compared with that of a real kubelet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import msgspec
import pytest

from agent.kubelet.podresources import PodResourcesClient
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.pod_resources import ContainerResources, PluginDevice
from agent.model.pod.qos import QOS_LABEL
from tests.discover import gpumachines
from tests.integration.gpunode import GpuNode
from tests.integration.harness import fresh_node
from tests.integration.kubelet.plugin import RESOURCE, DevicePlugin
from tests.integration.kubelet.standalone import START_SECONDS, Kubelet, container
from tests.waiting import eventually


@pytest.fixture
def gpus(kubelet: Kubelet) -> Iterator[GpuNode]:
    with fresh_node(kubelet.containerd) as node:
        it = GpuNode(node, gpumachines.dgx1())
        it.link(kubelet.folder)
        yield it


def main_of(client: PodResourcesClient, pod: str) -> ContainerResources | None:
    """The first container of a pod. Waits, because the kubelet limits the rate of calls."""
    time.sleep(0.05)
    listed = client.pod("default", pod)
    return listed.containers[0] if listed and listed.containers else None


def test_devices_and_cpus_are_those_that_containers_have(kubelet: Kubelet, gpus: GpuNode) -> None:
    """The device plugin assigned one GPU, the scheduler another one. A pod of class LS shares CPUs,
    also if the kubelet assigned CPUs to it."""
    first, second = (each.uuid for each in gpus.machine.cards[:2])
    plugin = DevicePlugin(kubelet.shared / "device-plugins")
    socket = gpus.node.folder / "exported" / "kubelet.sock"
    exporter = PodResourcesClient(str(socket))
    minor = gpus.machine.cards[1].minor
    amounts = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
    allocated = json.dumps({"gpu": [{"minor": minor, "resources": amounts}]})
    wants = {"memory": "8Mi", RESOURCE: "1"}
    plugin.start({first: (0,)})
    try:
        eventually("a card", lambda: kubelet.client.allocatable().devices, START_SECONDS)
        taker = kubelet.run(
            "taker",
            [container("main", "", resources={"requests": wants, "limits": wants})],
            {"annotations": {DEVICE_ALLOCATED: allocated}},
        )
        shares = kubelet.run("shares", [container("main", "1")], {"labels": {QOS_LABEL: "LS"}})
        own: ContainerResources | None = None

        def kubelet_has_both() -> bool:
            """All requested devices are assigned and listed one by one."""
            nonlocal own
            own = main_of(kubelet.client, shares)
            taken = main_of(kubelet.client, taker)
            return bool(own and own.cpus and own.memory and taken and taken.devices)

        eventually("the kubelet assigned both", kubelet_has_both, START_SECONDS)
        gpus.start_agent(
            f"--kubelet-dir={kubelet.root}",
            f"--corrected-pod-resources-socket={socket}",
        )

        def cards() -> tuple[PluginDevice, ...]:
            listed = main_of(exporter, taker)
            return listed.devices if listed else ()

        before = main_of(kubelet.client, taker)
        assert before is not None
        assert before.devices == (PluginDevice(RESOURCE, first, (0,)),)
        eventually(
            "the scheduler's card", lambda: cards() == (PluginDevice(RESOURCE, second, (0,)),)
        )
        assert own is not None
        expected = msgspec.structs.replace(own, cpus=CpuSet())
        eventually(
            "the LS pod has no exclusive CPUs", lambda: main_of(exporter, shares) == expected
        )
        assert main_of(kubelet.client, shares) == own
        assert exporter.allocatable() == kubelet.client.allocatable()
        assert exporter.pod("default", "nobody") is None, "the kubelet's errors are passed on"
        gpus.node.stop_agent()
    finally:
        exporter.close()
        plugin.stop()
        for name in ("taker", "shares"):
            kubelet.end(name)
