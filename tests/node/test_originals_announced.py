from __future__ import annotations

import shutil

from agent.cgroup import writer
from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.journal import Journal
from agent.model.cpu.cpuset import CpuSet
from agent.node.originals import AnnouncedPodGroups
from tests.node.world import World


def test_the_group_of_an_announced_pod_may_be_made_again_between_two_passes(world: World) -> None:
    """The first pass narrows it; then it is removed, and the journal drops its entry with the next
    one that the pass writes."""
    hierarchy = Hierarchy(str(world.cpuset.parent))
    journal = Journal(world.state / "journal")
    announced = AnnouncedPodGroups(hierarchy, journal)
    world.group("kubepods/podnew")
    world.group("kubepods/other")
    others = {"/kubepods/podnew": CpuSet([1])}
    first = announced.narrow(others)
    for controller in world.cpuset.parent.iterdir():
        shutil.rmtree(controller / "kubepods/podnew")
    assert writer.apply(hierarchy, journal, {"/kubepods/other": CpuSet([2])}).ok
    world.group("kubepods/podnew", "0-2")
    assert first == ({"/kubepods/podnew": CpuSet.parse("0,2-3")}, [])
    assert announced.narrow(others) == ({"/kubepods/podnew": CpuSet([0, 2])}, [])
    assert journal.originals["/kubepods/podnew"].cpus == "0-2"
