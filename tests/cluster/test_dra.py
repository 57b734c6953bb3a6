"""ResourceClaims on CPUs with a real kubelet, scheduler and runtime: what went wrong in other DRA
drivers, on the two CPUs of the node, of which one stays in the pool."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent.model.dra.names import DRIVER
from tests.cluster import claims
from tests.cluster.claims import (
    ALL,
    claim,
    claimant,
    delete_claimants,
    kill_agent,
    kill_container,
    kill_kubelet,
    prepared,
    slices_gone,
    wait_nothing_left,
    wait_published,
)
from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.fixtures import image

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("no_pods")]

KUBELET_GRACE_SECONDS = 30.0
"""How long a kubelet keeps the slices of a driver that is gone."""
DEAF = "trap '' TERM; while :; do sleep 1; done"
"""A container that only SIGKILL ends."""


@pytest.fixture(scope="module")
def with_dra(installed: Cluster) -> Iterator[Cluster]:
    with claims.driver(installed):
        yield installed


def test_a_claim_keeps_its_cpus_while_everything_restarts(with_dra: Cluster) -> None:
    """The container, the agent by SIGKILL and by a rolling update, and the kubelet: the kubelet
    does not prepare claims of running pods again, and deletes slices at its start."""
    cluster = with_dra
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.create(claim("one", 1), claimant("one"))
    cluster.wait_running("one")
    own = cluster.cpus_of("one")
    assert len(own) == 1
    assert prepared(cluster) == {"one": own}
    others = ALL - own
    assert cluster.cpus_of("ls") == others

    files = claims.cdi_files(cluster)
    assert len(files) == 1
    with cluster.following("ls") as seen_of_others:
        kill_container(cluster, "one")
        assert cluster.cpus_of("one") == own
        with cluster.following("one") as seen:
            with slices_gone(cluster) as gone:
                kill_agent(cluster)
                cluster.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/topolet-agent")
                claims.wait_rolled_out(cluster)
            assert gone == [], "agents hand the slices over"
            with slices_gone(cluster) as gone:
                cluster.nodes[HOST].restart_kubelet()
                cluster.wait_node_ready(HOST)
                wait_published(cluster)
                kill_kubelet(cluster)
                wait_published(cluster)
            assert max(gone, default=0.0) < KUBELET_GRACE_SECONDS / 2
        kill_container(cluster, "one")
        assert cluster.cpus_of("one") == own
    assert seen == {"one": [str(own)]}
    assert seen_of_others == {"ls": [str(others)]}
    assert claims.cdi_files(cluster) == files, "the claim is not prepared again"
    delete_claimants(cluster, "one")
    cluster.eventually("the CPU is in the pool", lambda: cluster.cpus_of("ls") == ALL)


def test_a_claim_is_shared_and_its_cpus_wait_for_the_last_container(with_dra: Cluster) -> None:
    """Two containers of one pod, and another pod, one of them with the pool beside its own CPUs;
    then a pod that is deleted without grace before its container has ended."""
    cluster = with_dra
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.create(claim("both", 1), claimant("a", "both", containers=2), claimant("b", "both"))
    cluster.wait_running("a", "b")
    own = prepared(cluster)["both"]
    assert [cluster.cpus_of("a"), cluster.cpus_of("a", "main-1")] == [own, own]
    with cluster.following("b", "ls") as seen:
        cluster.delete_pod("a")
        kill_agent(cluster)
    assert seen == {"b": [str(own)], "ls": [str(ALL - own)]}
    delete_claimants(cluster, "b")
    cluster.eventually("the CPU is in the pool", lambda: cluster.cpus_of("ls") == ALL)

    cluster.create(claim("old", 1), claimant("old", container=deaf()))
    cluster.wait_running("old")
    old = cluster.container_id("old")
    node = cluster.nodes[HOST]
    with node.machine.moments(node.cpuset_files("*")) as moments:
        cluster.kubectl("delete", "pod", "old", "--force", "--grace-period=0")
        cluster.kubectl("delete", "resourceclaim", "old", "--wait=false")
        cluster.create(claim("new", 1), claimant("new"))
        cluster.wait_running("new", seconds=claims.WAIT_SECONDS)
    assert cluster.cpus_of("new") == prepared(cluster)["new"]
    ids = (old, cluster.container_id("new"), cluster.container_id("ls"))
    shared = claims.overlaps(moments, *ids)
    assert shared == [], "a container is on the CPUs of a claim that is not its own"
    delete_claimants(cluster, "new")

    cluster.create(claim("mixed", 1, {"shared": True}), claimant("mixed"))
    cluster.wait_running("mixed")
    assert cluster.cpus_of("mixed") == ALL
    assert cluster.cpus_of("ls") == ALL - prepared(cluster)["mixed"]
    delete_claimants(cluster, "mixed")


def deaf() -> claims.Object:
    return {
        "command": [image.BUSYBOX, "sh", "-c", DEAF],
        "resources": {"requests": {"cpu": "100m"}, "claims": [{"name": "cpus"}]},
    }


def test_a_node_without_its_driver_says_so_and_leaks_nothing(with_dra: Cluster) -> None:
    """The scheduler has allocated the claim by slices that still exist: the kubelet can't prepare
    it, and its pod can be deleted. Claims that are deleted meanwhile, and entries that can't be
    read, don't keep CPUs. The slices go after the kubelet's grace, and come back."""
    cluster = with_dra
    node = cluster.nodes[HOST]
    with claims.no_agent(cluster):
        cluster.create(claim("late", 1), claimant("late"))
        cluster.eventually(
            "the pod without a driver has an Event",
            lambda: any(
                DRIVER in note for note in cluster.events("late", "FailedPrepareDynamicResources")
            ),
        )
        cluster.delete_pod("late")
        cluster.eventually("the kubelet removes the slices", lambda: not claims.slices(cluster))
        stale = {"claims": [{"uid": "stale", "groups": [{"cpus": "one"}]}]}
        node.machine.write(claims.STATE, json.dumps(stale))
    wait_published(cluster)
    wait_nothing_left(cluster)

    cluster.create(claim("away", 1), claimant("away"))
    cluster.wait_running("away")
    own = cluster.cpus_of("away")
    with claims.no_agent(cluster):
        # The kubelet forgets the pod and its claim, and nobody unprepares it.
        cluster.kubectl("delete", "pod", "away", "--force", "--grace-period=0")
        cluster.kubectl("delete", "resourceclaim", "away")
        node.stop_kubelet()
        node.machine.remove("/var/lib/kubelet/dra_manager_state")
        node.restart_kubelet()
        cluster.wait_node_ready(HOST)
    assert prepared(cluster) == {"away": own}
    wait_nothing_left(cluster)
