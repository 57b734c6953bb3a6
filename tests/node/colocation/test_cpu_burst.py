"""CPU above the limit, in real cgroups with processes that are throttled."""

from __future__ import annotations

import re
import time

import msgspec
import pytest

from agent.allocate.colocation.cpu_burst import SharedUse
from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.limits import BURST, MAX, MAX_BURST, QUOTA
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.node_slo import CpuBurst, NodeSlo
from agent.model.pod.qos import QoS
from agent.model.snapshot import NOTHING, PodWanted, Wanted
from agent.node.colocation.cpu_burst import CpuBursting
from agent.node.sources import SourceName
from agent.usage.strategies import Strategies
from tests.builders import machine
from tests.node.colocation.colocated import ColocatedNode
from tests.waiting import eventually

IDLE = SharedUse(8, 0, 0.5)
BUSY = SharedUse(8, 0, 7.5)
LIFTED = LinuxResources(quota=NO_QUOTA)
SPINS = ("sh", "-c", "while :; do :; done")


def bursting(**fields: object) -> Strategies:
    strategy = msgspec.convert({"policy": "auto", **fields}, CpuBurst)
    return Strategies(NodeSlo(cpu_burst_strategy=strategy))


class Bursts:
    """A node with pods that burst."""

    def __init__(self, node: ColocatedNode) -> None:
        self.node = node
        v1 = node.controllers.version("cpu") == 1
        self.quota_file, self.burst_file = (QUOTA, BURST) if v1 else (MAX, MAX_BURST)
        node.strategies = bursting(cfsQuotaBurstPercent=200)
        node.shared_use = IDLE

    def step(self, **lifted: PodWanted) -> None:
        pods = {uid: PodWanted(uid, QoS.LS, NOTHING) for uid in self.node.pods}
        self.node.colocation.follow(machine(1, 2), Decision((), {}, (), pods | lifted))
        self.node.now = time.monotonic()
        self.node.colocation.step()
        assert not self.node.colocation.state.failed

    def quota(self, group: str) -> int:
        text = self.node.value(group, self.quota_file).split()[0]
        return -1 if text == "max" else int(text)

    def burst(self, group: str) -> int:
        return int(self.node.value(group, self.burst_file))

    def throttled(self, group: str) -> int:
        match = re.search(r"nr_throttled (\d+)", self.node.value(group, "cpu.stat"))
        assert match is not None
        return int(match[1])

    def step_throttled(self, group: str) -> None:
        before = self.throttled(group)
        eventually("it is throttled", lambda: self.throttled(group) > before)
        self.step()


@pytest.fixture
def bursts(node: ColocatedNode) -> Bursts:
    bursts = Bursts(node)
    if not node.groups.path(node.groups.top, bursts.burst_file).exists():
        pytest.skip("this kernel has no bursts")
    return bursts


def test_a_throttled_container_gets_more_until_others_want_it(bursts: Bursts) -> None:
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100, "side": 50})
    main, side = f"{group}/main", f"{group}/side"
    node.groups.process(main, *SPINS)
    bursts.step()
    assert [bursts.burst(each) for each in (group, main, side)] == [15_000, 10_000, 5_000]
    assert [bursts.quota(each) for each in (group, main, side)] == [15_000, 10_000, 5_000]
    for quota in (12_000, 14_400, 17_280, 20_000):
        bursts.step_throttled(main)
        assert [bursts.quota(each) for each in (group, main, side)] == [quota + 5_000, quota, 5_000]
    assert bursts.burst(main) == 10_000, "a runtime may write the quota of the limit at any time"
    node.shared_use = BUSY
    for quota in (16_000, 12_800, 10_240, 10_000):
        bursts.step()
        assert [bursts.quota(each) for each in (group, main)] == [quota + 5_000, quota]
    held = {(each, bursts.burst_file) for each in (group, main, side)}
    assert set(node.colocation.holds()) == held
    node.strategies = Strategies()
    bursts.step()
    assert [bursts.burst(each) for each in (group, main, side)] == [0, 0, 0]
    assert not node.journal.values


def test_a_group_keeps_its_period(bursts: Bursts) -> None:
    """The kubelet's cpuCFSQuotaPeriod."""
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100})
    main, period_file = f"{group}/main", "cpu.cfs_period_us"
    if bursts.quota_file == QUOTA:
        node.groups.path(main, QUOTA).write_text("1000")
        node.groups.path(group, period_file).write_text("10000")
        node.groups.path(group, QUOTA).write_text("1000")
        node.groups.path(main, period_file).write_text("10000")
    else:
        for each in (group, main):
            node.groups.path(each, MAX).write_text("1000 10000")
    node.groups.process(main, *SPINS)
    bursts.step()
    assert [bursts.burst(each) for each in (group, main)] == [1_000, 1_000]
    bursts.step_throttled(main)
    assert [bursts.quota(each) for each in (group, main)] == [1_200, 1_200]
    node.strategies = Strategies()
    bursts.step()
    assert [bursts.quota(each) for each in (group, main)] == [1_000, 1_000]


