"""A runtime that accepts connections and does not answer, or not to one call."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Hierarchy
from agent.cri.client import Cri
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError
from tests.cri import hostile
from tests.faults.conftest import Around
from tests.fixtures.ports import free_port
from tests.integration.harness import page
from tests.waiting import eventually

CALL_SECONDS = 2.0


@contextlib.contextmanager
def silent(path: Path) -> Iterator[None]:
    """Connections wait to be accepted forever."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(64)
        yield
    path.unlink()


def test_silent_runtime_makes_the_agent_unready_and_loses_nothing(around: Around) -> None:
    node, port = around.node, free_port()
    own, ls = around.running("LSE", "1-2"), around.running("LS")
    around.start(f"--http=127.0.0.1:{port}", "--period-seconds=0.1")
    eventually("ready", lambda: page(port, "/readyz")[0] == 200)
    node.stop_runtime()
    with silent(node.socket_path):
        eventually("not ready", lambda: page(port, "/readyz")[0] == 503)
        assert page(port, "/readyz")[1].startswith(
            ("the runtime does not answer", "the snapshot is")
        )
        assert page(port, "/healthz")[0] == 200
        assert (around.cpus(own), around.cpus(ls)) == ("1-2", "0,3-15")
        assert around.launcher.running
    node.start_runtime()
    late = around.running("LS")
    eventually("ready again", lambda: page(port, "/readyz")[0] == 200)
    eventually("the late one has its place", lambda: around.cpus(late) == "0,3-15")
    assert (around.cpus(own), around.cpus(ls)) == ("1-2", "0,3-15")


@pytest.fixture
def observer(around: Around) -> Iterator[RuntimeView]:
    cri = Cri(str(around.node.socket_path), CALL_SECONDS)
    hierarchy = Hierarchy(str(around.node.cgroups.root))
    yield RuntimeView(cri, CgroupLocator(hierarchy))
    around.node.runtime.relent()
    cri.close()
    hierarchy.close()


@pytest.mark.parametrize("answer", hostile.ANSWERS, ids=[each.__name__ for each in hostile.ANSWERS])
def test_hostile_runtime_makes_the_agent_unready_and_loses_nothing(
    around: Around, answer: hostile.Answer
) -> None:
    """Endless, slow and wrong answers to every call."""
    node, port = around.node, free_port()
    own, ls = around.running("LSE", "1-2"), around.running("LS")
    around.start(f"--http=127.0.0.1:{port}", "--period-seconds=0.1")
    eventually("ready", lambda: page(port, "/readyz")[0] == 200)
    node.stop_runtime()
    with hostile.serving(node.socket_path, answer):
        eventually("not ready", lambda: page(port, "/readyz")[0] == 503)
        assert page(port, "/healthz")[0] == 200
        assert (around.cpus(own), around.cpus(ls)) == ("1-2", "0,3-15")
        assert around.launcher.running
    node.socket_path.unlink()


def test_one_hanging_status_hides_no_container_and_is_retried_later(
    around: Around, observer: RuntimeView
) -> None:
    groups = {around.running("LS"), around.running("LS"), around.running("LS")}
    hung = min(around.node.runtime.containers)
    around.node.runtime.hang(hung)
    for _ in range(2):
        seen = {one.group for pod in observer.observe().pods for one in pod.containers}
        assert seen == groups, "the group names show what the runtime does not report"
        assert around.node.runtime.asked.count(hung) == 1


def test_hanging_statuses_of_all_containers_are_a_failed_runtime(
    around: Around, observer: RuntimeView
) -> None:
    for _ in range(3):
        around.running("LS")
    around.node.runtime.hang(*around.node.runtime.containers)
    with pytest.raises(RpcError):
        observer.observe()
    assert len(around.node.runtime.asked) == 2
