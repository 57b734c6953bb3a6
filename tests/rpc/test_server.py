"""The socket of the gRPC server; tests/koordinator and tests/kubelet test its calls."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from agent.rpc.server import GrpcServer

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(autouse=True)
def _without_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _started(path: Path) -> GrpcServer:
    server = GrpcServer(str(path), "test.Echo", {"Echo": lambda message, _: message}, 2, 8)
    server.start()
    return server


def _answered(path: Path) -> bytes:
    with grpc.insecure_channel(f"unix://{path}") as channel:
        reply: bytes = channel.unary_unary("/test.Echo/Echo")(b"a", timeout=10, wait_for_ready=True)
        return reply


def test_no_other_user_reaches_the_socket_before_its_mode_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC binds the socket before the server sets its mode."""
    tmp_path.chmod(0o755)
    bound: list[str] = []
    reachable: list[str] = []

    def check_before(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object, **options: object) -> None:
            for each in tmp_path.rglob("*"):
                state = each.lstat()
                if not stat.S_ISSOCK(state.st_mode):
                    continue
                bound.append(each.name)
                accessible = all(
                    folder.stat().st_mode & stat.S_IXOTH
                    for folder in each.parents
                    if folder.is_relative_to(tmp_path)
                )
                if state.st_mode & OTHERS and accessible:
                    reachable.append(each.name)
            real(*args, **options)

        return call

    for name in ("chmod", "rename"):
        monkeypatch.setattr(os, name, check_before(getattr(os, name)))
    path = tmp_path / "hooks" / "hooks.sock"
    server = _started(path)
    assert bound
    assert reachable == []
    assert stat.filemode(path.stat().st_mode) == "srw-------"
    assert _answered(path) == b"a"
    server.stop(0)
    assert list(path.parent.iterdir()) == []


def test_a_server_that_stops_leaves_the_socket_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "hooks.sock"
    first = _started(path)
    second = _started(path)
    first.stop(0)
    assert _answered(path) == b"a"
    second.stop(0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_killed_server_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "hooks.sock"
    stale = tmp_path / ".hooks.sock"
    stale.mkdir(mode=0o777)
    server = _started(path)
    assert _answered(path) == b"a"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    server.stop(0)
