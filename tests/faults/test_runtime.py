"""A runtime that does not answer; tests/cri has those with invalid, slow or endless replies."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.faults.conftest import AgentHarness
from tests.fixtures.ports import free_port
from tests.integration.harness import page
from tests.waiting import eventually


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
