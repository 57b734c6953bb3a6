"""BE pods that are idle."""

from __future__ import annotations

import pytest

from agent.cgroup.hierarchy import Controllers
from agent.cgroup.limits import IDLE, weight_file
from agent.node.colocation.cpu_priority import CpuPriority
from agent.node.sources import SourceName
from agent.usage.strategies import Strategies
from tests.node.colocation.colocated import ColocatedNode


def test_be_pods_are_idle_while_the_strategy_wants_it(node: ColocatedNode) -> None:
    weight = weight_file(node.controllers)
    batch, service = node.run("batch", "besteffort"), node.run("api", "burstable")
    node.groups.path(batch, weight).write_text("77")
    node.colocation.step()
    assert (node.value(batch, IDLE), node.value(service, IDLE)) == ("1", "0")
    assert node.value(batch.rpartition("/")[0], IDLE) == "0", "a kubelet could not start"
    assert set(node.colocation.holds()) == {(batch, IDLE), (batch, weight)}
    assert node.colocation.state.wanted[CpuPriority.name].files == {(batch, IDLE): "1"}
    assert node.problems.get(SourceName.COLOCATION.value, 0) == 0
    node.strategies = Strategies()
    node.colocation.step()
    assert (node.value(batch, IDLE), node.value(batch, weight)) == ("0", "77")
    assert not node.colocation.holds()
    assert not node.journal.values


def test_the_least_weight_comes_back_where_an_idle_group_seems_to_have_it(
    node: ColocatedNode,
) -> None:
    """Linux 6.12 shows weight 1 for an idle group of v2, and all kernels shares of 3 on v1."""
    weight = weight_file(node.controllers)
    least = "3" if node.controllers.version("cpu") == 1 else "1"
    batch = node.run("batch", "besteffort")
    node.groups.path(batch, weight).write_text(least)
    node.colocation.step()
    assert node.value(batch, IDLE) == "1"
    node.strategies = Strategies()
    node.colocation.step()
    assert (node.value(batch, IDLE), node.value(batch, weight)) == ("0", least)


def test_what_the_kernel_does_not_have_is_a_problem_with_a_name(
    node: ColocatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("batch", "besteffort")
    monkeypatch.setattr(Controllers, "read", lambda *_: None)
    node.colocation.step()
    problem = node.colocation.state.wanted[CpuPriority.name].problem
    assert problem == "this kernel has neither cpu.bvt_warp_ns nor cpu.idle"
    assert node.problems.get(SourceName.COLOCATION.value, 0) == 1
