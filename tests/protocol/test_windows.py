"""What can happen between two steps of a pass, or between two frontends, on the real code."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Hierarchy
from agent.cri.client import Sandbox
from agent.hooks.requests import Changes
from agent.model.cpu.cpuset import CpuSet
from agent.model.notifications import PodFailed
from agent.model.verdict import Wait
from tests.hooks.admission_harness import pod
from tests.node.world import World
from tests.protocol.node import Collected, Frontend, creation

OWN = CpuSet([1])
SHARER = "kubepods/burstable/podls/c-ls-main"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.container(world.sandbox("ls", "LS"))
    return world


def test_nobody_gets_the_cpus_of_a_dropped_owner_while_the_last_snapshot_admits_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sandbox failed, and the kubelet has made another while the agent writes."""
    agent, frontend = world.agent(), Frontend(world, Collected())
    agent.notified([pod("own", "LSE", "1")])
    agent.reconcile()
    write, answers = Hierarchy.write, []

    def watched(self: Hierarchy, group: str, cpus: CpuSet) -> None:
        write(self, group, cpus)
        if cpus & OWN:
            answers.append(frontend.create(creation("own", "LSE", "1", time.monotonic())))

    monkeypatch.setattr(Hierarchy, "write", watched)
    agent.notified([PodFailed("own")])
    agent.reconcile()
    assert world.cpus(SHARER) == "0-3"
    assert [type(each) for each in answers] == [Wait]


def test_an_owner_that_is_admitted_while_a_pass_drops_it_stays_an_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, frontend = world.agent(), Frontend(world, Collected())
    agent.notified([pod("own", "LSE", "1")])
    agent.reconcile()
    sandboxes, admitted = world.runtime.sandboxes, []

    def listed() -> list[Sandbox]:
        """The first list has neither the new sandbox nor the container."""
        before = list(sandboxes())
        if not admitted:
            admitted.append(frontend.create(creation("own", "LSE", "1", time.monotonic())))
            world.sandbox("own", "LSE", "1")
        return before

    monkeypatch.setattr(world.runtime, "sandboxes", listed)
    agent.notified([PodFailed("own")])
    agent.reconcile()
    assert isinstance(admitted[0], Changes)
    assert [each.uid for each in world.snapshot().owners] == ["own"]
    assert world.cpus(SHARER) == "0,2-3"
