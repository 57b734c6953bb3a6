"""ResourceClaims on CPUs with a real kubelet, scheduler and runtime: what went wrong in other DRA
drivers, on the two CPUs of the node, of which one stays in the pool."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.dra.names import DRIVER
from tests import tools
from tests.cluster import claims, dradriver
from tests.cluster.churn import slices_gone
from tests.cluster.claims import (
    ALL,
    claim,
    claimant,
    delete_claimants,
    kill_agent,
    kill_container,
    kill_kubelet,
    prepared,
    wait_nothing_left,
    wait_published,
)
from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.cluster.machine import ProgramError
from tests.cluster.pods import manifest
from tests.fixtures import image

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("no_pods")]

KUBELET_GRACE_SECONDS = 30.0
"""How long a kubelet keeps the slices of a driver that is gone."""
RETRY_SECONDS = 100.0
"""A kubelet asks a driver that did not answer again after 60 to 90 seconds. One agent ends before
the next one starts."""
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
            with slices_gone(cluster, HOST) as gone:
                kill_agent(cluster)
                cluster.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/topolet-agent")
                claims.wait_rolled_out(cluster)
            assert gone == [], "agents hand the slices over"
            with slices_gone(cluster, HOST) as gone:
                cluster.nodes[HOST].restart_kubelet()
                cluster.wait_node_ready(HOST)
                wait_published(cluster)
                kill_kubelet(cluster)
                wait_published(cluster)
            assert all(end - begin < KUBELET_GRACE_SECONDS / 2 for begin, end in gone)
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


def test_a_reboot_prepares_claims_again(with_dra: Cluster) -> None:
    """The files of the runtime and of the agent are gone, those of the kubelet are not."""
    cluster = with_dra
    cluster.create(claim("one", 1), claimant("one"))
    cluster.wait_running("one")
    before = claims.restarts(cluster, "one")
    claims.reboot(cluster)
    cluster.wait_agent_ready(HOST)
    cluster.eventually("it runs again", lambda: claims.restarts(cluster, "one") > before)
    cluster.wait_running("one", seconds=claims.WAIT_SECONDS)
    own = prepared(cluster)["one"]
    assert cluster.cpus_of("one") == own
    assert len(claims.cdi_files(cluster)) == 1
    cluster.pod("ls", qos="LS", cpu="100m")
    assert cluster.cpus_of("ls") == ALL - own
    wait_published(cluster)
    delete_claimants(cluster, "one")


def test_claims_get_what_owners_and_reservations_leave(with_dra: Cluster) -> None:
    """One core stays in the pool, and CPUs that the kubelet reserves are no device's."""
    cluster = with_dra
    node = cluster.nodes[HOST]
    cluster.create(claim("all", 2), claimant("all"))
    cluster.eventually(
        "a claim on all CPUs has no place",
        lambda: "cannot allocate all claims" in cluster.unschedulable_message("all"),
    )
    delete_claimants(cluster, "all")

    cluster.pod("lsr", qos="LSR", cpu=1)
    cluster.eventually("no CPU is left", lambda: not claims.cpus_offered(cluster))
    cluster.create(claim("next", 1), claimant("next"))
    cluster.eventually(
        "a claim waits for the owner",
        lambda: "cannot allocate all claims" in cluster.unschedulable_message("next"),
    )
    cluster.delete_pod("lsr")
    cluster.wait_running("next")
    delete_claimants(cluster, "next")

    node.restart_kubelet(reservedSystemCPUs="0")
    try:
        cluster.wait_node_ready(HOST)
        wait_published(cluster, CpuSet((1,)))
        cluster.pod("ls", qos="LS", cpu="100m")
        cluster.create(claim("rest", 1), claimant("rest"))
        cluster.wait_running("rest")
        assert cluster.cpus("rest", "ls") == {"rest": "1", "ls": "0"}
        cluster.delete_pod("rest")
        cluster.kubectl("delete", "resourceclaims", "--all")
    finally:
        node.restart_kubelet(reservedSystemCPUs=None)
        cluster.wait_node_ready(HOST)
    wait_nothing_left(cluster)


def test_a_pod_with_claims_of_two_drivers_leaks_nothing_when_one_refuses(
    with_dra: Cluster,
) -> None:
    cluster = with_dra
    with dradriver.running(cluster, HOST):
        dradriver.refuse(cluster)
        cluster.create(
            dradriver.resource_slice(HOST, {"card": {"model": {"string": "test"}}}),
            claim("cpus", 1),
            dradriver.claim("card", f'"model" in device.attributes["{dradriver.DRIVER}"]'),
            with_card("half"),
        )
        cluster.eventually(
            "the other driver refuses",
            lambda: cluster.events("half", "FailedPrepareDynamicResources"),
        )
        cluster.delete_pod("half")
        cluster.eventually("no claim is prepared", lambda: not prepared(cluster))
        dradriver.allow(cluster)
        cluster.create(with_card("whole"))
        cluster.wait_running("whole")
        assert cluster.cpus_of("whole") == prepared(cluster)["cpus"]
        cluster.delete_pod("whole")
        wait_nothing_left(cluster)


