from __future__ import annotations

import json

import pytest

from agent.kube.objects import Mirror, WatchedMetadata
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import DeviceObject
from agent.model.devices.holding import DEVICES_CHECKPOINTS, GPU_CHECKPOINTS
from agent.model.nrt.node_annotations import POD_CPU_ALLOCS
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.objects import ObjectError
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.scheduler.state import records
from agent.scheduler.state.records import (
    AGENT_LABELS,
    CLAIM_REFUSED,
    AgentSelector,
    Unreadable,
)
from tests.deploy import manifests
from tests.scheduler import objects


def test_a_bound_pod_has_the_allocation_of_its_annotations() -> None:
    object_ = objects.pod("a", "n1", cpus="0-3", requests={"cpu": "4", "memory": "1Gi"})
    read = objects.pod_change(object_).value
    assert (read.uid, read.node, read.agent_ready) == ("uid-a", "n1", None)
    assert read.assigned is not None
    assert read.assigned.allocation.cpus == CpuSet.parse("0-3")
    assert read.assigned.requests == {"cpu": 4000, "memory": 1 << 30}
    assert read.assigned.title == "ns/a"


@pytest.mark.parametrize(
    ("node", "phase", "holds"),
    [
        ("", "Pending", False),
        ("n1", "Pending", True),
        ("n1", "Running", True),
        ("n1", "Unknown", True),
        ("n1", "Succeeded", False),
        ("n1", "Failed", False),
    ],
)
def test_pods_with_an_allocation(node: str, phase: str, holds: bool) -> None:
    read = objects.pod_change(objects.pod("a", node, cpus="0-3", phase=phase)).value
    assert (read.assigned is not None) is holds


def test_a_watch_keeps_the_uid_of_a_pod_once() -> None:
    raw = json.dumps(objects.pod("a", "n1")).encode()
    metadata = WatchedMetadata(name="a", uid="".join(("uid-", "a")), resource_version="1")
    known = Mirror(records.pods(AgentSelector())).decoded(metadata, raw)
    assert known is not None
    assert known.uid == metadata.uid
    assert known.uid is known.value.uid


def test_equal_pods_share_their_amounts() -> None:
    status = {"cpuset": "0-1", "numaNodeResources": [{"node": 1, "resources": {"cpu": "2"}}]}
    first, second = (
        objects.pod_change(
            objects.pod(
                name,
                "n1",
                requests={"cpu": "2"},
                annotations={RESOURCE_STATUS: json.dumps(status)},
            )
        ).value.assigned
        for name in ("a", "b")
    )
    assert first is not None
    assert second is not None
    assert first.requests is second.requests
    assert first.allocation.amounts is second.allocation.amounts
    assert second.allocation.amounts == {1: {"cpu": 2000}}


@pytest.mark.parametrize(
    ("labels", "namespace", "phase", "ready", "expected"),
    [
        (AGENT_LABELS, "ns", "Running", True, True),
        (AGENT_LABELS, "ns", "Running", False, False),
        (AGENT_LABELS, "ns", "Running", None, False),
        (AGENT_LABELS, "ns", "Failed", True, False),
        (AGENT_LABELS, "elsewhere", "Running", True, None),
        ({"app.kubernetes.io/name": "topolet"}, "ns", "Running", True, None),
        ({}, "ns", "Running", True, None),
    ],
)
def test_the_readiness_of_agents(
    labels: dict[str, str], namespace: str, phase: str, ready: bool | None, expected: bool | None
) -> None:
    body = objects.pod("a", "n1", labels=labels, phase=phase, ready=ready, namespace=namespace)
    read = records.pods(AgentSelector(namespace="ns"))
    assert read(json.dumps(body).encode()).agent_ready is expected


def test_the_agents_of_the_manifests_are_agents() -> None:
    daemonset = next(each for each in manifests.objects("base") if each["kind"] == "DaemonSet")
    metadata = daemonset["spec"]["template"]["metadata"]
    assert AgentSelector().include("any", metadata["labels"])


def test_an_agent_that_is_being_deleted_is_not_ready() -> None:
    body = objects.agent("n1")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert objects.pod_change(body).value.agent_ready is False


def test_without_labels_no_pod_is_an_agent() -> None:
    read = records.pods(AgentSelector(labels={}))
    assert read(json.dumps(objects.agent("n1")).encode()).agent_ready is None


