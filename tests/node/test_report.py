from __future__ import annotations

import json
from typing import Any

from agent.allocate.cpu_claims import RefusalCause, claim_refusal
from agent.allocate.node_allocator.properties import topology_options
from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.kube.events import Regarding
from agent.model.cpu.cpuset import CpuSet
from agent.model.dra.node_claims import ContainerClaim, NodeClaims
from agent.model.nrt import resource_topology
from agent.model.nrt.node_annotations import (
    MAX_REFUSED,
    REFUSED_CLAIMS,
    NodeConfiguration,
    NodeReservation,
    SystemQos,
    refused_claims,
)
from agent.model.nrt.resource_topology import Version
from agent.model.pod.annotations import CRIO_INTERRUPTS
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import Pod
from agent.model.settings.agent import AgentSettings
from agent.node.change_log import INVALID_ANNOTATION, PodEvents
from agent.node.cluster_view import ClusterState
from agent.node.devices import DeviceState
from agent.node.node_configuration import with_settings
from agent.node.node_resource_topology import Report
from agent.node.report import ClusterReporter, Reporter, ReportInput
from agent.telemetry.metrics import AgentMetrics
from tests.builders import machine, pod, running
from tests.node.world import Recorded


class RecordingStore:
    """Records the reported objects and labels."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []
        self.labels: list[dict[str, str]] = []

    def __call__(self, report_: Report) -> bool:
        self.applied.append(resource_topology.encode(report_.topology, Version.V1ALPHA2))
        self.labels.append(report_.labels)
        return True


def report(
    reporter: ClusterReporter,
    *pods: Pod,
    kubelet: KubeletCpus | None = None,
    nodes: int = 2,
    configured: NodeConfiguration | None = None,
) -> bool:
    kubelet = kubelet or KubeletCpus()
    topology = machine(nodes, 2)
    decision = decide(topology, pods, kubelet, {}, {})
    configured = configured or NodeConfiguration()
    return reporter.report(ReportInput(topology, decision, pods, kubelet, configured))


def stored_annotations(store: RecordingStore) -> dict[str, Any]:
    return {
        key.partition("/")[2]: json.loads(value)
        for key, value in store.applied[-1]["metadata"]["annotations"].items()
    }


def test_annotations_of_koordinator() -> None:
    store = RecordingStore()
    kubelet = KubeletCpus(True, {"g": CpuSet([3]), "removed": CpuSet([2])})
    guaranteed = pod("g", kube_class="guaranteed")
    assert report(ClusterReporter("n", store), pod("a", "LSR", "1"), guaranteed, kubelet=kubelet)
    assert [each["metadata"]["name"] for each in store.applied] == ["n"]
    assert "topology.topolet.io/cpus" in store.labels[0]
    found = stored_annotations(store)
    assert found["cpu-topology"]["detail"][3] == {"id": 3, "core": 3, "socket": 1, "node": 1}
    assert found["cpu-shared-pools"] == [{"socket": 0, "node": 0, "cpuset": "0"}]
    assert found["be-cpu-shared-pools"] == [{"socket": 0, "node": 0, "cpuset": "0-1"}]
    assert found["cpu-manager-policy"] == {"policy": "static"}
    assert found["pod-cpu-allocs"] == [
        {"namespace": "ns", "name": "a", "uid": "a", "cpuset": "1"},
        {"namespace": "ns", "name": "g", "uid": "g", "cpuset": "3", "managedByKubelet": True},
        {"namespace": "", "name": "", "uid": "removed", "cpuset": "2", "managedByKubelet": True},
    ]
    zones = store.applied[0]["zones"]
    available = [zone["resources"][0]["available"] for zone in zones]
    assert available == ["1", "0"]


def test_report_is_applied_again_only_with_new_content() -> None:
    store = RecordingStore()
    reporter = ClusterReporter("n", store)
    assert report(reporter, pod("a", "LS"))
    assert not report(reporter, pod("b", "LS"))
    assert len(store.applied) == 1
    assert report(reporter, pod("b", "LSE", "1"))
    assert report(reporter, pod("b", "LSE", "1"), nodes=3)
    assert report(reporter, pod("b", "LSE", "1"), nodes=3, kubelet=KubeletCpus(True, {}))
    assert stored_annotations(store)["cpu-manager-policy"] == {"policy": "static"}


def test_settings_of_the_node_are_reported() -> None:
    store = RecordingStore()
    configured = NodeConfiguration(
        kubelet_options={"full-pcpus-only": "true"},
        kubelet_reserved=CpuSet([0]),
        topology_policy="single-numa-node",
        topology_scope="pod",
        system_qos=SystemQos("1", cpuset_exclusive=False),
        reservation=NodeReservation({"cpu": "500m"}, "2"),
    )
    reporter = ClusterReporter("n", store)
    kubelet = KubeletCpus(True, {})
    assert report(reporter, kubelet=kubelet, configured=configured)
    assert not report(reporter, kubelet=kubelet, configured=configured)
    found = stored_annotations(store)
    assert found["cpu-manager-policy"] == {
        "policy": "static",
        "options": {"full-pcpus-only": "true"},
        "reservedCPUs": "0",
    }
    assert found["system-qos-resource"] == {"cpuset": "1", "cpusetExclusive": False}
    assert found["reservation"] == {"resources": {"cpu": "500m"}, "reservedCPUs": "2"}
    assert store.applied[0]["topologyPolicies"] == ["SingleNUMANodePodLevel"]
    assert store.applied[0]["attributes"] == [
        {"name": "topologyManagerPolicy", "value": "single-numa-node"},
        {"name": "topologyManagerScope", "value": "pod"},
    ]
    assert report(reporter, kubelet=kubelet)
    assert not {"system-qos-resource", "reservation"} & stored_annotations(store).keys()


def test_the_policy_of_the_kubelets_memory_manager_is_reported_where_pods_are_aligned() -> None:
    """It gives hints to the topology manager, so the scheduler needs its policy."""
    store = RecordingStore()
    reporter = ClusterReporter("n", store)
    assert report(reporter, configured=NodeConfiguration(kubelet_memory=True))
    assert stored_annotations(store)["agent-settings"] == {"memoryManagerPolicy": "Static"}
    assert report(reporter)
    assert "agent-settings" not in stored_annotations(store)
    assert report(reporter, configured=NodeConfiguration(topology_policy="restricted"))
    assert stored_annotations(store)["agent-settings"] == {"memoryManagerPolicy": "None"}


def test_the_label_of_the_manager_is_koordlets_where_readers_select_by_it() -> None:
    store = RecordingStore()
    settings = AgentSettings(managed_by="Koordinator")
    for configured in (NodeConfiguration(), with_settings(NodeConfiguration(), settings)):
        report(ClusterReporter("n", store), configured=configured)
    labels = [each["metadata"]["labels"] for each in store.applied]
    assert labels == [{"app.kubernetes.io/managed-by": each} for each in ("topolet", "Koordinator")]


def test_pods_that_share_are_not_reported_as_the_static_kubelets() -> None:
    store = RecordingStore()
    by_uid = {"l": CpuSet([0]), "empty": CpuSet(), "a": CpuSet([1])}
    pods = pod("l", "LS", kube_class="guaranteed"), pod("a", "LSR", "2", kube_class="guaranteed")
    report(ClusterReporter("n", store), *pods, kubelet=KubeletCpus(True, by_uid))
    (alloc,) = stored_annotations(store)["pod-cpu-allocs"]
    assert (alloc["uid"], alloc["cpuset"], alloc["managedByKubelet"]) == ("a", "1", True)


def test_no_scheduler_gives_cpus_of_a_prepared_claim_to_a_pod() -> None:
    """From the claims of the node to what is left in the scheduler's ledger."""
    store = RecordingStore()
    of_pod = {"main": ContainerClaim(CpuSet([1]))}
    kubelet = KubeletCpus(claims=NodeClaims(CpuSet([1]), {"a": of_pod}))
    report(ClusterReporter("n", store), pod("a", "LS"), kubelet=kubelet)
    (alloc,) = stored_annotations(store)["pod-cpu-allocs"]
    assert (alloc["name"], alloc["cpuset"], alloc["managedByKubelet"]) == ("a", "1", True)
    stored = resource_topology.decode(store.applied[0])
    options, faults = topology_options({}, {}, stored)
    assert (str(options.kept), faults) == ("1", ())


