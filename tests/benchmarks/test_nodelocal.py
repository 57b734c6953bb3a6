"""The workload of benchmarks/nodelocal.py: its CPUs are those that the policies decide."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.limits import parsed
from agent.discover import cpus
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.linux_resources import NO_QUOTA, CpuQuota
from agent.model.pod.pods import Container, ContainerState, Pod
from tests.fixtures import trees

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def nodelocal(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("nodelocal", "pools", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("nodelocal")


def machine(folder: Path, *shape: int) -> Topology:
    return cpus.read(trees.write(str(folder), trees.machine(*shape)))


def pods(nodelocal: ModuleType, topology: Topology) -> tuple[Pod, ...]:
    found = []
    for each in nodelocal.fitting(len(topology.online) - 1):
        containers = tuple(
            Container(name, name, ContainerState.RUNNING, shares=nodelocal.shares(milli))
            for name, (milli, _) in each.containers.items()
        )
        found.append(Pod(each.name, "ns", each.name, {}, {}, each.kube_class, 1, containers))
    return tuple(found)


def test_owners_are_alone_and_the_dynamic_policy_collects_their_cpus(
    nodelocal: ModuleType, tmp_path: Path
) -> None:
    topology = machine(tmp_path, 2, 2, 1, 2, 2)
    mix = pods(nodelocal, topology)
    chosen = {
        policy: {
            (pod.uid, each.name): CpuSet.parse(decision.pods[pod.uid].of(each.name).cpuset or "")
            for pod in mix
            for each in pod.containers
        }
        for policy in nodelocal.POLICIES
        for decision in [nodelocal.decided(topology, mix, policy)]
    }
    owners = {("two", "a"): 2, ("one-and-half", "a"): 1}
    assert set(chosen["none"].values()) == {topology.online}
    for policy in ("static", "dynamic"):
        own = {key: chosen[policy][key] for key in owners}
        assert {key: len(each) for key, each in own.items()} == owners
        (shared,) = {each for key, each in chosen[policy].items() if key not in owners}
        assert shared == topology.online - union(own.values())
    cores = {cpu.id: cpu.core for cpu in topology.cpus}
    of_two = {
        policy: {cores[cpu] for cpu in chosen[policy]["two", "a"]}
        for policy in ("static", "dynamic")
    }
    assert (len(of_two["static"]), len(of_two["dynamic"])) == (2, 1)


def test_two_cpus_are_too_few_for_the_larger_owner(
    nodelocal: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [each.name for each in nodelocal.fitting(1)]
    assert names == ["one-and-half", "half", "fractions", "burstable", "besteffort"]
    assert capsys.readouterr().err == "left out: two needs 2 CPUs of its own\n"


def test_decisions_are_written_to_real_cgroups(nodelocal: ModuleType, tmp_path: Path) -> None:
    if reason := nodelocal.unusable():
        pytest.skip(reason)
    hierarchy, controllers = Hierarchy(), Controllers()
    topology = cpus.read("/")
    examples = nodelocal.fitting(len(topology.online) - 1)
    works = {each.name: each.containers for each in examples}
    file = "cpu.max" if controllers.version("cpu") == 2 else "cpu.cfs_quota_us"
    with nodelocal.Machine.created(examples, Journal(tmp_path / "journal")) as it:
        for policy in (*nodelocal.POLICIES, "none"):
            decision = nodelocal.decided(topology, it.pods, policy)
            it.apply(decision)
            for pod in it.pods:
                for each in pod.containers:
                    milli, work = works[pod.name][each.name]
                    wanted = decision.pods[pod.uid].of(each.name)
                    assert str(hierarchy.own_cpus(each.id)) == wanted.cpuset
                    owns = work == "serve" and policy != "none"
                    assert wanted.exclusive is owns
                    text = controllers.read(each.id, file) or ""
                    quota = parsed(controllers, each.id, {file: text}).quota
                    limited = pod.kube_class == "guaranteed" and not owns
                    assert quota == (CpuQuota(milli * 100) if limited else NO_QUOTA)
    assert not hierarchy.exists(it.pods[0].containers[0].id)
