"""The output of `topolet explain` about devices and reports, on a whole cluster. The node is the
one of `reported`, whose objects are written as an agent with GPUs writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent.model.devices.device_allocation import DEVICE_JOINT_ALLOCATE
from agent.model.devices.holding import GPU_CHECKPOINTS
from agent.scheduler.unschedulable.events import NO_NODE_HAS_ROOM
from tests.cluster import failures, reported
from tests.cluster.cluster import Cluster
from tests.cluster.pods import SCHEDULER, manifest
from tests.fixtures.fleet import Machine, gpu_pod
from tests.scheduler import zonednodes

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("no_pods"),
]

NODE = reported.NAME
RDMA = "koordinator.sh/rdma"
UNDER_ONE_SWITCH = {
    DEVICE_JOINT_ALLOCATE: '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'
}


@pytest.fixture(scope="module")
def machine(installed: Cluster) -> Iterator[Machine]:
    with failures.written(installed, "reported"), reported.joined(installed) as found:
        yield found


@pytest.fixture
def on_reported(installed: Cluster, machine: Machine) -> Iterator[Cluster]:
    """Removes a test's pods of the node and its changes of the reports afterwards."""
    yield installed
    reported.remove_pods(installed)
    _report(installed, machine.topology(NODE), machine.devices(NODE))


def _report(cluster: Cluster, *objects: dict[str, Any]) -> None:
    """Replaces objects, as the agent writes them."""
    for each in objects:
        cluster.kubectl("replace", "-f", "-", stdin=json.dumps(each))


def with_cards(name: str, gpus: int, rdma: int = 0, **words: Any) -> dict[str, Any]:
    """A pod of so many GPUs and parts of an RDMA device, by Topolet's scheduler."""
    amounts = dict(gpu_pod(gpus, rdma=rdma).requests) if gpus else {"cpu": "4", "memory": "1Gi"}
    if rdma:
        amounts[RDMA] = str(rdma)
    resources = {"requests": amounts, "limits": amounts}
    return manifest(
        name, node=NODE, scheduler=SCHEDULER, container={"resources": resources}, **words
    )


def bind(cluster: Cluster, body: dict[str, Any]) -> None:
    """Creates a pod that the scheduler places."""
    name = body["metadata"]["name"]
    cluster.create(body)

    def bound() -> bool:
        pod = cluster.get("pod", name)
        return pod is not None and pod["spec"].get("nodeName") == NODE

    cluster.eventually(f"{name} is bound", bound)


def test_gpus_allocated_by_a_device_plugin(on_reported: Cluster, machine: Machine) -> None:
    cluster = on_reported
    cluster.create(manifest("plugged", cpu=1, node=NODE, nodeName=NODE))
    plugged = cluster.get("pod", "plugged")
    assert plugged is not None
    allocated = [
        {
            "podUID": plugged["metadata"]["uid"],
            "containerName": "main",
            "resourceName": "nvidia.com/gpu",
            "deviceIDs": [f"{NODE}-GPU-{minor}" for minor in range(8)],
        }
    ]
    body = machine.devices(NODE)
    body["metadata"].setdefault("annotations", {})[GPU_CHECKPOINTS] = json.dumps(allocated)
    _report(cluster, body)
    cluster.create(with_cards("cards", 1))
    cluster.eventually(
        "the scheduler has the report", lambda: "device plugins" in cluster.explained("cards")
    )
    words = cluster.explained("cards")
    cause = "device plugins gave gpu devices to pods without a scheduler's allocation"
    assert f"{cause}: gpu 0,1,2,3,4,5,6,7 (pods: 1)" in words
    assert "change Pod default/plugged: spec.schedulerName" in words


def test_a_stale_report(on_reported: Cluster) -> None:
    """The report contains a deleted pod, as while the agent hangs."""
    cluster = on_reported
    zones = {each: {"cpu": 8000, "memory": 4 * zonednodes.GIB} for each in (0, 1)}
    _report(cluster, zonednodes.topology(NODE, zones, pods=("deleted",)))
    cluster.create(manifest("numa_request", cpu=2, guaranteed=True, scheduler=SCHEDULER, node=NODE))
    cluster.eventually(
        "the pod has the Event", lambda: cluster.events("numa_request", NO_NODE_HAS_ROOM)
    )
    words = cluster.explained("numa_request")
    assert "counts other pods than the scheduler knows" in words
    assert f"change NodeResourceTopology {NODE}: the fingerprint of its pods" in words


def test_a_full_switch(on_reported: Cluster) -> None:
    """The cards of one switch and the RDMA device of the other are taken."""
    cluster = on_reported
    bind(cluster, with_cards("training", 4, 1, annotations=UNDER_ONE_SWITCH))
    bind(cluster, with_cards("storage", 0, 100))
    cluster.create(with_cards("inference", 2, 1, annotations=UNDER_ONE_SWITCH))
    cluster.eventually(
        "the pod has the Event", lambda: cluster.events("inference", NO_NODE_HAS_ROOM)
    )
    words = cluster.explained("inference")
    assert "rdma: not enough are free under the switches of the other devices" in words
    assert f"change Pod default/inference: metadata.annotations[{DEVICE_JOINT_ALLOCATE}]" in words
