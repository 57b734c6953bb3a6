"""The output of `topolet explain` for pods that wait, on a whole cluster: it names the object to
change."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent.model.cpu.policies import BIND_LABEL
from agent.model.nrt.node_annotations import AMPLIFICATION_RATIO, RESERVATION
from agent.model.pod.annotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
from agent.model.pod.apiobjects import GROUP_ANNOTATION
from agent.node.change_log import CLAIM_NOT_HONORED
from agent.scheduler.unschedulable.events import NO_NODE_HAS_ROOM
from tests.cluster import failures
from tests.cluster.cluster import GUEST, HOST, Cluster
from tests.cluster.pods import manifest

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("no_pods", "reported"),
]


@pytest.fixture
def reported(installed: Cluster) -> None:
    """Waits until the scheduler has the node's first report."""
    cluster = installed
    cluster.create(manifest("probe", qos="LSE", cpu=64))
    cluster.eventually(
        "the scheduler knows the node's CPUs",
        lambda: "NodeResourceTopology" not in cluster.explained("probe"),
    )
    cluster.delete_pod("probe")


@pytest.fixture
def plain_node(installed: Cluster) -> Iterator[Cluster]:
    """Removes a test's label, annotations and cordon of the node afterwards."""
    yield installed
    installed.kubectl("uncordon", HOST)
    installed.kubectl("label", "node", HOST, f"{BIND_LABEL}-")
    installed.kubectl("annotate", "node", HOST, f"{AMPLIFICATION_RATIO}-", f"{RESERVATION}-")


@pytest.fixture
def reserved_cpu(installed: Cluster) -> Iterator[Cluster]:
    """The kubelet of n1 is static and reserves CPU 0."""
    cluster = installed
    _configure(cluster, "static", "0")
    yield cluster
    with failures.written(cluster, "reserved-cpu"):
        cluster.kubectl("delete", "pods", "--all", "-n", "default")
        _configure(cluster, "none", None)


def _configure(cluster: Cluster, policy: str, reserved: str | None) -> None:
    """Returns when kubelet and agent have the policy."""
    cluster.nodes[HOST].restart_kubelet(cpuManagerPolicy=policy, reservedSystemCPUs=reserved)
    cluster.wait_node_ready(HOST)
    cluster.eventually(
        f"the agent reports the policy {policy}",
        lambda: cluster.cpu_manager_policy(HOST) == policy,
    )


@pytest.fixture
def urgent(installed: Cluster) -> Iterator[Cluster]:
    """A budget that allows no eviction of a pod with the label app=kept, and a priority class."""
    cluster = installed
    policy = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    selected = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    cluster.create(
        {**policy, "metadata": {"name": "always-one"}, "spec": selected},
        {**priority, "metadata": {"name": "urgent"}},
    )
    yield cluster
    cluster.kubectl("delete", "poddisruptionbudget/always-one", "priorityclass/urgent")


@pytest.fixture
def author(installed: Cluster) -> Iterator[str]:
    """A user who may view the namespace of the pods, and nothing else."""
    words = ("rolebinding", "author", "-n", "default")
    installed.kubectl("create", *words, "--clusterrole=view", "--user=author")
    yield "author"
    installed.kubectl("delete", *words)


def test_too_few_cpus(installed: Cluster) -> None:
    cluster = installed
    cluster.create(manifest("wide", qos="LSE", cpu=64))
    words = cluster.explained("wide")
    assert "Pod default/wide: none of" in words
    assert "Pod default/wide: spec.containers[*].resources.requests, or Node" in words


def test_a_pod_of_another_scheduler(installed: Cluster) -> None:
    cluster = installed
    cluster.create(manifest("other", qos="LSR", cpu=64, scheduler="nobody"))
    words = cluster.explained("other")
    assert "nobody places this pod, and not topolet-scheduler" in words
    assert "change Pod default/other: spec.schedulerName" in words


def test_a_group_that_waits(installed: Cluster) -> None:
    cluster = installed
    members = [f"member-{number}" for number in range(3)]
    notes = {GROUP_ANNOTATION: "together/3"}
    cluster.create(*(manifest(each, qos="LSE", cpu=1, annotations=notes) for each in members))
    cluster.eventually(
        "the scheduler has decided", lambda: cluster.unschedulable_message("member-0")
    )
    words = cluster.explained("member-0")
    assert "group default/together waits for room for 3 pods on one node" in words
    assert f"change Pod default/member-0: metadata.annotations[{GROUP_ANNOTATION}]" in words


def test_a_policy_that_refuses(plain_node: Cluster) -> None:
    cluster = plain_node
    cluster.kubectl("label", "node", HOST, f"{BIND_LABEL}=SpreadByPCPUs")
    notes = {RESOURCE_SPEC: '{"requiredCPUBindPolicy": "FullPCPUs"}'}
    cluster.create(manifest("strict", qos="LSE", cpu=2, annotations=notes))
    cluster.eventually("the scheduler has decided", lambda: cluster.unschedulable_message("strict"))
    words = cluster.explained("strict")
    assert "the node has another CPU bind policy" in words
    assert f"Node {HOST}: metadata.labels[{BIND_LABEL}]" in words


