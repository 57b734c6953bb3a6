"""The output of `topolet explain` for pods that wait, on a whole cluster: it names the object to
change."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent.model.cpu.policies import BIND_LABEL
from agent.model.nrt.node_annotations import AMPLIFICATION_RATIO, RESERVATION
from agent.model.pod.annotations import RESOURCE_SPEC
from agent.node.change_log import CLAIM_NOT_HONORED
from agent.scheduler.unschedulable.events import NO_NODE_HAS_ROOM
from tests.cluster import failures
from tests.cluster.cluster import HOST, Cluster
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
def author(installed: Cluster) -> Iterator[str]:
    """A user who may view the namespace of the pods, and nothing else."""
    words = ("rolebinding", "author", "-n", "default")
    installed.kubectl("create", *words, "--clusterrole=view", "--user=author")
    yield "author"
    installed.kubectl("delete", *words)


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
