"""Metrics of GPUs with the names of pods and containers."""

from __future__ import annotations

import os

from tests.discover import gpumachines
from tests.integration.gpunode import GpuNode
from tests.integration.harness import TestNode
from tests.waiting import eventually

MIB = 1 << 20
WHOLE = 0xFFFFFFFF
"""No MIG instance."""


def test_use_memory_and_health_by_card_pod_and_container(node: TestNode) -> None:
    """A process belongs to the container of its cgroup. For a process outside of pods the labels
    are empty. Excluded pods have metrics too."""
    gpus = GpuNode(node, gpumachines.a100_hgx())
    first, second = gpus.machine.cards[:2]
    spec = node.spec("trainer", "LS")
    other = node.spec("monitor", namespace="kube-system")
    pids = [node.direct.container_status(gpus.run(each, first.uuid)).pid for each in (spec, other)]
    mib = {pids[0]: 300, pids[1]: 20, os.getpid(): 5}
    compute = " ".join(f"{pid} {size} {WHOLE} {WHOLE}" for pid, size in mib.items())
    samples = f"{pids[0]} 40 7 0 0"
    gpus.driver.set_machine(
        gpus.machine.with_values(0, compute=compute, samples=samples, utilization="45 10")
    )
    gpus.start_agent("--exclude=kube-*")

    def has(name: str, value: float, **labels: str) -> bool:
        text = ",".join(f'{key}="{word}"' for key, word in sorted(labels.items()))
        page = node.get("/metrics")[1].splitlines()
        found = [line.rpartition(" ")[2] for line in page if line.startswith(f"{name}{{{text}}} ")]
        return [float(each) for each in found] == [value]

    where = {
        "uuid": first.uuid,
        "namespace": "default",
        "pod": "trainer",
        "container": "main",
    }
    memory = "topolet_container_gpu_memory_used_bytes"
    eventually("the trainer's memory", lambda: has(memory, 300 * MIB, **where))
    assert has("topolet_container_gpu_utilization_ratio", 0.4, **where)
    monitor = where | {"namespace": "kube-system", "pod": "monitor"}
    assert has(memory, 20 * MIB, **monitor)
    assert has(memory, 5 * MIB, uuid=first.uuid, namespace="", pod="", container="")
    card = {"uuid": first.uuid, "minor": str(first.minor)}
    assert has("topolet_gpu_utilization_ratio", 0.45, **card)
    assert has("topolet_gpu_temperature_celsius", 34, **card)
    assert has("topolet_gpu_utilization_ratio", 0.3, uuid=second.uuid, minor=str(second.minor))

    device = {"type": "gpu", "id": first.uuid, "minor": str(first.minor)}
    assert has("topolet_device_healthy", 1, **device)
    gpus.driver.event(0, 79)
    eventually("the lost GPU is unhealthy", lambda: has("topolet_device_healthy", 0, **device))
    assert has("topolet_device_healthy", 1, type="gpu", id=second.uuid, minor=str(second.minor))
