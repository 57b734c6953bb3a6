"""The devices of a pod, divided among its containers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.visibility.pod_devices import (
    ContainerDeviceRequest,
    SplitError,
    container_device_requests,
    split,
)
from agent.model.devices.device_allocation import AllocatedDevice
from agent.model.devices.device_object import GPU, GPU_CORE, GPU_MEMORY_RATIO, RDMA
from agent.model.devices.device_request import TypeRequest
from agent.model.pod.apiobjects import ApiPod, from_object
from tests.allocate.visibility.type_requests import type_request

KIND = "gpu"


def cards(*percents: int) -> list[AllocatedDevice]:
    return [
        AllocatedDevice(minor, f"GPU-{minor}", {GPU_CORE: each, GPU_MEMORY_RATIO: each})
        for minor, each in enumerate(percents)
    ]


def whole(
    name: str, count: int, *, init: bool = False, sidecar: bool = False
) -> ContainerDeviceRequest:
    request = type_request(count, {GPU_CORE: 100, GPU_MEMORY_RATIO: 100})
    return ContainerDeviceRequest(name, {KIND: request}, init, sidecar)


def part(name: str, percent: int, count: int = 1) -> ContainerDeviceRequest:
    request = type_request(count, {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}, shared=True)
    return ContainerDeviceRequest(name, {KIND: request})


NONE = ContainerDeviceRequest("none")


@pytest.mark.parametrize(
    ("allocated", "containers", "shares"),
    [
        pytest.param(cards(100, 100), [whole("a", 2)], {"a": (0, 1)}, id="one container"),
        pytest.param(
            cards(100, 100, 100),
            [whole("a", 2), NONE, whole("b", 1)],
            {"a": (0, 1), "b": (2,)},
            id="in the order of the specification",
        ),
        pytest.param(
            cards(80), [part("a", 50), part("b", 30), NONE], {"a": (0,), "b": (0,)}, id="shared"
        ),
        pytest.param(
            cards(100, 100),
            [part("a", 40), whole("b", 1), part("c", 60)],
            {"b": (0,), "a": (1,), "c": (1,)},
            id="whole cards first",
        ),
        pytest.param(
            cards(50, 50),
            [part("a", 50), part("b", 50)],
            {"a": (0,), "b": (1,)},
            id="not enough left on one card",
        ),
        pytest.param(cards(50, 50), [part("a", 50, 2)], {"a": (0, 1)}, id="spread over two"),
        pytest.param(
            cards(100, 100),
            [whole("i", 2, init=True), whole("j", 1, init=True), whole("a", 1), whole("b", 1)],
            {"i": (0, 1), "j": (0,), "a": (0,), "b": (1,)},
            id="init containers use the same cards",
        ),
        pytest.param(
            cards(100, 100, 100),
            [
                whole("i", 1, init=True),
                whole("s", 1, init=True, sidecar=True),
                whole("j", 2, init=True),
                whole("a", 2),
            ],
            {"i": (0,), "s": (0,), "j": (1, 2), "a": (1, 2)},
            id="a sidecar keeps its card",
        ),
        pytest.param(
            [AllocatedDevice(0), AllocatedDevice(1)],
            [
                ContainerDeviceRequest("a", {KIND: type_request(1)}),
                ContainerDeviceRequest("b", {KIND: type_request(1)}),
            ],
            {"a": (0,), "b": (1,)},
            id="unknown amounts",
        ),
        pytest.param(cards(100, 100), [NONE], {}, id="no requests"),
    ],
)
def test_shares(
    allocated: list[AllocatedDevice],
    containers: list[ContainerDeviceRequest],
    shares: dict[str, tuple[int, ...]],
) -> None:
    assert split(allocated, KIND, containers) == shares


@pytest.mark.parametrize(
    "containers",
    [
        [whole("a", 2), whole("last", 1)],
        [part("a", 60), part("b", 60), part("last", 60)],
        [whole("s", 1, init=True, sidecar=True), whole("last", 2)],
    ],
)
def test_requests_beyond_the_pods_allocation(containers: list[ContainerDeviceRequest]) -> None:
    with pytest.raises(SplitError, match="container last requests"):
        split(cards(100, 100), KIND, containers)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 2))
def test_containers_that_run_at_once_share_no_whole_card(counts: list[int], spare: int) -> None:
    containers = [whole(str(index), count) for index, count in enumerate(counts)]
    allocated = cards(*[100] * (sum(counts) + spare))
    shares = split(allocated, KIND, containers)
    taken = [index for each in shares.values() for index in each]
    if len(containers) > 1:
        assert len(taken) == len(set(taken)) == sum(counts)
        assert [len(shares[each.name]) for each in containers] == counts
    else:
        assert len(taken) == len(allocated)


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
