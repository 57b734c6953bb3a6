"""The metrics of usage, of batch resources, and of pools in use."""

from __future__ import annotations

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.model.pod.pods import Pod
from agent.node.change_log import ChangeRecorder
from agent.telemetry.metrics import AgentMetrics
from agent.telemetry.usage_metrics import PodUse, UsageValues, follow_offers, follow_usage
from agent.usage.resctrl import Monitored
from agent.usage.sampler import Counted, HostUnit, Last
from agent.usage.traffic import DiskTraffic, NetworkTraffic, Traffic
from agent.usage.waits import Throttling, Waits
from tests.builders import machine, pod
from tests.telemetry.scrape import Samples, samples


def export(metrics: AgentMetrics, *pods: Pod, rules: PoolRules | None = None) -> Samples:
    """The samples after a decision about these pods on a machine of two NUMA nodes."""
    decision = decide(machine(2, 2), pods, KubeletCpus(), {}, {}, rules or PoolRules())
    ChangeRecorder(metrics).export(decision)
    return samples(metrics)


def test_offers_are_in_cpus_and_bytes_by_kind() -> None:
    metrics = AgentMetrics()
    follow_offers(
        metrics,
        lambda: {
            "kubernetes.io/batch-cpu": 22_500,
            "kubernetes.io/batch-memory": 1 << 30,
            "kubernetes.io/mid-cpu": 500,
        },
    )
    offered = {
        (name, *labels): value
        for (name, labels), value in samples(metrics).items()
        if name.startswith("topolet_offered")
    }
    assert offered == {
        ("topolet_offered_cpus", ("kind", "batch")): 22.5,
        ("topolet_offered_cpus", ("kind", "mid")): 0.5,
        ("topolet_offered_memory_bytes", ("kind", "batch")): 1 << 30,
    }


def exported_usage(usage: UsageValues, metrics: AgentMetrics | None = None) -> set[str]:
    """The samples of a scrape with these values, without the metrics of an agent without usage."""
    metrics = metrics or AgentMetrics()
    before = samples(metrics)
    follow_usage(metrics, lambda: usage)
    return {
        f"{name}{{{','.join(value for _, value in sorted(labels))}}} {number:g}"
        for (name, labels), number in samples(metrics).items()
        if (name, labels) not in before
    }


def test_the_values_of_usage() -> None:
    moved, sent = DiskTraffic(1, 2, 3, 4), NetworkTraffic(5, 6, 7, 8)
    counted = Counted(
        Waits(
            {("io", "full"): 1.5}, {"u1": {("cpu", "some"): 2.5}}, {("u1", ""): Throttling(9, 8, 7)}
        ),
        10,
        {"u1": 11, "gone": 12},
        Traffic(
            {"sda": moved},
            {"eth0": sent},
            {("u1", "sda"): moved, ("gone", "sda"): moved},
            {"u1": sent, "gone": sent},
            {("sshd.service", "sda"): moved},
        ),
        {"sshd.service": HostUnit(None, 13, 14)},
        {"guaranteed": HostUnit(15.5, None)},
        16.5,
        {("/BE", "0"): Monitored(17, None, 18)},
    )
    pods = {
        "u1": PodUse(("ns", "a"), "LS", 0.5, 100.0),
        "u2": PodUse(("ns", "b"), "LS", 0.25, None),
        "u3": PodUse(("ns", "c"), "BE", None, None),
    }
    containers = {("u1", "main"): Last(0.25, None), ("gone", "main"): Last(1.0, 1.0)}
    usage = UsageValues((1.5, None), {1: (0.5, 50.0)}, pods, containers, counted)
    assert exported_usage(usage) == {
        f"topolet_{line}"
        for line in (
            "node_used_cpus{} 1.5",
            "numa_node_used_cpus{1} 0.5",
            "numa_node_used_memory_bytes{1} 50",
            "pod_used_cpus{ns,a} 0.5",
            "pod_used_cpus{ns,b} 0.25",
            "pod_used_memory_bytes{ns,a} 100",
            "container_used_cpus{main,ns,a} 0.25",
            "qos_class_used_cpus{LS} 0.75",
            "qos_class_used_memory_bytes{LS} 100",
            "node_major_page_faults_total{} 10",
            "pod_major_page_faults_total{ns,a} 11",
            "node_pressure_stalled_seconds_total{full,io} 1.5",
            "pod_pressure_stalled_seconds_total{some,ns,a,cpu} 2.5",
            "pod_cpu_quota_periods_total{,ns,a} 9",
            "pod_cpu_throttled_periods_total{,ns,a} 8",
            "pod_cpu_throttled_seconds_total{,ns,a} 7",
            "host_unit_used_memory_bytes{sshd.service} 13",
            "host_unit_major_page_faults_total{sshd.service} 14",
            "kubepods_cpu_seconds_total{guaranteed} 15.5",
            *(
                f"{prefix}disk_{name}_total{{{labels}}} {number}"
                for prefix, labels in (
                    ("", "sda"),
                    ("pod_", "sda,ns,a"),
                    ("host_unit_", "sda,sshd.service"),
                )
                for number, name in enumerate(("read_bytes", "written_bytes", "reads", "writes"), 1)
            ),
            *(
                f"{prefix}network_{name}_total{{{labels}}} {number}"
                for prefix, labels in (("", "eth0"), ("pod_", "ns,a"))
                for number, name in (
                    (5, "received_bytes"),
                    (6, "sent_bytes"),
                    (7, "received_packets"),
                    (8, "sent_packets"),
                )
            ),
            "kernel_threads_cpu_seconds_total{} 16.5",
            "resctrl_cache_bytes{0,/BE} 17",
            "resctrl_local_memory_bytes_total{0,/BE} 18",
        )
    }


def test_pools_and_owners_are_as_busy_as_their_cpus() -> None:
    metrics = AgentMetrics()
    export(metrics, pod("a", "LSE", "1"), pod("b", "LSR", "2"))
    busy = {0: 0.25, 1: 0.5, 2: 1.0}
    usage = UsageValues((None, None), {}, {}, {}, Counted(), busy)
    assert exported_usage(usage, metrics) == {
        "topolet_pool_used_cpus{0,ls} 0.25",
        "topolet_pool_used_cpus{0,be} 0.25",
        "topolet_pool_used_cpus{1,be} 1",
        "topolet_exclusive_used_cpus{ns,a,LSE} 0.5",
        "topolet_exclusive_used_cpus{ns,b,LSR} 1",
    }
