"""The metrics of koordlet, by their names and labels in Koordinator 1.8.0 (and node_metric_* and
the peak in its main branch)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.cgroup.hierarchy import Controllers, Handles
from agent.model.pod.apiobjects import ApiNode, ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState
from agent.node.cluster_view import ClusterState
from agent.node.koordlet_metrics import DECLARED, KoordletMetrics
from agent.node.usage import UsageView
from agent.telemetry.metrics import AgentMetrics
from tests.builders import machine, pod
from tests.telemetry.scrape import samples

LABELS = {
    "node_used_cpu_cores": "node",
    "node_used_memory_bytes": "node",
    "node_metric_node_usage": "node resource unit",
    "node_metric_system_usage": "node resource unit",
    "node_metric_numa_node_usage": "node numa_node_id resource unit",
    "node_predicted_resource_reclaimable": "node predictor resource unit",
    "node_predicted_resource_peak": "node predictor resource unit",
    "node_priority_resource_reclaimable": "node priority resource unit",
    "node_resource_priority_reclaimable_status": "node priority",
    "cpuset_share_pool_cpu_cores": "node",
    "cpuset_be_share_pool_cpu_cores": "node",
    "be_suppress_be_used_cpu_cores": "node",
    "be_suppress_ls_used_cpu_cores": "node",
    "pod_psi": "node pod_uid pod_name pod_namespace psi_resource_type psi_precision psi_degree "
    "cpu_full_supported",
    "container_psi": "node container_id container_name pod_uid pod_name pod_namespace "
    "psi_resource_type psi_precision psi_degree cpu_full_supported",
    "resctrl_llc_occupancy": "node cache_id qos",
    "resctrl_memory_bandwidth": "node cache_id qos mb_type",
}
LINE = "avg10={} avg60=0.20 avg300=0.30 total=9"


def test_names_and_labels_are_those_of_koordlet() -> None:
    declared = {series.name: " ".join(series.labels) for series in DECLARED}
    assert declared == {f"koordlet_{name}": labels for name, labels in LABELS.items()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with PSI in the groups of one pod, and with one group of resctrl."""
    cgroups = tmp_path / "sys/fs/cgroup"
    for group in ("", "kubepods/besteffort/poda", "kubepods/besteffort/poda/main"):
        (cgroups / group).mkdir(parents=True, exist_ok=True)
    (cgroups / "cgroup.controllers").write_text("cpu memory io")
    of_pod = cgroups / "kubepods/besteffort/poda"
    (of_pod / "cpu.pressure").write_text(f"some {LINE.format('1.50')}\n")
    (of_pod / "main/memory.pressure").write_text(
        f"some {LINE.format('2.50')}\nfull {LINE.format('0.50')}\n"
    )
    for group in ("BE", "other"):
        domain = tmp_path / f"sys/fs/resctrl/{group}/mon_data/mon_L3_01"
        domain.mkdir(parents=True)
        (domain / "llc_occupancy").write_text("4096\n")
        (domain / "mbm_local_bytes").write_text("70\n")
    (tmp_path / "sys/fs/resctrl/mon_data").mkdir()
    return tmp_path


def test_values(root: Path, tmp_path: Path) -> None:
    metrics = AgentMetrics()
    cgroups = str(root / "sys/fs/cgroup")
    view = UsageView(
        str(root), str(tmp_path), Controllers(cgroups), metrics, now=lambda: 2 * 86_400.0
    )
    main = Container("c1", "main", ContainerState.RUNNING, "/kubepods/besteffort/poda/main")
    running = msgspec.structs.replace(pod("a", "BE", kube_class="besteffort"), containers=(main,))
    api_pod = ApiPod("a", "ns", "a", "n", Phase.RUNNING, {}, {}, "besteffort", 0)
    cluster = ClusterState(ApiNode(allocatable={"cpu": 4000}), {"a": api_pod}, pods_listed=True)
    topology = machine(2, 2)
    owner = pod("b", "LSE", "1")
    decision = decide(topology, (owner,), KubeletCpus(), {}, {}, PoolRules())
    view.follow([running], cluster, topology, decision)
    view.sampler.sample()
    metrics.add(KoordletMetrics("n1", view, Controllers(cgroups, Handles(0))).read)
    exported = {
        (name.removeprefix("koordlet_"), *sorted(value for _, value in labels)): value
        for (name, labels), value in samples(metrics).items()
        if name.startswith("koordlet_")
    }
    assert exported["cpuset_share_pool_cpu_cores", "n1"] == 3
    assert exported["cpuset_be_share_pool_cpu_cores", "n1"] == 3
    assert exported["node_resource_priority_reclaimable_status", "koord-prod", "n1"] == 1
    psi = {key: value for key, value in exported.items() if key[0].endswith("_psi")}
    of_pod = {
        ("pod_psi", *sorted(("n1", "a", "a", "ns", "cpu", precision, "some", "false"))): value
        for precision, value in (("avg10", 1.5), ("avg60", 0.2), ("avg300", 0.3))
    }
    of_container = {
        (
            "container_psi",
            *sorted(("n1", "c1", "main", "a", "a", "ns", "mem", precision, degree, "true")),
        ): value
        for degree, avg10 in (("some", 2.5), ("full", 0.5))
        for precision, value in (("avg10", avg10), ("avg60", 0.2), ("avg300", 0.3))
    }
    assert psi == of_pod | of_container
    assert exported["resctrl_llc_occupancy", "1", "BE", "n1"] == 4096
    assert exported["resctrl_memory_bandwidth", "1", "BE", "mbm_local_bytes", "n1"] == 70
    assert len([key for key in exported if key[0].startswith("resctrl_")]) == 2


def test_the_use_of_this_machine_and_its_prediction(tmp_path: Path) -> None:
    metrics = AgentMetrics()
    view = UsageView("/", str(tmp_path), Controllers(), metrics, now=lambda: 2 * 86_400.0)
    api_pod = ApiPod("a", "ns", "a", "n", Phase.RUNNING, {}, {}, "burstable", 0)
    node = ApiNode(allocatable={"cpu": 4000, "memory": 1 << 30})
    cluster = ClusterState(node, {"a": api_pod}, pods_listed=True)
    topology = machine(1, 2)
    decision = decide(topology, (), KubeletCpus(), {}, {}, PoolRules())
    view.follow([pod("a")], cluster, topology, decision)
    for _ in range(2):
        view.sampler.sample()
    view.train()
    metrics.add(KoordletMetrics("n1", view, Controllers("/sys/fs/cgroup", Handles(0))).read)
    exported = samples(metrics)
    amount = {("node", "n1"), ("resource", "memory"), ("unit", "byte")}
    used = exported["koordlet_node_used_memory_bytes", frozenset({("node", "n1")})]
    assert exported["koordlet_node_metric_node_usage", frozenset(amount)] == used > 0
    peak = frozenset({*amount, ("predictor", "minPredictor")})
    assert exported["koordlet_node_predicted_resource_peak", peak] > 0
    status = frozenset({("node", "n1"), ("priority", "koord-prod")})
    assert exported["koordlet_node_resource_priority_reclaimable_status", status] == 0
