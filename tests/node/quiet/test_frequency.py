"""The frequency of owners' CPUs, with the files of a machine with one policy for two CPUs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.host.files import Tree
from agent.model.pod.annotations import CRIO_GOVERNOR, QUIET
from agent.node.features import WantedFiles
from agent.node.quiet import frequency as frequency_feature
from agent.node.quiet.frequency import Frequency
from tests.node.quiet.quieted import QuietMachine, moment_of, quiet_pod

POLICIES = "sys/devices/system/cpu/cpufreq"


@pytest.fixture
def node(tmp_path: Path) -> QuietMachine:
    node = QuietMachine(tmp_path, Frequency(str(tmp_path / "host")))
    for first in (0, 2, 4, 6):
        policy = f"{POLICIES}/policy{first}"
        node.put(f"{policy}/affected_cpus", f"{first} {first + 1}")
        node.put(f"{policy}/scaling_available_governors", "performance schedutil powersave")
        node.put(f"{policy}/scaling_governor", "schedutil")
    node.put(f"{POLICIES}/schedutil/rate_limit_us", "1000")
    return node


def texts(node: QuietMachine) -> list[str]:
    return [node.text(f"{POLICIES}/policy{first}/scaling_governor") for first in (0, 2, 4, 6)]


def test_the_cpus_of_an_owner_have_its_governor_while_it_lives(node: QuietMachine) -> None:
    node.follow(
        quiet_pod("runs", "2-3", {QUIET: "frequency"}),
        quiet_pod("saves", "5", {CRIO_GOVERNOR: "powersave"}),
    )
    assert texts(node) == ["schedutil", "performance", "powersave", "schedutil"]
    (frequency,) = node.told().features
    assert frequency.notes == ("CPUs 4, which nobody owns, get powersave with policy4",)
    node.put(f"{POLICIES}/policy2/scaling_governor", "powersave")
    node.second()
    assert texts(node)[1] == "performance"
    node.put(f"{POLICIES}/policy2/scaling_governor", "schedutil")
    node.follow()
    assert texts(node) == ["schedutil"] * 4
    assert not node.journal.values


def test_a_governor_that_the_machine_does_not_have_is_a_problem(node: QuietMachine) -> None:
    node.follow(
        quiet_pod("bad", "2-3", {CRIO_GOVERNOR: "userspace"}),
        quiet_pod("runs", "4-5", {QUIET: "frequency"}),
    )
    assert texts(node) == ["schedutil", "schedutil", "performance", "schedutil"]
    problem = node.quiet.state.wanted["frequency"].problem
    assert problem == "policy2 has no governor 'userspace': performance schedutil powersave"


def test_the_frequency_of_another_owner_stays(node: QuietMachine) -> None:
    node.follow(
        quiet_pod("runs", "2", {QUIET: "frequency"}),
        quiet_pod("other", "3", {}),
    )
    assert texts(node) == ["schedutil"] * 4
    (note,) = node.quiet.state.wanted["frequency"].notes
    assert note == "policy2 of CPUs 2-3 stays: the owner of CPUs 3 does not ask"


def test_policies_are_read_with_each_change_of_owners_alone(node: QuietMachine) -> None:
    runs = quiet_pod("runs", "2-3", {QUIET: "frequency"})
    node.put(f"{POLICIES}/policy2/scaling_available_governors", "schedutil")
    node.follow(runs)
    node.put(f"{POLICIES}/policy2/scaling_available_governors", "performance schedutil")
    node.second()
    assert texts(node)[1] == "schedutil"
    node.follow(runs, quiet_pod("more", "6-7", {}))
    assert texts(node)[1] == "performance"


def test_cpus_that_go_offline_leave_their_policy(node: QuietMachine) -> None:
    node.put(f"{POLICIES}/policy6/affected_cpus", "")
    node.put(f"{POLICIES}/policy2/affected_cpus", "3")
    wanted = Frequency(str(node.root)).wanted(
        moment_of([quiet_pod("runs", "3,7", {QUIET: "frequency"})])
    )
    assert {group for group, _ in wanted.files} == {"/policy2"}
    assert not wanted.notes


class _Inactive(Tree):
    """The files of policies whose CPUs are all offline can't be read (drivers/cpufreq/cpufreq.c,
    show)."""

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        if "/policy6/" in path:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        return super().read(path, limit)


def test_a_policy_whose_cpus_are_offline_changes_nothing_of_the_others(
    node: QuietMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequency_feature, "Tree", _Inactive)
    wanted = Frequency(str(node.root)).wanted(
        moment_of([quiet_pod("runs", "2-3,7", {QUIET: "frequency"})])
    )
    assert {group for group, _ in wanted.files} == {"/policy2"}


def test_a_machine_without_cpufreq_has_a_problem_if_an_owner_asks(tmp_path: Path) -> None:
    frequency = Frequency(str(tmp_path))
    assert frequency.wanted(moment_of([quiet_pod("other", "2", {})])) == WantedFiles()
    asks = moment_of([quiet_pod("asks", "2", {QUIET: "frequency"})])
    assert frequency.wanted(asks) == WantedFiles(problem="this machine has no cpufreq")
