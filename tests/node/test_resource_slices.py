"""The publisher of ResourceSlices. tests/integration/test_dra.py has it with a real API server."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.allocate.dra.groups import GroupRules
from agent.allocate.dra.offer import OfferedCpus
from agent.dra.cdi import CdiFiles
from agent.kube.auth import FileAccess
from agent.kube.cluster import Cluster
from agent.kube.transport import Transport
from agent.model.cpu.cpuset import CpuSet
from agent.model.dra.names import CLAIMS_FILE, DRIVER
from agent.model.objects import ObjectError
from agent.node import resource_slices
from agent.node.reconcile import ClaimMoment
from agent.node.resource_claims import ResourceClaims
from agent.node.resource_slices import ResourceSlices
from agent.node.sources import SourceName, Sources
from tests.allocate.dra.node import ALL, FOUR_NODES
from tests.kube.fake_api_server import (
    Request,
    Server,
    end,
    head,
    reply,
    standard_answer,
    status,
)
from tests.kube.fake_api_server import server as server
from tests.waiting import eventually

GROUP = "/apis/resource.k8s.io/v1"


class SlicesOfServer:
    """An API server without slices, which refuses to write any. `served`: the kinds that it has."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.served = ["resourceslices"]
        self.watched = False
        self.written: list[str] = []
        self.sources = Sources()
        self.server = server
        cluster = Cluster(Transport(FileAccess(server.url)), "n1", spread_seconds=0)
        self.claims = ResourceClaims(
            lambda namespace, name: b"",
            "n1",
            str(folder / CLAIMS_FILE),
            CdiFiles(str(folder / "cdi"), str(folder / "plugin")),
            GroupRules(),
            lambda: None,
        )
        self.slices = ResourceSlices(cluster, "n1", self.claims, self.sources)
        self.claims.changed = self.slices.changed
        server.answer = self._answer

    def problems(self) -> tuple[str, ...]:
        return self.sources.problems.get(SourceName.DRA, ())

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if request.path == "/version":
            return reply(connection, 200, {"minor": "36+"})
        if request.path == GROUP:
            if not self.served:
                return reply(connection, 404, status(404, "NotFound"))
            return reply(connection, 200, {"resources": [{"name": name} for name in self.served]})
        if request.path == f"{GROUP}/resourceslices":
            if request.watches:
                head(connection)
                end(connection)
                self.watched = True
                return True
            items = {"metadata": {"resourceVersion": "9"}, "items": []}
            return reply(connection, 200, items)
        if request.method == "GET":
            return reply(connection, 404, status(404, "NotFound"))
        self.written.append(request.path)
        return reply(connection, 422, status(422, "Invalid"))


@pytest.fixture
def world(server: Server, tmp_path: Path) -> Iterator[SlicesOfServer]:
    world = SlicesOfServer(server, tmp_path)
    yield world
    world.slices.close()


def test_nothing_is_written_before_the_cluster_is_known(world: SlicesOfServer) -> None:
    """The slices of a part of the pods would offer CPUs that have owners."""
    world.slices.start()
    world.claims.follow(ClaimMoment(FOUR_NODES, OfferedCpus(ALL), complete=False))
    eventually("the slices are known", lambda: world.watched)
    world.slices.step()
    assert world.written == []
    world.claims.follow(ClaimMoment(FOUR_NODES, OfferedCpus(ALL)))
    eventually("they are written", lambda: world.written)
    assert world.written[0] == f"{GROUP}/resourceslices/n1-{DRIVER}-00"
    eventually("a refusal is a problem", lambda: "422" in "".join(world.problems()))


class ChangingServer(SlicesOfServer):
    """This API server changes the slices that it stores, as a later version with a field of its own
    does, or a webhook."""

    def change(self, written: dict[str, Any]) -> None:
        """Applies a slice."""
        for device in written["spec"]["devices"]:
            device["attributes"]["example.com/added"] = {"bool": True}
            device["bindsToNode"] = False
        self.store(written)

    def store(self, written: dict[str, Any]) -> None:
        """Stores a slice as it is."""
        name, server = written["metadata"]["name"], self.server
        with server._changed:
            server.version += 1
            kind = "MODIFIED" if name in server.objects else "ADDED"
            written["metadata"] |= {"uid": "u", "resourceVersion": str(server.version)}
            server.objects[name] = written
            server.events.append((server.version, kind, written))
            server._changed.notify_all()

    def settled(self, writes: int) -> None:
        """So many slices have been written, and no step that sees them writes more."""

        def is_seen() -> bool:
            self.slices.step()
            watch = self.slices._watch.watch
            seen = watch.objects().values() if watch is not None else ()
            shown = {part.metadata.name: part.spec.pool.generation for part in seen}
            stored = {
                name: part["spec"]["pool"]["generation"]
                for name, part in self.server.objects.items()
            }
            return self.slices.writes >= writes and shown == stored

        eventually("the watch shows what is written", is_seen)
        self.slices.step()
        assert self.slices.writes == writes
        assert self.problems() == ()

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if request.path == f"{GROUP}/resourceslices":
            return standard_answer(server, connection, request)
        if request.method == "PATCH":
            written = json.loads(request.body)
            self.change(written)
            return reply(connection, 200, written)
        return super()._answer(server, connection, request)


def test_what_the_server_makes_of_a_slice_is_not_written_again(
    server: Server, tmp_path: Path
) -> None:
    world = ChangingServer(server, tmp_path)
    with contextlib.closing(world.slices):
        world.claims.follow(ClaimMoment(FOUR_NODES, OfferedCpus(ALL)))
        world.settled(1)
        world.claims.follow(ClaimMoment(FOUR_NODES, OfferedCpus(CpuSet.parse("0-15"))))
        world.settled(2)
        (written,) = json.loads(json.dumps([*server.objects.values()]))
        assert [device["bindsToNode"] for device in written["spec"]["devices"]] == [False, False]
        del written["spec"]["devices"][0]
        world.store(written)
        world.settled(3)  # somebody else's edit is undone
        (written,) = server.objects.values()
        assert len(written["spec"]["devices"]) == 2


@pytest.mark.parametrize("spec", ["", ', "devices": null', ', "devices": []'])
def test_a_slice_whose_devices_somebody_removed_can_be_read(spec: str) -> None:
    """API servers of 1.34 and 1.35 say null."""
    raw = f'{{"metadata": {{"name": "a"}}, "spec": {{"driver": "{DRIVER}"{spec}}}}}'
    assert not resource_slices.node_slice(raw.encode()).spec.devices


def test_a_slice_that_cannot_be_read_is_an_error_of_the_object() -> None:
    """Any other error would end the watch."""
    raw = f'{{"metadata": {{"name": "a"}}, "spec": {{"driver": "{DRIVER}", "devices": 1}}}}'
    with pytest.raises(ObjectError):
        resource_slices.node_slice(raw.encode())


def test_a_server_without_the_api_is_a_problem(world: SlicesOfServer) -> None:
    world.served = []
    world.slices.step()
    (problem,) = world.problems()
    assert "does not serve resource.k8s.io/v1, which Kubernetes has from 1.34 on" in problem


def test_what_the_node_lacks_is_a_problem(world: SlicesOfServer) -> None:
    world.claims.follow(ClaimMoment(FOUR_NODES, OfferedCpus(reason="other pods own all CPUs")))
    world.slices.step()
    assert world.problems() == ("other pods own all CPUs",)
