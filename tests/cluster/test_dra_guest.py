"""ResourceClaims on CPUs and memory of a node with four NUMA nodes of two cores of two threads.

The node reserves no CPU, so claims leave one core to the pool: the last one without claims."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from agent.allocate.dra.slices import slice_name
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.devices.resource_slice import NUMA_NODE
from agent.model.dra.names import DRIVER
from tests.cluster import dradriver, failures
from tests.cluster.churn import Churn, Way, annotated, claimed, kills
from tests.cluster.cluster import GUEST, HOST, NAMESPACE, ON_GUEST, Cluster, Object
from tests.cluster.pods import manifest
from tests.deploy.manifests import DEPLOY
from tests.fixtures import image, near_devices
from tests.vm.guest import FAR_NODE, NODES

log = logging.getLogger(__name__)

PODS = int(os.environ.get("TOPOLET_CLAIM_PODS", "12"))
KILLS = int(os.environ.get("TOPOLET_CLAIM_KILLS", "3"))

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(2700 + 15 * PODS),
    pytest.mark.usefixtures("no_pods"),
]

ALL = CpuSet.parse("0-15")
DAEMONSET = ("-n", NAMESPACE, "daemonset/topolet-agent")
RESERVED = "0-3"
CPU, MEMORY = f"{DRIVER}/cpu", f"{DRIVER}/memory"


@pytest.fixture(scope="module")
def with_dra(with_guest: Cluster) -> Iterator[Cluster]:
    """All agents are a DRA driver until the end of the module."""
    cluster = with_guest
    component = DEPLOY / "components" / "dra"
    objects = str(component / "objects.yaml")
    cluster.kubectl("apply", "-f", objects)
    patch = str(component / "agent.yaml")
    cluster.kubectl("patch", *DAEMONSET, "--type=json", f"--patch-file={patch}")
    with failures.written(cluster, "dra"):
        wait_rolled_out(cluster)
        cluster.eventually("the guest has devices", lambda: devices(cluster))
    yield cluster
    cluster.kubectl("rollout", "undo", *DAEMONSET)
    cluster.kubectl("delete", "-f", objects)
    wait_rolled_out(cluster)


@pytest.fixture
def claims(with_dra: Cluster) -> Iterator[Cluster]:
    """At the end of the test, no claim and no file of one is left."""
    cluster = with_dra
    yield cluster
    cluster.kubectl("delete", "pods", "--all", "--wait=false")
    cluster.kubectl("delete", "resourceclaims", "--all", "--wait=false")
    cluster.eventually("no claim is left", lambda: not cluster.objects("resourceclaims"))
    cluster.eventually("no claim is prepared", lambda: not kept(cluster))


def wait_rolled_out(cluster: Cluster) -> None:
    cluster.eventually(
        "the agents are rolled out",
        lambda: cluster.kubectl("rollout", "status", *DAEMONSET, "--timeout=60s"),
    )
    cluster.wait_agent_ready(HOST)
    cluster.wait_agent_ready(GUEST)


def devices(cluster: Cluster) -> list[Object]:
    """Those that the guest publishes, in order."""
    of_node = cluster.get("resourceslice", slice_name(GUEST, 0))
    published: list[Object] = (of_node or {"spec": {"devices": []}})["spec"]["devices"]
    return published


def offered(cluster: Cluster) -> dict[int, str]:
    """By NUMA node, in order, the CPUs of the devices."""
    return {
        each["attributes"][NUMA_NODE]["int"]: each["attributes"][f"{DRIVER}/cpuIDs"]["string"]
        for each in devices(cluster)
    }


def kept(cluster: Cluster) -> list[str]:
    """The names of the claims that the guest's agent keeps, and their CDI files."""
    file = "/run/topolet/claims.json"
    files = cluster.nodes[GUEST].machine.read(file, f"/var/run/cdi/{DRIVER}-*")
    claims = json.loads(files.pop(file, '{"claims": []}'))["claims"]
    return [*(each["name"] for each in claims), *files]


def amounts(cpus: int, memory: str = "") -> Object:
    """What a request wants of a device of the driver."""
    requests = {CPU: str(cpus), **({MEMORY: memory} if memory else {})}
    return {"deviceClassName": DRIVER, "capacity": {"requests": requests}}


def on_node(number: int) -> Object:
    """Restricts a request to a NUMA node."""
    domain, _, name = NUMA_NODE.partition("/")
    return {
        "selectors": [{"cel": {"expression": f'device.attributes["{domain}"].{name} == {number}'}}]
    }


