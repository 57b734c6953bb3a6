"""What operators ask about pods that wait, on a whole cluster: the words of `topolet explain` name
the object to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.apiobjects import GROUP_ANNOTATION
from agent.model.cpu.policies import BIND_LABEL
from agent.model.nrt.node_annotations import AMPLIFICATION_RATIO
from agent.model.pod.annotations import RESOURCE_SPEC
from tests.cluster.cluster import HOST, Cluster
from tests.cluster.pods import manifest

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("pods_gone", "reported"),
]

ROOT = Path(__file__).resolve().parents[2]
# The exit code 1 of the command says that the pod gets no node.
_NO_NODE = 'PYTHONPATH=$1 "$2" -m agent explain "$3" --kubeconfig="$4"; test $? = 1'


def told(cluster: Cluster, pod: str) -> str:
    """The words of the explanation for the administrator, on one line."""
    config = cluster.control.config("admin")
    words = ("sh", "-c", _NO_NODE, "sh", ROOT, sys.executable, pod, config)
    return " ".join(cluster.control.world.run(*words).split())


@pytest.fixture
def reported(installed: Cluster) -> None:
    """Waits until the scheduler has the node's first report."""
    cluster = installed
    cluster.create(manifest("probe", qos="LSE", cpu=64))
    cluster.eventually(
        "the scheduler knows the node's CPUs",
        lambda: "NodeResourceTopology" not in told(cluster, "probe"),
    )
    cluster.delete_pod("probe")


@pytest.fixture
def plain_node(installed: Cluster) -> Iterator[Cluster]:
    """Removes a test's label and annotation of the node afterwards."""
    yield installed
    installed.kubectl("label", "node", HOST, f"{BIND_LABEL}-")
    installed.kubectl("annotate", "node", HOST, f"{AMPLIFICATION_RATIO}-")


def test_too_few_cpus(installed: Cluster) -> None:
    cluster = installed
    cluster.create(manifest("wide", qos="LSE", cpu=64))
    words = told(cluster, "wide")
    assert "Pod default/wide: none of" in words
    assert "Pod default/wide: spec.containers[*].resources.requests, or Node" in words


def test_a_pod_of_another_scheduler(installed: Cluster) -> None:
    cluster = installed
    cluster.create(manifest("other", qos="LSR", cpu=64, scheduler="nobody"))
    words = told(cluster, "other")
    assert "nobody places this pod, and not topolet-scheduler" in words
    assert "change Pod default/other: spec.schedulerName" in words


def test_a_group_that_waits(installed: Cluster) -> None:
    cluster = installed
    members = [f"member-{number}" for number in range(3)]
    notes = {GROUP_ANNOTATION: "together/3"}
    cluster.create(*(manifest(each, qos="LSE", cpu=1, annotations=notes) for each in members))
    cluster.eventually("the scheduler has decided", lambda: cluster.refused("member-0"))
    words = told(cluster, "member-0")
    assert "group default/together waits for room for 3 pods on one node" in words
    assert f"change Pod default/member-0: metadata.annotations[{GROUP_ANNOTATION}]" in words


def test_a_policy_that_refuses(plain_node: Cluster) -> None:
    cluster = plain_node
    cluster.kubectl("label", "node", HOST, f"{BIND_LABEL}=SpreadByPCPUs")
    notes = {RESOURCE_SPEC: '{"requiredCPUBindPolicy": "FullPCPUs"}'}
    cluster.create(manifest("strict", qos="LSE", cpu=2, annotations=notes))
    cluster.eventually("the scheduler has decided", lambda: cluster.refused("strict"))
    words = told(cluster, "strict")
    assert "the node has another CPU bind policy" in words
    assert f"Node {HOST}: metadata.labels[{BIND_LABEL}]" in words


def test_an_amplified_node(plain_node: Cluster) -> None:
    cluster = plain_node
    cluster.annotate("node", HOST, **{AMPLIFICATION_RATIO: '{"cpu": 2}'})
    cluster.create(manifest("twice", qos="LSE", cpu=2))
    cluster.eventually("the scheduler has decided", lambda: cluster.refused("twice"))
    words = told(cluster, "twice")
    assert "not enough amplified CPU" in words
    assert f"Node {HOST}: metadata.annotations[{AMPLIFICATION_RATIO}]" in words
