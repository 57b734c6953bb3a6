"""Nodes for fault injection: with the agent's passes in this process, or with a real agent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.launcher import Launcher
from tests.faults.node import SimulatedNode, large_machine
from tests.node.world import World


class AgentHarness:
    """A simulated node of 16 CPUs (v1) and the real agent, which is started and killed."""

    def __init__(self, node: SimulatedNode, launcher: Launcher) -> None:
        self.node = node
        self.launcher = launcher

    def start(self, *flags: str, refused: Sequence[str] = ()) -> None:
        """Starts the agent and returns after its first pass."""
        since = time.monotonic_ns()
        words = (*self.node.agent_words, *flags)
        self.launcher.start(words, self.node.cgroups, refused=refused)
        assert self.node.wait_for_pass(since, lambda: self.launcher.running), self.launcher.log()

    def restore(self) -> None:
        """Kills the agent and runs `topolet restore`."""
        self.launcher.kill()
        self.launcher.start(self.node.restore_words, self.node.cgroups)
        assert self.launcher.ended() == 0, self.launcher.log()

    def run_container(self, qos: str, claim: str = "") -> str:
        """Creates a pod with a running container on all CPUs; returns the container's group."""
        group = self.node.create_container(self.node.add_pod(qos, claim), start=True).group
        assert group is not None
        return group

    def cpus(self, group: str) -> str:
        return str(self.node.cgroups.own(group))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    with Launcher(tmp_path) as launcher:
        node = large_machine(tmp_path, 1)
        yield AgentHarness(node, launcher)
        launcher.kill()
        node.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
