"""Every manifest of deploy/ on a real API server, and the requests that its policies refuse."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.allocate.present import vouched
from agent.kube.cluster import patch, same_version
from agent.kube.objects import claim_path
from agent.model.devices import device_object
from agent.model.devices.device_object import Device, DeviceTopology
from agent.model.devices.gpus import GpuInfo
from agent.model.dra.names import DRIVER
from agent.model.nrt import node_status, resource_topology
from agent.model.nrt.resource_topology import Amounts, NodeTopology, Version, Zone
from agent.model.pod.annotations import (
    EXTENDED_RESOURCE_SPEC,
    NUMA_PLACEMENT_OBSERVED,
    RESERVATION_ALLOCATED,
)
from agent.model.pod.apiobjects import ApiNode, from_object
from agent.model.pod.qos import PRIORITY_CLASS_LABEL, QOS_LABEL
from agent.node.batch_resources import ORIGIN
from agent.node.change_log import DEVICE_UNHEALTHY
from agent.node.cluster_view import EVENT_ACTION, EVENT_CONTROLLER
from agent.node.node_resource_topology import MANAGED_BY
from agent.scheduler.leader.gate import LABEL
from agent.scheduler.process import CONTROLLER
from agent.usage.batch_mid import ColocationStrategy, NodeLoad, offered
from tests.deploy.api import Api, RefusedError, Who, path_of
from tests.deploy.manifests import AGENT, SCHEDULER, kustomized_folder, objects, of_kind
from tests.integration import deployed
from tests.integration.apiserver.server import ApiServer
from tests.waiting import eventually

Object = dict[str, Any]

RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
CPUS = {RESOURCE_STATUS: '{"cpuset":"0-3"}'}

ALICE = Who()
TOPOLET_SCHEDULER = Who(SCHEDULER)
TOPOLET_SCHEDULER_POD = Who(SCHEDULER, pod="leader")
AGENT_1 = Who(AGENT, "system:serviceaccounts", "node-1")
UNBOUND = Who(AGENT, "system:serviceaccounts")
KUBELET = Who("system:node:node-1", "system:nodes")
SYSTEM = "topolet-system"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
TIMESTAMP = "2026-01-01T12:00:00Z"


def pod(
    name: str = "p",
    namespace: str = "default",
    *,
    qos: str = "",
    cpu: tuple[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """`cpu`: request and limit of the container; "" is none."""
    container: Object = {"name": "main", "image": "i"}
    if cpu is not None:
        fields = ("requests", "limits")
        container["resources"] = {
            field: {"cpu": amount} for field, amount in zip(fields, cpu, strict=True) if amount
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": annotations or {},
            "labels": {"koordinator.sh/qosClass": qos} if qos else {},
        },
        "spec": {"containers": [container], "automountServiceAccountToken": False, **spec},
    }


def binding(name: str, namespace: str = "default", **annotations: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
    }


def event(kind: str, name: str, node: str = "node-1") -> Object:
    """An Event about this object by the agent of `node`."""
    regarding = {"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{kind.lower()}", "namespace": "default"},
        "eventTime": "2026-01-01T12:00:00.000000Z",
        "reportingController": EVENT_CONTROLLER,
        "reportingInstance": node,
        "action": EVENT_ACTION,
        "type": "Warning",
        "reason": DEVICE_UNHEALTHY,
        "regarding": regarding | ({} if kind == "Node" else {"namespace": "default"}),
    }


def node(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def rebind(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "RebindResource",
        "metadata": {"name": name},
        "spec": {"nodeName": "node-1", "rebindAction": "RebindCPU", **spec},
    }


SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def resource_slice(node: str, driver: str, name: str = "slice", **metadata: Any) -> Object:
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "numa-node-0"}],
        },
    }


class Cluster:
    """A server with all manifests, two nodes, and a namespace for pods with GPUs."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server = server
        self.api = api
        self.serves_mutating_policies = deployed.serves_mutating_policies(server)

    def try_pod(self, body: Object, who: Who = ALICE) -> Object:
        """Creates the pod in a dry run; the object that the server would store."""
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/pods?dryRun=All"
        return self.api.request("POST", path, body, who)

    def try_binding(self, body: Object, who: Who) -> Object:
        metadata = body["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        return self.api.request("POST", path + "?dryRun=All", body, who)

    def try_report(self, body: Object) -> Object:
        """Applies an object of the agent of node-1 in a dry run."""
        return self.api.apply(body, AGENT_1, "topolet", dryRun="All")

    def try_slice(
        self, node: str, driver: str = DRIVER, pool: str = "node-1", **metadata: Any
    ) -> Object:
        """Creates a ResourceSlice as the agent of node-1 in a dry run."""
        body = resource_slice(node, driver, **metadata)
        body["spec"]["pool"]["name"] = pool
        return self.api.request("POST", f"{SLICES}?dryRun=All", body, AGENT_1)

    def try_claim_status(self, pool: str, who: Who = AGENT_1, **status: Any) -> Object:
        """Changes in a dry run the status of a claim that is allocated on node-1, by default the
        device of the pool."""
        device = {"driver": DRIVER, "pool": pool, "device": "numa-node-0"}
        wanted = {"devices": [{**device, "data": {"cpus": "0-3"}}], **status}
        path = f"{claim_path('default', 'allocated')}/status?dryRun=All"
        return self.api.merge(path, {"status": wanted}, who)

    def try_event(self, body: Object, who: Who = AGENT_1) -> Object:
        return self.api.request("POST", f"{EVENTS}?dryRun=All", body, who)

    def change_pod(
        self,
        change: Object,
        who: Who,
        subresource: str = "",
        name: str = "allocated",
        namespace: str = "default",
    ) -> Object:
        """Patches a pod in a dry run."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}{subresource}?dryRun=All"
        return self.api.merge(path, change, who)

    def change_scheduler(self, body: Object, who: Who) -> Object:
        """Patches a pod of the scheduler in a dry run."""
        return self.change_pod(body, who, name=body["metadata"]["name"], namespace=SYSTEM)

    def resize(self, change: Object, name: str = "owner-of-cpus") -> Object:
        """Resizes a pod in a dry run."""
        path = f"/api/v1/namespaces/default/pods/{name}/resize?dryRun=All"
        return self.api.request(
            "PATCH", path, {"spec": change}, ALICE, "application/strategic-merge-patch+json"
        )

    def fail_rebind(
        self, node: str, who: Who = AGENT_1, name: str = "untaken", **status: Any
    ) -> Object:
        """Writes that a RebindResource failed; by default no controller has taken it."""
        body = rebind(f"{name}-{node}", nodeName=node)
        self.api.apply(body)
        wanted = {"phase": "Failed", "reason": "r", "updateTimestamp": TIMESTAMP, **status}
        return self.api.merge(f"{path_of(body)}/status?dryRun=All", {"status": wanted}, who)

    def evict(self, who: Who = TOPOLET_SCHEDULER, name: str = "free", **options: Any) -> Object:
        """Evicts a pod in a dry run."""
        body: Object = {"apiVersion": "policy/v1", "kind": "Eviction"}
        body |= {"metadata": {"name": name, "namespace": "default"}}
        path = f"/api/v1/namespaces/default/pods/{name}/eviction?dryRun=All"
        return self.api.request("POST", path, {**body, "deleteOptions": options}, who)

    def evict_own(self, name: str, who: Who = AGENT_1, **options: Any) -> Object:
        """Evicts a pod in a dry run as an agent does."""
        stored = self.api.request("GET", f"/api/v1/namespaces/default/pods/{name}")
        preconditions = {"uid": stored["metadata"]["uid"]}
        return self.evict(who, name, preconditions=preconditions, **options)

    def delete_pod(self, name: str, who: Who = AGENT_1) -> Object:
        """Deletes a pod in a dry run."""
        return self.api.request(
            "DELETE", f"/api/v1/namespaces/default/pods/{name}?dryRun=All", None, who
        )


@pytest.fixture(scope="module")
def cluster(apiserver: ApiServer) -> Iterator[Cluster]:
    api = deployed.administrator(apiserver, "deployer")
    made = Cluster(apiserver, api)
    deployed.apply(api, deployed.served(apiserver, objects("crds", "base", "policies")))
    others = objects(
        *("components/scheduler", "components/scheduler-evict", "components/kai"),
        "components/evictions",
        "components/dra",
    )
    deletes: Object = {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}
    for each in others:
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "topolet-agent-evictions"):
            each["rules"].append(deletes)  # as with evict-by: deletion
    kinds = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding")
    deployed.apply(api, [each for each in others if each["kind"] in kinds])
    for name in ("node-1", "node-2"):
        api.apply(node(name))
        cpus = {field: {"cpu": "64"} for field in ("capacity", "allocatable")}
        api.apply({**node(name), "status": cpus}, subresource="status")
    api.namespace("gpu", **{"topolet.io/gpu-scheduling": "enabled"})
    for name in ("default", SYSTEM, "kube-system"):
        api.account(name)
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.request("POST", path, {"metadata": {"name": "koord-batch"}, "value": 5500})
    spec: Object = {"qos": "LSE", "cpu": ("4", "4")}
    for body in (
        pod("leader", SYSTEM),
        pod("standby", SYSTEM),
        pod("allocated", annotations=CPUS),
        pod("free"),
        pod("free", "gpu"),
        pod("owner-of-cpus", annotations=CPUS, nodeName="node-1", **spec),
        pod("waiting", **spec),
        pod("batch", qos="BE", nodeName="node-1"),
        pod("other-batch", qos="BE", nodeName="node-2"),
        pod("critical", qos="BE", nodeName="node-1", priorityClassName="system-node-critical"),
    ):
        api.apply(body, TOPOLET_SCHEDULER)
    allocate_claim(api)
    eventually("the policies are in force", lambda: all(map(partial(_refuses, made), ATTEMPTS)))
    if made.serves_mutating_policies:
        eventually(
            "pods are changed",
            lambda: made.try_pod(gpu_pod())["spec"]["schedulerName"] == "topolet-scheduler",
        )
    yield made
    deployed.remove_policies(apiserver)


def allocate_claim(api: Api) -> None:
    """Creates a ResourceClaim that a scheduler has allocated on node-1, with devices that an agent
    there does not have too."""
    request = {"name": "cpus", "exactly": {"deviceClassName": DRIVER}}
    body = {"metadata": {"name": "allocated"}, "spec": {"devices": {"requests": [request]}}}
    path = claim_path("default", "allocated")
    api.request("POST", path.rpartition("/")[0], body)
    results = [
        {"request": "cpus", "driver": driver, "pool": pool, "device": "numa-node-0"}
        for driver, pool in ((DRIVER, "node-1"), (DRIVER, "node-2"), ("gpu.example.com", "node-1"))
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    api.merge(f"{path}/status", {"status": {"allocation": allocation}})


def _refuses(cluster: Cluster, policy: str) -> bool:
    """Whether the policy refuses its attempt."""
    try:
        ATTEMPTS[policy][0](cluster)
    except RefusedError as refused:
        return re.search(rf"{policy}\b(?!-)", str(refused)) is not None
    return False


Attempt = Callable[[Cluster], Object]
TOLERATING = {"tolerate-missing-plugins.topolet.io/pod": "true"}


def gpu_pod() -> Object:
    body = pod(namespace="gpu")
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return body


def main_of_cpus(cpu: str) -> Object:
    """The change of a pod whose container then requests so many CPUs."""
    amounts = {field: {"cpu": cpu} for field in ("requests", "limits")}
    return {"containers": [{"name": "main", "resources": amounts}]}


def placed_gpu_pod() -> Object:
    """A pod with GPUs that is created with `nodeName`."""
    body = gpu_pod()
    body["spec"]["nodeName"] = "node-1"
    return body


# By policy: a request that it refuses, and a similar one that it admits.
ATTEMPTS: dict[str, tuple[Attempt, Attempt]] = {
    "topolet-allocations": (
        lambda it: it.try_pod(pod(annotations=CPUS)),
        lambda it: it.try_pod(pod(annotations=CPUS), TOPOLET_SCHEDULER),
    ),
    "topolet-binding-allocations": (
        lambda it: it.try_binding(binding("free", **CPUS), ALICE),
        lambda it: it.try_binding(binding("free", **CPUS), TOPOLET_SCHEDULER),
    ),
    "topolet-mirror-pods": (
        lambda it: it.try_pod(mirror_pod(it)),
        lambda it: it.try_pod(mirror_pod(it), KUBELET),
    ),
    "topolet-missing-plugins": (
        lambda it: it.try_pod(pod(annotations=TOLERATING)),
        lambda it: it.try_pod(pod(annotations=TOLERATING, namespace="kube-system")),
    ),
    "topolet-own-node": (
        lambda it: it.try_report(device_object.encode("node-2", (GPU,))),
        lambda it: it.try_report(device_object.encode("node-1", (GPU,))),
    ),
    "topolet-own-node-fields": (
        lambda it: it.try_report(labelled("node-1", "a")),
        lambda it: it.try_report(labelled("node-1", "topology.topolet.io/a")),
    ),
    "topolet-own-objects": (
        lambda it: it.try_report(finalized("a.b/c")),
        lambda it: it.try_report(finalized()),
    ),
    "topolet-own-slices": (
        lambda it: it.try_slice("node-2"),
        lambda it: it.try_slice("node-1"),
    ),
    "topolet-own-claims": (
        lambda it: it.try_claim_status("node-2"),
        lambda it: it.try_claim_status("node-1"),
    ),
    "topolet-own-rebinds": (
        lambda it: it.fail_rebind("node-2"),
        lambda it: it.fail_rebind("node-1"),
    ),
    "topolet-own-pods": (
        lambda it: it.change_pod(annotated("other.example.com/a"), AGENT_1, name="owner-of-cpus"),
        lambda it: it.change_pod(annotated(NUMA_PLACEMENT_OBSERVED), AGENT_1, name="owner-of-cpus"),
    ),
    "topolet-own-evictions": (
        lambda it: it.evict_own("owner-of-cpus"),
        lambda it: it.evict_own("batch"),
    ),
    "topolet-own-deletions": (
        lambda it: it.delete_pod("owner-of-cpus"),
        lambda it: it.delete_pod("batch"),
    ),
    "topolet-own-events": (
        lambda it: it.try_event(event("Node", "node-2")),
        lambda it: it.try_event(event("Node", "node-1")),
    ),
    "topolet-scheduler-pods": (
        lambda it: it.change_pod(leader_label("allocated"), TOPOLET_SCHEDULER_POD),
        lambda it: it.change_scheduler(leader_label("leader"), TOPOLET_SCHEDULER_POD),
    ),
    "topolet-scheduler-bindings": (
        lambda it: it.try_binding(binding("free", a="b"), TOPOLET_SCHEDULER),
        lambda it: it.try_binding(binding("free", **CPUS), TOPOLET_SCHEDULER),
    ),
    "topolet-scheduler-evictions": (
        lambda it: it.evict(gracePeriodSeconds=0),
        lambda it: it.evict(),
    ),
    "topolet-owners": (
        lambda it: it.resize(main_of_cpus("1")),
        lambda it: it.resize(main_of_cpus("4")),
    ),
    "topolet-requests": (
        lambda it: it.try_pod(pod(qos="LSE", cpu=("1500m", "1500m"))),
        lambda it: it.try_pod(pod(qos="LSE", cpu=("2", "2"))),
    ),
    "topolet-annotations": (
        lambda it: it.try_pod(pod(annotations={RESOURCE_SPEC: "FullPCPUs"})),
        lambda it: it.try_pod(pod(annotations={RESOURCE_SPEC: "{}"})),
    ),
    "topolet-gpu-binders": (
        lambda it: it.try_binding(binding("free", "gpu"), ALICE),
        lambda it: it.try_binding(binding("free", "gpu"), TOPOLET_SCHEDULER),
    ),
    "topolet-gpu-node-names": (
        lambda it: it.try_pod(placed_gpu_pod()),
        lambda it: it.try_pod(placed_gpu_pod(), TOPOLET_SCHEDULER),
    ),
    "topolet-classes": (
        lambda it: it.try_pod(pod(qos="BE", cpu=("1", "1"))),
        lambda it: it.try_pod(pod(qos="BE")),
    ),
    "topolet-binding-classes": (
        lambda it: it.try_binding(binding("free", **{EXTENDED_RESOURCE_SPEC: "{}"}), ALICE),
        lambda it: it.try_binding(binding("free", **{"example.com/a": "{}"}), ALICE),
    ),
}


def finalized(*finalizers: str) -> Object:
    body = device_object.encode("node-1", (GPU,))
    body["metadata"]["finalizers"] = list(finalizers)
    return body


def mirror_pod(cluster: Cluster, **annotations: str) -> Object:
    """A mirror pod as the kubelet of node-1 creates it."""
    marks = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h", **annotations}
    uid = cluster.api.request("GET", "/api/v1/nodes/node-1")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": uid, "controller": True}
    body = pod(annotations=marks, nodeName="node-1")
    body["metadata"]["ownerReferences"] = [owner]
    return body


def annotated(key: str, value: str = "[]") -> Object:
    return {"metadata": {"annotations": {key: value}}}


def leader_label(name: str) -> Object:
    return {"metadata": {"name": name, "labels": {LABEL: "true"}}}


def labelled(name: str, key: str) -> Object:
    return {**node(name), "metadata": {"name": name, "labels": {key: "b"}}}


def test_every_policy_is_tested() -> None:
    assert {*ATTEMPTS, "topolet-schedulers"} == set(of_kind("ValidatingAdmissionPolicy"))


@pytest.mark.parametrize("policy", ATTEMPTS)
def test_a_policy_refuses_and_allows(cluster: Cluster, policy: str) -> None:
    refused, passes = ATTEMPTS[policy]
    with pytest.raises(RefusedError, match=rf"{policy}\b(?!-)"):
        refused(cluster)
    assert passes(cluster)


@pytest.mark.parametrize("overlay", ["proxy", "nri", "nvidia", "webhook", "scheduler-evict"])
def test_the_server_accepts_every_overlay(cluster: Cluster, overlay: str, tmp_path: Path) -> None:
    """The overlays `reconcile` and `scheduler` are parts of these."""
    folder = deployed.folder(cluster.server, f"overlays/{overlay}", tmp_path)
    for body in kustomized_folder(folder, tmp_path):
        taken = cluster.api.apply(body, dryRun="All", fieldValidation="Strict")
        assert taken["metadata"]["name"] == body["metadata"]["name"]


@pytest.mark.parametrize("key", [RESOURCE_STATUS, DEVICE_ALLOCATED, RESERVATION_ALLOCATED])
def test_only_configured_accounts_set_a_pods_allocation(cluster: Cluster, key: str) -> None:
    body = pod(annotations={key: "{}"})
    assert cluster.try_pod(body, TOPOLET_SCHEDULER)
    with pytest.raises(RefusedError, match=f"alice may not set {key}"):
        cluster.try_pod(body)


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_only_configured_accounts_change_a_pods_allocation(
    cluster: Cluster, subresource: str
) -> None:
    for value in ('{"cpuset":"5"}', None):
        body = {"metadata": {"annotations": {RESOURCE_STATUS: value}}}
        with pytest.raises(RefusedError, match="alice may not set"):
            cluster.change_pod(body, ALICE, subresource)
        if not subresource:
            assert cluster.change_pod(body, TOPOLET_SCHEDULER)
    other_change = {"metadata": {"labels": {"a": "b"}}}
    assert cluster.change_pod(other_change, ALICE, subresource)


def test_the_mirror_of_a_static_pod_may_have_the_annotations_of_its_file(cluster: Cluster) -> None:
    body = mirror_pod(cluster, **CPUS)
    assert cluster.try_pod(body, KUBELET)
    with pytest.raises(RefusedError, match=r"may not (set|create the mirror)"):
        cluster.try_pod(body, ALICE)


def test_only_the_kubelet_creates_mirror_pods_that_the_agent_trusts(cluster: Cluster) -> None:
    """The agent trusts a mirror pod whose controlling owner is the agent's Node."""
    made = from_object(cluster.try_pod(mirror_pod(cluster), KUBELET))
    node = ApiNode(made.controlling_node)
    assert node.uid
    assert vouched({made.uid: made}, node) == {made.uid: made}
    without = mirror_pod(cluster)
    del without["metadata"]["ownerReferences"]
    for body, who in ((without, KUBELET), (mirror_pod(cluster), ALICE)):
        with pytest.raises(RefusedError):
            cluster.try_pod(body, who)
    mark = {"kubernetes.io/config.mirror": "h"}
    with pytest.raises(RefusedError):
        cluster.change_pod({"metadata": {"annotations": mark}}, ALICE)
    with pytest.raises(RefusedError, match="alice is not a node, and may not create the mirror"):
        cluster.try_binding(binding("free", **mark), ALICE)


def test_a_binding_carries_allocations_of_configured_accounts_only(cluster: Cluster) -> None:
    assert cluster.try_binding(binding("free", **CPUS), TOPOLET_SCHEDULER)
    assert cluster.try_binding(binding("free"), ALICE)
    with pytest.raises(RefusedError, match=f"alice may not bind with {RESOURCE_STATUS}"):
        cluster.try_binding(binding("free", **CPUS), ALICE)
    path = "/api/v1/namespaces/default/bindings?dryRun=All"
    with pytest.raises(RefusedError, match="alice may not bind with"):
        cluster.api.request("POST", path, binding("free", **CPUS), ALICE)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (leader_label("leader"), None),
        ({"metadata": {"name": "leader", "labels": {LABEL: None}}}, None),
        ({"metadata": {"name": "leader", "annotations": CPUS}}, None),
        (leader_label("standby"), f"may not change .*topolet-system/standby the labels {LABEL}"),
        ({"metadata": {"name": "leader", "labels": {"a": "b"}}}, "the labels a"),
        ({"metadata": {"name": "leader", "annotations": {"a": "b"}}}, "the annotations a"),
        ({"metadata": {"name": "leader", "finalizers": ["a/b"]}}, "owners or finalizers"),
        (
            {"metadata": {"name": "leader"}, "spec": {"activeDeadlineSeconds": 1}},
            "may not change spec",
        ),
    ],
)
def test_the_scheduler_changes_only_annotations_of_pods_and_the_label_of_its_own(
    cluster: Cluster, body: Object, message: str | None
) -> None:
    if message is None:
        assert cluster.change_scheduler(body, TOPOLET_SCHEDULER_POD)
        return
    with pytest.raises(RefusedError, match=message):
        cluster.change_scheduler(body, TOPOLET_SCHEDULER_POD)
    assert cluster.change_scheduler(body, ALICE), (
        "the policy applies to the scheduler's account only"
    )


