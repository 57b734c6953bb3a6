"""ResourceClaims on CPUs with a real kubelet, scheduler and runtime: what went wrong in other DRA
drivers, on the two CPUs of the node, of which one stays in the pool."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator

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
HANGS_SECONDS = 4.0
"""Longer than an agent rests between two reads, and than it collects changes of slices."""
ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
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


def test_claims_and_owners_keep_their_cpus_when_the_agent_loses_its_files(
    with_dra: Cluster,
) -> None:
    """All of its state folder, and the second half of the file of claims. A claim on a CPU that is
    taken waits until the claim before is unprepared, or the owner ends."""
    cluster = with_dra
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.create(claim("one", 1), claimant("one"))
    cluster.wait_running("one")
    devices = claims.devices(cluster)
    lose_and_succeed(cluster, claims.empty_folder, "one", "two")
    lose_and_succeed(cluster, claims.tear_file, "two", "three")
    assert claims.devices(cluster) == devices
    delete_claimants(cluster, "three")

    cluster.pod("lse", qos="LSE", cpu=1)
    assert cluster.cpus_of("lse") == cluster.allocated("lse")
    lose_and_succeed(cluster, claims.empty_folder, "lse", "four")
    delete_claimants(cluster, "four")


def lose_and_succeed(
    cluster: Cluster, lose: Callable[[Cluster], None], owner: str, next_owner: str
) -> None:
    """The agent stops, loses files and starts; then `next_owner` has a claim on the CPU of
    `owner`, which ends."""
    node = cluster.nodes[HOST]
    own, kept, devices = cluster.cpus_of(owner), prepared(cluster), claims.devices(cluster)
    with cluster.following(owner, "ls") as seen:
        with claims.no_agent(cluster):
            lose(cluster)
        cluster.eventually("claims have their CPUs", lambda: prepared(cluster) == kept)
        cluster.eventually("the devices are as before", lambda: claims.devices(cluster) == devices)
    assert seen == {owner: [str(own)], "ls": [str(ALL - own)]}, seen
    old = cluster.container_id(owner)
    with node.machine.moments(node.cpuset_files("*")) as moments:
        claims.stale(cluster, next_owner)
        cluster.delete_pod(owner)
        cluster.wait_running(next_owner, seconds=claims.WAIT_SECONDS)
    assert cluster.cpus_of(next_owner) == prepared(cluster)[next_owner] == own
    ids = (old, cluster.container_id(next_owner), cluster.container_id("ls"))
    assert claims.overlaps(moments, *ids) == []


def test_an_outage_of_the_api_server_takes_no_cpu_and_delays_no_claim(with_dra: Cluster) -> None:
    """The server is killed while the agent restarts, and hangs while a claim is prepared. Slices
    are written when they change, and only then."""
    cluster = with_dra
    node = cluster.nodes[HOST]
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.create(claim("one", 1), claimant("one"))
    cluster.wait_running("one")
    before, pid = cluster.cpus("one", "ls"), cluster.agent_pid(HOST)
    with cluster.following("one", "ls") as seen:
        with cluster.without_api_server():
            for number in ("STOP", "KILL"):
                node.machine.run("kill", f"-{number}", pid)
                node.machine.remove(claims.SHOWN)
            cluster.eventually(
                "the kubelet has the next agent",
                lambda: claims.shown(cluster).get("registration") == "",
            )
        cluster.wait_agent_ready(HOST)
        cluster.wait_node_ready(HOST)
    assert seen == {name: [cpus] for name, cpus in before.items()}
    assert claims.slice_writes(cluster) == 0
    delete_claimants(cluster, "one")

    pid, began, writes = cluster.agent_pid(HOST), time.monotonic(), claims.slice_writes(cluster)
    waited_seconds = cluster.agent_metric(HOST, "topolet_dra_preparation_seconds_sum")
    node.machine.run("kill", "-STOP", pid)
    cluster.create(claim("two", 1), claimant("two"))
    claims.wait_asked(cluster, uid_of_claim(cluster, "two"))
    with cluster.hanging_api_server():
        node.machine.run("kill", "-CONT", pid)
        cluster.wait_while_recording(HANGS_SECONDS)
    cluster.wait_running("two", seconds=claims.WAIT_SECONDS)
    waited_seconds -= cluster.agent_metric(HOST, "topolet_dra_preparation_seconds_sum")
    assert -waited_seconds > HANGS_SECONDS / 2, "the claim was prepared during the outage"
    own = cluster.cpus_of("two")
    assert own == prepared(cluster)["two"]
    assert cluster.cpus_of("ls") == ALL - own
    cluster.eventually("the slices say so", lambda: free_cores(cluster) == 0)
    wrote = claims.slice_writes(cluster) - writes
    assert 0 < wrote <= 1 + time.monotonic() - began
    cluster.wait_while_recording(HANGS_SECONDS)
    assert claims.slice_writes(cluster) - writes == wrote
    delete_claimants(cluster, "two")


def uid_of_claim(cluster: Cluster, name: str) -> str:
    stored = cluster.get("resourceclaim", name)
    assert stored is not None
    return str(stored["metadata"]["uid"])


def free_cores(cluster: Cluster) -> int:
    """The whole cores without claims of all devices."""
    attribute = f"{DRIVER}/freeCores"
    return sum(device["attributes"][attribute]["int"] for device in claims.devices(cluster))


def test_a_claim_whose_pod_is_deleted_while_it_waits_keeps_no_cpu(with_dra: Cluster) -> None:
    """A kubelet waits for the answer, and unprepares the claim then. One that is killed does so
    after its start, if the agent has not seen before that the claim is gone."""
    cluster = with_dra
    node = cluster.nodes[HOST]
    cluster.pod("lse", qos="LSE", cpu=1)
    claims.stale(cluster, "late")
    cluster.kubectl("delete", "pod", "late", "--wait=false")
    cluster.delete_pod("lse")
    cluster.eventually("the pod is gone", lambda: cluster.get("pod", "late") is None)
    wait_nothing_left(cluster)

    cluster.pod("lse", qos="LSE", cpu=1)
    pids = claims.processes(cluster, "lse")
    claims.stale(cluster, "late")
    node.stop_kubelet(signal.SIGKILL)
    node.machine.run("sh", "-c", 'kill -KILL "$@" || :', "sh", *pids)
    cluster.kubectl("delete", "pod", "late", "lse", "--force", "--grace-period=0")
    cluster.eventually(
        "the preparation ends",
        lambda: "default/late" in {shown["title"] for shown in claims.shown(cluster)["claims"]},
    )
    cluster.kubectl("delete", "resourceclaim", "late")
    node.restart_kubelet()
    cluster.wait_node_ready(HOST)
    wait_nothing_left(cluster)


def test_a_kubelet_with_another_root_folder_finds_the_driver(with_dra: Cluster) -> None:
    cluster = with_dra
    with claims.kubelet_dir(cluster, "/var/lib/other"):
        cluster.create(claim("one", 1), claimant("one"))
        cluster.wait_running("one")
        assert cluster.cpus_of("one") == prepared(cluster)["one"]
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
    are cores needs no claim of its own. A claim with admin access is beside it, and has no CPU:
    kube-scheduler counts the amount of such a claim on devices with parts."""
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
    beside_admin_access(cluster, "core", own)
    delete_claimants(cluster, "core")


def beside_admin_access(cluster: Cluster, owner: str, own: CpuSet) -> None:
    """A pod whose claim looks at the device that `owner` has runs on the shared pool."""
    before = prepared(cluster)
    cluster.kubectl("label", "namespace", "default", f"{ADMIN_ACCESS}=true")
    request = {"name": "cpus", "exactly": {"deviceClassName": DRIVER, "adminAccess": True}}
    look = claim("look", 1)
    look["spec"]["devices"]["requests"] = [request]
    with cluster.following(owner) as seen:
        cluster.create(look, claimant("look"))
        cluster.wait_running("look")
        assert prepared(cluster) == {**before, "look": CpuSet(())}
        assert cluster.cpus_of("look") == ALL - own
        assert len(claims.cdi_files(cluster)) == len(before)
        cluster.delete_pod("look")
        cluster.eventually("it is unprepared", lambda: prepared(cluster) == before)
    assert seen == {owner: [str(own)]}
    cluster.kubectl("label", "namespace", "default", f"{ADMIN_ACCESS}-")


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
