"""A real kube-scheduler retries a pod that only the extender rejected, after a change of a node
that kube-scheduler does not watch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from agent.allocate.refusal import Reason, Refusal
from agent.host.daemon import Periodic
from agent.scheduler.process import RETRY_SECONDS
from agent.scheduler.state.cluster import ChangedNodes
from agent.scheduler.state.pod_info import Feasibility, Feasible
from agent.scheduler.state.pods_api import unscheduled_pods
from agent.scheduler.unschedulable.queue import QueuedPod, UnschedulableQueue
from agent.scheduler.unschedulable.retry import ROOM_FOUND, Retry
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects
from tests.integration.kubescheduler.process import configuration, credentials, scheduling
from tests.integration.kubescheduler.stub import Stub, serving_stub
from tests.waiting import eventually

NAMESPACE, PROFILE, NODE = "retry", "retry-scheduler", "retry-node"
RETRY_LIMIT_SECONDS = 60.0
"""By default kube-scheduler retries an unschedulable pod after five minutes."""
PATIENCE_SECONDS = 60.0


class Room:
    """One node, which has room for all pods or for none. Acts as the requirements of the pods,
    as the cluster state, and as the results."""

    equivalence_class = "any"
    stub: Stub

    def __init__(self) -> None:
        self.serial = 0
        self.free = False

    def run(self, node: str) -> Feasibility:
        return (
            Feasible(1)
            if self.free and node == NODE
            else Refusal(Reason.NOT_ENOUGH_CPUS, detail="full")
        )

    def changed_since(self, serial: int) -> ChangedNodes:
        return ChangedNodes(self.serial, frozenset([NODE] if serial < self.serial else []))

    def node_names(self) -> Iterable[str]:
        return [NODE]

    def results(self, check: object, nodes: Sequence[str]) -> list[Feasibility]:
        return [self.run(each) for each in nodes]

    def change(self) -> None:
        self.free = True
        self.serial += 1


@pytest.fixture
def room(apiserver: ApiServer, tmp_path: Path) -> Iterator[Room]:
    """The room of a node. A real kube-scheduler calls an extender, which queues rejected pods."""
    room, queue = Room(), UnschedulableQueue()

    def refusal(pod: str, node: str) -> str | None:
        if room.free and node == NODE:
            return None
        if node == NODE:
            uid = objects.pods(apiserver, NAMESPACE)[pod]["metadata"]["uid"]
            now = time.monotonic()
            queue.add(QueuedPod(uid, NAMESPACE, pod, room, now, now))
        return "full"

    objects.namespace(apiserver, NAMESPACE)
    objects.ready_node(apiserver, NODE, {"cpu": "8", "memory": "8Gi"})
    retry = Retry(apiserver.admin, queue, room, lambda: True)
    kubeconfig = str(credentials(apiserver))
    room.stub = Stub(apiserver, refusal)
    with (
        serving_stub(room.stub) as url,
        scheduling(apiserver, configuration(PROFILE, url, kubeconfig), tmp_path),
    ):
        periodic = Periodic("retry", RETRY_SECONDS, retry.step)
        periodic.start()
        try:
            yield room
        finally:
            periodic.stop()
            apiserver.admin.delete(f"/api/v1/nodes/{NODE}")


def test_a_rejected_pod_is_bound_soon_after_a_change_of_the_node(
    apiserver: ApiServer, room: Room
) -> None:
    objects.create(apiserver, objects.pod_manifest(NAMESPACE, "p", {"cpu": "1"}, scheduler=PROFILE))

    def refused() -> bool:
        conditions = objects.pods(apiserver, NAMESPACE)["p"]["status"].get("conditions", [])
        return any("full" in each.get("message", "") for each in conditions)

    eventually("refused", refused, PATIENCE_SECONDS)
    room.stub.wait_until_idle()
    room.change()
    eventually(
        "bound", lambda: objects.node_of(apiserver, NAMESPACE, "p") == NODE, RETRY_LIMIT_SECONDS
    )
    conditions = objects.pods(apiserver, NAMESPACE)["p"]["status"]["conditions"]
    (condition,) = [each for each in conditions if each["type"] == ROOM_FOUND]
    assert condition["message"] == f"node {NODE} has changed and has room now"
    assert "PodScheduled" in {each["type"] for each in conditions}


def test_a_pod_that_was_rejected_before_this_leader_is_retried(apiserver: ApiServer) -> None:
    objects.namespace(apiserver, "before")
    uid = objects.create(
        apiserver, objects.pod_manifest("before", "p", {"cpu": "1"}, scheduler="before-us")
    )["metadata"]["uid"]
    objects.create(apiserver, objects.pod_manifest("before", "other", {}, scheduler="another"))
    leading, room, queue = False, Room(), UnschedulableQueue()

    def rejected_before() -> list[QueuedPod]:
        now = time.monotonic()
        return [
            QueuedPod(each.uid, each.namespace, each.name, room, now, now)
            for each in unscheduled_pods(apiserver.admin, "before-us")
        ]

    retry = Retry(apiserver.admin, queue, room, lambda: leading, rejected_before)
    room.free = True
    retry.step()
    assert queue.pods() == []
    leading = True
    retry.step()
    assert [each.uid for each in queue.pods()] == [uid]
    status = objects.pods(apiserver, "before")["p"]["status"]
    assert [each["type"] for each in status["conditions"]] == [ROOM_FOUND]


def test_a_pod_with_another_uid_is_not_changed(apiserver: ApiServer) -> None:
    objects.namespace(apiserver, "replaced")
    objects.create(apiserver, objects.pod_manifest("replaced", "p", {"cpu": "1"}, scheduler="none"))
    queue, room = UnschedulableQueue(), Room()
    room.change()
    now = time.monotonic()
    queue.add(QueuedPod("another", "replaced", "p", room, now, now))
    Retry(apiserver.admin, queue, room, lambda: True).step()
    assert "conditions" not in objects.pods(apiserver, "replaced")["p"]["status"]
    assert queue.pods() == []
