"""A node with the test's faults: in the process of the agent's passes, or outside of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.launcher import Launcher
from tests.faults.node import PlayedNode, large_machine
from tests.node.world import World


class Around:
    """A simulated node of 16 CPUs (v1) and the real agent, which is started and killed."""

    def __init__(self, node: PlayedNode, launcher: Launcher) -> None:
        self.node = node
        self.launcher = launcher

    def start(self, *flags: str, refused: Sequence[str] = ()) -> None:
        """Returns after the agent's pass."""
        since = time.monotonic_ns()
        words = (*self.node.agent_words, *flags)
        self.launcher.start(words, self.node.cgroups, refused=refused)
        assert self.node.looked(since, lambda: self.launcher.running), self.launcher.log()

    def restore(self) -> None:
        """Kills the agent and restores."""
        self.launcher.kill()
        self.launcher.start(self.node.restore_words, self.node.cgroups)
        assert self.launcher.ended() == 0, self.launcher.log()

    def running(self, qos: str, claim: str = "") -> str:
        """The group of a new container that starts on every CPU."""
        group = self.node.create(self.node.add(qos, claim), starts=True).group
        assert group is not None
        return group

    def cpus(self, group: str) -> str:
        return str(self.node.cgroups.own(group))


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Around]:
    with Launcher(tmp_path) as launcher:
        node = large_machine(tmp_path, 1)
        yield Around(node, launcher)
        launcher.kill()
        node.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
