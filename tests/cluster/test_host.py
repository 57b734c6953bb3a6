"""The two CPUs of one node with the CRI proxy."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import HOST, NAMESPACE, Cluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_pods")]


def test_pods_of_every_class_start_and_end_while_components_restart(installed: Cluster) -> None:
    cluster = installed
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.pod("be", qos="BE")
    assert cluster.cpus("ls", "be") == {"ls": "0-1", "be": "0-1"}

    cluster.pod("lse", qos="LSE", cpu=1)
    own = cluster.cpus_of("lse")
    assert len(own) == 1
    assert own == cluster.allocated("lse")
    rest = str(cluster.cpus_of("ls") - own)
    shared = {"ls": rest, "be": rest}
    assert cluster.cpus("ls", "be") == shared

    with cluster.following("lse", "ls", "be") as seen:
        cluster.nodes[HOST].kill_proxy()
        cluster.pod("late", qos="LS", cpu="100m")
        agent = cluster.agent_pod(HOST)
        cluster.delete_pod(agent, namespace=NAMESPACE)
        cluster.wait_agent_ready(HOST)
    assert seen == {"lse": [str(own)], "ls": [rest], "be": [rest]}
    assert cluster.cpus_of("late") == cluster.cpus_of("ls")

    cluster.delete_pod("lse")
    cluster.eventually(
        "the CPU is in the pool again",
        lambda: cluster.cpus("ls", "be") == {"ls": "0-1", "be": "0-1"},
    )
    cluster.pod("lsr", qos="LSR", cpu=1)
    own = cluster.cpus_of("lsr")
    assert own == cluster.allocated("lsr")
    assert not cluster.cpus_of("ls") & own
    assert cluster.agent_metric(HOST, "topolet_cpu_overlaps_total") == 0
