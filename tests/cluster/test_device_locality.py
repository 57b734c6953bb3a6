"""Burstable pods that have the card of NUMA node 2 by a claim of a DRA driver or by the annotation
of Topolet's scheduler run near to it from their first line on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.resource_slice import NUMA_NODE, PCI_BUS_ID
from agent.model.pod.annotations import DEVICE_ALLOCATED
from tests.cluster import dradriver
from tests.cluster.cluster import GUEST, NAMESPACE, ON_GUEST, Cluster
from tests.cluster.guest import CARD
from tests.cluster.pods import SCHEDULER, manifest
from tests.fixtures import image, near_devices
from tests.vm.guest import FAR_NODE, NODES

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(2700),
    pytest.mark.usefixtures("no_pods"),
]

NEAR = NODES[FAR_NODE]
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "numa-node": {NUMA_NODE: {"int": FAR_NODE}},
    "pci-address": {PCI_BUS_ID: {"string": CARD}},
}
"""The devices in the driver's ResourceSlice by name. A pod of the same name claims each."""
ALLOCATED = "allocated"
PODS = (*ATTRIBUTES, ALLOCATED)
ANY_POOL = "0-15"


@pytest.fixture
def with_driver(with_guest: Cluster) -> Iterator[Cluster]:
    with dradriver.running(with_guest, GUEST):
        yield with_guest


def claimant(name: str) -> list[dict[str, Any]]:
    """A claim on the device with the attributes of that name, and a pod with it."""
    (attribute,) = ATTRIBUTES[name]
    domain, _, key = attribute.partition("/")
    return [
        dradriver.claim(name, f'"{key}" in device.attributes["{domain}"]'),
        pod(
            name,
            {"requests": {"cpu": "100m"}, "claims": [{"name": "card"}]},
            resourceClaims=[{"name": "card", "resourceClaimName": name}],
        ),
    ]


def pod(name: str, resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    command = [image.BUSYBOX, "sh", "-c", near_devices.COMMAND]
    container = {"command": command, "resources": resources}
    return manifest(name, container=container, **ON_GUEST, **spec)


def take_claims(cluster: Cluster) -> None:
    """Deletes the claims, although pods have them, and the driver's slice."""
    for name in ATTRIBUTES:
        cluster.kubectl("delete", "resourceclaim", name, "--wait=false")
        no_finalizers = json.dumps({"metadata": {"finalizers": None}})
        cluster.kubectl("patch", "resourceclaim", name, "--type=merge", "-p", no_finalizers)
    cluster.kubectl("delete", "resourceslices", "--all")
    cluster.eventually("no claim is left", lambda: not cluster.objects("resourceclaims"))


def restart_agent(cluster: Cluster) -> None:
    """SIGKILL; returns when the next agent has looked for the devices of the claims."""
    restarts = cluster.agent_restarts(GUEST)
    cluster.nodes[GUEST].machine.run("kill", "-KILL", cluster.agent_pid(GUEST))
    cluster.eventually("the agent is restarted", lambda: cluster.agent_restarts(GUEST) > restarts)
    cluster.wait_agent_ready(GUEST)
    agent = cluster.agent_pod(GUEST)

    def is_looked_up(device: str) -> bool:
        return f"{GUEST}/{device} is not known" in cluster.kubectl("logs", "-n", NAMESPACE, agent)

    for device in ATTRIBUTES:
        cluster.eventually(
            f"the agent looks for {device}", lambda device=device: is_looked_up(device)
        )


def audited(cluster: Cluster, process: str) -> list[dict[str, str]]:
    """The records about the pods, without those about their sandboxes' cgroups."""
    texts = cluster.nodes[GUEST].machine.read(f"/run/topolet/audit/{process}.*.jsonl").values()
    records = [json.loads(line) for text in texts for line in text.splitlines()]
    return [
        each
        for each in records
        if each.get("pod") in PODS and (each.get("container") or "group" not in each)
    ]


def test_pods_with_a_claim_or_an_annotation_run_near_to_their_card(with_driver: Cluster) -> None:
    """Also when the claims go while the containers run, and the agent is killed."""
    cluster = with_driver
    cluster.pod("ls", qos="LS", cpu="100m", **ON_GUEST)
    rdma = {"koordinator.sh/rdma": "100"}
    requests = {"cpu": "100m", **rdma}
    with cluster.following("ls") as seen_of_others:
        cluster.create(
            dradriver.resource_slice(GUEST, ATTRIBUTES),
            *(each for name in ATTRIBUTES for each in claimant(name)),
            pod(ALLOCATED, {"requests": requests, "limits": rdma}, schedulerName=SCHEDULER),
        )
        cluster.wait_running(*PODS)
        annotated = cluster.get("pod", ALLOCATED)
        assert annotated is not None
        assert "rdma" in json.loads(annotated["metadata"]["annotations"][DEVICE_ALLOCATED])
        for name in PODS:
            cluster.eventually(
                f"{name} writes", lambda name=name: len(cluster.logs(name).splitlines()) == 2
            )
            lines = cluster.logs(name).splitlines()
            assert near_devices.start(lines) == (CpuSet.parse(NEAR), str(FAR_NODE)), name
            assert cluster.memory_nodes(name) == {FAR_NODE}, name
        assert cluster.agent_metric(GUEST, "topolet_containers_far_from_devices") == 0
        with cluster.following(*PODS) as seen:
            take_claims(cluster)
            restart_agent(cluster)
        assert seen == {name: [NEAR] for name in PODS}
        cluster.delete_pod(*PODS)
    by_agent, by_proxy = audited(cluster, "agent"), audited(cluster, "proxy")
    assert {each["pod"] for each in by_agent if each["event"] == "PodDecided"} == set(PODS)
    assert "cpuset.cpus" not in {each.get("field") for each in by_agent}, "it moved no container"
    admitted = {each["after"] for each in by_proxy if each["event"] == "ContainerAdmitted"}
    assert admitted == {NEAR}
    assert seen_of_others == {"ls": [ANY_POOL]}
