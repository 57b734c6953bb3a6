"""`oom_score_adj` of real processes in real cgroups. Values only grow here, but in one test: lower
ones than the first need CAP_SYS_RESOURCE."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.cgroup import limits, oom_scores
from agent.cgroup.hierarchy import OOM_SCORE_ADJ, Controllers, mounted
from agent.cgroup.journal import Journal, OriginalValue
from agent.cgroup.order import WriteState
from tests.cgroup.real_groups import RealGroups

ROOT = "/sys/fs/cgroup"


class Shell:
    """A shell in a group, whose children begin with its value."""

    def __init__(self, groups: RealGroups, group: str) -> None:
        self.process = groups.process(group, "sh")
        self.group = group
        self.children: list[int] = []
        self.first = self.said()

    def said(self, command: str = "echo $$") -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def fork(self, before: str = "") -> int:
        """`before`: what the child does first."""
        child = self.said(f"sh -c '{before} echo $$; exec sleep 1000 >&2' &")
        self.children.append(child)
        return child

    def close(self) -> None:
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        self.said("wait; echo 0")


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    cpu = None if os.geteuid() else mounted(ROOT, "cpu")
    if cpu is None:
        pytest.skip("no cgroups of the cpu controller can be made here")
    real = RealGroups({"cpu": cpu})
    yield real
    real.close()


@pytest.fixture
def shell(groups: RealGroups) -> Iterator[Shell]:
    shell = Shell(groups, groups.make("/container"))
    set_score(shell.first, 100)
    yield shell
    shell.close()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def set_score(pid: int, value: int) -> None:
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(value))


def may_lower() -> bool:
    words = ("sh", "-c", "echo -1 >/proc/self/oom_score_adj")
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def write(journal: Journal, wanted: dict[str, int]) -> list[WriteState]:
    texts = {(group, OOM_SCORE_ADJ): str(value) for group, value in wanted.items()}
    outcome = limits.apply_texts(Controllers(ROOT), journal, texts)
    return [change.state for change in outcome.changes]


def give_back(journal: Journal) -> list[WriteState]:
    return [change.state for change in limits.restore(Controllers(ROOT), journal).changes]


def test_all_processes_of_a_group_have_the_value_until_it_is_given_back(
    groups: RealGroups, shell: Shell, journal: Journal
) -> None:
    inner = groups.process(groups.make("/container/inner")).pid
    set_score(inner, 100)
    before = shell.fork()
    assert write(journal, {shell.group: 500}) == [WriteState.WRITTEN]
    between = shell.fork()
    executed = groups.process(shell.group).pid
    set_score(executed, 100)
    assert write(journal, {shell.group: 500}) == [WriteState.WRITTEN]
    everyone = (shell.first, inner, before, between, executed)
    assert [score(pid) for pid in everyone] == [500] * 5
    assert write(journal, {shell.group: 500}) == [WriteState.RIGHT]
    assert list(journal.values.values()) == [
        OriginalValue(shell.group, OOM_SCORE_ADJ, "100", ("500",))
    ]
    assert give_back(Journal(journal.path)) == [WriteState.WRITTEN]
    assert [score(pid) for pid in everyone] == [100] * 5
    assert not Journal(journal.path).values


def test_a_process_that_chose_a_value_for_itself_keeps_it(shell: Shell, journal: Journal) -> None:
    before = shell.fork("echo 700 >/proc/self/oom_score_adj;")
    write(journal, {shell.group: 500})
    after = shell.fork("echo 800 >/proc/self/oom_score_adj;")
    write(journal, {shell.group: 600})
    assert [score(pid) for pid in (shell.first, before, after)] == [600, 700, 800]
    (entry,) = journal.values.values()
    predicted = oom_scores.original(entry, oom_scores.present(Controllers(ROOT), shell.group))
    give_back(journal)
    assert predicted == oom_scores.present(Controllers(ROOT), shell.group)
    assert [score(pid) for pid in (shell.first, before, after)] == [100, 700, 800]


def test_the_value_of_a_process_that_the_runtime_starts_is_not_that_of_the_group(
    shell: Shell, journal: Journal
) -> None:
    starting = [shell.fork(), shell.fork()]
    set_score(shell.first, 200)
    write(journal, {shell.group: 500})
    assert [entry.value for entry in journal.values.values()] == ["200"]
    assert [score(pid) for pid in (shell.first, *starting)] == [500, 100, 100]


def test_a_number_that_another_process_got_meanwhile_is_left_alone(
    groups: RealGroups, shell: Shell, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = groups.process(groups.make("/other")).pid
    set_score(stranger, 100)
    listed = [(shell.first, stranger), (shell.first,)]
    monkeypatch.setattr(Controllers, "processes", lambda *_: listed.pop(0))
    assert write(journal, {shell.group: 500}) == [WriteState.WRITTEN]
    assert (score(shell.first), score(stranger)) == (500, 100)


def test_what_cannot_be_journalled_is_not_written(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert write(Journal(tmp_path / "file" / "journal"), {shell.group: 500}) == [WriteState.FAILED]
    assert score(shell.first) == 100


def test_a_group_that_is_gone_is_no_failure_and_leaves_the_journal(
    groups: RealGroups, journal: Journal
) -> None:
    group = f"{groups.top}/gone"
    assert write(journal, {group: 500}) == [WriteState.GONE]
    journal.update_values([OriginalValue(group, OOM_SCORE_ADJ, "100", ("500",))])
    assert give_back(journal) == [WriteState.GONE]
    assert not journal.values


def test_processes_that_the_agent_does_not_see_are_a_failure(
    groups: RealGroups, journal: Journal
) -> None:
    group = groups.make("/empty")
    (change,) = limits.apply_texts(
        Controllers(ROOT), journal, {(group, OOM_SCORE_ADJ): "500"}
    ).changes
    assert change.state is WriteState.FAILED
    assert change.note == f"no process of {group!r} is in the agent's PID namespace"


def test_a_value_that_needs_a_capability_is_a_failure_that_names_the_process(
    shell: Shell, journal: Journal
) -> None:
    if may_lower():
        pytest.skip("this process has CAP_SYS_RESOURCE")
    (change,) = limits.apply_texts(
        Controllers(ROOT), journal, {(shell.group, OOM_SCORE_ADJ): "-998"}
    ).changes
    assert change.state is WriteState.FAILED
    assert change.note == f"process {shell.first}: Permission denied"
    assert score(shell.first) == 100


def test_a_value_below_the_first_is_given_and_given_back(shell: Shell, journal: Journal) -> None:
    if not may_lower():
        pytest.skip("this process has no CAP_SYS_RESOURCE")
    before = shell.fork()
    assert write(journal, {shell.group: -998}) == [WriteState.WRITTEN]
    after = shell.fork()
    everyone = (shell.first, before, after)
    assert [score(pid) for pid in everyone] == [-998] * 3
    assert give_back(Journal(journal.path)) == [WriteState.WRITTEN]
    assert [score(pid) for pid in everyone] == [100] * 3


class Killed(Exception):  # noqa: N818 - it stands for a signal
    pass


@given(
    steps=st.lists(st.tuples(st.sampled_from([100, 300, 500, 700]), st.booleans()), max_size=6),
)
@example(steps=[(700, False), (100, True), (300, True), (500, True)])
@settings(
    max_examples=20,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_value_is_given_back_whenever_the_agent_was_killed(
    shell: Shell,
    tmp_path: Path,
    steps: list[tuple[int, bool]],
) -> None:
    for wanted, killed in steps:
        with pytest.MonkeyPatch.context() as patch:
            if killed:
                patch.setattr(oom_scores, "_write", _kill)
            try:
                write(Journal(tmp_path / "journal"), {shell.group: wanted})
            except Killed:
                continue
        assert score(shell.first) == wanted
    give_back(Journal(tmp_path / "journal"))
    assert score(shell.first) == 100
    assert not Journal(tmp_path / "journal").values


def _kill(*_: object) -> None:
    raise Killed
