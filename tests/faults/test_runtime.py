"""A runtime that does not answer, or answers with endless, slow or invalid replies."""

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
from tests.faults.conftest import AgentHarness
from tests.fixtures.ports import free_port
from tests.integration.harness import page
from tests.waiting import eventually

CALL_SECONDS = 2.0


@contextlib.contextmanager
def silent(path: Path) -> Iterator[None]:
    """A listener that accepts no connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(64)
        yield
    path.unlink()


def test_silent_runtime_makes_the_agent_unready_and_loses_nothing(harness: AgentHarness) -> None:
    node, port = harness.node, free_port()
    own, ls = harness.run_container("LSE", "1-2"), harness.run_container("LS")
    harness.start(f"--http=127.0.0.1:{port}", "--period-seconds=0.1")
    eventually("ready", lambda: page(port, "/readyz")[0] == 200)
    node.stop_runtime()
    with silent(node.socket_path):
        eventually("not ready", lambda: page(port, "/readyz")[0] == 503)
        assert page(port, "/readyz")[1].startswith(
            ("the runtime does not answer", "the snapshot is")
        )
        assert page(port, "/healthz")[0] == 200
        assert (harness.cpus(own), harness.cpus(ls)) == ("1-2", "0,3-15")
        assert harness.launcher.running
    node.start_runtime()
    late = harness.run_container("LS")
    eventually("ready again", lambda: page(port, "/readyz")[0] == 200)
    eventually("the new pod has its CPUs", lambda: harness.cpus(late) == "0,3-15")
    assert (harness.cpus(own), harness.cpus(ls)) == ("1-2", "0,3-15")


@pytest.fixture
def observer(harness: AgentHarness) -> Iterator[RuntimeView]:
    cri = Cri(str(harness.node.socket_path), CALL_SECONDS)
    hierarchy = Hierarchy(str(harness.node.cgroups.root))
    yield RuntimeView(cri, CgroupLocator(hierarchy))
    harness.node.runtime.resume()
    cri.close()
    hierarchy.close()


@pytest.mark.parametrize("answer", hostile.ANSWERS, ids=[each.__name__ for each in hostile.ANSWERS])
def test_hostile_runtime_makes_the_agent_unready_and_loses_nothing(
    harness: AgentHarness, answer: hostile.Answer
) -> None:
    """Each call gets endless, slow or invalid replies."""
    node, port = harness.node, free_port()
    own, ls = harness.run_container("LSE", "1-2"), harness.run_container("LS")
    harness.start(f"--http=127.0.0.1:{port}", "--period-seconds=0.1")
    eventually("ready", lambda: page(port, "/readyz")[0] == 200)
    node.stop_runtime()
    with hostile.serving(node.socket_path, answer):
        eventually("not ready", lambda: page(port, "/readyz")[0] == 503)
        assert page(port, "/healthz")[0] == 200
        assert (harness.cpus(own), harness.cpus(ls)) == ("1-2", "0,3-15")
        assert harness.launcher.running
    node.socket_path.unlink()


def test_one_hanging_status_hides_no_container_and_is_retried_later(
    harness: AgentHarness, observer: RuntimeView
) -> None:
    groups = {harness.run_container("LS"), harness.run_container("LS"), harness.run_container("LS")}
    hung = min(harness.node.runtime.containers)
    harness.node.runtime.hang(hung)
    for _ in range(2):
        seen = {one.group for pod in observer.observe().pods for one in pod.containers}
        assert seen == groups, "the group is found by its name"
        assert harness.node.runtime.hung_calls.count(hung) == 1


def test_hanging_statuses_of_all_containers_are_a_failed_runtime(
    harness: AgentHarness, observer: RuntimeView
) -> None:
    for _ in range(3):
        harness.run_container("LS")
    harness.node.runtime.hang(*harness.node.runtime.containers)
    with pytest.raises(RpcError):
        observer.observe()
    assert len(harness.node.runtime.hung_calls) == 2