def test_all_of_it_is_given_back_at_once(bursts: Bursts) -> None:
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100, "side": 50})
    main = f"{group}/main"
    node.groups.process(main, *SPINS)
    bursts.step()
    bursts.step_throttled(main)
    assert bursts.quota(group) == 17_000
    node.strategies = Strategies()
    bursts.step()
    assert [bursts.quota(each) for each in (group, main)] == [15_000, 10_000]
    assert [bursts.burst(each) for each in (group, main)] == [0, 0]


def test_an_agent_that_was_killed_knows_the_limits_again(bursts: Bursts) -> None:
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100})
    main = f"{group}/main"
    node.groups.process(main, *SPINS)
    bursts.step()
    bursts.step_throttled(main)
    node.start()
    bursts.step()
    bursts.step_throttled(main)
    assert [bursts.quota(each) for each in (group, main)] == [14_400, 14_400]
    node.start()
    limits.restore(node.controllers, node.journal)
    assert [bursts.quota(each) for each in (group, main)] == [10_000, 10_000]
    assert [bursts.burst(each) for each in (group, main)] == [0, 0]


@pytest.mark.parametrize("limit_milli", [60, 200, 250])
def test_a_resize_has_room_and_becomes_the_new_limit(bursts: Bursts, limit_milli: int) -> None:
    """The kubelet writes the pod first where that grows, and last where it shrinks."""
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100, "side": 100})
    main, side = f"{group}/main", f"{group}/side"
    spins = node.groups.process(side, *SPINS)
    bursts.step()
    for _ in range(4):
        bursts.step_throttled(side)
    spins.kill()
    assert bursts.quota(side) == 20_000
    node.resize("api", {"main": limit_milli, "side": 100})
    bursts.step()
    assert [bursts.quota(each) for each in (main, side)] == [10_000, 10_000]
    of_container, of_pod = (main, limit_milli), (group, limit_milli + 100)
    writes = (of_pod, of_container) if limit_milli > 100 else (of_container, of_pod)
    for each, milli in writes:
        node.set_quota(each, milli)
    bursts.step()
    assert bursts.burst(main) == bursts.quota(main) == 100 * limit_milli
    assert bursts.burst(group) == bursts.quota(group) == 100 * limit_milli + 10_000
    node.strategies = Strategies()
    bursts.step()
    assert bursts.quota(main) == 100 * limit_milli
    assert not node.journal.values


def test_a_quota_written_while_it_is_scaled_is_not_undone(bursts: Bursts) -> None:
    """The API server may tell of a resize later than the kubelet does it."""
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100})
    main = f"{group}/main"
    node.groups.process(main, *SPINS)
    bursts.step()
    bursts.step_throttled(main)
    for each in (group, main):
        node.set_quota(each, 300)
    bursts.step()
    assert (bursts.quota(main), bursts.burst(main)) == (30_000, 0)
    node.resize("api", {"main": 300})
    bursts.step()
    assert (bursts.quota(main), bursts.burst(main)) == (30_000, 30_000)
    node.strategies = Strategies()
    bursts.step()
    assert [bursts.quota(each) for each in (group, main)] == [30_000, 30_000]


def test_a_resize_while_no_agent_ran_is_the_limit(bursts: Bursts) -> None:
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100})
    main = f"{group}/main"
    node.groups.process(main, *SPINS)
    bursts.step()
    bursts.step_throttled(main)
    for each in (group, main):
        node.set_quota(each, 300)
    node.resize("api", {"main": 300})
    node.start()
    bursts.step()
    assert [bursts.burst(each) for each in (group, main)] == [30_000, 30_000]
    node.strategies = Strategies()
    bursts.step()
    assert [bursts.quota(each) for each in (group, main)] == [30_000, 30_000]


def test_a_resize_while_no_agent_ran_is_not_undone(bursts: Bursts) -> None:
    """By `topolet restore`, or by an agent with --colocation=off."""
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100})
    main = f"{group}/main"
    node.groups.process(main, *SPINS)
    bursts.step()
    bursts.step_throttled(main)
    for each in (group, main):
        node.set_quota(each, 300)
    node.start()
    limits.restore(node.controllers, node.journal)
    assert [bursts.quota(each) for each in (group, main)] == [30_000, 30_000]
    assert [bursts.burst(each) for each in (group, main)] == [0, 0]
    assert not node.journal.values


