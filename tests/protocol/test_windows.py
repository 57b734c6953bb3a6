"""What can happen between two steps of a pass, or between two frontends, on the real code."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Hierarchy
from agent.cri.client import Sandbox
from agent.hooks.cpuset import CUT_OFF_SECONDS
from agent.hooks.requests import Changes, Creation
from agent.model.cpu.cpuset import CpuSet
from agent.model.notifications import PodFailed, SnapshotRequest
from agent.model.verdict import Wait
from agent.node.reconcile import Reconciler
from tests.hooks.admission_harness import pod
from tests.node.world import World
from tests.protocol.node import Frontend, creation
from tests.waiting import eventually

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
    agent, frontend = world.agent(), Frontend(world)
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
    agent, frontend = world.agent(), Frontend(world)
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


@pytest.mark.parametrize("call", ["creation", "start"])
@pytest.mark.parametrize("successor", [True, False], ids=["new", "draining"])
def test_an_owner_waits_for_the_calls_of_another_proxy(
    world: World, call: str, *, successor: bool
) -> None:
    """They hold CPUs of the pool before the owner, and the agent can't see them yet."""
    agent = world.agent()
    agent.reconcile()
    draining, new = (Frontend(world) for _ in range(2))
    other, asked = (draining, new) if successor else (new, draining)
    before = creation("late", "LS")
    if call == "creation":
        assert isinstance(other.create(before), Changes)
    else:
        started = other.admission.start()
    agent.notified([pod("own", "LSE", "1")])
    agent.reconcile()
    world.sandbox("own", "LSE", "1")
    owner = creation("own", "LSE", "1", time.monotonic())
    assert isinstance(asked.create(owner), Wait)
    if call == "creation":
        other.admission.created(before, "c-late")
    else:
        other.admission.started(started)
    other.end()
    assert isinstance(asked.create(owner), Wait), "no pass has seen the end of the call"
    eventually_admitted(agent, asked, owner)


def test_an_owner_waits_for_the_calls_of_a_killed_proxy(world: World) -> None:
    agent = world.agent()
    agent.reconcile()
    killed = Frontend(world)
    killed.admission.start()
    agent.notified([pod("own", "LSE", "1")])
    agent.reconcile()
    killed.end()
    began = time.monotonic()
    asked = Frontend(world)
    world.sandbox("own", "LSE", "1")
    owner = creation("own", "LSE", "1", time.monotonic())
    agent.reconcile()
    assert isinstance(asked.create(owner), Wait)
    eventually_admitted(agent, asked, owner)
    assert time.monotonic() - began > CUT_OFF_SECONDS


def test_an_owner_waits_for_no_call_of_a_proxy_that_has_ended(world: World) -> None:
    agent = world.agent()
    agent.reconcile()
    Frontend(world).end()
    asked = Frontend(world)
    world.sandbox("own", "LSE", "1")
    agent.reconcile()
    assert isinstance(asked.create(creation("own", "LSE", "1", time.monotonic())), Changes)


def eventually_admitted(agent: Reconciler, asked: Frontend, owner: Creation) -> None:
    """Each request notifies the agent, and each notification starts a pass."""

    def admitted() -> bool:
        agent.notified([SnapshotRequest()])
        agent.reconcile()
        return isinstance(asked.create(owner), Changes)

    eventually("the owner is admitted", admitted, 2 * CUT_OFF_SECONDS)