def claim(name: str, *requests: Object, **more: Any) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests), **more}},
    }


def exactly(cpus: int, memory: str = "", name: str = "cpus", **more: Any) -> Object:
    return {"name": name, "exactly": {**amounts(cpus, memory), **more}}


def claimant(name: str, of: str = "") -> Object:
    """A pod with the claim `of`, by default of its own name. Its log begins with the CPUs on which
    it started."""
    return manifest(
        name,
        container={
            "command": [image.BUSYBOX, "sh", "-c", near_devices.COMMAND],
            "resources": {"requests": {"cpu": "100m"}, "claims": [{"name": "claim"}]},
        },
        resourceClaims=[{"name": "claim", "resourceClaimName": of or name}],
        **ON_GUEST,
    )


def started_on(cluster: Cluster, name: str) -> CpuSet:
    cluster.eventually(f"{name} writes", lambda: len(cluster.logs(name).splitlines()) == 2)
    return near_devices.start(cluster.logs(name).splitlines())[0]


def cores(cpus: CpuSet) -> set[int]:
    return {cpu // 2 for cpu in cpus}


def test_claims_have_cpus_and_memory_of_one_numa_node_beside_annotated_pods(
    claims: Cluster,
) -> None:
    """A claim of memory too, one that two pods share, with parameters, and one of a core."""
    cluster = claims
    assert offered(cluster) == {0: "0-3", 1: "4-7", 3: "12-13", 2: "8-11"}, "the card is last"
    assert all(int(each["capacity"][MEMORY]["value"].rstrip("MiKG")) for each in devices(cluster))
    cluster.pod("ls", qos="LS", cpu="100m", **ON_GUEST)
    spread = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "CpuParameters"}
    spread["cpuBindPolicy"] = "SpreadByPCPUs"
    cluster.create(claim("whole", exactly(4, "64Mi")), claimant("whole"))
    cluster.wait_running("whole")
    cluster.create(
        claim("core", exactly(2)),
        claimant("core"),
        claim(
            "spread",
            exactly(2, **on_node(FAR_NODE)),
            config=[{"opaque": {"driver": DRIVER, "parameters": spread}}],
        ),
        claimant("one", "spread"),
        claimant("other", "spread"),
    )
    cluster.wait_running("core", "one", "other")
    cluster.pod("lsr", qos="LSR", cpu=2, **ON_GUEST)

    owners = ("whole", "one", "lsr", "core")
    own = {name: cluster.cpus_of(name) for name in owners}
    assert own["whole"] == started_on(cluster, "whole") == CpuSet.parse(NODES[0])
    assert cluster.memory_nodes("whole") == {0}
    assert cluster.cpus_of("other") == own["one"]
    assert [len(own[name]) for name in owners] == [4, 2, 2, 2]
    assert len(cores(own["one"])) == 2
    assert len(cores(own["core"])) == 1
    for name in ("one", "core"):
        assert any(own[name] <= CpuSet.parse(cpus) for cpus in NODES), own
    taken = union(own.values())
    assert len(taken) == 10, f"a CPU has two owners: {own}"
    assert own["lsr"] == cluster.allocated("lsr")
    assert cluster.cpus_of("ls") == ALL - taken
    assert cluster.agent_metric(GUEST, "topolet_cpu_overlaps_total") == 0

    cluster.delete_pod(*owners, "other")
    cluster.eventually("the pool is whole", lambda: cluster.cpus_of("ls") == ALL)


