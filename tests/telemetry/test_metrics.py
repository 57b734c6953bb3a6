from __future__ import annotations

import msgspec
import pytest

from agent.allocate.cpu_claims import RefusalCause
from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import DedicatedCpus, KubeletCpus, PoolRules
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import Device
from agent.model.devices.gpus import GpuReading
from agent.model.devices.holding import GpuUse
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.pods import Pod
from agent.node.change_log import ChangeRecorder
from agent.telemetry.metrics import AgentMetrics
from tests.builders import machine, pod
from tests.telemetry.scrape import Samples, samples

OWNER = {("namespace", "ns"), ("pod", "a"), ("qos_class", "LSE")}


def export(metrics: AgentMetrics, *pods: Pod, rules: PoolRules | None = None) -> Samples:
    """The samples after a decision about these pods on a machine of two NUMA nodes."""
    decision = decide(machine(2, 2), pods, KubeletCpus(), {}, {}, rules or PoolRules())
    ChangeRecorder(metrics).export(decision)
    return samples(metrics)


def test_a_decision_is_exported_until_the_next() -> None:
    metrics = AgentMetrics()
    owner, refused_pod = pod("a", "LSE", "1"), pod("b", "LSE", "1,9", created_at=1)
    exported = export(metrics, owner, refused_pod)
    assert exported["topolet_pool_cpus", frozenset({("pool", "ls"), ("numa_node", "0")})] == 1
    assert exported["topolet_pool_cpus", frozenset({("pool", "be"), ("numa_node", "1")})] == 2
    assert exported["topolet_exclusive_cpus", frozenset(OWNER)] == 1
    (refused,) = [labels for name, labels in exported if name == "topolet_refused_claims"]
    assert (dict(refused)["namespace"], dict(refused)["pod"]) == ("ns", "b")
    assert dict(refused)["reason"] == "absent"
    assert not [name for name, _ in export(metrics) if name == "topolet_exclusive_cpus"]


def test_pools_are_exported_by_name_without_dedicated_ones() -> None:
    rules = PoolRules(dedicated={"system": DedicatedCpus(CpuSet([3]))})
    exported = export(AgentMetrics(), rules=rules)
    pools = {dict(labels)["pool"] for name, labels in exported if "pool_cpus" in name}
    assert pools == {"ls", "be"}


@pytest.mark.parametrize(
    "status",
    ['{"cpuset": "mine-%d"}', '{"cpuset": %d}', '{"cpuset": "9%d"}', '{"cpuset": "0"', "%d"],
)
def test_no_text_of_a_pods_annotation_is_in_a_label(status: str) -> None:
    exported = set()
    for number in range(70, 73):
        text = status.replace("%d", str(number))
        refused_pod = msgspec.structs.replace(pod("b", "LSE"), annotations={RESOURCE_STATUS: text})
        found = export(AgentMetrics(), refused_pod)
        exported |= {labels for name, labels in found if name == "topolet_refused_claims"}
    (labels,) = exported
    assert dict(labels)["reason"] in set(RefusalCause)


def test_two_pods_with_one_name_make_one_series() -> None:
    def pod_with_one_name(uid: str, cpuset: str) -> Pod:
        return msgspec.structs.replace(pod("web-0", "LSE", cpuset), uid=uid)

    pods = (
        pod_with_one_name("old", "0"),
        pod_with_one_name("new", "2-3"),
        pod_with_one_name("x", "9"),
        pod_with_one_name("y", "9"),
    )
    exported = export(AgentMetrics(), *pods)
    assert (
        exported["topolet_exclusive_cpus", frozenset(OWNER - {("pod", "a")} | {("pod", "web-0")})]
        == 3
    )
    assert [value for (name, _), value in exported.items() if name == "topolet_refused_claims"] == [
        2
    ]


def test_counters_exist_before_the_first_decision() -> None:
    assert ("topolet_cpu_overlaps_total", frozenset()) in samples(AgentMetrics())


def test_ages_of_watches_are_read_for_every_scrape() -> None:
    metrics = AgentMetrics()
    ages = {"pods": 1.5}
    metrics.follow(lambda: ages, lambda: 3)
    for age in (1.5, 2.5):
        ages["pods"] = age
        exported = samples(metrics)
        assert exported["topolet_watch_age_seconds", frozenset({("resource", "pods")})] == age
        assert exported["topolet_cluster_problems", frozenset()] == 3


def test_readiness_and_the_age_of_the_snapshot_are_read_for_every_scrape() -> None:
    metrics = AgentMetrics()
    state: list[tuple[bool, float | None]] = [(False, None)]
    metrics.follow_passes(lambda: state[-1][0], lambda: state[-1][1])
    exported = samples(metrics)
    assert exported["topolet_ready", frozenset()] == 0
    assert ("topolet_snapshot_age_seconds", frozenset()) not in exported
    state.append((True, 1.5))
    exported = samples(metrics)
    assert exported["topolet_ready", frozenset()] == 1
    assert exported["topolet_snapshot_age_seconds", frozenset()] == 1.5


GPU = Device("gpu", "GPU-1", 3, {"koordinator.sh/gpu-memory": 80}, healthy=False)
NIC = Device("rdma", "0000:1a:00.0", 0, {})


def test_units_and_names() -> None:
    metrics = AgentMetrics()
    reading = GpuReading("GPU-1", gpu_percent=25, sm_mhz=1410, power_milliwatts=70_500)
    usage = GpuUse("GPU-1", "ns/a", "main", 7, 50)
    metrics.devices.update(
        (GPU, NIC), (reading, GpuReading("GPU-removed", gpu_percent=1)), (usage,)
    )
    exported = {name: value for (name, _), value in samples(metrics).items() if "gpu" in name}
    assert exported == {
        "topolet_gpu_memory_bytes": 80,
        "topolet_gpu_utilization_ratio": 0.25,
        "topolet_gpu_sm_clock_hertz": 1.41e9,
        "topolet_gpu_power_watts": 70.5,
        "topolet_container_gpu_memory_used_bytes": 7,
        "topolet_container_gpu_utilization_ratio": 0.5,
    }
    healthy = {
        dict(labels)["type"]: value
        for (name, labels), value in samples(metrics).items()
        if name == "topolet_device_healthy"
    }
    assert healthy == {"gpu": 0, "rdma": 1}


def test_cards_without_a_driver_have_series() -> None:
    metrics = AgentMetrics()
    metrics.devices.update((), (), (), ("0000:07:00.0",), "DriverMismatch")
    exported = {name: dict(labels) for (name, labels), _ in samples(metrics).items()}
    assert exported["topolet_gpu_missing"] == {"pci_bus_id": "0000:07:00.0"}
    assert exported["topolet_gpu_driver_fault"] == {"reason": "DriverMismatch"}


def test_removed_devices_have_no_series() -> None:
    metrics = AgentMetrics()
    metrics.devices.update((GPU,), (GpuReading("GPU-1", gpu_percent=1),), ())
    metrics.devices.update((), (), ())
    assert not [name for name, _ in samples(metrics) if "gpu" in name or "device" in name]
