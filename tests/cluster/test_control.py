"""A node with pods during outages of parts of the control plane."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.cluster.pods import manifest

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("no_pods"),
]


def test_pods_keep_their_cpus_during_an_outage_of_the_api_server(installed: Cluster) -> None:
    cluster = installed
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.pod("lse", qos="LSE", cpu=1)
    before = cluster.cpus("ls", "lse")
    with cluster.following("ls", "lse") as seen, cluster.without_api_server():
        cluster.nodes[HOST].kill_proxy()
        cluster.nodes[HOST].restart_kubelet()
        cluster.wait_while_recording(15)
    assert seen == {name: [cpus] for name, cpus in before.items()}
    cluster.wait_node_ready(HOST)
    cluster.delete_pod("lse")
    cluster.eventually("the CPU is in the pool again", lambda: cluster.cpus("ls") == {"ls": "0-1"})


def test_a_missing_scheduler_delays_no_other_pods(installed: Cluster) -> None:
    cluster = installed
    words = ("-n", NAMESPACE, "scale", "deployment", "topolet-scheduler")
    cluster.kubectl(*words, "--replicas=0")
    try:
        # A pod that is being deleted still responds to kube-scheduler's requests.
        cluster.wait_deleted("scheduler")
        cluster.create(manifest("lse", qos="LSE", cpu=1))
        cluster.pod("plain", cpu="10m")
        assert not cluster.allocated("lse")
    finally:
        cluster.kubectl(*words, "--replicas=2")
    cluster.wait_running("lse")
    assert cluster.cpus_of("lse") == cluster.allocated("lse")