def test_refused_claims_are_named_while_they_are_refused() -> None:
    store = RecordingStore()
    reporter = ClusterReporter("n", store)
    owner, late = pod("a", "LSE", "1"), pod("b", "LSR", "1-2", created_at=1)
    assert report(reporter, owner, late, pod("c", status="["))
    first, second = stored_annotations(store)["refused-claims"]
    assert first == {
        "namespace": "ns",
        "name": "b",
        "uid": "b",
        "cpuset": "1-2",
        "reason": "CPUs 1 belong to pod ns/a",
    }
    assert (second["uid"], "cpuset" in second) == ("c", False)
    encoded = {REFUSED_CLAIMS: json.dumps([first, second])}
    assert [each.uid for each in refused_claims(encoded)] == ["b", "c"]
    assert report(reporter, late)
    assert "refused-claims" not in stored_annotations(store)


def test_the_list_of_refused_claims_is_bounded() -> None:
    store = RecordingStore()
    many = ",".join(str(cpu) for cpu in range(1, 8000, 2))
    refused = [pod(f"p{number:04}", "LSE", many) for number in range(MAX_REFUSED + 9)]
    assert report(ClusterReporter("n", store), *reversed(refused))
    listed = [each["uid"] for each in stored_annotations(store)["refused-claims"]]
    assert listed == [each.uid for each in refused[:MAX_REFUSED]]
    text = store.applied[-1]["metadata"]["annotations"][REFUSED_CLAIMS]
    assert len(refused_claims({REFUSED_CLAIMS: text})) == MAX_REFUSED
    assert len(text) < 32 << 10


def test_an_annotation_that_decisions_do_not_read_is_an_event_of_its_pod_too() -> None:
    owner = pod("own", "LSE", "1", containers=(running("c"),))
    reason = "value: 'sometimes' is not one of disable, enable"
    unread = claim_refusal(owner, RefusalCause.INVALID, reason, CRIO_INTERRUPTS)
    recorded, store = Recorded(), RecordingStore()
    reporter = Reporter(
        ClusterReporter("n", store),
        AgentMetrics(),
        PodEvents(recorded),
        unread=lambda: [unread],
    )
    topology, kubelet = machine(2, 2), KubeletCpus()
    decision = decide(topology, (owner,), kubelet, {}, {})
    api_pod = ApiPod("own", "ns", "own", "n", Phase.RUNNING, {}, {}, None, 1)
    moment = ReportInput(
        topology,
        decision,
        (owner,),
        kubelet,
        NodeConfiguration(),
        ClusterState(pods={"own": api_pod}),
    )
    reporter.report(moment, (), DeviceState(), None, (owner,))
    note = f"annotation {CRIO_INTERRUPTS}: {reason}"
    assert recorded.events == [(Regarding("ns", "own", "own"), INVALID_ANNOTATION, note)]
