"""Facts that are read from an API server when they are needed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from agent.kube.auth import FileAccess
from agent.kube.cluster import Cluster
from agent.kube.transport import Transport
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import DeviceLocality
from agent.model.devices.resource_slice import NUMA_NODE, DraDevice, DraLocation
from agent.model.pod.annotations import DEVICE_LOCALITY
from agent.node import lookup
from agent.node.lookup import UNKNOWN, locality_of_namespaces, locations_of_claims
from agent.node.sources import SourceName, Sources
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.kube.fake_api_server import server as server
from tests.waiting import eventually

FIRST, SECOND, OTHER = (DraDevice("gpu.example.com", "n", name) for name in ("a", "b", "c"))


class World:
    """An API server with the slices of node n. `refuse`: the status code of every answer."""

    def __init__(self, server: Server) -> None:
        self.devices = {"a": 1}
        self.labels: dict[str, dict[str, str] | None] = {}
        self.refuse = 0
        self.requests: list[tuple[str, str]] = []
        self.woken = threading.Event()
        self.sources = Sources()
        cluster = Cluster(Transport(FileAccess(server.url)), "n")
        self.slices = locations_of_claims(cluster, "n", self.woken.set, self.sources)
        self.namespaces = locality_of_namespaces(cluster, self.woken.set, self.sources)
        server.answer = self._answer

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        self.requests.append((request.path, request.query.get("fieldSelector", "")))
        if self.refuse:
            return reply(connection, self.refuse, status(self.refuse, "Refused"))
        name = request.path.rpartition("/")[2]
        if request.path.startswith("/api/v1/namespaces/"):
            if name not in self.labels:
                return reply(connection, 404, status(404, "NotFound"))
            return reply(connection, 200, {"metadata": {"name": name, "labels": self.labels[name]}})
        devices = [
            {"name": name, "attributes": {NUMA_NODE: {"int": node}}}
            for name, node in self.devices.items()
        ]
        spec = {"driver": "gpu.example.com", "pool": {"name": "n"}, "devices": devices}
        items = [
            {"metadata": {"name": "broken"}, "spec": {}},
            {"metadata": {"name": "s"}, "spec": spec},
        ]
        return reply(connection, 200, {"metadata": {"resourceVersion": "9"}, "items": items})


@pytest.fixture
def world(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(lookup, "SLICES_SECONDS", 0.05)
    monkeypatch.setattr(lookup, "NAMESPACES_SECONDS", 0.05)
    monkeypatch.setattr(lookup, "FAILED_SECONDS", 0.05)
    world = World(server)
    yield world
    world.slices.close()
    world.namespaces.close()


def test_slices_are_read_when_a_container_has_a_device_of_a_claim(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert world.slices.facts(()) == {}
    assert world.requests == []
    assert world.slices.facts({FIRST, OTHER}) == {}, "no pass waits for the API server"
    assert world.woken.wait(10)
    assert world.slices.facts({FIRST, OTHER}) == {
        FIRST: DraLocation(CpuSet((1,))),
        OTHER: UNKNOWN,
    }
    assert world.requests[0] == ("/apis/resource.k8s.io/v1/resourceslices", "spec.nodeName=n")
    eventually("the slices are read again", lambda: len(world.requests) > 2)
    assert caplog.text.count("the NUMA node of device gpu.example.com/n/c is not known") == 1
    assert "ResourceSlice broken" in caplog.text
    world.devices["c"] = 0
    eventually("the device is known", lambda: world.slices.facts({OTHER})[OTHER] != UNKNOWN)
    assert world.slices.facts(()) == {}


def test_an_api_server_that_refuses_is_a_problem_until_it_answers(world: World) -> None:
    world.refuse = 403
    world.slices.facts({FIRST})
    name = SourceName.RESOURCE_SLICES
    eventually("the problem is reported", lambda: name in world.sources.problems)
    world.refuse = 0
    eventually("the device is known", lambda: FIRST in world.slices.facts({FIRST}))
    assert not world.sources.problems.get(SourceName.RESOURCE_SLICES)


def test_an_api_server_without_slices_is_no_problem(world: World) -> None:
    world.refuse = 404
    world.slices.facts({FIRST, SECOND})
    eventually("the slices are read twice", lambda: len(world.requests) > 1)
    assert not world.sources.problems.get(SourceName.RESOURCE_SLICES)


def test_the_labels_of_namespaces_are_read_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.labels |= {
        "off": {DEVICE_LOCALITY: "off"},
        "wrong": {DEVICE_LOCALITY: "near"},
        "none": None,
    }
    names = {*world.labels, "gone"}
    assert world.namespaces.facts(names) == {}
    eventually("the labels are read", lambda: world.namespaces.facts(names).keys() == names)
    assert world.namespaces.facts(names) == {
        "off": DeviceLocality.OFF, "wrong": None, "none": None, "gone": None
    }  # fmt: skip
    world.labels["none"] = {DEVICE_LOCALITY: "bind"}
    eventually(
        "the change is read",
        lambda: world.namespaces.facts(names)["none"] is DeviceLocality.BIND,
    )
    text = "namespace wrong: label topolet.io/device-locality: 'near' is not one of off, prefer"
    assert caplog.text.count(text) == 1
