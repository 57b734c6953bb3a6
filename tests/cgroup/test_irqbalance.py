"""The CPUs that irqbalance bans: a server that answers as it does, and Debian's irqbalance."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.cgroup import irqbalance, limits
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone
from agent.cgroup.irqbalance import Irqbalance
from agent.cgroup.journal import Journal
from agent.cgroup.limits import IRQBALANCE_BANNED
from agent.cgroup.order import WriteState
from agent.model.cpu.cpuset import CpuSet
from tests.cgroup.balancer import GROUP, Balancer

KEY: Final = (GROUP, IRQBALANCE_BANNED)


class Agent:
    """What writes values with a journal, with a clock that is given."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 100.0
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.root / "journal")
        groups = self.root / "cgroup"
        groups.mkdir(exist_ok=True)

        def make() -> Irqbalance:
            return Irqbalance(str(self.root), lambda: self.journal.values, lambda: self.now)

        self.controllers = Controllers(str(groups), others={"irqbalance": make})

    def apply(self, cpus: str) -> WriteState:
        (change,) = limits.apply_texts(self.controllers, self.journal, {KEY: cpus}).changes
        return change.state

    def restore(self) -> WriteState:
        (change,) = limits.restore(self.controllers, self.journal).changes
        return change.state


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    if os.geteuid():
        pytest.skip("irqbalance answers root only")
    return Agent(tmp_path)


@pytest.fixture
def balancer(tmp_path: Path) -> Iterator[Balancer]:
    server = Balancer(tmp_path)
    yield server
    server.close()


def test_cpus_are_banned_and_given_back(agent: Agent, balancer: Balancer) -> None:
    balancer.banned = CpuSet([0])
    assert agent.apply("0,2-3") is WriteState.WRITTEN
    assert agent.apply("0,2-3") is WriteState.RIGHT, "it may get them until it looks again"
    balancer.scan()
    agent.now += 60
    assert agent.apply("0,2-3") is WriteState.RIGHT
    assert balancer.banned == CpuSet([0, 2, 3])
    assert agent.restore() is WriteState.WRITTEN
    balancer.scan()
    assert balancer.banned == CpuSet([0])
    assert not agent.journal.values


def test_one_that_reads_its_cpus_anew_is_not_asked(agent: Agent, balancer: Balancer) -> None:
    """It does not answer for up to its interval of ten seconds after the next scan."""
    agent.apply("1")
    asked = len(balancer.requests)
    for _ in range(20):
        agent.now += 1
        assert agent.apply("1") is WriteState.RIGHT
    assert len(balancer.requests) == asked
    balancer.scan()
    agent.now += 60
    assert agent.apply("1") is WriteState.RIGHT
    assert len(balancer.requests) == asked + 1


def test_a_list_that_was_empty_becomes_what_irqbalance_would_choose(
    agent: Agent, balancer: Balancer
) -> None:
    agent.apply("1")
    balancer.scan()
    agent.restore()
    assert balancer.requests[-1] == "settings cpus NULL"


def test_what_a_killed_agent_wrote_is_given_back_before_it_is_taken_up(
    agent: Agent, balancer: Balancer
) -> None:
    agent.apply("1")
    agent.start()
    assert agent.restore() is WriteState.WRITTEN
    balancer.scan()
    assert balancer.banned == CpuSet()


def test_an_agent_that_was_killed_before_the_write_writes(agent: Agent, balancer: Balancer) -> None:
    agent.apply("1")
    balancer.told = None
    agent.start()
    agent.apply("1")
    agent.now += 60
    assert agent.apply("1") is WriteState.WRITTEN
    assert balancer.requests[-1] == "settings cpus 1"


def test_more_cpus_that_irqbalance_bans_are_not_the_agent_s(
    agent: Agent, balancer: Balancer
) -> None:
    agent.apply("1")
    balancer.scan()
    balancer.banned |= CpuSet([5])  # a hot processor
    agent.now += 60
    assert agent.apply("1") is WriteState.RIGHT
    agent.restore()
    balancer.scan()
    assert balancer.banned == CpuSet()


def test_a_version_that_takes_masks_gets_a_mask(agent: Agent, balancer: Balancer) -> None:
    balancer.masks = True
    agent.apply("2-3")
    for _ in range(2):
        balancer.scan()
        agent.now += 60
        agent.apply("2-3")
    assert balancer.banned == CpuSet([2, 3])
    assert balancer.told is None


def test_one_that_ignores_what_it_is_told_is_not_told_for_ever(
    agent: Agent, balancer: Balancer
) -> None:
    states = []
    for _ in range(8):
        states.append(agent.apply("2-3"))
        balancer.told = None
        agent.now += 60
    assert states[-1] is WriteState.FAILED


def test_one_that_has_ended_has_no_value(agent: Agent, balancer: Balancer, tmp_path: Path) -> None:
    agent.apply("2-3")
    shutil.rmtree(tmp_path / irqbalance.FOLDER)
    assert agent.restore() is WriteState.GONE
    assert not agent.journal.values
    with pytest.raises(GroupGone):
        agent.controllers.read(*KEY)
    assert not agent.controllers.has(*KEY)


def test_the_socket_of_a_killed_one_is_none(agent: Agent, tmp_path: Path) -> None:
    balancer = Balancer(tmp_path)
    agent.apply("2-3")
    balancer.close()
    assert agent.restore() is WriteState.GONE
    assert not agent.journal.values


def test_a_socket_of_another_user_is_told_nothing(agent: Agent, balancer: Balancer) -> None:
    balancer.belong_to(65534)
    with pytest.raises(CgroupError, match="not root's"):
        agent.controllers.read(*KEY)


@pytest.mark.parametrize("fault", ["silent", "slow"])
def test_one_that_does_not_answer_is_asked_again_a_minute_later(
    agent: Agent, balancer: Balancer, fault: str
) -> None:
    setattr(balancer, fault, True)
    for _ in range(5):
        agent.now += 1
        with pytest.raises(CgroupError, match="cannot ask irqbalance 4711"):
            agent.controllers.read(*KEY)
    assert len(balancer.requests) == 1
    setattr(balancer, fault, False)
    agent.now += 60
    assert agent.controllers.read(*KEY) == ""


@pytest.mark.parametrize(
    "answer", ["hello", "SLEEP x BANNED 0", "SLEEP 1 BANNED ,,", "SLEEP 1 BANNED " + "f" * 70_000]
)
def test_a_strange_answer_is_an_error(agent: Agent, balancer: Balancer, answer: str) -> None:
    balancer.answer = answer
    with pytest.raises(CgroupError, match="irqbalance 4711"):
        agent.controllers.read(*KEY)


def test_sockets_without_a_folder_are_those_of_old_versions(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/unix").write_text(
        "Num RefCount Protocol Flags Type St Inode Path\n"
        "0: 2 0 10000 1 1 1 /run/systemd/private\n"
        "0: 2 0 10000 1 1 2 @irqbalance12.sock@@\n"
    )
    assert not irqbalance.sockets(str(tmp_path)), "nothing runs"
    (tmp_path / "sys/fs/cgroup" / irqbalance.SERVICE).mkdir(parents=True)
    assert irqbalance.sockets(str(tmp_path)) == {"/12": b"\0irqbalance12.sock\0\0"}
