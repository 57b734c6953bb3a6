"""The chart is installed on a whole cluster, upgraded while pods run, and removed. Then nodes,
objects, cgroups and files are as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import failures, host
from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.cluster.machine import ProgramError
from tests.cluster.release import helm, names, node, reports
from tests.deploy import chart
from tests.waiting import eventually

VALUES = (
    # The proxy runs before and after the release.
    '--set-json=pools=[{"mode":"proxy"}]',
    "--set=scheduler.enabled=true",
    # This API server does not know its version.
    "--set=scheduler.kubeScheduler.image.tag=v1.36.3",
)
PROXY_FILES = {"/run/topolet", "/run/topolet/cri.sock", "/run/topolet/door.lock"}

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture
def bare() -> Iterator[Cluster]:
    """A separate cluster, with the proxy only."""
    chart.helm()
    with host.running() as cluster:
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.eventually(
            "the default account exists",
            lambda: cluster.get("serviceaccount", "default", NAMESPACE),
        )
        yield cluster


def files(cluster: Cluster) -> set[str]:
    return set(cluster.nodes[HOST].machine.run("find", "/run/topolet").split())


def test_a_release_is_upgraded_under_running_pods_and_leaves_nothing(
    bare: Cluster, tmp_path: Path
) -> None:
    cluster = bare
    chart_folder = chart.for_any_version(tmp_path)
    install = ("upgrade", "--install", "topolet", chart_folder)
    before = node(cluster), names(cluster)
    with failures.written(cluster, "install"):
        helm(cluster, tmp_path, *install, *VALUES)
        cluster.wait_agent_ready(HOST)
        cluster.wait_ready("scheduler")
        cluster.wait_ready("kube-scheduler")
    tested = helm(cluster, tmp_path, "test", "topolet", "--timeout=200s")
    assert "DaemonSet topolet-agent: 1 pod, all Ready" in tested
    assert "Deployment topolet-scheduler: 2 pods, all Ready" in tested
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.pod("lse", qos="LSE", cpu=1)
    own = cluster.cpus_of("lse")
    assert own == cluster.allocated("lse")
    rest = cluster.cpus_of("ls")
    assert not rest & own

    agent = cluster.agent_pod(HOST)
    wrong = '--set-json=pools=[{"mode":"proxy","runtime":"/run/none/none.sock"}]'
    with pytest.raises(ProgramError) as refused:
        helm(cluster, tmp_path, *install, *VALUES, wrong)
    reason = "runtime /run/none/none.sock: this socket does not exist; the node has /run/containerd"
    assert reason in str(refused.value)
    assert cluster.agent_pod(HOST) == agent
    with cluster.following("lse", "ls") as seen:
        more = '--set-json=pools=[{"mode":"proxy","settings":{"period-seconds":30}}]'
        helm(cluster, tmp_path, *install, *VALUES, more)
        cluster.pod("late", qos="LS", cpu="100m")
        cluster.eventually(
            "the agent is replaced",
            lambda: not cluster.get("pod", agent, NAMESPACE),
        )
        cluster.wait_agent_ready(HOST)
    assert seen == {"lse": [str(own)], "ls": [str(rest)]}

    with failures.written(cluster, "removal"):
        output = helm(cluster, tmp_path, "uninstall", "topolet", "--timeout=280s")
    assert f"node {HOST}: nothing of Topolet is left, but its proxy stays" in output
    eventually(
        "Kubernetes has deleted the objects of the release", lambda: names(cluster) == before[1]
    )
    assert node(cluster) == before[0]
    assert reports(cluster) == []
    everything = {"lse": "0-1", "ls": "0-1", "late": "0-1"}
    assert cluster.cpus(*everything) == everything
    assert files(cluster) <= PROXY_FILES