def test_no_cpu_has_two_owners_while_claims_come_and_go_over_kills(claims: Cluster) -> None:
    cluster = claims
    cluster.pod("ls", qos="LS", cpu="10m", **ON_GUEST)
    ls = cluster.get("pod", "ls")
    assert ls is not None
    pool = ls["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2]
    ways = [claimed(ON_GUEST)] * 3 + [annotated(2, ON_GUEST)]
    churn = Churn(cluster, GUEST, 2, ways)
    churn.run(PODS, kills(cluster.nodes[GUEST], KILLS))
    log.info("%d pods, kills %s, ran %s", PODS, dict(churn.faults), sorted(churn.ran()))
    assert churn.failed == []
    assert churn.twice_owned() == []
    assert churn.shared_with(pool) == []
    assert churn.moved() == []
    assert len(churn.ran()) == PODS - PODS // 4
    cluster.eventually("the pool is whole", lambda: cluster.cpus_of("ls") == ALL)


def test_the_second_alternative_of_a_claim_serves_where_no_numa_node_is_free(
    claims: Cluster,
) -> None:
    cluster = claims
    halves = [exactly(2, name=f"half-{number}", **on_node(number)) for number in (0, 1, 2)]
    cluster.create(claim("filler", *halves), claimant("filler"))
    cluster.wait_running("filler")
    alternatives = [
        {"name": "whole", **amounts(4)},
        {"name": "halves", **amounts(2), "count": 2},
    ]
    cluster.create(
        claim("choice", {"name": "cpus", "firstAvailable": alternatives}), claimant("choice")
    )
    cluster.wait_running("choice")
    chosen = cluster.get("resourceclaim", "choice")
    assert chosen is not None
    results = chosen["status"]["allocation"]["devices"]["results"]
    assert [each["request"] for each in results] == ["cpus/halves"] * 2
    own, others = cluster.cpus_of("choice"), cluster.cpus_of("filler")
    assert own == CpuSet.parse("0-7") - others
    assert len(own) == 4
    assert len(others) == 6


def test_cpus_and_card_of_one_claim_are_of_one_numa_node(claims: Cluster) -> None:
    cluster = claims
    card = {"name": "card", "exactly": {"deviceClassName": dradriver.CLASS}}
    near = {"requests": ["card", "cpus"], "matchAttribute": NUMA_NODE}
    with dradriver.running(cluster, GUEST):
        cluster.create(
            dradriver.resource_slice(GUEST, {"card": {NUMA_NODE: {"int": FAR_NODE}}}),
            claim("both", card, exactly(2, "32Mi"), constraints=[near]),
            claimant("both"),
        )
        cluster.wait_running("both")
        own = cluster.cpus_of("both")
        assert own == started_on(cluster, "both")
        assert own < CpuSet.parse(NODES[FAR_NODE])
        assert len(own) == 2
        assert cluster.memory_nodes("both") == {FAR_NODE}
        cluster.delete_pod("both")


def test_a_static_kubelet_leaves_claims_what_it_strictly_reserves(claims: Cluster) -> None:
    """Without the option its pods run on all reserved CPUs, and claims get nothing. With it, no CPU
    has two owners while pods of both kinds come and go over kills."""
    cluster = claims
    node = cluster.nodes[GUEST]
    strict = {"strict-cpu-reservation": "true"}
    try:
        node.restart_kubelet(cpuManagerPolicy="static", reservedSystemCPUs=RESERVED)
        cluster.wait_node_ready(GUEST)
        cluster.eventually("no device is left", lambda: not devices(cluster))
        words = ("logs", "-n", NAMESPACE, cluster.agent_pod(GUEST))
        cluster.eventually(
            "the agent says why",
            lambda: "set its option strict-cpu-reservation" in cluster.kubectl(*words),
        )
        node.restart_kubelet(cpuManagerPolicyOptions=strict)
        cluster.wait_node_ready(GUEST)
        cluster.eventually("they are reserved", lambda: offered(cluster) == {0: RESERVED})
        cluster.create(
            manifest("plain", cpu=4, guaranteed=True, **ON_GUEST),
            claim("reserved", exactly(2)),
            claimant("reserved"),
        )
        cluster.wait_running("plain", "reserved")
        assert cluster.cpus_of("reserved") < CpuSet.parse(RESERVED)
        assert not cluster.cpus_of("plain") & CpuSet.parse(RESERVED)
        assert len(cluster.cpus_of("plain")) == 4
        cluster.delete_pod("plain", "reserved")

        static = Way(
            "static kubelet", lambda name: manifest(name, cpu=2, guaranteed=True, **ON_GUEST)
        )
        churn = Churn(cluster, GUEST, 2, [claimed(ON_GUEST), static])
        churn.run(PODS, kills(node, KILLS))
        log.info("%d pods, kills %s, ran %s", PODS, dict(churn.faults), sorted(churn.ran()))
        assert churn.failed == []
        assert churn.twice_owned() == []
        assert churn.moved() == []
        assert len(churn.ran()) == PODS // 2
    finally:
        cluster.kubectl("delete", "pods", "--all", "--wait=false")
        cluster.eventually("no pod is left", lambda: not cluster.objects("pods"))
        node.restart_kubelet(
            cpuManagerPolicy=None, cpuManagerPolicyOptions=None, reservedSystemCPUs=None
        )
        cluster.wait_node_ready(GUEST)