def with_card(name: str) -> claims.Object:
    """A pod with a claim on CPUs and one on a card."""
    of_pod = [{"name": each, "resourceClaimName": each} for each in ("cpus", "card")]
    of_container = {"claims": [{"name": "cpus"}, {"name": "card"}]}
    return claimant(name, container={"resources": of_container}, resourceClaims=of_pod)


def test_claims_of_templates_and_cores_without_claims(with_dra: Cluster) -> None:
    """A pod that is created while agents replace each other starts, and one on a node whose devices
    are cores needs no claim of its own."""
    cluster = with_dra
    cluster.create(claims.template("of-template", 1))
    with slices_gone(cluster, HOST) as gone:
        cluster.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/topolet-agent")
        of_template = claims.use("of-template", "resourceClaimTemplateName")
        cluster.create(claimant("of-template", **of_template))
        cluster.wait_running("of-template", seconds=RETRY_SECONDS)
        claims.wait_rolled_out(cluster)
    assert gone == []
    (own,) = prepared(cluster).values()
    assert cluster.cpus_of("of-template") == own
    delete_claimants(cluster, "of-template")

    claims.with_options(cluster, "--dra-devices=core")
    cluster.eventually("cores are devices", lambda: "core" in str(claims.slices(cluster)))
    amounts = {"cpu": "100m", "topolet.io/core": "1"}
    limits = {"topolet.io/core": "1"}
    resources = {"requests": amounts, "limits": limits}
    cluster.create(manifest("core", container={"resources": resources}))
    cluster.wait_running("core")
    (own,) = prepared(cluster).values()
    assert cluster.cpus_of("core") == own
    delete_claimants(cluster, "core")


def test_claims_have_whole_devices_where_a_cluster_has_no_parts(with_dra: Cluster) -> None:
    """By the feature gates that Kubernetes 1.34 and 1.35 have by default: the agent says so, and
    claims on cores are as ever."""
    cluster = with_dra
    claims.with_options(cluster, "--dra-devices=numa-node")
    with claims.undivided(cluster):
        cluster.eventually(
            "the agent says so",
            lambda: "feature gate DRAConsumableCapacity off" in agent_log(cluster),
        )
        cluster.pod("ls", qos="LS", cpu="100m")
        cluster.create(claim("whole", 1), claim("next", 1), claimant("whole"))
        cluster.wait_running("whole")
        own = prepared(cluster)["whole"]
        assert (cluster.cpus_of("whole"), cluster.cpus_of("ls")) == (own, ALL - own)
        cluster.create(claimant("next"))
        cluster.eventually(
            "nobody else has a part",
            lambda: "cannot allocate all claims" in cluster.unschedulable_message("next"),
        )
        delete_claimants(cluster, "whole", "next")

        claims.with_options(cluster, "--dra-devices=core")
        cluster.eventually("cores are devices", lambda: "core" in str(claims.slices(cluster)))
        cluster.create(claim("core", 1), claimant("core"))
        cluster.wait_running("core")
        own = prepared(cluster)["core"]
        assert (cluster.cpus_of("core"), cluster.cpus_of("ls")) == (own, ALL - own)
        delete_claimants(cluster, "core")


@pytest.mark.skipif(tools.kubernetes_minor() >= 34, reason="Kubernetes has ResourceClaims here")
def test_a_cluster_without_claims_is_told_so_and_has_all_else(installed: Cluster) -> None:
    cluster = installed
    with pytest.raises(ProgramError, match='no matches for kind "DeviceClass"'):
        cluster.apply("overlays/proxy", "dra")
    try:
        claims.wait_rolled_out(cluster)
        cluster.eventually(
            "the agent says so",
            lambda: "does not serve resource.k8s.io/v1" in agent_log(cluster),
        )
        cluster.pod("ls", qos="LS", cpu="100m")
        cluster.pod("lse", qos="LSE", cpu=1)
        own = cluster.cpus_of("lse")
        assert own == cluster.allocated("lse")
        assert cluster.cpus_of("ls") == ALL - own
        cluster.delete_pod("lse")
    finally:
        cluster.apply("overlays/proxy")
        claims.wait_rolled_out(cluster)


def agent_log(cluster: Cluster) -> str:
    return cluster.kubectl("logs", "-n", NAMESPACE, cluster.agent_pod(HOST))
