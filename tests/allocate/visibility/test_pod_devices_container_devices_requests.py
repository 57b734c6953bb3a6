"""Device requests of containers, from a pod's specification."""

from __future__ import annotations

from typing import Any

from agent.allocate.visibility.pod_devices import (
    ContainerDeviceRequest,
    container_device_requests,
)
from agent.model.devices.device_object import GPU, GPU_CORE, GPU_MEMORY_RATIO, RDMA
from agent.model.devices.device_request import TypeRequest
from agent.model.pod.apiobjects import ApiPod, from_object


def pod(containers: list[Any], init: list[Any]) -> ApiPod:
    return from_object(
        {
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": containers, "initContainers": init},
        }
    )


def container(name: str, limits: dict[str, str], **more: str) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits}, **more}


def test_requests_are_in_the_order_in_which_containers_start() -> None:
    it = pod(
        [container("a", {"nvidia.com/gpu": "2", "cpu": "3"}), container("b", {RDMA: "100"})],
        [
            container("i", {GPU: "50"}),
            container("s", {}, restartPolicy="Always"),
        ],
    )
    half = {GPU_CORE: 50, GPU_MEMORY_RATIO: 50}
    whole = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}
    both = {GPU_CORE: 200, GPU_MEMORY_RATIO: 200}
    assert container_device_requests(it) == (
        ContainerDeviceRequest("i", {"gpu": TypeRequest(half, 1, half, True)}, init=True),
        ContainerDeviceRequest("s", init=True, sidecar=True),
        ContainerDeviceRequest("a", {"gpu": TypeRequest(both, 2, whole)}),
        ContainerDeviceRequest("b", {"rdma": TypeRequest({RDMA: 100}, 1, {RDMA: 100})}),
    )


def test_an_incomplete_share_makes_the_requests_unknown() -> None:
    it = pod([container("a", {GPU_CORE: "50"}), container("b", {GPU_MEMORY_RATIO: "50"})], [])
    assert container_device_requests(it) is None


def test_restart_policy_always_is_ignored_on_a_container_that_is_not_an_init_container() -> None:
    requests = container_device_requests(pod([container("a", {}, restartPolicy="Always")], []))
    assert requests == (ContainerDeviceRequest("a"),)