def test_a_normalized_quota_is_that_of_the_limit(bursts: Bursts) -> None:
    node = bursts.node
    main = f"{node.run('api', 'burstable', {'main': 120})}/main"
    node.set_quota(main, 100)
    bursts.step()
    assert bursts.burst(main) == 0, "another process may be changing it"
    node.shared_use = msgspec.structs.replace(IDLE, cpu_normalization_ratio=1.2)
    bursts.step()
    assert (bursts.quota(main), bursts.burst(main)) == (10_000, 10_000)


def test_lifted_quotas_are_left_to_the_pass(bursts: Bursts) -> None:
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100, "side": 50})
    main, side = f"{group}/main", f"{group}/side"
    node.groups.process(main, *SPINS)
    bursts.step()
    bursts.step_throttled(main)
    lifted = PodWanted("api", QoS.LS, NOTHING, {"main": Wanted(LIFTED)}, group=LIFTED)
    bursts.step(api=lifted)
    assert [bursts.quota(each) for each in (group, main, side)] == [15_000, 10_000, 5_000]
    assert [bursts.burst(each) for each in (group, main, side)] == [0, 0, 5_000]
    assert len(node.passes) == 1, "a pass lifts them"
    limits.apply(node.controllers, node.journal, {group: LIFTED, main: LIFTED})
    bursts.step(api=lifted)
    assert [bursts.quota(each) for each in (group, main, side)] == [-1, -1, 5_000]
    assert len(node.passes) == 1


def test_only_services_with_limits_burst(bursts: Bursts) -> None:
    node = bursts.node
    batch = node.run("batch", "besteffort", {"main": 100})
    free = node.run("free", "burstable", {"main": 0, "side": 100})
    bursts.step()
    groups = (batch, f"{batch}/main", free, f"{free}/main", f"{free}/side")
    assert [bursts.burst(each) for each in groups] == [0, 0, 0, 0, 10_000]


def test_a_container_that_was_above_its_limit_for_long_shrinks(bursts: Bursts) -> None:
    node = bursts.node
    node.strategies = bursting(cfsQuotaBurstPercent=200, cfsQuotaBurstPeriodSeconds=1)
    main = f"{node.run('api', 'burstable', {'main': 100})}/main"
    node.groups.process(main, *SPINS)
    bursts.step()
    quotas = []
    for _ in range(200):
        bursts.step_throttled(main)
        quotas.append(bursts.quota(main))
        if quotas[-1] < max(quotas):
            break
    assert quotas[-1] < max(quotas)


def test_a_kernel_without_bursts_scales_quotas_and_says_so(
    bursts: Bursts, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bursts.node
    main = f"{node.run('api', 'burstable', {'main': 100})}/main"
    node.groups.process(main, *SPINS)
    read = Controllers.read
    monkeypatch.setattr(
        Controllers,
        "read",
        lambda self, group, file: None if file == bursts.burst_file else read(self, group, file),
    )
    bursts.step()
    bursts.step_throttled(main)
    assert bursts.quota(main) == 12_000
    problem = node.colocation.state.wanted[CpuBursting.name].problem
    assert problem == f"this kernel has no {bursts.burst_file}"
    assert node.problems.get(SourceName.COLOCATION.value, 0) == 1


@pytest.mark.parametrize(("quota", "burst"), [(20_000, 15_000), (5_000, 4_000)])
def test_the_kernel_takes_burst_and_quota_together(bursts: Bursts, quota: int, burst: int) -> None:
    node = bursts.node
    group = node.run("api", "burstable", {"main": 100})
    main = f"{group}/main"
    for each in (group, main):
        node.groups.path(each, bursts.burst_file).write_text("10000")
    wanted = {(each, bursts.burst_file): str(burst) for each in (group, main)}
    period = "" if bursts.quota_file == QUOTA else " 100000"
    wanted |= {(each, bursts.quota_file): f"{quota}{period}" for each in (group, main)}
    outcome = limits.apply_texts(node.controllers, node.journal, wanted)
    assert len(outcome.changes) == 4
    assert not [change for change in outcome.changes if change.note]
    assert [bursts.quota(each) for each in (group, main)] == [quota, quota]
    limits.restore(node.controllers, node.journal)
    assert [bursts.quota(each) for each in (group, main)] == [10_000, 10_000]
    assert [bursts.burst(each) for each in (group, main)] == [10_000, 10_000]
