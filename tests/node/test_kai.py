"""KAI's annotation on pods, with an API server of the tests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agent.kube.auth import FileAccess
from agent.kube.cluster import Cluster
from agent.kube.transport import Transport
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import NUMA_PLACEMENT_OBSERVED
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import Pod
from agent.node.kai import PERIOD_SECONDS, KaiPlacements, placement
from agent.node.node_resource_topology import Allocated
from tests.builders import machine, pod
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.kube.fake_api_server import server as server

TWO = machine(2, 4)
EIGHT = Allocated(CpuSet.parse("4-6"))
VALUE = '[{"zone":"node-1","amount":{"cpu":"3"}}]'


@pytest.mark.parametrize(
    ("held", "value"),
    [
        (Allocated(), ""),
        (Allocated(amounts={0: {}}), ""),
        (EIGHT, VALUE),
        (
            Allocated(
                CpuSet.parse("3-4,99"),
                {1: {"nvidia.com/gpu": 2, "memory": 1 << 34, "cpu": 7}, 0: {"a.b/nic": 1}},
            ),
            '[{"zone":"node-0","amount":{"a.b/nic":"1","cpu":"1"}},'
            '{"zone":"node-1","amount":{"cpu":"1","memory":"17179869184","nvidia.com/gpu":"2"}}]',
        ),
    ],
)
def test_what_a_pod_holds_by_zone(held: Allocated, value: str) -> None:
    assert placement(held, TWO) == value


class Node:
    """An API server with pods, and the agent of their node."""

    def __init__(self, server: Server) -> None:
        self.now = 1000.0
        self.pods: dict[str, dict[str, str]] = {}
        """The annotations by name."""
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.refuse = 0
        self.kai = KaiPlacements(Cluster(Transport(FileAccess(server.url)), "n"), lambda: self.now)
        server.answer = self._answer

    def step(self, **held: Allocated) -> None:
        pods = [pod(name) for name in self.pods]
        self.kai.update(pods, [self._api_pod(each) for each in pods], held, TWO)
        self.kai.step()

    def _api_pod(self, of: Pod) -> ApiPod:
        name = of.uid, of.namespace, of.name, "n"
        return ApiPod(*name, Phase.RUNNING, {}, dict(self.pods[of.name]), "burstable", 0)

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if self.refuse:
            return reply(connection, self.refuse, status(self.refuse, "Refused"))
        assert request.method == "PATCH"
        name = request.path.rpartition("/")[2]
        metadata = json.loads(request.body)["metadata"]
        self.patches.append((name, metadata))
        self.pods[name] |= metadata["annotations"]
        return reply(connection, 200, {})


@pytest.fixture
def node(server: Server) -> Iterator[Node]:
    it = Node(server)
    yield it
    it.kai.close()


def test_the_annotation_is_written_once_and_again_when_it_changes(node: Node) -> None:
    node.pods = {"holds": {"other": "x"}, "shares": {}}
    for _ in range(2):
        node.step(holds=EIGHT)
    metadata = {"uid": "holds", "annotations": {NUMA_PLACEMENT_OBSERVED: VALUE}}
    assert node.patches == [("holds", metadata)]
    node.step(holds=msgspec.structs.replace(EIGHT, cpus=CpuSet.parse("0")))
    assert node.pods["holds"][NUMA_PLACEMENT_OBSERVED] == (
        '[{"zone":"node-0","amount":{"cpu":"1"}}]'
    )
    assert len(node.patches) == 2


def test_a_value_that_another_client_changes_is_written_again_once_a_minute(node: Node) -> None:
    node.pods = {"holds": {}}
    node.step(holds=EIGHT)
    for seconds, patches in ((1.0, 1), (PERIOD_SECONDS, 2), (1.0, 2)):
        node.now += seconds
        node.pods["holds"][NUMA_PLACEMENT_OBSERVED] = "[]"
        node.step(holds=EIGHT)
        assert len(node.patches) == patches


@pytest.mark.parametrize("code", [403, 404, 409, 500])
def test_a_refused_write_is_tried_again(node: Node, code: int) -> None:
    node.pods = {"holds": {}}
    node.refuse = code
    node.step(holds=EIGHT)
    node.refuse = 0
    node.step(holds=EIGHT)
    assert node.pods["holds"] == {NUMA_PLACEMENT_OBSERVED: VALUE}
