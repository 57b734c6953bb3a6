"""Daemons and pause containers leave the CPU of an owner on cgroup v2, by an agent in a runtime."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.pod.annotations import QUIET
from tests.fixtures.cgroups import MOUNTS
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import remove_pod, run_pod
from tests.integration.harness import fresh_node
from tests.waiting import eventually

ALL = set(range(16))


@pytest.fixture
def daemon() -> Iterator[int]:
    """A process in `/system.slice` that is always busy."""
    group = Path(MOUNTS, "system.slice")
    group.mkdir()
    enter = f"echo $$ >{group}/cgroup.procs; while :; do :; done"
    process = subprocess.Popen(["sh", "-c", enter])
    eventually("it is in the group", (group / "cgroup.procs").read_text)
    yield process.pid
    process.kill()
    process.wait()
    group.rmdir()


def test_daemons_and_pauses_leave_the_cpu_of_an_owner_and_come_back(
    containerd: Containerd, daemon: int
) -> None:
    with fresh_node(containerd) as node:
        node.start_agent("--quiet=act")
        shared, _ = run_pod(node.direct, node.spec("shared", "LS"))
        spec = node.spec("own", "LSE", "1", annotations={QUIET: "host-slices"})
        sandbox, container = run_pod(node.direct, spec)
        eventually("it owns its CPU", lambda: node.cpus(container) == "1")
        eventually("the daemon has left", lambda: os.sched_getaffinity(daemon) == ALL - {1})

        def pauses() -> set[str]:
            return {node.sandbox_cpus(each) for each in (sandbox, shared)}

        eventually("pauses have left", lambda: pauses() == {"0,2-15"})
        remove_pod(node.direct, sandbox)
        eventually("the daemon is back", lambda: os.sched_getaffinity(daemon) == ALL)
        sandbox, container = run_pod(node.direct, spec)
        eventually("the daemon has left again", lambda: os.sched_getaffinity(daemon) == ALL - {1})
        node.kill_agent()
        done = node.restore()
        assert done.returncode == 0, done.stderr
        assert os.sched_getaffinity(daemon) == ALL
        assert pauses() == {"0-15"}
