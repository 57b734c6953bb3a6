"""LSE pods and plain Guaranteed pods with a static kubelet and one reserved CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.pod.annotations import RESOURCE_SPEC
from agent.node.change_log import CLAIM_NOT_HONORED
from tests.cluster import failures
from tests.cluster.cluster import GUEST, ON_GUEST, Cluster
from tests.cluster.pods import manifest

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("no_pods"),
]

ALL = CpuSet.parse("0-15")
RESERVED = CpuSet([0])
SPREAD = {RESOURCE_SPEC: json.dumps({"preferredCPUBindPolicy": "SpreadByPCPUs"})}
WRITTEN = 'topolet_scheduler_resource_status_updates_total{result="written"}'


@pytest.fixture
def static(with_guest: Cluster) -> Iterator[Cluster]:
    """The guest's kubelet is static until the end of the test; its node is empty at both changes,
    as an administrator drains it."""
    cluster = with_guest
    _configure(cluster, "static", str(RESERVED))
    yield cluster
    with failures.written(cluster, "static-kubelet"):
        cluster.kubectl("delete", "pods", "--all", "-n", "default", "--wait=false")
        cluster.eventually("no pod is left", lambda: not cluster.objects("pods"))
        _configure(cluster, "none", None)


def _configure(cluster: Cluster, policy: str, reserved: str | None) -> None:
    """Returns when kubelet and agent have the policy."""
    node = cluster.nodes[GUEST]
    node.restart_kubelet(cpuManagerPolicy=policy, reservedSystemCPUs=reserved)
    cluster.wait_node_ready(GUEST)
    cluster.eventually(
        f"the agent reports the policy {policy}",
        lambda: cluster.cpu_manager_policy(GUEST) == policy,
    )


def test_both_kinds_at_once_get_what_they_request(static: Cluster) -> None:
    """The scheduler's choice for lse-2 is corrected: it has halves of two cores, and the kubelet
    assigns a whole one."""
    cluster = static
    cpus = {"plain-2": 2, "lse-2": 2, "plain-3": 3, "lse-4": 4}
    owners = ("lse-2", "lse-4")
    corrected = cluster.scheduler_metric(WRITTEN)
    cluster.pod("plain-2", cpu=2, guaranteed=True, **ON_GUEST)
    with cluster.following("plain-2") as seen:
        cluster.create(
            manifest("lse-2", qos="LSE", cpu=2, annotations=SPREAD, **ON_GUEST),
            manifest("plain-3", cpu=3, guaranteed=True, **ON_GUEST),
            manifest("lse-4", qos="LSE", cpu=4, **ON_GUEST),
            manifest("ls", qos="LS", cpu="100m", **ON_GUEST),
        )
        cluster.wait_running("lse-2", "plain-3", "lse-4", "ls")
        for name in owners:
            cluster.eventually(
                f"the annotation of {name} has the CPUs of the kubelet",
                lambda name=name: cluster.allocated(name) == cluster.cpus_of(name),
            )
    own = {name: cluster.cpus_of(name) for name in cpus}
    assert {name: len(each) for name, each in own.items()} == cpus
    taken = union(own.values())
    assert len(taken) == sum(cpus.values()), f"the CPUs are not exclusive: {own}"
    assert not taken & RESERVED
    assert cluster.cpus_of("ls") == ALL - taken
    assert seen == {"plain-2": [str(own["plain-2"])]}
    assert [each for name in own for each in cluster.events(name, CLAIM_NOT_HONORED)] == []
    assert cluster.scheduler_metric(WRITTEN) > corrected
    assert cluster.agent_metric(GUEST, "topolet_cpu_overlaps_total") == 0
    assert cluster.agent_metric(GUEST, "topolet_containers_short_of_cpus") == 0
