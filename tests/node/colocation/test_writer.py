"""What features want of real cgroups, and how it is given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cgroup import limits
from agent.cgroup.limits import IDLE, weight_file
from agent.model.node_slo import MemoryQos
from agent.model.settings.feature_modes import FeatureMode
from agent.node.colocation.cpu_priority import CpuPriority
from agent.node.colocation.moment import Moment
from agent.node.features import CHECK_SECONDS, TOLD_SECONDS, Feature, WantedFiles
from agent.node.sources import SourceName
from agent.telemetry.metrics import AgentMetrics
from agent.telemetry.usage_metrics import follow_colocation
from agent.usage import COLOCATION_FILE
from agent.usage.strategies import Strategies
from agent.view import colocation
from agent.view.features import ShownFeature
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ColocatedNode, memory_qos


def test_an_agent_that_was_killed_gives_back_what_it_had_changed(node: ColocatedNode) -> None:
    weight = weight_file(node.controllers)
    batch = node.run("batch", "besteffort")
    node.groups.path(batch, weight).write_text("77")
    node.colocation.step()
    node.strategies = Strategies()
    node.start().step()
    assert (node.value(batch, IDLE), node.value(batch, weight)) == ("0", "77")


def test_an_agent_that_starts_again_keeps_its_values_until_it_knows_better(
    node: ColocatedNode,
) -> None:
    batch = node.run("batch", "besteffort")
    node.colocation.step()
    assert (batch, IDLE) in node.start().holds()
    assert not node.start(acts=False).holds()


def test_an_agent_that_starts_again_gives_nothing_back_before_it_knows_the_pods(
    node: ColocatedNode,
) -> None:
    batch = node.run("batch", "besteffort")
    node.colocation.step()
    node.start()
    node.known = False
    for _ in range(3):
        node.colocation.step()
        assert node.value(batch, IDLE) == "1"
    assert (batch, IDLE) in node.colocation.holds()
    node.known, node.pods = True, {}
    node.colocation.step()
    assert node.value(batch, IDLE) == "0"


class FailingPriority(CpuPriority):
    """It fails while an annotation of a pod makes it."""

    fails = False

    def wanted(self, moment: Moment) -> WantedFiles:
        if self.fails:
            raise IndexError("of an annotation")
        return super().wanted(moment)


class FailingNode(ColocatedNode):
    """A node with such a feature in place of the real one."""

    def features(self) -> tuple[Feature, ...]:
        self.priority = FailingPriority(self.controllers)
        others = [each for each in super().features() if each.name != CpuPriority.name]
        return (self.priority, *others)


def test_a_feature_that_fails_keeps_its_values_and_the_others_go_on(
    tmp_path: Path, groups: RealGroups, caplog: pytest.LogCaptureFixture
) -> None:
    node = FailingNode(tmp_path, groups)
    batch = node.run("batch", "besteffort")
    node.colocation.step()
    node.priority.fails = True
    node.strategies = memory_qos(MemoryQos(enable=True))
    for _ in range(2):
        node.now += CHECK_SECONDS
        node.colocation.step()
    assert node.value(batch, IDLE) == "1"
    failed = "cpu-priority failed: IndexError('of an annotation')"
    assert node.colocation.state.wanted[CpuPriority.name].problem == failed
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [failed]
    node.priority.fails = False
    node.colocation.step()
    assert node.value(batch, IDLE) == "0"


def test_a_fault_does_not_end_the_passes(
    node: ColocatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    batch = node.run("batch", "besteffort")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "apply_texts", failing)
        node.colocation.step()
    assert node.problems[SourceName.COLOCATION.value] == 1
    node.colocation.step()
    assert node.value(batch, IDLE) == "1"
    assert node.problems[SourceName.COLOCATION.value] == 0


def test_a_file_for_people_that_could_not_be_written_is_written_later(node: ColocatedNode) -> None:
    path = node.folder / COLOCATION_FILE
    path.mkdir()
    node.colocation.step()
    path.rmdir()
    node.now += TOLD_SECONDS
    node.colocation.step()
    assert path.is_file()


def test_a_pod_that_the_agent_leaves_alone_keeps_its_values(node: ColocatedNode) -> None:
    batch, other = node.run("batch", "besteffort"), node.run("other", "besteffort")
    node.excluded = "other"
    node.colocation.step()
    assert (node.value(batch, IDLE), node.value(other, IDLE)) == ("1", "0")
    node.pods = {"batch": node.pods["batch"]}
    node.colocation.step()
    assert node.value(batch, IDLE) == "1"
    node.pods = {}
    node.colocation.step()
    assert node.value(batch, IDLE) == "0"
    assert not node.journal.values
    assert not node.colocation.state.failed


def test_observing_writes_nothing(node: ColocatedNode) -> None:
    batch = node.run("batch", "besteffort")
    observing = node.start(acts=False)
    observing.step()
    assert node.value(batch, IDLE) == "0"
    assert observing.state.wanted[CpuPriority.name].files == {(batch, IDLE): "1"}
    assert not observing.holds()


def test_a_feature_that_observes_tells_what_it_would_write(node: ColocatedNode) -> None:
    groups = [node.run(f"batch-{number}", "besteffort") for number in range(7)]
    node.groups.path(groups[0], IDLE).write_text("1")
    node.start("cpu-priority=observe").step()
    told = colocation.read(str(node.folder / COLOCATION_FILE))
    (priority,) = (one for one in told.features if one.name == CpuPriority.name)
    assert (priority.files, priority.would_write) == (7, 6)
    assert priority.first == tuple(f"{group} {IDLE}: 0 -> 1" for group in groups[1:6])


@pytest.mark.parametrize("mode", [FeatureMode.OBSERVE, FeatureMode.OFF])
def test_a_feature_that_acts_no_more_gives_back_what_it_had_changed(
    node: ColocatedNode, mode: FeatureMode
) -> None:
    weight = weight_file(node.controllers)
    batch = node.run("batch", "besteffort")
    node.groups.path(batch, weight).write_text("77")
    node.colocation.step()
    assert node.value(batch, IDLE) == "1"
    observing = node.start(f"cpu-priority={mode}")
    observing.step()
    assert (node.value(batch, IDLE), node.value(batch, weight)) == ("0", "77")
    wanted = {(batch, IDLE): "1"} if mode is FeatureMode.OBSERVE else {}
    assert observing.state.wanted[CpuPriority.name].files == wanted
    assert not observing.holds()


def test_people_are_told_what_it_does_at_most_every_five_seconds(node: ColocatedNode) -> None:
    node.run("batch", "besteffort")
    node.colocation.step()
    told = colocation.read(str(node.folder / COLOCATION_FILE))
    assert told.suppresses
    assert ShownFeature(CpuPriority.name, FeatureMode.ACT, 1) in told.features
    node.strategies = Strategies()
    node.colocation.step()
    assert colocation.read(str(node.folder / COLOCATION_FILE)) == told
    node.now += TOLD_SECONDS
    node.colocation.step()
    last = colocation.read(str(node.folder / COLOCATION_FILE))
    assert ShownFeature(CpuPriority.name, FeatureMode.ACT, 0) in last.features


def test_what_another_program_changes_is_corrected_within_seconds(node: ColocatedNode) -> None:
    batch = node.run("batch", "besteffort")
    node.colocation.step()
    node.groups.path(batch, IDLE).write_text("0")
    node.colocation.step()
    assert node.value(batch, IDLE) == "0", "not each second"
    node.now += CHECK_SECONDS
    node.colocation.step()
    assert node.value(batch, IDLE) == "1"


def test_what_it_has_brought_is_on_the_page_of_metrics(node: ColocatedNode) -> None:
    node.run("batch", "besteffort")
    metrics = AgentMetrics()
    follow_colocation(metrics, node.colocation.measured, lambda: 7)
    node.colocation.step()
    page = metrics.render().splitlines()
    assert {
        'topolet_colocation_files{feature="cpu-priority"} 1',
        "topolet_colocation_failed_files 0",
        "topolet_colocation_be_at_minimum 0",
        "topolet_colocation_above_mark_bytes 7",
    } <= set(page)