@pytest.mark.parametrize("present", [False, True])
def test_the_condition_of_a_refused_claim_is_read_only_from_the_status(present: bool) -> None:
    """Any user who creates a pod can write its annotations."""
    body = {
        "metadata": {
            "namespace": "ns",
            "name": "p",
            "uid": "u",
            "annotations": {"note": CLAIM_REFUSED},
        },
        "spec": {"nodeName": "a", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "conditions": [{"type": CLAIM_REFUSED}] if present else []},
    }
    pod = records.pods(AgentSelector())(json.dumps(body).encode())
    assert pod.has_claim_condition is present


def test_only_used_fields_of_a_node_are_kept() -> None:
    ratio = "node.koordinator.sh/cpu-normalization-ratio"
    object_ = objects.node("n1", labels={"a": "b"}, annotations={ratio: "1.2", "other": "x"})
    object_["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "now"}]
    read = objects.node_change(object_).value
    assert (read.name, read.uid, read.labels) == ("n1", "uid-n1", {"a": "b"})
    assert read.annotations == {ratio: "1.2"}
    assert read.allocatable == {"cpu": 8000, "memory": 32 << 30}


def test_an_invalid_node_is_an_error_with_its_name() -> None:
    object_ = objects.node("n1")
    object_["status"]["allocatable"]["cpu"] = "many"
    with pytest.raises(ObjectError, match=r"Node n1: status\.allocatable\.cpu: .*many"):
        objects.node_change(object_)


def test_only_the_cpus_that_the_kubelet_assigned_are_kept_of_a_topology() -> None:
    """The CPUs of other pods are in the annotations of the pods."""
    object_ = objects.topology("n1")
    of_kubelet = {
        "namespace": "a",
        "name": "b",
        "uid": "u",
        "cpuset": "1",
        "managedByKubelet": True,
    }
    other = {"namespace": "a", "name": "c", "uid": "v", "cpuset": "2"}
    object_["metadata"]["annotations"][POD_CPU_ALLOCS] = json.dumps([of_kubelet, other])
    read = objects.topology_change(object_).value
    assert isinstance(read, NodeTopology)
    assert json.loads(read.annotations[POD_CPU_ALLOCS]) == [of_kubelet]


def test_an_invalid_topology_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    object_ = objects.topology("n1")
    object_["zones"][1]["resources"][0]["available"] = "x"
    read = objects.topology_change(object_).value
    text = "NodeResourceTopology n1: zones[1].resources['cpu'].available: "
    assert isinstance(read, Unreadable)
    assert read.text.startswith(text)
    assert text in caplog.text


def test_an_invalid_device_object_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    object_ = {"metadata": {"name": "n1"}, "spec": {"devices": [{"type": 3}]}}
    read = objects.devices_change(object_).value
    text = "Device n1: spec.devices[0].type: "
    assert isinstance(read, Unreadable)
    assert read.text.startswith(text)
    assert text in caplog.text


@pytest.mark.parametrize("key", [DEVICES_CHECKPOINTS, GPU_CHECKPOINTS])
@pytest.mark.parametrize("entry", ['{"deviceIDs": 1}', '{"allocResp": 1}', '{"allocResp": "Bw=="}'])
def test_a_device_object_with_unreadable_holders_is_unreadable(
    key: str, entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    object_ = objects.devices("n1")
    object_["metadata"]["annotations"] = {key: f"[{entry}]"}
    read = objects.devices_change(object_).value
    text = f"Device n1: annotation {key}: "
    assert isinstance(read, Unreadable)
    assert read.text.startswith(text)
    assert text in caplog.text


def test_both_annotations_of_holders_are_kept() -> None:
    object_ = objects.devices("n1")
    notes = dict.fromkeys((DEVICES_CHECKPOINTS, GPU_CHECKPOINTS), "[]")
    object_["metadata"]["annotations"] = {**notes, "another": "value"}
    read = objects.devices_change(object_).value
    assert isinstance(read, DeviceObject)
    assert read.annotations == notes


def test_invalid_annotations_of_a_bound_pod_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    objects.pod_change(objects.pod("p", "n1", cpus="0-"))
    assert f"pod ns/p on node n1: annotation {RESOURCE_STATUS}: " in caplog.text
