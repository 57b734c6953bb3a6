"""What writes the files that features want, each second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal, OriginalValue
from agent.cgroup.limits import IDLE, KINDS_OF_MACHINE, RESUME_LATENCY, WEIGHT, is_of_quiet
from agent.cgroup.machine_files import MachineFiles
from agent.model.settings.feature_modes import FeatureMode
from agent.node.features import (
    CHECK_SECONDS,
    MOST_NAMED,
    FeatureWriter,
    Key,
    WantedFiles,
    WouldWrite,
)

CPUS = 8


class Latencies:
    """A feature that wants latencies of CPUs, which are its moment."""

    def __init__(self, name: str, *cpus: int) -> None:
        self.name = name
        self._cpus = cpus
        self.moments: list[dict[int, str]] = []
        self.fails = ""

    def wanted(self, moment: dict[int, str]) -> WantedFiles:
        self.moments.append(moment)
        if self.fails:
            raise KeyError(self.fails)
        return WantedFiles({key(cpu): moment[cpu] for cpu in self._cpus if cpu in moment})


def key(cpu: int) -> Key:
    return (f"/cpu{cpu}", RESUME_LATENCY)


class Machine:
    """Its files are those of a folder, and its clock stands until a test moves it."""

    def __init__(self, folder: Path) -> None:
        (folder / "cgroup").mkdir()
        self.folder = folder
        self.low, self.high = Latencies("low", 0, 1, 2, 3), Latencies("high", 4, 5, 6, 7)
        self.now = 50.0
        for cpu in range(CPUS):
            self.path(cpu).parent.mkdir(parents=True)
            self.put(cpu, "0")
        self.start()

    def start(
        self,
        low: FeatureMode = FeatureMode.ACT,
        high: FeatureMode = FeatureMode.ACT,
        concerns: Callable[[str, str], bool] = lambda _, file: is_of_quiet(file),
    ) -> FeatureWriter[dict[int, str]]:
        self.journal = Journal(self.folder / "journal")
        files = MachineFiles(str(self.folder))
        controllers = Controllers(
            str(self.folder / "cgroup"), others=dict.fromkeys(KINDS_OF_MACHINE, lambda: files)
        )
        self.writer = FeatureWriter[dict[int, str]](
            controllers,
            self.journal,
            (self.low, self.high),
            {"low": low, "high": high},
            {},
            concerns,
            frozenset(),
            lambda: self.now,
        )
        return self.writer

    def path(self, cpu: int) -> Path:
        return self.folder / f"sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us"

    def put(self, cpu: int, text: str) -> None:
        self.path(cpu).write_text(f"{text}\n")

    @property
    def texts(self) -> str:
        return " ".join(self.path(cpu).read_text().strip() for cpu in range(CPUS))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_is_wanted_no_more_is_given_back(machine: Machine) -> None:
    machine.put(1, "500")
    machine.writer.step({0: "10", 1: "10", 4: "20"})
    assert machine.texts == "10 10 0 0 20 0 0 0"
    machine.writer.step({1: "n/a", 4: "20"})
    assert machine.texts == "0 n/a 0 0 20 0 0 0"
    machine.writer.step({})
    assert machine.texts == "0 500 0 0 0 0 0 0"
    assert not machine.journal.values
    assert not machine.writer.held


def test_what_is_as_wanted_is_not_written_again(machine: Machine) -> None:
    machine.writer.step({0: "10", 1: "10"})
    machine.now += CHECK_SECONDS
    with mock.patch.object(MachineFiles, "write") as write:
        machine.writer.step({0: "10", 1: "10"})
        machine.writer.step({0: "10"})
    assert [call.args[:2] for call in write.call_args_list] == [key(1)]


def test_what_the_agent_before_has_left_is_given_back_unless_a_feature_wants_it(
    machine: Machine,
) -> None:
    machine.writer.step({0: "10", 1: "10"})
    machine.start().step({1: "10"})
    assert machine.texts == "0 10 0 0 0 0 0 0"


def test_what_another_program_wrote_meanwhile_is_not_given_back(machine: Machine) -> None:
    machine.writer.step({0: "10"})
    machine.put(0, "77")
    machine.writer.step({})
    assert machine.texts == "77 0 0 0 0 0 0 0"
    assert not machine.journal.values


def test_files_that_do_not_change_are_compared_every_few_seconds(machine: Machine) -> None:
    machine.writer.step({0: "10"})
    machine.put(0, "77")
    machine.now += CHECK_SECONDS - 0.5
    machine.writer.step({0: "10"})
    assert machine.texts.startswith("77 ")
    machine.now += 0.5
    machine.writer.step({0: "10"})
    assert machine.texts.startswith("10 ")


def test_a_feature_that_fails_keeps_what_it_has_and_the_other_goes_on(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.writer.step({0: "10", 4: "10"})
    machine.low.fails = "x"
    for text in ("20", "30"):
        machine.writer.step({0: text, 4: text})
        assert machine.texts == f"10 0 0 0 {text} 0 0 0"
    assert machine.writer.problems() == ("low: low failed: KeyError('x')",)
    machine.low.fails = "another fault"
    machine.writer.step({})
    faults = [record.getMessage() for record in caplog.records if record.exc_info]
    assert faults == ["low failed: KeyError('x')", "low failed: KeyError('another fault')"]
    machine.low.fails = ""
    machine.writer.step({0: "20"})
    assert machine.texts == "20 0 0 0 0 0 0 0"
    assert machine.writer.problems() == ()


def test_a_feature_that_fails_from_the_start_wants_nothing_and_gives_back_nothing_of_the_other(
    machine: Machine,
) -> None:
    machine.low.fails = "x"
    machine.writer.step({0: "10", 4: "10"})
    assert machine.texts == "0 0 0 0 10 0 0 0"


def test_a_feature_that_is_off_sees_that_nothing_is_wanted(machine: Machine) -> None:
    machine.writer.step({0: "10", 4: "10"})
    machine.start(low=FeatureMode.OFF).step({0: "10", 4: "10"})
    assert machine.texts == "0 0 0 0 10 0 0 0"
    assert machine.low.moments[-1] == {}


def test_a_feature_that_observes_says_what_it_would_write_every_few_seconds(
    machine: Machine,
) -> None:
    writer = machine.start(low=FeatureMode.OBSERVE)
    wanted = dict.fromkeys(range(CPUS), "10")
    writer.step(wanted)
    assert machine.texts == "0 0 0 0 10 10 10 10"
    changes = tuple(f"/cpu{cpu} {RESUME_LATENCY}: 0 -> 10" for cpu in range(4))
    assert writer.state.would_write == {"low": WouldWrite(4, changes)}
    shown, _ = writer.shown()
    assert (shown.files, shown.would_write, shown.first) == (4, 4, changes)
    writer.step({})
    assert writer.state.would_write["low"].files == 4
    machine.now += CHECK_SECONDS
    writer.step({})
    assert writer.state.would_write["low"].files == 0


def test_a_pause_changes_nothing_and_the_next_step_compares_all_files(machine: Machine) -> None:
    machine.writer.step({0: "10"})
    machine.writer.pause("a koordlet runs")
    assert machine.writer.problems() == ("a koordlet runs",)
    assert machine.writer.shown() == ()
    assert machine.texts.startswith("10 ")
    assert machine.writer.held == {key(0)}
    machine.put(0, "77")
    machine.writer.step({0: "10"})
    assert machine.texts.startswith("10 ")
    assert machine.writer.problems() == ()


def test_files_that_are_taken_over_are_given_back_unless_a_feature_wants_them(
    machine: Machine,
) -> None:
    """Another program has left them, and they may be those of another part of the agent."""
    machine.writer.step({0: "10", 1: "10", 2: "10"})
    writer = machine.start(concerns=lambda *_: False)
    writer.step({1: "10"})
    writer.hold([key(0)])
    assert writer.held == {key(0), key(1)}
    machine.writer.step({1: "10"})
    assert machine.texts == "0 10 10 0 0 0 0 0"
    assert machine.writer.held == {key(1)}


def test_writes_that_fail_are_named_and_tried_again_and_others_are_written(
    machine: Machine,
) -> None:
    for cpu in range(CPUS):
        if cpu != 3:
            machine.path(cpu).unlink()
            machine.path(cpu).mkdir()
    wanted = dict.fromkeys(range(CPUS), "10")
    machine.writer.step(wanted)
    assert machine.path(3).read_text() == "10\n"
    assert len(machine.writer.state.failed) == CPUS - 1
    assert len(machine.writer.problems()) == MOST_NAMED
    assert machine.writer.problems()[0].startswith(f"/cpu0 {RESUME_LATENCY}: ")
    machine.path(0).rmdir()
    machine.put(0, "0")
    machine.now += CHECK_SECONDS
    machine.writer.step(wanted)
    assert machine.path(0).read_text() == "10\n"
    assert len(machine.writer.state.failed) == CPUS - 2


def test_a_file_that_ended_is_no_failure(machine: Machine) -> None:
    machine.writer.step({0: "10"})
    machine.path(0).unlink()
    machine.writer.step({})
    assert machine.writer.problems() == ()
    assert not machine.journal.values


def test_the_weight_of_a_group_that_another_writer_has_made_idle_stays(machine: Machine) -> None:
    """The kernel would refuse the write each second."""
    (machine.folder / "cgroup/cgroup.controllers").write_text("cpu\n")
    machine.start()
    pod = machine.folder / "cgroup/pod"
    pod.mkdir()
    entries = [OriginalValue("/pod", IDLE, "0", ("1",)), OriginalValue("/pod", WEIGHT, "100")]
    for entry in entries:
        (pod / entry.file).write_text("1\n")
    machine.journal.update_values(entries)
    machine.writer.step({0: "10"})
    assert (pod / WEIGHT).read_text() == "1\n"
    assert machine.journal.files > {("/pod", IDLE), ("/pod", WEIGHT)}
