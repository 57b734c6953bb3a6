"""What BE pods get of real cgroups and of a simulated machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from agent.allocate.colocation.be_suppress import Suppression
from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import DEFAULT_RULES, KubeletCpus, PoolRules
from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers, Handles
from agent.cgroup.limits import MAX, QUOTA
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.node_slo import NodeSlo, ResourceThreshold
from agent.model.pod.qos import QOS_LABEL
from agent.node.colocation.cpu_suppression import GROW_SECONDS, last
from agent.usage.strategies import Strategies
from tests.builders import machine
from tests.node.colocation.colocated import ColocatedNode, FileGroups, used


def suppressing(policy: Literal["cpuset", "cfsQuota"]) -> Strategies:
    threshold = ResourceThreshold(
        enable=True, cpu_suppress_threshold_percent=75, cpu_suppress_policy=policy
    )
    return Strategies(NodeSlo(resource_used_threshold_with_be=threshold))


def decided(machine: Topology, rules: PoolRules = DEFAULT_RULES) -> Decision:
    return decide(machine, (), KubeletCpus(), {}, {}, rules)


def test_be_pods_lose_cpus_at_once_and_get_them_back_later(node: ColocatedNode) -> None:
    topology = machine(2, 4)
    node.strategies = suppressing("cpuset")
    node.colocation.follow(topology, decided(topology))
    node.use = used(1.0)
    node.colocation.step()
    assert node.passes == [CpuSet.parse("0-2,4-5")], "75 % of 8 CPUs without one that is used"
    node.use = used(3.5)
    node.colocation.step()
    left = node.passes[-1]
    assert left == CpuSet.parse("0-1,4"), "two CPUs and a half"
    pools = decided(topology, PoolRules(be_cpus=left)).pools
    assert [str(pool.cpus) for pool in pools["be"]] == ["0-1", "4"]
    assert [len(pool.cpus) for pool in pools["ls"]] == [4, 4]
    node.use = used(1.0)
    node.colocation.step()
    node.now += GROW_SECONDS
    node.colocation.step()
    assert [len(cpus or ()) for cpus in node.passes] == [5, 3, 4]
    node.strategies = Strategies()
    node.colocation.step()
    assert node.passes[-1] is None
    assert not node.colocation.holds()


def test_an_agent_that_starts_again_leaves_be_pods_what_they_had(node: ColocatedNode) -> None:
    topology = machine(2, 4)
    node.strategies = suppressing("cpuset")
    node.colocation.follow(topology, decided(topology))
    node.use = used(3.5)
    node.colocation.step()
    before, node.use = node.colocation.be_cpus(), None
    node.start().follow(topology, decided(topology))
    assert node.colocation.be_cpus() == before, "for the first pass"
    node.colocation.step()
    assert node.passes == [before], "the use is not known yet"
    node.start("cpu-suppression=observe")
    assert node.colocation.be_cpus() is None
    node.start().follow(topology, decided(topology))
    node.strategies = Strategies()
    node.colocation.step()
    assert node.passes[-1] is None


def test_a_quota_of_be_pods_stays_while_an_agent_starts_again(tmp_path: Path) -> None:
    groups = FileGroups(tmp_path / "cgroup", {MAX: "max 100000"})
    node = ColocatedNode(tmp_path, groups, Controllers(str(groups.root), Handles(0)))
    node.strategies, node.use = suppressing("cfsQuota"), used(3.5)
    everyone = node.run("batch", "besteffort", labels={QOS_LABEL: "BE"}).rpartition("/")[0]
    topology = machine(2, 4)
    node.colocation.follow(topology, decided(topology))
    node.colocation.step()
    assert node.value(everyone, MAX) == "2500000 1000000"
    node.use = None
    node.start().follow(topology, decided(topology))
    assert (everyone, MAX) in node.colocation.holds()
    node.colocation.step()
    assert node.value(everyone, MAX) == "2500000 1000000"
    node.strategies = Strategies()
    node.colocation.step()
    assert node.value(everyone, MAX) == "max 100000"


@pytest.mark.parametrize("text", ["", "{}", '{"features": [], "suppresses": true, "be_cpus": "x"}'])
def test_what_be_pods_had_is_not_known_of_a_broken_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "colocation.json").write_text(text)
    assert last(str(tmp_path / "colocation.json")) == Suppression()


def test_suppression_that_observes_leaves_be_pods_their_cpus(node: ColocatedNode) -> None:
    topology = machine(2, 4)
    node.start("cpu-suppression=observe").follow(topology, decided(topology))
    node.strategies = suppressing("cpuset")
    node.use = used(1.0)
    node.colocation.step()
    assert node.suppression.now.cpus == CpuSet.parse("0-2,4-5")
    assert not node.passes


def test_only_be_pods_that_run_are_at_their_minimum(node: ColocatedNode) -> None:
    topology = machine(2, 4)
    node.colocation.follow(topology, decided(topology))
    node.strategies = suppressing("cpuset")
    node.use = used(4.5)
    node.colocation.step()
    alone = node.colocation.measured()
    assert (alone.left_cpus, alone.at_minimum) == (1.5, False)
    node.run("batch", "besteffort")
    node.colocation.step()
    assert node.colocation.measured().at_minimum


def test_the_quota_of_all_be_pods_is_never_below_that_of_one_of_them(node: ColocatedNode) -> None:
    if node.controllers.version("cpu") != 1:
        pytest.skip("v2 allows any quota below another")
    topology = machine(2, 4)
    node.strategies = suppressing("cfsQuota")
    batch, other = node.run("batch", "besteffort"), node.run("other", "besteffort")
    node.groups.path(batch, QUOTA).write_text("400000")
    node.groups.path(f"{batch}/main", QUOTA).write_text("300000")
    node.groups.path(other, QUOTA).write_text("50000")
    everyone = batch.rpartition("/")[0]
    for kube_class in ("guaranteed", "burstable"):
        node.run(f"labelled-{kube_class}", kube_class, labels={QOS_LABEL: "BE"})
    node.colocation.follow(topology, decided(topology))
    node.use = used(3.5)
    node.colocation.step()
    groups = (everyone, batch, f"{batch}/main", other)
    assert [node.value(group, QUOTA) for group in groups] == [
        "2500000",
        "250000",
        "250000",
        "50000",
    ]
    shared = (f"{node.groups.top}/kubepods", f"{node.groups.top}/kubepods/burstable")
    assert [node.value(group, QUOTA) for group in shared] == ["-1", "-1"]
    assert node.colocation.be_cpus() is None
    node.use = used(5.0)
    node.colocation.step()
    assert [node.value(group, QUOTA) for group in groups] == [
        "1000000",
        "100000",
        "100000",
        "50000",
    ]
    resized = f"{other}/main"
    node.groups.path(other, QUOTA).write_text("60000")
    node.groups.path(resized, QUOTA).write_text("60000")
    node.use = used(7.0)
    node.colocation.step()
    groups = (*groups, resized)
    assert [node.value(group, QUOTA) for group in groups] == ["20000", *["2000"] * 4]
    node.groups.path(resized, QUOTA).write_text("1000")
    node.start()
    limits.restore(node.controllers, node.journal)
    quotas = ["-1", "400000", "300000", "60000", "1000"]
    assert [node.value(group, QUOTA) for group in groups] == quotas
    assert not node.journal.values
