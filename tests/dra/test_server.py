"""The driver's sockets, called as a kubelet does."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.dra import service
from agent.dra.server import THREADS, DraServer, endpoint
from agent.dra.service import HEALTH, REGISTRATION, SERVICE, DraService
from agent.model.dra.prepared_claim import PreparedClaim
from agent.proto import dra_pb2 as pb


class NoClaims:
    def prepare(self, namespace: str, name: str, uid: str, waited_seconds: float) -> PreparedClaim:
        return PreparedClaim(uid, namespace, name)

    def unprepare(self, uid: str) -> None:
        pass

    def registered(self, problem: str) -> None:
        """Nobody asks."""

    def devices(self) -> list[tuple[str, str, str]]:
        return [("n1", "numa-node-0", "")]


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    """The kernel bounds the path of a socket to 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def started(kubelet_dir: Path, instance: str) -> DraServer:
    service = DraService(NoClaims(), endpoint(str(kubelet_dir), instance))
    server = DraServer(service, str(kubelet_dir), instance)
    server.start()
    return server


@pytest.fixture
def server(kubelet_dir: Path) -> Iterator[DraServer]:
    running = started(kubelet_dir, "a")
    yield running
    running.close()


def registered(kubelet_dir: Path) -> list[str]:
    return sorted(path.name for path in (kubelet_dir / "plugins_registry").iterdir())


def called(path: str, method: str, message: bytes = b"") -> bytes:
    with grpc.insecure_channel(f"unix://{path}") as channel:
        reply: bytes = channel.unary_unary(method)(message, timeout=10, wait_for_ready=True)
        return reply


def test_a_kubelet_finds_the_driver_and_calls_it(server: DraServer, kubelet_dir: Path) -> None:
    (name,) = registered(kubelet_dir)
    registry = str(kubelet_dir / "plugins_registry" / name)
    info = pb.PluginInfo.FromString(called(registry, f"/{REGISTRATION}/GetInfo"))
    status = pb.RegistrationStatus(plugin_registered=True).SerializeToString()
    called(registry, f"/{REGISTRATION}/NotifyRegistrationStatus", status)
    claim = pb.Claim(namespace="ns", name="c", uid="u")
    message = pb.PrepareRequest(claims=[claim]).SerializeToString()
    answer = called(info.endpoint, f"/{SERVICE}/NodePrepareResources", message)
    assert list(pb.PrepareResponse.FromString(answer).claims) == ["u"]
    answer = called(info.endpoint, f"/{SERVICE}/NodeUnprepareResources", message)
    assert list(pb.UnprepareResponse.FromString(answer).claims) == ["u"]


def test_a_kubelet_listens_to_the_health_of_devices(server: DraServer, kubelet_dir: Path) -> None:
    with grpc.insecure_channel(f"unix://{endpoint(str(kubelet_dir), 'a')}") as channel:
        watch = channel.unary_stream(f"/{HEALTH}/NodeWatchResources")
        replies = watch(b"", timeout=30, wait_for_ready=True)
        report = pb.WatchResourcesResponse.FromString(next(replies))
        assert [each.device.device_name for each in report.devices] == ["numa-node-0"]
        server.close()
        assert list(replies) == []


def test_listeners_leave_threads_to_calls(
    server: DraServer, kubelet_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that starts again and again leaves streams whose ends are noticed later. The newest
    goes on."""
    monkeypatch.setattr(service, "HEALTH_SECONDS", 1.0)
    path = endpoint(str(kubelet_dir), "a")
    streams = []
    with grpc.insecure_channel(f"unix://{path}") as channel:
        watch = channel.unary_stream(f"/{HEALTH}/NodeWatchResources")
        for _ in range(THREADS + 1):
            streams.append(watch(b"", timeout=30, wait_for_ready=True))
            next(streams[-1])
        called(path, f"/{SERVICE}/NodePrepareResources")
        next(streams[-1])


def test_an_agent_takes_over_from_another_that_still_runs(
    server: DraServer, kubelet_dir: Path
) -> None:
    """The older one takes away only its own sockets."""
    second = started(kubelet_dir, "b")
    assert registered(kubelet_dir) == ["cpu.topolet.io-a-reg.sock", "cpu.topolet.io-b-reg.sock"]
    server.close()
    assert registered(kubelet_dir) == ["cpu.topolet.io-b-reg.sock"]
    called(endpoint(str(kubelet_dir), "b"), f"/{SERVICE}/NodePrepareResources")
    second.close()
    assert registered(kubelet_dir) == []


def test_sockets_of_killed_agents_are_removed(kubelet_dir: Path) -> None:
    """Those of other drivers stay."""
    folders = kubelet_dir / "plugins_registry", kubelet_dir / "plugins" / "cpu.topolet.io"
    names = ("cpu.topolet.io-old-reg.sock", "gpu.example.com-reg.sock"), ("old.sock",)
    for folder, of_folder in zip(folders, names, strict=True):
        folder.mkdir(parents=True)
        for name in of_folder:
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(folder / name))
    running = started(kubelet_dir, "a")
    assert registered(kubelet_dir) == ["cpu.topolet.io-a-reg.sock", "gpu.example.com-reg.sock"]
    assert sorted(path.name for path in folders[1].iterdir()) == ["a.sock"]
    running.close()
