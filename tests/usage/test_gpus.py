"""Samples of GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.model.devices.device_object import GPU_MEMORY, Device, DeviceType
from agent.model.devices.gpus import GpuReading
from agent.model.devices.holding import GpuUse
from agent.usage.gpus import GpuSampler, UsedGpu

CARDS = (
    Device(DeviceType.GPU, "GPU-b", 1, {GPU_MEMORY: 1000}),
    Device(DeviceType.GPU, "GPU-a", 0, {}),
    Device(DeviceType.RDMA, "GPU-c", 0, {}),
)
PODS = {"ns/p", "ns/q"}


def averages(used: tuple[UsedGpu, ...]) -> list[tuple[str, float | None, float | None]]:
    return [
        (
            gpu.uuid,
            gpu.core_percent and gpu.core_percent.average,
            gpu.memory_bytes and gpu.memory_bytes.average,
        )
        for gpu in used
    ]


class Sampled:
    """A sampler and its clock; `add` takes one reading of both cards after ten seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sampler = GpuSampler(lambda: self.now)

    def add(
        self, *readings: GpuReading, users: tuple[GpuUse, ...] = (), pods: set[str] = PODS
    ) -> None:
        self.now += 10
        self.sampler.add(CARDS, readings, users, pods)


@pytest.fixture
def sampled() -> Sampled:
    return Sampled()


def test_the_cards_are_averaged_over_the_window(sampled: Sampled) -> None:
    sampled.add(GpuReading("GPU-b", 400, 10), GpuReading("GPU-c", 9, 9))
    sampled.add(GpuReading("GPU-b", 600, 30), GpuReading("GPU-a", 5, None))
    used = sampled.sampler.cards(60)
    assert averages(used) == [("GPU-a", None, 5), ("GPU-b", 20, 500)]
    assert [(gpu.minor, gpu.memory_total_bytes) for gpu in used] == [(0, None), (1, 1000)]
    assert averages(sampled.sampler.cards(5)) == [("GPU-a", None, 5), ("GPU-b", 30, 600)]


def test_a_pod_has_the_sum_of_its_containers_on_each_card(sampled: Sampled) -> None:
    both = GpuReading("GPU-a", 9, 50), GpuReading("GPU-b", 9, 50)
    users = (
        GpuUse("GPU-a", "ns/p", "one", 100, 30),
        GpuUse("GPU-a", "ns/p", "two", 50, None),
        GpuUse("GPU-b", "ns/p", "one", 7, 5),
        GpuUse("GPU-b", "", "", 900, 90),
        GpuUse("GPU-b", "ns/unknown", "a", 900, 90),
    )
    sampled.add(*both, users=users)
    of_pods = sampled.sampler.pods(60)
    assert of_pods.keys() == {"ns/p"}
    assert averages(of_pods["ns/p"]) == [("GPU-a", 30, 150), ("GPU-b", 5, 7)]
    sampled.add(*both, users=users[2:])
    averaged = averages(sampled.sampler.pods(60)["ns/p"])
    assert averaged == [("GPU-a", 15, 75), ("GPU-b", 5, 7)], "it has left the card"


@pytest.mark.parametrize(("of_card", "of_pod"), [(40, 0.0), (None, None)])
def test_a_process_without_a_sample_computes_nothing_where_the_driver_has_samples(
    sampled: Sampled, of_card: int | None, of_pod: float | None
) -> None:
    """In MIG mode it has none of any process."""
    sampled.add(GpuReading("GPU-a", 9, of_card), users=(GpuUse("GPU-a", "ns/q", "one", 9, None),))
    assert averages(sampled.sampler.pods(60)["ns/q"]) == [("GPU-a", of_pod, 9)]


@pytest.mark.parametrize(
    "end",
    [
        lambda sampled: sampled.sampler.add((), (), (), PODS),
        lambda sampled: sampled.add(pods=set()),
    ],
    ids=["card", "pod"],
)
def test_what_is_gone_is_forgotten(sampled: Sampled, end: Callable[[Sampled], None]) -> None:
    sampled.add(GpuReading("GPU-a", 9, 1), users=(GpuUse("GPU-a", "ns/p", "one", 9, 9),))
    end(sampled)
    assert sampled.sampler.pods(600) == {}