def test_the_scheduler_writes_to_the_status_of_a_pod_only_its_conditions_and_a_nomination(
    cluster: Cluster,
) -> None:
    def condition(type_: str) -> Object:
        return {"status": {"conditions": [{"type": type_, "status": "True"}]}}

    for body in (
        condition("topolet.io/RoomFound"),
        condition("topolet.io/CPUClaimRefused"),
        condition("DisruptionTarget"),
        {"status": {"nominatedNodeName": "node-1"}},
    ):
        assert cluster.change_pod(body, TOPOLET_SCHEDULER, "/status")
    for body, message in (
        ({"metadata": {"labels": {"app": "evil"}}}, "the labels app"),
        ({"metadata": {"annotations": {"a": "b"}}}, "the annotations a"),
        ({"metadata": {"annotations": {RESOURCE_STATUS: "{}"}}}, "the annotations scheduling"),
        ({"metadata": {"finalizers": ["a.b/c"]}}, "owners or finalizers"),
        ({"status": {"phase": "Failed"}}, "fields of the status: phase"),
        ({"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}}, "status: podIP"),
        (condition("Ready"), "the conditions Ready"),
        (condition("PodScheduled"), "the conditions PodScheduled"),
    ):
        with pytest.raises(RefusedError, match=message):
            cluster.change_pod(body, TOPOLET_SCHEDULER, "/status")
        if RESOURCE_STATUS not in str(body):
            assert cluster.change_pod(body, ALICE, "/status")


def test_the_scheduler_removes_no_condition_of_others(cluster: Cluster) -> None:
    path = "/api/v1/namespaces/default/pods/ready"
    cluster.api.apply(pod("ready"))
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    cluster.api.merge(f"{path}/status", ready)
    for conditions in ([], [{"type": "Ready", "status": "False"}]):
        body: Object = {"status": {"conditions": conditions}}
        with pytest.raises(RefusedError, match="of pod default/ready the conditions Ready"):
            cluster.change_pod(body, TOPOLET_SCHEDULER, "/status", "ready")
    found = {"type": "topolet.io/RoomFound", "status": "True"}
    path = f"{path}/status?dryRun=All"
    media = "application/strategic-merge-patch+json"
    body = {"status": {"conditions": [found]}}
    seen = cluster.api.request("PATCH", path, body, TOPOLET_SCHEDULER, media)
    types = {each["type"] for each in seen["status"]["conditions"]}
    assert types >= {"Ready", "topolet.io/RoomFound"}


def test_the_conditions_of_the_scheduler_are_few_and_small(cluster: Cluster) -> None:
    """A stolen token must not make a pod so large that no client can write it."""
    own = {"type": "topolet.io/RoomFound", "status": "True"}
    longest = {**own, "reason": "r" * 1024, "message": "m" * 1024}
    assert cluster.change_pod({"status": {"conditions": [longest]}}, TOPOLET_SCHEDULER, "/status")
    for conditions in (
        [{**own, "reason": "r" * 1025}],
        [{**own, "message": "m" * 1025}],
        [{**own, "message": str(number)} for number in range(4)],
    ):
        body: Object = {"status": {"conditions": conditions}}
        with pytest.raises(RefusedError, match="more than three conditions, or reasons"):
            cluster.change_pod(body, TOPOLET_SCHEDULER, "/status")


def test_the_scheduler_binds_with_an_allocation_and_nothing_else(cluster: Cluster) -> None:
    """The API server itself gives the Binding the zone of the Node."""
    zone = {"labels": {"topology.kubernetes.io/zone": "a"}}
    cluster.api.apply({**node("node-1"), "metadata": {"name": "node-1", **zone}}, manager="zone")
    allocation = {**CPUS, DEVICE_ALLOCATED: "{}", RESOURCE_SPEC: "{}"}
    assert cluster.try_binding(binding("free", **allocation), TOPOLET_SCHEDULER)
    for metadata, message in (
        ({"labels": {"app": "evil"}}, "may not bind a pod with app"),
        ({"annotations": {"a": "b"}}, "may not bind a pod with a"),
    ):
        with pytest.raises(RefusedError, match=message):
            cluster.try_binding(with_metadata(metadata, binding("free")), TOPOLET_SCHEDULER)


def test_the_scheduler_takes_nothing_from_a_reservation(cluster: Cluster) -> None:
    allocated = {RESERVATION_ALLOCATED: "{}"}
    with pytest.raises(RefusedError, match=f"may not bind a pod with {RESERVATION_ALLOCATED}"):
        cluster.try_binding(binding("free", **allocated), TOPOLET_SCHEDULER)
    with pytest.raises(RefusedError, match=f"the annotations {RESERVATION_ALLOCATED}"):
        cluster.change_pod({"metadata": {"annotations": allocated}}, TOPOLET_SCHEDULER)


def test_the_scheduler_ends_no_pod_without_its_grace_period(cluster: Cluster) -> None:
    assert cluster.evict(preconditions={"uid": uid_of(cluster, "free")})
    for seconds in (0, 1):
        with pytest.raises(RefusedError, match="may not change the grace period"):
            cluster.evict(gracePeriodSeconds=seconds)
        assert cluster.evict(ALICE, gracePeriodSeconds=seconds)


def uid_of(cluster: Cluster, name: str) -> str:
    found = cluster.api.request("GET", f"/api/v1/namespaces/default/pods/{name}")
    return str(found["metadata"]["uid"])


def test_a_token_that_is_not_bound_to_a_pod_labels_none(cluster: Cluster) -> None:
    with pytest.raises(RefusedError, match=f"the labels {LABEL}"):
        cluster.change_scheduler(leader_label("leader"), TOPOLET_SCHEDULER)


def topology(name: str = "node-1", version: Version = Version.V1ALPHA2, left: int = 1000) -> Object:
    zone = Zone(0, {"cpu": Amounts(2000, 2000, left)}, {0: 10}, {"l3_cpus": "0;1"})
    value = NodeTopology(name, (zone,), "restricted", "pod", 8, "f", labels={MANAGED_BY: "topolet"})
    return resource_topology.encode(value, version)


GPU = Device(
    "gpu", "u", 0, {"koordinator.sh/gpu-core": 100}, topology=DeviceTopology(-1, 0, "p", "b")
)


def delete_topology(cluster: Cluster, name: str) -> None:
    path = f"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{name}"
    with contextlib.suppress(RefusedError):
        cluster.api.request("DELETE", path)


def test_an_agent_writes_objects_of_its_own_node(cluster: Cluster) -> None:
    delete_topology(cluster, "node-1")
    for body in (
        topology(),
        device_object.encode("node-1", (GPU,)),
        {
            **node("node-1"),
            "metadata": {"name": "node-1", "labels": {"topology.topolet.io/a": "b"}},
        },
    ):
        assert cluster.api.apply(body, AGENT_1, "topolet")
        with pytest.raises(RefusedError, match="is not bound to a node"):
            cluster.api.apply(body, UNBOUND, "topolet")
        body["metadata"]["name"] = "node-2"
        with pytest.raises(RefusedError, match="node-2 does not belong to node node-1"):
            cluster.api.apply(body, AGENT_1, "topolet")


@pytest.mark.parametrize(
    ("who", "name", "change", "message"),
    [
        (AGENT_1, "free", annotated(NUMA_PLACEMENT_OBSERVED), "pod free is not on node node-1"),
        (UNBOUND, "owner-of-cpus", annotated(NUMA_PLACEMENT_OBSERVED), "is not bound to a node"),
        (
            AGENT_1,
            "owner-of-cpus",
            annotated(NUMA_PLACEMENT_OBSERVED, "x" * 4097),
            "at most 4096 characters",
        ),
        (AGENT_1, "owner-of-cpus", {"metadata": {"labels": {"a": "b"}}}, "only the annotation"),
        (
            AGENT_1,
            "owner-of-cpus",
            {"spec": {"activeDeadlineSeconds": 1}},
            "only the annotation",
        ),
    ],
)
def test_an_agent_changes_nothing_of_pods_but_the_annotation_of_kai(
    cluster: Cluster, who: Who, name: str, change: Object, message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        cluster.change_pod(change, who, name=name)


@pytest.mark.parametrize(
    ("name", "who", "message"),
    [
        ("other-batch", AGENT_1, "pod other-batch is not on node node-1"),
        ("batch", UNBOUND, "is not bound to a node"),
        ("owner-of-cpus", AGENT_1, "an agent may only .* BE pods"),
        ("critical", AGENT_1, "an agent may only .* no critical one"),
    ],
)
def test_an_agent_evicts_only_batch_pods_of_its_node(
    cluster: Cluster, name: str, who: Who, message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        cluster.evict_own(name, who)
    with pytest.raises(RefusedError, match=message):
        cluster.delete_pod(name, who)


def test_an_agent_evicts_by_uid_with_the_grace_period_of_the_pod(cluster: Cluster) -> None:
    assert cluster.evict_own("batch")
    for refused in (
        lambda: cluster.evict_own("batch", gracePeriodSeconds=0),
        lambda: cluster.evict(AGENT_1, "batch"),
    ):
        with pytest.raises(RefusedError, match="an agent evicts a pod by its uid"):
            refused()


def test_an_agent_writes_events_of_its_node_and_of_pods(cluster: Cluster) -> None:
    assert cluster.try_event(event("Pod", "free"))
    with pytest.raises(RefusedError, match="is not bound to a node"):
        cluster.try_event(event("Node", "node-1"), UNBOUND)
    with pytest.raises(RefusedError, match="does not come from the agent of node node-1"):
        cluster.try_event(event("Pod", "free", "node-2"))
    with pytest.raises(RefusedError, match="not about Service kubernetes"):
        cluster.try_event(event("Service", "kubernetes"))
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T12:00:01.000000Z"}}
    others = {**event("Pod", "free"), "reportingController": "example.com/other"}
    cluster.api.request("POST", EVENTS, others)
    path = f"{EVENTS}/{others['metadata']['name']}"
    for who in (AGENT_1, TOPOLET_SCHEDULER):
        with pytest.raises(RefusedError, match="this Event does not come from"):
            cluster.api.merge(path, series, who)
    cluster.api.request("DELETE", path)


def test_the_scheduler_writes_events_of_its_own_about_pods(cluster: Cluster) -> None:
    own = {**event("Pod", "free"), "reportingController": CONTROLLER}
    assert cluster.try_event(own, TOPOLET_SCHEDULER)
    with pytest.raises(RefusedError, match=f"does not come from {SCHEDULER}"):
        cluster.try_event(event("Pod", "free"), TOPOLET_SCHEDULER)
    with pytest.raises(RefusedError, match="only write Events about pods, not about Node node-1"):
        cluster.try_event(
            {**event("Node", "node-1"), "reportingController": CONTROLLER}, TOPOLET_SCHEDULER
        )


@pytest.mark.parametrize("who", [AGENT_1, TOPOLET_SCHEDULER])
def test_an_event_of_a_stolen_token_is_small(cluster: Cluster, who: Who) -> None:
    body = event("Pod", "free")
    if who == TOPOLET_SCHEDULER:
        body["reportingController"] = CONTROLLER
    assert cluster.try_event(body, who)
    regarding = body["regarding"]
    for change, message in (
        (with_metadata({"annotations": {"a.b/c": "x" * 250_000}}, body), r"metadata\.annotations"),
        (with_metadata({"labels": {"a": "b"}}, body), r"metadata\.labels"),
        (with_metadata({"finalizers": ["a.b/c"]}, body), r"metadata\.finalizers"),
        ({**body, "related": regarding}, "related"),
        ({**body, "regarding": {**regarding, "fieldPath": "x"}}, r"regarding\.fieldPath"),
        ({**body, "regarding": {**regarding, "uid": "x" * 254}}, r"regarding\.uid"),
    ):
        with pytest.raises(RefusedError, match=f"fields of an Event, or not so long: {message}$"):
            cluster.try_event(change, who)
    created = cluster.api.request("POST", EVENTS, body)
    path = f"{EVENTS}/{created['metadata']['name']}"
    annotated = {"metadata": {"annotations": {"a.b/c": "x"}}}
    with pytest.raises(RefusedError, match=r"metadata\.annotations"):
        cluster.api.merge(path, annotated, who)
    cluster.api.request("DELETE", path)


NODE_INFO: Object = dict.fromkeys(
    (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ),
    "x",
)
NVIDIA_LABELS = node_status.gpu_labels(GpuInfo("nvidia", "H100", "570.1"), (GPU,), discovery=True)


def named(**metadata: Any) -> Object:
    return {"metadata": {"name": "node-1", **metadata}}


def test_an_agent_leaves_what_others_write_to_its_objects(cluster: Cluster) -> None:
    """Namely zones, attributes, devices, labels, owners, finalizers and the status of a Device."""
    delete_topology(cluster, "node-1")
    own = topology()
    cluster.api.apply(own, AGENT_1, "topolet")
    balloon, attribute = {"name": "balloon", "type": "balloon"}, {"name": "a", "value": "b"}
    foreign = {**own, "zones": [balloon], "attributes": [attribute]}
    foreign["metadata"] = {"name": "node-1", "labels": {"a": "b"}, "finalizers": ["a.b/c"]}
    cluster.api.apply(foreign, manager="other")
    device = device_object.encode("node-1", (GPU,))
    npu = {"type": "npu", "id": "n", "minor": 0, "health": True}
    both = [*device["spec"]["devices"], npu]
    stored = {**device, "spec": {"devices": both}}
    cluster.api.apply(stored, manager="topolet")
    taken = {"allocations": [{"type": "gpu", "entries": [{"name": "p", "minors": [0]}]}]}
    uid = cluster.api.request("GET", "/api/v1/nodes/node-1")["metadata"]["uid"]
    node_1 = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": uid}
    owners = "owners other than its Node, finalizers or status"
    entries = "zones, attributes and devices of other writers"
    for body, message in (
        ({**own, "zones": [*own["zones"], {**balloon, "parent": "x"}]}, entries),
        ({**own, "attributes": [{**attribute, "value": "c"}]}, entries),
        ({**own, "zones": [*own["zones"], {"name": "mine", "type": "x"}]}, entries),
        (device, entries),
        ({**stored, "spec": {"devices": [both[0], {**npu, "health": False}]}}, entries),
        ({**stored, "status": taken}, owners),
        (with_metadata({"finalizers": ["x.y/z"]}, stored), owners),
        (with_metadata({"ownerReferences": [{**node_1, "controller": True}]}, stored), owners),
        (with_metadata({"ownerReferences": [{**node_1, "name": "node-2"}]}, own), owners),
        (with_metadata({"labels": {"x": "y"}}, stored), "labels and annotations of node-1: x$"),
        (
            with_metadata({"labels": {f"topolet.io/a{place}": "" for place in range(65)}}, stored),
            "node-1 has at most 64 labels of an agent, not 65",
        ),
        (
            with_metadata({"annotations": {"node.koordinator.sh/gpu-checkpoints": "[]"}}, stored),
            "gpu-check",
        ),
    ):
        with pytest.raises(RefusedError, match=f"topolet-own-objects.* .*{message}"):
            cluster.api.apply(body, AGENT_1, "topolet")
    for body in (
        with_metadata({"ownerReferences": [node_1]}, own),
        with_metadata({"labels": {MANAGED_BY: "Koordinator"}}, stored),
    ):
        assert cluster.api.apply(body, AGENT_1, "topolet")
    seen = cluster.api.request("GET", path_of(own))
    assert [each["name"] for each in seen["zones"] if each["type"] == "balloon"] == ["balloon"]
    cluster.api.merge(path_of(own), {"metadata": {"finalizers": None}})
    cluster.api.request("DELETE", path_of(device))


def with_metadata(metadata: Object, body: Object) -> Object:
    return {**body, "metadata": {**body["metadata"], **metadata}}


def test_an_agent_changes_only_its_keys_of_its_node(cluster: Cluster) -> None:
    def change(body: Object, subresource: str = "") -> Object:
        return cluster.api.apply({**node("node-1"), **body}, AGENT_1, "topolet", subresource)

    resources = {"koordinator.sh/gpu-core": "1000"}
    offers = offered(NodeLoad({}, {}, {}, {}, {}), ColocationStrategy(), {})
    amounts = {"koordinator.sh/gpu-core": 1000, **{each.name: 64_000 for each in offers}}
    status = node_status.status("node-1", amounts)
    seen = cluster.api.apply(status, AGENT_1, "topolet", "status")
    assert seen["status"]["allocatable"]["kubernetes.io/mid-memory"] == "64k"
    assert seen["status"]["capacity"]["koordinator.sh/gpu-core"] == "1k"
    wanted = node_status.with_stored_amounts(status, seen)
    assert patch(wanted, seen, "topolet", subresource="status") is None
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-2", "uid": "u"}
    for refused, message in (
        ({"spec": {"unschedulable": True}}, "may not change spec"),
        (named(annotations={"a": "b"}), "may not change spec, annotations"),
        (named(annotations={ORIGIN: "", "a": "b"}), "may not change spec, annotations"),
        (named(annotations={ORIGIN: "x" * 257}), "may not change spec, annotations"),
        (named(finalizers=["a.b/c"]), "owners or finalizers"),
        (named(ownerReferences=[owner]), "owners or finalizers"),
        (named(labels={"a": "b"}), "labels of its Node: a$"),
        (
            named(labels={f"topology.topolet.io/a{place}": "b" for place in range(65)}),
            "at most 64 labels of an agent",
        ),
        (named(labels={"nvidia.com/mig.config": "all-1g"}), "Node: nvidia.com/mig.config"),
        (named(labels={"node.koordinator.sh/gpu-partition-policy": "Honor"}), "gpu-partition"),
    ):
        for subresource in ("", "status"):
            if "spec" not in refused or not subresource:  # the server ignores it there
                with pytest.raises(RefusedError, match=message):
                    change(refused, subresource)
    for status, message in (
        ({"capacity": {**resources, "cpu": "1"}}, "these resources of its Node: cpu"),
        ({"allocatable": {"koordinator.sh/batch-cpu": "9k"}}, "koordinator.sh/batch-cpu$"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "its Node: conditions"),
        ({"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}, "its Node: addresses"),
        ({"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}, "its Node: daemonEndpoints"),
        ({"images": [{"names": ["i"], "sizeBytes": 1}]}, "its Node: images"),
        ({"phase": "Terminated"}, "its Node: phase"),
        ({"nodeInfo": {**NODE_INFO, "kubeletVersion": "v9"}}, "its Node: nodeInfo"),
        ({"volumesInUse": ["v"]}, "its Node: volumesInUse"),
        ({"runtimeHandlers": [{"name": "h"}]}, "its Node: runtimeHandlers"),
    ):
        with pytest.raises(RefusedError, match=message):
            change({"status": status}, "status")
    for written in ({ORIGIN: '{"resources":{"kubernetes.io/batch-cpu":"22500"}}'}, {}):
        assert change(named(annotations=written))
    for labels in (NVIDIA_LABELS, {"node.koordinator.sh/gpu-model": "H100"}, {}):
        assert change(named(labels=labels))
    without_resources = node_status.status("node-1", {})
    assert patch(without_resources, seen, "topolet", subresource="status") == without_resources
    seen = cluster.api.apply(without_resources, AGENT_1, "topolet", "status")
    assert "koordinator.sh/gpu-core" not in seen["status"].get("capacity", {})
    assert patch(without_resources, seen, "topolet", subresource="status") is None


def check_creation(cluster: Cluster, body: Object, message: str | None) -> None:
    """Creates the pod in a dry run; `message`: a pattern of its refusal, None if there is none."""
    if "resources" in body["spec"] and cluster.server.minor < 34:
        pytest.skip("pod-level resources are off by default in this kube-apiserver")
    if message is None:
        assert cluster.try_pod(body)
        return
    with pytest.raises(RefusedError, match=message):
        cluster.try_pod(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (pod(qos="LSR", cpu=("2", "2")), None),
        (pod(qos="LSE", cpu=("", "2")), None),
        (pod(qos="LS", cpu=("500m", "")), None),
        (pod(qos="LSR", cpu=("1500m", "1500m")), "must request whole CPUs, not 1500m"),
        (pod(qos="LSR"), "must request whole CPUs, not 0m"),
        (pod(qos="LSE", cpu=("2", "3")), "must equal the request: main"),
        (pod(qos="LSE", cpu=("2", "")), "must equal the request: main"),
        (
            pod(qos="LSE", resources={"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}),
            None,
        ),
        (
            pod(qos="LSE", resources={"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}),
            "limit of a pod of class LSE must equal",
        ),
    ],
)
def test_owners_of_cpus_request_whole_ones(
    cluster: Cluster, body: Object, message: str | None
) -> None:
    check_creation(cluster, body, message)


BATCH = {"kubernetes.io/batch-cpu": "1k", "kubernetes.io/batch-memory": "1Gi"}
OF_MAIN = {"main": {"requests": BATCH, "limits": BATCH}}
SPEC_OF_BATCH = {EXTENDED_RESOURCE_SPEC: json.dumps({"containers": OF_MAIN})}


def batch_pod(annotations: dict[str, str] = SPEC_OF_BATCH, **fields: Any) -> Object:
    """A pod as Koordinator's webhook writes it."""
    body = pod(annotations=annotations, **{"qos": "BE", **fields})
    body["spec"]["containers"][0]["resources"] = {"requests": BATCH, "limits": BATCH}
    return body


def with_sidecar(body: Object, resource: str = "cpu") -> Object:
    sidecar = {"name": "side", "image": "i", "resources": {"requests": {resource: "10m"}}}
    body["spec"]["containers"].append(sidecar)
    return body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (batch_pod(), None),
        (batch_pod(qos=""), None),
        (pod(qos="BE"), None),
        (pod(qos="BE", cpu=("0", "")), None),
        (pod(annotations={EXTENDED_RESOURCE_SPEC: " {}\n"}), None),
        (with_sidecar(batch_pod(priorityClassName="koord-batch")), None),
        (pod(qos="BE", cpu=("1", "1"), priorityClassName="koord-batch"), None),
        (pod(qos="SYSTEM", namespace="kube-system"), None),
        (pod(qos="SYSTEM", namespace="topolet-system"), None),
        (pod(qos="SYSTEM"), "namespace default may not have pods of class SYSTEM"),
        (pod(qos="BE", cpu=("1", "1")), "class BE must not request cpu or memory: main"),
        (pod(qos="BE", cpu=("", "1")), "class BE must not request cpu or memory: main"),
        (with_sidecar(batch_pod()), "class BE must not request cpu or memory: side"),
        (with_sidecar(batch_pod(), "memory"), "must not request cpu or memory: side"),
        (
            pod(qos="BE", initContainers=with_sidecar(pod())["spec"]["containers"][1:]),
            "must not request cpu or memory: side",
        ),
        (
            pod(qos="BE", resources={"requests": {"cpu": "1"}}),
            r"must not request cpu or memory: spec\.resources",
        ),
        (pod(annotations=SPEC_OF_BATCH), "is for pods whose containers request batch"),
        (pod(qos="BE", annotations=SPEC_OF_BATCH), "is for pods whose containers request batch"),
        (
            pod(cpu=("1", "1"), annotations=SPEC_OF_BATCH),
            "is for pods whose containers request batch",
        ),
    ],
)
def test_pod_authors_cannot_claim_a_class_or_batch_resources_without_requesting_them(
    cluster: Cluster, body: Object, message: str | None
) -> None:
    check_creation(cluster, body, message and f"topolet-classes.*{message}")


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_pod_authors_cannot_add_a_class_or_batch_resources_later(
    cluster: Cluster, subresource: str
) -> None:
    for metadata in ({"labels": {QOS_LABEL: "SYSTEM"}}, {"annotations": SPEC_OF_BATCH}):
        with pytest.raises(RefusedError, match="topolet-classes"):
            cluster.change_pod({"metadata": metadata}, ALICE, subresource, "free")
    body = {"metadata": {"labels": {QOS_LABEL: "BE"}}}
    assert cluster.change_pod(body, ALICE, subresource, "free")


@pytest.mark.parametrize("name", ["owner-of-cpus", "waiting"])
def test_a_pod_keeps_the_cpu_request_and_the_class_for_which_it_gets_cpus(
    cluster: Cluster, name: str
) -> None:
    """So its CPUs are those that a ResourceQuota counts."""
    for cpu in ("1", "3", "5"):
        with pytest.raises(RefusedError, match="keeps its CPU requests and limits: create it"):
            cluster.resize(main_of_cpus(cpu), name)
    assert cluster.resize(main_of_cpus("4000m"), name)
    for labels in ({QOS_LABEL: "LS"}, {QOS_LABEL: None}, {PRIORITY_CLASS_LABEL: "koord-batch"}):
        for subresource in ("", "/status"):
            body = {"metadata": {"labels": labels}}
            with pytest.raises(
                RefusedError, match="has CPUs of its own, or waits for them, keeps koord"
            ):
                cluster.change_pod(body, ALICE, subresource, name)
    other = {"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}}
    assert cluster.change_pod(other, ALICE, name=name)


def test_a_pod_that_has_ended_owns_no_cpus(cluster: Cluster) -> None:
    cluster.api.apply(pod("ended", qos="LSE", cpu=("4", "4"), annotations=CPUS), TOPOLET_SCHEDULER)
    path = "/api/v1/namespaces/default/pods/ended/status"
    cluster.api.merge(path, {"status": {"phase": "Succeeded"}})
    body = {"metadata": {"labels": {QOS_LABEL: None}}}
    assert cluster.change_pod(body, ALICE, name="ended")


def test_no_class_that_owns_cpus_is_added_by_the_status(cluster: Cluster) -> None:
    """Nor to a pod that waits for a node."""
    cluster.api.apply(pod("placed", nodeName="node-1"))
    body = {"metadata": {"labels": {QOS_LABEL: "LSE"}}}
    with pytest.raises(RefusedError, match="must request whole CPUs, not 0m"):
        cluster.change_pod(body, ALICE, "/status", "placed")
    for subresource in ("", "/status"):
        with pytest.raises(RefusedError, match=r"must request whole CPUs|waits for them, keeps"):
            cluster.change_pod(body, ALICE, subresource, "free")


def test_a_pod_that_is_older_than_the_policy_can_end(cluster: Cluster) -> None:
    """Such as one in a namespace that an earlier configuration allowed."""
    cluster.api.apply(pod("old", "kube-system", qos="SYSTEM"))
    path = "/api/v1/namespaces/kube-system/pods/old?dryRun=All"
    for metadata in ({"labels": {"a": "b"}}, {"labels": {QOS_LABEL: None}}):
        assert cluster.api.merge(path, {"metadata": metadata}, ALICE)
    assert cluster.api.request("DELETE", path, None, ALICE)


def test_the_mirror_of_a_static_pod_may_have_the_class_of_its_file(cluster: Cluster) -> None:
    body = mirror_pod(cluster)
    body["metadata"]["labels"] = {QOS_LABEL: "SYSTEM"}
    assert cluster.try_pod(body, KUBELET)
    # The server names one of the policies that refuse it.
    with pytest.raises(
        RefusedError, match=r"may not (have pods of class SYSTEM|create the mirror)"
    ):
        cluster.try_pod(body, ALICE)


def test_a_binding_brings_no_class_and_no_batch_resources(cluster: Cluster) -> None:
    for metadata in ({"labels": {QOS_LABEL: "SYSTEM"}}, {"annotations": SPEC_OF_BATCH}):
        body = with_metadata(metadata, binding("free"))
        with pytest.raises(RefusedError, match="topolet-binding-classes"):
            cluster.try_binding(body, ALICE)
        with pytest.raises(RefusedError, match=r"topolet-(binding-classes|scheduler-bindings)"):
            cluster.try_binding(body, TOPOLET_SCHEDULER)


@pytest.mark.parametrize(
    ("body", "who", "refused"),
    [
        (placed_gpu_pod(), ALICE, True),
        (placed_gpu_pod(), Who("system:kube-scheduler"), False),
        (gpu_pod(), ALICE, False),
        (pod(namespace="gpu", nodeName="node-1"), ALICE, False),
        (pod(nodeName="node-1"), ALICE, False),
    ],
)
def test_only_configured_accounts_name_the_node_of_a_pod_with_gpus(
    cluster: Cluster, body: Object, who: Who, refused: bool
) -> None:
    if refused:
        with pytest.raises(RefusedError, match="alice may not name the node of a pod with GPUs"):
            cluster.try_pod(body, who)
    else:
        assert cluster.try_pod(body, who)


@pytest.mark.parametrize(
    "resource", ["nvidia.com/mig-1g.10gb", "koordinator.sh/gpu-core", "amd.com/gpu"]
)
def test_every_gpu_resource_is_seen_in_a_pod_with_its_node(cluster: Cluster, resource: str) -> None:
    body = placed_gpu_pod()
    for field in ("containers", "initContainers"):
        spec = {**body["spec"], "initContainers": []}
        amounts = {"limits": {resource: "1"}, "requests": {resource: "1"}}
        spec["containers"] = [{"name": "main", "image": "i"}]
        spec[field] = [{"name": field.lower(), "image": "i", "resources": amounts}]
        with pytest.raises(RefusedError, match="may not name the node"):
            cluster.try_pod({**body, "spec": spec})


def workload(body: Object) -> Object:
    """A Deployment with this pod as its template."""
    metadata, spec = body["metadata"], body["spec"]
    labels = {**metadata["labels"], "app": "a"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


@pytest.mark.parametrize(
    ("body", "who", "expected_warning"),
    [
        (pod(qos="LSR", cpu=("2", "2")), ALICE, "scheduler default-scheduler allocates no CPUs"),
        (pod(qos="LSE", cpu=("2", "2"), schedulerName="x"), ALICE, "scheduler x allocates no CPUs"),
        (pod(qos="LSE", cpu=("2", "2"), schedulerName="topolet-scheduler"), ALICE, ""),
        (pod(qos="LS", cpu=("2", "2")), ALICE, ""),
        (pod(qos="LSR", cpu=("2", "2"), annotations=CPUS), TOPOLET_SCHEDULER, ""),
        (workload(pod(qos="LSR", cpu=("2", "2"))), ALICE, "shares CPUs with others"),
        (workload(pod(qos="LS", cpu=("2", "2"))), ALICE, ""),
    ],
)
def test_pods_that_no_scheduler_gives_cpus_cause_a_warning(
    cluster: Cluster, body: Object, who: Who, expected_warning: str
) -> None:
    def warnings() -> str:
        collection = path_of(body).rpartition("/")[0]
        cluster.api.request("POST", f"{collection}?dryRun=All", body, who)
        found = [each for each in cluster.api.warnings if "topolet-schedulers" in each]
        return "\n".join(found)

    def warns() -> bool:
        probe = pod(qos="LSR", cpu=("2", "2"))
        cluster.try_pod(probe)
        return any("topolet-schedulers" in each for each in cluster.api.warnings)

    eventually("the policy is in force", warns)
    assert (expected_warning in warnings()) if expected_warning else warnings() == ""


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (RESOURCE_SPEC, '{"preferredCPUBindPolicy": "FullPCPUs"}', None),
        (RESOURCE_SPEC, " {} ", None),
        (RESOURCE_SPEC, '{"requiredCPUBindPolicy":"Default","somethingNew":"x"}', None),
        (RESOURCE_SPEC, '{"preferredCPUBindPolicy": "Full"}', "is not one of Default, FullPCPUs"),
        (RESOURCE_SPEC, '{"preferredCPUExclusivePolicy": 3}', "is not a JSON object of strings"),
        (RESOURCE_SPEC, "FullPCPUs", "resource-spec: is not a JSON object"),
        (NUMA_SPEC, '{"numaTopologyPolicy":"SingleNUMANode"}', None),
        (NUMA_SPEC, '{"numaTopologyPolicy":"single-numa-node"}', "TopologyPolicy is not one of"),
        (RESOURCE_STATUS, '{"cpuset":"0-3,8"}', None),
        (RESOURCE_STATUS, '{"cpuset":"0-3;8"}', "cpuset is not a list of CPUs"),
        (DEVICE_ALLOCATED, "[]", "device-allocated: is not a JSON object"),
        (DEVICE_ALLOCATED, "{" + " " * 32_768 + "}", "allocated: has more than 32768 characters"),
    ],
)
def test_annotations_can_be_read(
    cluster: Cluster, key: str, text: str, message: str | None
) -> None:
    body = pod(annotations={key: text})
    if message is None:
        assert cluster.try_pod(body, TOPOLET_SCHEDULER)
        return
    with pytest.raises(RefusedError, match=message):
        cluster.try_pod(body, TOPOLET_SCHEDULER)


def test_a_binding_brings_annotations_that_can_be_read(cluster: Cluster) -> None:
    for text, message in (("x", "is not a JSON object"), ("{" * 40_000, "has more than 32768")):
        with pytest.raises(RefusedError, match=message):
            cluster.try_binding(binding("free", **{RESOURCE_STATUS: text}), TOPOLET_SCHEDULER)


@pytest.mark.parametrize(
    ("namespace", "resource", "scheduler", "expected"),
    [
        ("gpu", "nvidia.com/gpu", None, "topolet-scheduler"),
        ("gpu", "koordinator.sh/gpu-core", None, "topolet-scheduler"),
        ("gpu", "koordinator.sh/gpu-core", "special", "special"),
        ("gpu", "vendor.com/nic", None, "default-scheduler"),
        ("default", "nvidia.com/gpu", None, "default-scheduler"),
    ],
)
def test_pods_with_gpus_get_the_topolet_scheduler_if_configured(
    cluster: Cluster, namespace: str, resource: str, scheduler: str | None, expected: str
) -> None:
    """Before 1.36 every pod keeps its own scheduler."""
    if not cluster.serves_mutating_policies:
        expected = scheduler or "default-scheduler"
    body = pod(namespace=namespace)
    body["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    if scheduler is not None:
        body["spec"]["schedulerName"] = scheduler
    assert cluster.try_pod(body)["spec"]["schedulerName"] == expected


@pytest.mark.parametrize("version", list(Version))
def test_an_applied_object_needs_no_second_write_and_keeps_others_entries(
    cluster: Cluster, version: Version
) -> None:
    delete_topology(cluster, "node-1")
    body = topology(version=version)
    cluster.api.apply(body, AGENT_1, "topolet")
    zone: Object = {
        "name": "node-0",
        "type": "Node",
        "resources": [
            {"name": "vendor.com/nic", "capacity": "1", "allocatable": "1", "available": "1"}
        ],
    }
    others = {"name": "balloon-1", "type": "balloon"}
    cluster.api.apply(
        {
            "apiVersion": body["apiVersion"],
            "kind": body["kind"],
            "metadata": {"name": "node-1"},
            "topologyPolicies": body["topologyPolicies"],
            "zones": [zone, others],
        },
        manager="other",
    )
    path = f"/apis/topology.node.k8s.io/{version}/noderesourcetopologies/node-1"
    seen = cluster.api.request("GET", path)
    assert patch(body, seen, "topolet", resource_topology.is_own_entry) is None
    assert resource_topology.decode(seen).zones[0].resources["vendor.com/nic"].available == 1
    changed = patch(
        topology(version=version, left=500), seen, "topolet", resource_topology.is_own_entry
    )
    assert changed == topology(version=version, left=500), "entries of others are not sent"
    seen = cluster.api.apply(changed, AGENT_1, "topolet")
    assert {each["name"] for each in seen["zones"]} == {"node-0", "balloon-1"}
    assert patch(changed, seen, "topolet", resource_topology.is_own_entry) is None
    read = resource_topology.decode(seen).zones[0]
    assert read.resources["cpu"] == Amounts(2000, 2000, 500)
    empty = resource_topology.encode(NodeTopology("node-1"), version)
    seen = cluster.api.apply(empty, AGENT_1, "topolet")
    assert patch(empty, seen, "topolet", resource_topology.is_own_entry) is None


def large(count: int) -> Object:
    """A pod with so many containers, and an unrelated annotation of the largest size."""
    body = pod(annotations={"example.com/a": "x" * 250_000})
    containers = [{"name": f"c{place}", "image": "i"} for place in range(count)]
    return {**body, "spec": {**body["spec"], "containers": containers}}


OTHER_PODS: dict[str, Object] = {
    "without annotations": {"metadata": {"name": "odd"}, "spec": pod()["spec"]},
    "with an empty annotation": pod(annotations={"example.com/a": ""}, initContainers=[]),
    "large": large(20_000),
    "with similar keys": pod(
        annotations={"scheduling.koordinator.sh/resource-statuses": "x", "resource-spec": "x"}
    ),
    "of another class": pod(qos="LS", cpu=("500m", "700m")),
}
"""Pods without any key that a policy checks."""


@pytest.mark.parametrize("namespace", ["default", "gpu"])
@pytest.mark.parametrize("kind", OTHER_PODS)
def test_other_pods_are_not_checked(cluster: Cluster, kind: str, namespace: str) -> None:
    body = {**OTHER_PODS[kind], "apiVersion": "v1", "kind": "Pod"}
    body["metadata"] = {**body["metadata"], "namespace": namespace}
    assert cluster.try_pod(body)
    assert cluster.try_binding(binding("free", namespace), Who("system:kube-scheduler", ""))


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_other_fields_of_a_pod_with_topolet_keys_can_change(
    cluster: Cluster, subresource: str
) -> None:
    body = {"metadata": {"annotations": {"example.com/a": "x" * 200_000}}}
    assert cluster.change_pod(body, ALICE, subresource)


def test_an_invalid_object_is_refused_for_its_error(cluster: Cluster) -> None:
    """The server applies mutating policies before it validates an object."""
    for namespace in ("default", "gpu"):
        body = pod(namespace=namespace)
        del body["spec"]["containers"]
        with pytest.raises(RefusedError, match=r"spec\.containers: Required value"):
            cluster.try_pod(body)


def test_a_resized_sidecar_requests_whole_cpus_too(cluster: Cluster) -> None:
    def owner(sidecar: str) -> Object:
        amounts = {"requests": {"cpu": sidecar}, "limits": {"cpu": sidecar}}
        init = {"name": "side", "image": "i", "restartPolicy": "Always", "resources": amounts}
        spec: Object = {"initContainers": [init], "nodeName": "node-1"}
        return pod("owner", qos="LSE", cpu=("2", "2"), **spec)

    def change(sidecar: str) -> Object:
        return {"initContainers": owner(sidecar)["spec"]["initContainers"]}

    cluster.api.apply(owner("1"))
    with pytest.raises(RefusedError, match="must request whole CPUs, not 2500m"):
        cluster.resize(change("500m"), "owner")
    assert cluster.resize(change("2"), "owner")


def _without_keys(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _without_keys(below)
            for key, below in schema.items()
            if not key.startswith("x-kubernetes-list-")
        }
    return [_without_keys(each) for each in schema] if isinstance(schema, list) else schema


def test_entries_of_others_survive_with_another_installation_of_the_api(cluster: Cluster) -> None:
    """Their CRD has the same schema, without keys of lists."""
    crd = _without_keys(
        of_kind("CustomResourceDefinition")["noderesourcetopologies.topology.node.k8s.io"]
    )
    crd["metadata"] = {"name": "noderesourcetopologies.plain.example.com"}
    crd["spec"]["group"] = "plain.example.com"
    cluster.api.apply(crd)

    def plain(body: Object) -> Object:
        return {**body, "apiVersion": "plain.example.com/v1alpha2"}

    balloon = {"name": "balloon-1", "type": "balloon"}
    foreign = plain({**topology(), "zones": [balloon]})
    eventually("the kind is served", partial(deployed.applied, cluster.api, foreign))
    seen = cluster.api.apply(foreign, manager="other")
    wanted = plain(topology())
    written = patch(wanted, seen, "topolet", resource_topology.is_own_entry)
    assert written is not None
    seen = cluster.api.apply(written, manager="topolet")
    assert [each["name"] for each in seen["zones"]] == ["balloon-1", "node-0"]
    assert patch(wanted, seen, "topolet", resource_topology.is_own_entry) is None
    between = cluster.api.apply(
        {**foreign, "zones": [*seen["zones"], {"name": "b2", "type": "balloon"}]}, manager="other"
    )
    stale = patch(plain(topology(left=0)), seen, "topolet", resource_topology.is_own_entry)
    assert stale is not None
    with pytest.raises(RefusedError, match="the object has been modified"):
        cluster.api.apply(stale, manager="topolet")
    fresh = patch(plain(topology(left=0)), between, "topolet", resource_topology.is_own_entry)
    assert fresh is not None
    seen = cluster.api.apply(fresh, manager="topolet")
    assert [each["name"] for each in seen["zones"]] == ["balloon-1", "node-0", "b2"]
    assert patch(plain(topology(left=0)), seen, "topolet", resource_topology.is_own_entry) is None


@pytest.mark.parametrize(
    ("first", "then"),
    [(Version.V1ALPHA1, Version.V1ALPHA2), (Version.V1ALPHA2, Version.V1ALPHA1)],
)
def test_the_api_version_may_change_for_the_same_writer(
    cluster: Cluster, first: Version, then: Version
) -> None:
    """Without a declared version the server answers 500 if the older version lacks a field."""
    path = "/apis/topology.node.k8s.io/{}/noderesourcetopologies/node-2"
    who = Who(AGENT, "system:serviceaccounts", "node-2")
    delete_topology(cluster, "node-2")
    before = topology("node-2", first)
    before["zones"].append({"name": "node-1", "type": "Node", "resources": []})
    cluster.api.apply(before, who, "topolet")
    seen = cluster.api.request("GET", path.format(then))
    wanted = topology("node-2", then, left=0)
    changes = same_version(seen, wanted["apiVersion"])
    assert changes is not None
    media = "application/json-patch+json"
    changed = cluster.api.request("PATCH", path.format(then), changes, who, media)
    assert same_version(changed, wanted["apiVersion"]) is None
    assert patch(wanted, changed, "topolet", resource_topology.is_own_entry) == wanted
    seen = cluster.api.apply(wanted, who, "topolet")
    assert [each["name"] for each in seen["zones"]] == ["node-0"]
    assert patch(wanted, seen, "topolet", resource_topology.is_own_entry) is None


def test_a_rebind_is_requested_once(cluster: Cluster) -> None:
    made = cluster.api.apply(rebind("r"))
    assert made["spec"]["deadlineInSeconds"] == 600
    assert made["status"]["phase"] == "Unknown", "no controller has taken it yet"
    with pytest.raises(RefusedError, match="is immutable"):
        cluster.api.apply(rebind("r", nodeName="node-2"))
    with pytest.raises(RefusedError, match="Unsupported value"):
        cluster.api.apply(rebind("r", rebindAction="Dance"))


def test_an_agent_writes_only_that_an_untaken_rebind_of_its_node_failed(cluster: Cluster) -> None:
    assert cluster.fail_rebind("node-1")["status"]["phase"] == "Failed"
    assert cluster.fail_rebind("node-2", ALICE)["status"]["phase"] == "Failed"
    with pytest.raises(RefusedError, match="untaken-node-2 does not belong to node node-1"):
        cluster.fail_rebind("node-2")
    with pytest.raises(RefusedError, match="is not bound to a node"):
        cluster.fail_rebind("node-1", UNBOUND)
    for status in ({"phase": "Pending"}, {"plan": {"startedAt": TIMESTAMP}}):
        with pytest.raises(RefusedError, match="may only write that a RebindResource failed"):
            cluster.fail_rebind("node-1", **status)
    cluster.fail_rebind("node-1", name="taken")
    status = {"phase": "Pending", "updateTimestamp": TIMESTAMP}
    cluster.api.merge(f"{path_of(rebind('taken-node-1'))}/status", {"status": status})
    with pytest.raises(RefusedError, match="that nobody has taken"):
        cluster.fail_rebind("node-1", name="taken")


def test_an_agent_changes_slices_of_its_node_and_driver_only(cluster: Cluster) -> None:
    cluster.try_slice("node-1", ownerReferences=[owner_of_slice("node-1")])
    for arguments, metadata, message in (
        (("node-1", "gpu.example.com"), {}, "only change ResourceSlices of the driver cpu.topol"),
        (("node-1", DRIVER, "node-2"), {}, "does not belong to node node-1"),
        (("node-1",), {"ownerReferences": [owner_of_slice("node-2")]}, "owners other than its N"),
        (("node-1",), {"finalizers": ["a.b/c"]}, "may not give a ResourceSlice finalizers"),
    ):
        with pytest.raises(RefusedError, match=f"topolet-own-slices.*{message}"):
            cluster.try_slice(*arguments, **metadata)
    for driver, node, allowed in (
        (DRIVER, "node-1", True),
        (DRIVER, "node-2", False),
        ("gpu.example.com", "node-1", False),
    ):
        name = f"{node}-{driver}"
        cluster.api.request("POST", SLICES, resource_slice(node, driver, name))
        refusal = contextlib.nullcontext() if allowed else pytest.raises(RefusedError)
        with refusal:
            change = {"metadata": {"labels": {"a": "b"}}}
            cluster.api.merge(f"{SLICES}/{name}?dryRun=All", change, AGENT_1)
        refusal = contextlib.nullcontext() if allowed else pytest.raises(RefusedError)
        with refusal:
            cluster.api.request("DELETE", f"{SLICES}/{name}?dryRun=All", None, AGENT_1)
        cluster.api.request("DELETE", f"{SLICES}/{name}")


def test_an_agent_changes_only_its_devices_in_the_status_of_a_claim(cluster: Cluster) -> None:
    other = {"driver": "gpu.example.com", "pool": "node-1", "device": "numa-node-0"}
    consumer = {"resource": "pods", "name": "batch", "uid": "u"}
    for status in ({"devices": [other]}, {"reservedFor": [consumer]}, {"allocation": None}):
        with pytest.raises(RefusedError, match=r"topolet-own-claims|resourceclaims/"):
            cluster.try_claim_status("node-1", **status)
    with pytest.raises(RefusedError, match=r"its token is not bound|resourceclaims/driver"):
        cluster.try_claim_status("node-1", UNBOUND)


def test_an_agent_evicts_a_pod_with_claims_only_before_it_has_started(cluster: Cluster) -> None:
    claims = [{"name": "cpus", "resourceClaimName": "allocated"}]
    body = pod("claims", nodeName="node-1")
    body["spec"]["resourceClaims"] = claims
    cluster.api.apply(body, TOPOLET_SCHEDULER)
    cluster.evict_own("claims")
    running = {"status": {"phase": "Running"}}
    cluster.api.merge("/api/v1/namespaces/default/pods/claims/status", running)
    with pytest.raises(RefusedError, match="pending pods with ResourceClaims"):
        cluster.evict_own("claims")


def owner_of_slice(node: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "u"}


def claim_template(name: str, *requests: Object) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }


def device_request(cpus: str, **more: Any) -> Object:
    capacity = {"requests": {"cpu.topolet.io/cpu": cpus}}
    return {"deviceClassName": "cpu.topolet.io", "capacity": capacity, **more}


CLAIM_TEMPLATES = (
    claim_template("one", {"name": "a", "exactly": device_request("1")}),
    claim_template("eight", {"name": "a", "exactly": device_request("8")}),
    claim_template("twice-two", {"name": "a", "exactly": device_request("2", count=2)}),
    claim_template(
        "four-and-one",
        {"name": "a", "exactly": device_request("4")},
        {"name": "b", "exactly": device_request("1")},
    ),
    claim_template(
        "six-or-two",
        {
            "name": "a",
            "firstAvailable": [device_request("6", name="x"), device_request("2", name="y")],
        },
    ),
    claim_template("gpu", {"name": "a", "exactly": {"deviceClassName": "gpu.example.com"}}),
)


@pytest.mark.parametrize(
    ("templates", "cpu", "warnings"),
    [
        (["eight"], "7500m", ["requests 7.5 CPUs, and its claims of eight have 8:"]),
        (["eight"], "8", []),
        (["one"], "+".join(["100m"] * 10), []),
        (["twice-two"], "3", ["requests 3 CPUs, and its claims of twice-two have 4:"]),
        (["eight", "eight"], "8", ["its claims of eight have 16:"]),
        (["four-and-one", "six-or-two"], "1", ["four-and-one have 5:", "six-or-two have 2:"]),
        (["four-and-one", "six-or-two"], "5", []),
        (["gpu"], "100m", []),
        (["absent"], "100m", []),
        ([], "100m", []),
    ],
)
def test_a_pod_that_requests_less_cpu_than_its_claims_have_causes_a_warning(
    cluster: Cluster, apiserver: ApiServer, templates: list[str], cpu: str, warnings: list[str]
) -> None:
    if apiserver.minor < 34:
        pytest.skip("Kubernetes has resource.k8s.io/v1 from 1.34 on")
    policy = "topolet-claim-requests"
    of_policy = [each for each in objects("components/dra") if each["metadata"]["name"] == policy]
    deployed.apply(cluster.api, [*of_policy, *CLAIM_TEMPLATES])

    def warned(names: list[str], requested: str) -> list[str]:
        body = pod()
        body["spec"]["containers"] = [
            pod(cpu=(amount, amount))["spec"]["containers"][0] | {"name": f"c{number}"}
            for number, amount in enumerate(requested.split("+"))
        ]
        body["spec"]["resourceClaims"] = [
            {"name": f"claim-{number}", "resourceClaimTemplateName": name}
            for number, name in enumerate(names)
        ]
        cluster.try_pod(body)
        return sorted(text for text in cluster.api.warnings if policy in text)

    everywhere = [template["metadata"]["name"] for template in CLAIM_TEMPLATES]
    eventually("the policy has all templates", lambda: len(warned(everywhere, "1m")) == 5)
    texts = warned(templates, cpu)
    assert len(texts) == len(warnings), texts
    for text, part in zip(texts, warnings, strict=True):
        assert part in text
