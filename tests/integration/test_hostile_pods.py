"""Pods with annotations of the largest size that the API allows, and an agent with the memory limit
of its DaemonSet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from agent.model import bounds
from agent.model.pod.annotations import (
    DEVICE_ALLOCATED,
    EXTENDED_RESOURCE_SPEC,
    RESOURCE_STATUS,
    SHARED_CONTAINERS,
)
from agent.model.pod.qos import QOS_LABEL
from agent.rpc.grpc import Code, RpcError
from tests.deploy.manifests import objects
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    run_pod,
    run_sandbox,
    start_container,
)
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import NO_FULL_PASS, TestNode
from tests.integration.incluster import READ_RULES, WRITE_RULES, ClusterNode
from tests.integration.memorylimit import MemoryLimit, limited
from tests.waiting import eventually

LIMIT_BYTES = 128 << 20
"""The memory limit in deploy/base/daemonset.yaml."""
ALL_BYTES = 255_000
"""The limit of Kubernetes for all annotations of one pod: 256 KiB."""
IN_THE_RUNTIME = 12
ONLY_IN_THE_API = 98
"""A kubelet's 110 pods."""
CONTAINER_BYTES = 576
"""Bytes of the snapshot for each container of the runtime, and for each that is still to be
created."""
BASE_BYTES = 4 << 10
TIMEOUT_SECONDS = 60.0

Annotations = Callable[[], dict[str, str]]


def as_many_containers_as_fit() -> dict[str, str]:
    """One annotation beyond its bound, with as many containers as fit in it."""
    names = (f"c{number:x}" for number in range(25_936))
    text = '{"containers":{' + ",".join(f'"{name}":{{}}' for name in names) + "}}"
    return {EXTENDED_RESOURCE_SPEC: text[:ALL_BYTES]}


def as_much_as_is_read() -> dict[str, str]:
    """All annotations at their bounds; an unknown one has the rest of the allowed size."""
    amounts = {"kubernetes.io/batch-cpu": "1000"}
    names = [f"c{number}" for number in range(bounds.MAX_CONTAINERS)]
    spec = {"containers": {name: {"limits": amounts} for name in names}}
    nodes = [{"node": 0, "resources": {"cpu": "1"}}] * 300
    devices = {"gpu": [{"minor": minor % 8} for minor in range(bounds.MAX_DEVICES)]}
    notes = {
        EXTENDED_RESOURCE_SPEC: _padded(spec, bounds.POD_LIST_BYTES),
        RESOURCE_STATUS: _padded({"numaNodeResources": nodes}, bounds.POD_TEXT_BYTES),
        DEVICE_ALLOCATED: _padded(devices, bounds.POD_LIST_BYTES),
        SHARED_CONTAINERS: ",".join(names),
    }
    notes["example.com/rest"] = "x" * (ALL_BYTES - sum(map(len, notes.values())) - 1_000)
    return notes


def _padded(value: object, size_bytes: int) -> str:
    text = json.dumps(value, separators=(",", ":"))
    assert len(text) <= size_bytes
    return text + " " * (size_bytes - len(text))


@pytest.fixture
def memory(node: TestNode) -> Iterator[MemoryLimit]:
    with limited(LIMIT_BYTES) as it:
        node.agent_launcher = it.launcher
        yield it
        node.kill_agent()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "annotations",
    [pytest.param(as_many_containers_as_fit, marks=pytest.mark.long), as_much_as_is_read],
)
def test_the_agent_runs_and_restarts_with_hostile_pods(
    apiserver: ApiServer, node: TestNode, memory: MemoryLimit, annotations: Annotations
) -> None:
    for each in objects("crds"):
        apiserver.apply(each)
    cluster_node = ClusterNode(
        apiserver, node, annotations.__name__.replace("_", "-"), [*READ_RULES, *WRITE_RULES]
    )
    apiserver.account(cluster_node.name, "default", [])
    notes = annotations()
    hostile = []
    for number in range(IN_THE_RUNTIME + ONLY_IN_THE_API):
        name = f"hostile-{number}"
        made = apiserver.pod(cluster_node.name, name, cluster_node.name, annotations=notes)
        if number < IN_THE_RUNTIME:
            spec = node.spec(
                name, kube_class="besteffort", annotations=notes, uid=made["metadata"]["uid"]
            )
            hostile.append(run_pod(node.direct, spec)[1])
    cluster_node.start_agent(node, NO_FULL_PASS)
    node.start_proxy()
    synced = lambda: "hostile-109" in (node.state / "snapshot.json").read_text()  # noqa: E731
    eventually("all pods are known", synced, TIMEOUT_SECONDS)

    labels, claim = {QOS_LABEL: "LSE"}, {RESOURCE_STATUS: '{"cpuset": "1"}'}
    made = apiserver.pod(
        cluster_node.name, "own", cluster_node.name, labels=labels, annotations=claim
    )
    own = node.spec("own", "LSE", "1", uid=made["metadata"]["uid"])
    owner_container = run_as_a_kubelet(node, own)
    assert node.cpus(owner_container) == "1"
    assert {node.cpus(each) for each in hostile} == {"0"}
    assert_bounded(node)

    node.kill_agent()
    cluster_node.start_agent(node, NO_FULL_PASS)
    eventually("all pods are known", synced, TIMEOUT_SECONDS)
    assert node.cpus(owner_container) == "1"
    assert {node.cpus(each) for each in hostile} == {"0"}
    assert_bounded(node)
    assert memory.kills == 0
    assert memory.peak_bytes < LIMIT_BYTES * 3 // 4


def run_as_a_kubelet(node: TestNode, spec: PodSpec) -> str:
    """Runs a container of the pod. Like a kubelet, repeats a creation that failed or timed out,
    because the agent may need longer for so many pods than the proxy waits."""
    request = create_request(spec, run_sandbox(node.proxied, spec))
    made: list[str] = []

    def created() -> bool:
        try:
            made.append(create_container(node.proxied, request))
        except RpcError as error:
            if error.code not in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
                raise
        return bool(made)

    eventually("its container is created", created, TIMEOUT_SECONDS)
    start_container(node.proxied, made[0])
    return made[0]


def assert_bounded(node: TestNode) -> None:
    """The size of the snapshot is bounded for each container of the API and of the runtime."""
    containers = (IN_THE_RUNTIME + 1) + (IN_THE_RUNTIME + ONLY_IN_THE_API + 1)
    size = (node.state / "snapshot.json").stat().st_size
    assert size < BASE_BYTES + CONTAINER_BYTES * containers
