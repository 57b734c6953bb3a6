"""The locations of claimed devices, from an API server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from agent.kube.auth import FileAccess
from agent.kube.cluster import Cluster
from agent.kube.transport import Transport
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.resource_slice import DraDevice, DraLocation
from agent.node import resource_slices
from agent.node.resource_slices import UNKNOWN, ResourceSlices
from agent.node.sources import SourceName, Sources
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.kube.fake_api_server import server as server
from tests.model.devices.test_resource_slice import NUMA_NODE, resource_slice
from tests.waiting import eventually

FIRST, SECOND, OTHER = (DraDevice("gpu.example.com", "n", name) for name in ("a", "b", "c"))


class World:
    """An API server with the slices of node n. `refuse`: the status code of every answer."""

    def __init__(self, server: Server) -> None:
        self.devices = {"a": 1}
        self.refuse = 0
        self.requests: list[tuple[str, str]] = []
        self.woken = threading.Event()
        self.sources = Sources()
        cluster = Cluster(Transport(FileAccess(server.url)), "n")
        self.view = ResourceSlices(cluster, "n", self.woken.set, self.sources)
        server.answer = self._answer

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        self.requests.append((request.path, request.query.get("fieldSelector", "")))
        if self.refuse:
            return reply(connection, self.refuse, status(self.refuse, "Refused"))
        devices = [
            {"name": name, "attributes": {NUMA_NODE: {"int": node}}}
            for name, node in self.devices.items()
        ]
        broken = {"metadata": {"name": "broken"}, "spec": {}}
        items = [broken, json.loads(resource_slice(*devices))]
        return reply(connection, 200, {"metadata": {"resourceVersion": "9"}, "items": items})


@pytest.fixture
def world(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(resource_slices, "RETRY_SECONDS", 0.05)
    world = World(server)
    yield world
    world.view.close()


def test_slices_are_read_when_a_container_has_a_device_of_a_claim(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert world.view.locations(()) == {}
    assert world.requests == []
    assert world.view.locations({FIRST, OTHER}) == {}, "no pass waits for the API server"
    assert world.woken.wait(10)
    assert world.view.locations({FIRST, OTHER}) == {
        FIRST: DraLocation(CpuSet((1,))),
        OTHER: UNKNOWN,
    }
    assert world.requests[0] == ("/apis/resource.k8s.io/v1/resourceslices", "spec.nodeName=n")
    eventually("the slices are read again", lambda: len(world.requests) > 2)
    assert caplog.text.count("the NUMA node of device gpu.example.com/n/c is not known") == 1
    assert "ResourceSlice broken" in caplog.text
    world.devices["c"] = 0
    eventually("the device is known", lambda: world.view.locations({OTHER})[OTHER] != UNKNOWN)
    assert world.view.locations(()) == {}


def test_an_api_server_that_refuses_is_a_problem_until_it_answers(world: World) -> None:
    world.refuse = 403
    world.view.locations({FIRST})
    name = SourceName.RESOURCE_SLICES
    eventually("the problem is reported", lambda: name in world.sources.problems)
    world.refuse = 0
    eventually("the device is known", lambda: FIRST in world.view.locations({FIRST}))
    assert not world.sources.problems.get(SourceName.RESOURCE_SLICES)


def test_an_api_server_without_slices_is_no_problem(world: World) -> None:
    world.refuse = 404
    world.view.locations({FIRST, SECOND})
    eventually("the slices are read twice", lambda: len(world.requests) > 1)
    assert not world.sources.problems.get(SourceName.RESOURCE_SLICES)