def test_an_amplified_node(plain_node: Cluster) -> None:
    cluster = plain_node
    cluster.annotate("node", HOST, **{AMPLIFICATION_RATIO: '{"cpu": 2}'})
    cluster.create(manifest("twice", qos="LSE", cpu=2))
    cluster.eventually("the scheduler has decided", lambda: cluster.unschedulable_message("twice"))
    words = cluster.explained("twice")
    assert "not enough amplified CPU" in words
    assert f"Node {HOST}: metadata.annotations[{AMPLIFICATION_RATIO}]" in words


@pytest.mark.timeout(2700)
def test_no_numa_node_has_enough_cpus(with_guest: Cluster) -> None:
    """The node g1 has enough CPUs, but none of its NUMA nodes has."""
    cluster = with_guest
    notes = {NUMA_TOPOLOGY_SPEC: '{"numaTopologyPolicy": "SingleNUMANode"}'}
    cluster.create(manifest("across", qos="LSE", cpu=6, node=GUEST, annotations=notes))
    cluster.eventually(
        "the scheduler has the report", lambda: "NUMA nodes" in cluster.explained("across")
    )
    words = cluster.explained("across")
    assert "cpu: no NUMA nodes that the policy admits (requested 6, available" in words
    assert f"or Node {GUEST}: its pods" in words


def test_a_budget_that_protects(urgent: Cluster) -> None:
    """A scheduling gate keeps kube-scheduler from evicting the pod that the budget protects."""
    cluster = urgent
    cluster.pod("kept", qos="LSE", cpu=1)
    gates = [{"name": "topolet.test/later"}]
    cluster.create(
        manifest("urgent", qos="LSE", cpu=1, priorityClassName="urgent", schedulingGates=gates)
    )
    words = cluster.explained("urgent")
    assert "The eviction of 1 pod of lower priority would make room: default/kept." in words
    message = "1 PodDisruptionBudget protects 1 of the 1 pods whose eviction would make room"
    assert f"{message} change PodDisruptionBudget default/always-one: spec" in words


def test_cpus_that_the_kubelet_reserves(reserved_cpu: Cluster) -> None:
    cluster = reserved_cpu
    cluster.create(manifest("both", qos="LSE", cpu=2))
    message = (
        "the kubelet reserves CPUs, which no pod may own: 0 "
        f"change KubeletConfiguration {HOST}: reservedSystemCPUs, or DaemonSet topolet-agent: the "
        "argument --owners-on-reserved"
    )
    cluster.eventually(
        "the reserved CPUs are explained", lambda: message in cluster.explained("both")
    )


def test_an_owner_on_reserved_cpus(plain_node: Cluster) -> None:
    """A scheduler that does not have the reservation yet sends a Binding with these CPUs. Here a
    client with the scheduler's account sends it."""
    cluster = plain_node
    cluster.annotate("node", HOST, **{RESERVATION: json.dumps({"reservedCPUs": "0"})})
    cluster.eventually("the agent reports it", lambda: cluster.reserved(HOST) == "0")
    cluster.kubectl("cordon", HOST)
    cluster.create(manifest("owner", qos="LSE", cpu=1))
    cluster.bind_as_scheduler("owner", HOST, "0")
    cluster.wait_running("owner")
    cluster.eventually("an Event reports it", lambda: cluster.events("owner", CLAIM_NOT_HONORED))
    cluster.eventually(
        "the scheduler has the agent's refusal",
        lambda: "refuses the claim" in cluster.explained("owner"),
    )
    words = cluster.explained("owner")
    assert f"node {HOST} refuses the claim of CPUs 0: CPUs 0 are reserved by the node" in words
    assert f"change Node {HOST}: metadata.annotations[{RESERVATION}], or Pod" in words


def test_the_author_of_a_pod_reads_what_to_change(plain_node: Cluster, author: str) -> None:
    cluster = plain_node
    cluster.kubectl("label", "node", HOST, f"{BIND_LABEL}=SpreadByPCPUs")
    notes = {RESOURCE_SPEC: '{"requiredCPUBindPolicy": "FullPCPUs"}'}
    # kube-scheduler accepts the node: a pod that it rejects everywhere never reaches the extender.
    cluster.create(manifest("mine", qos="LSE", cpu=1, annotations=notes))
    cluster.eventually("the pod has the Event", lambda: cluster.events("mine", NO_NODE_HAS_ROOM))
    described = cluster.kubectl("describe", "pod", "mine", f"--as={author}")
    (line,) = (each for each in described.splitlines() if NO_NODE_HAS_ROOM in each)
    assert line.split()[0] == "Warning"
    assert "No room on 1 node. 1 node: the node has another CPU bind policy; change Pod" in line
    assert f"or Node {HOST}: metadata.labels[{BIND_LABEL}]" in line
