"""Pods that try to mislead or overload the agent, next to an owner on two CPUs."""

from __future__ import annotations

import pytest

from tests.cluster import images
from tests.cluster.cluster import HOST, NAMESPACE, Cluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_pods")]

FLAGS = "--cpu-manager-policy=static --reserved-cpus=0-1"
IMPOSTOR = f"""ln -s /bin/sh /tmp/kubelet
PATH=/tmp:$PATH
exec kubelet -c 'while :; do sleep 1000 & wait $!; done' sh {FLAGS}"""
BOTH = "0-1"


def test_pod_that_calls_itself_kubelet_changes_nothing(installed: Cluster) -> None:
    cluster = installed
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.pod("lse", qos="LSE", cpu=1)
    before = cluster.cpus("ls", "lse")
    cluster.pod(
        "impostor",
        hostPID=True,
        container={"image": images.image_name(), "command": ["sh", "-c", IMPOSTOR]},
    )
    machine = cluster.nodes[HOST].machine
    name = "\0".join(["kubelet", "-c"])
    cluster.eventually(
        "it has the name",
        lambda: any(each.startswith(name) for each in machine.read("/proc/*/cmdline").values()),
    )
    with cluster.following("ls", "lse") as seen:
        # The one that started first has the lower pid.
        cluster.nodes[HOST].restart_kubelet()
        cluster.delete_pod(cluster.agent_pod(HOST), namespace=NAMESPACE)
        cluster.wait_node_ready(HOST)
        cluster.wait_agent_ready(HOST)
    assert seen == {name: [cpus] for name, cpus in before.items()}
    assert cluster.agent_metric(HOST, 'topolet_source_problems{source="kubelet-process"}') == 0
    assert cluster.cpu_manager_policy(HOST) == "none"
    cluster.delete_pod("lse")
    cluster.eventually("the CPU is in the pool again", lambda: cluster.cpus("ls") == {"ls": BOTH})
