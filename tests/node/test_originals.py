from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from agent.cgroup import limits as values
from agent.cgroup import writer
from agent.cgroup.hierarchy import CgroupError, Controllers, Hierarchy
from agent.cgroup.journal import Journal, Original, OriginalValue
from agent.cgroup.limits import CORE_GROUP, MAX
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import CpuQuota, LinuxResources
from agent.model.notifications import PodAnnounced
from agent.model.pod.pods import Container, ContainerState
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.node import loop, originals
from agent.node.originals import AnnouncedPodGroups, OriginalValues
from agent.node.reconcile import Reconciler
from tests.node.colocation.colocated import FileGroups
from tests.node.world import World, claim


def agent_that_excludes(world: World, *patterns: str) -> Reconciler:
    agent = world.agent()
    agent.exclude = patterns
    return agent


def test_an_excluded_pod_keeps_its_cpus_and_is_in_the_snapshot(world: World) -> None:
    excluded = world.container(world.sandbox("excluded", "LS"))
    world.container(world.sandbox("own", "LSE", "1"))
    agent_that_excludes(world, "ns/excluded").reconcile()
    assert world.cpus("kubepods/burstable/podexcluded/c-excluded-main") == "0-3"
    assert world.cpus("kubepods/burstable/podown/c-own-main") == "1"
    snapshot = world.snapshot()
    assert snapshot.excluded == ("ns/excluded",)
    assert snapshot.containers[excluded.id].unmanaged
    assert set(snapshot.pods) == {"own"}


def test_one_container_of_a_pod_may_be_excluded(world: World) -> None:
    pod = world.sandbox("p", "LS")
    world.container(pod)
    world.container(pod, "proxy")
    world.container(world.sandbox("own", "LSE", "1"))
    agent_that_excludes(world, "ns/*/proxy").reconcile()
    assert world.cpus("kubepods/burstable/podp/c-p-main") == "0,2-3"
    assert world.cpus("kubepods/burstable/podp/c-p-proxy") == "0-3"


def test_a_newly_excluded_pod_gets_its_original_cpus(world: World) -> None:
    world.container(world.sandbox("p", "LS"))
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    agent.reconcile()
    assert world.cpus("kubepods/burstable/podp/c-p-main") == "0,2-3"
    agent.exclude = ("ns/p",)
    agent.reconcile()
    assert world.cpus("kubepods/burstable/podp/c-p-main") == "0-3"
    agent.exclude = ()
    agent.reconcile()
    assert world.cpus("kubepods/burstable/podp/c-p-main") == "0,2-3"


@pytest.mark.parametrize("whole", [True, False])
def test_a_newly_excluded_pod_gets_its_original_limits(tmp_path: Path, whole: bool) -> None:
    """The limits of the pod's own group are restored only if the whole pod is excluded."""
    root = tmp_path / "cgroup"
    groups = [f"/kubepods/podx{below}" for below in ("", "/sandbox", "/one", "/two")]
    for group in ("", *groups):
        for file, text in (("cpu/cpu.shares", "2"), ("cpuset/cpuset.cpus", "0-3")):
            folder, _, name = file.partition("/")
            path = root / folder / group.lstrip("/") / name
            path.parent.mkdir(parents=True)
            path.write_text(f"{text}\n")
    hierarchy, journal = Hierarchy(str(root)), Journal(tmp_path / "journal")
    controllers = Controllers(str(root), hierarchy.handles)
    assert values.apply(controllers, journal, dict.fromkeys(groups, LinuxResources(shares=1024))).ok
    originals, state = OriginalValues(hierarchy, controllers, journal), ContainerState.RUNNING
    excluded = [Container("one", "one", state, groups[2])]
    if whole:
        excluded += [
            Container("two", "two", state, groups[3]),
            Container("s", "", state, groups[1]),
        ]
    assert originals.restore_excluded(tuple(excluded))[1] == []
    shares = [(root / f"cpu{group}/cpu.shares").read_text() for group in groups]
    assert shares == (["2\n"] * 4 if whole else ["1024\n", "1024\n", "2\n", "1024\n"])
    assert originals.restore_excluded(tuple(excluded))[1] == []


def test_an_announced_excluded_pod_takes_no_cpus(world: World) -> None:
    world.container(world.sandbox("ls", "LS"))
    agent = agent_that_excludes(world, "ns/new")
    agent.notified([PodAnnounced("new", "ns", "new", {}, claim("1"), "/kubepods/podnew")])
    agent.reconcile()
    assert world.snapshot().owners == ()


def test_reloaded_settings_change_only_reloadable_options(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    agent, old = world.agent(), AgentSettings()
    new = AgentSettings(exclude="kube-system", period_seconds=2.0, http="127.0.0.1:1")
    now = loop.reloaded(old, lambda: new, agent)
    assert (now.exclude, now.period_seconds, now.http) == ("kube-system", 2.0, old.http)
    assert agent.exclude == ("kube-system",)
    assert "these changed options need a restart: http" in caplog.text


@pytest.mark.parametrize("fault", ["exclude", "file"])
def test_invalid_reloaded_settings_change_nothing(
    world: World, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_that_excludes(world, "prod")
    old = AgentSettings(exclude="prod")

    def read_again() -> AgentSettings:
        if fault == "file":
            raise SettingsError("topolet.toml: no such file")
        return AgentSettings(exclude="a/b/c/d")

    assert loop.reloaded(old, read_again, agent) == old
    assert agent.exclude == ("prod",)
    assert "the old settings stay in force" in caplog.text


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


class UnreadableGroups:
    """The cookies of threads that have those of another program."""

    def look(self) -> None: ...

    def has(self, group: str, file: str) -> bool:
        return True

    def read(self, group: str, file: str) -> str:
        raise CgroupError("all threads have cookies of another program")

    def write(self, group: str, file: str, text: str) -> None: ...


def test_values_of_threads_are_nothing_that_the_runtime_gets_back(tmp_path: Path) -> None:
    files = {"cpuset.cpus": "2", "cpuset.cpus.effective": "2", MAX: "300000 100000"}
    groups = FileGroups(tmp_path / "cgroup", files)
    group = groups.make("/own")
    journal = Journal(tmp_path / "journal")
    journal.update([Original(group, "0-3")])
    journal.update_values(
        [
            OriginalValue(group, CORE_GROUP, "none", ("group/",)),
            OriginalValue(group, MAX, "200000 100000"),
        ]
    )
    root = str(groups.root)
    requested = originals._original_values(
        Hierarchy(root),
        Controllers(root, others={"core_sched": UnreadableGroups}),
        journal,
        Container("c", "main", ContainerState.RUNNING, group),
    )
    assert (requested.cpuset, requested.quota) == ("0-3", CpuQuota(200_000))
