"""What the owners of a node get, and how it is given back, by the mask of workqueues."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from agent.model.pod.annotations import CRIO_INTERRUPTS, QUIET
from agent.model.settings.feature_modes import FeatureMode
from agent.node.features import CHECK_SECONDS, TOLD_SECONDS, WantedFiles
from agent.node.quiet.moment import QuietMoment
from agent.node.quiet.workqueues import Workqueues
from agent.node.sources import SourceName
from agent.telemetry.quiet_metrics import QuietMeasures
from agent.view.quiet import ShownQuietOwner
from tests.node.quiet.quieted import WORKQUEUES, QuietMachine, decided, quiet_pod

OWNER = quiet_pod("own", "2-3", {QUIET: "workqueues"})


def test_a_new_owner_has_quiet_cpus_with_the_pass_and_the_last_one_gives_them_back(
    node: QuietMachine,
) -> None:
    node.follow(OWNER)
    assert node.text(WORKQUEUES) == "000000f3"
    node.follow(OWNER, quiet_pod("more", "7", {QUIET: "all"}))
    assert node.text(WORKQUEUES) == "00000073"
    node.follow(quiet_pod("more", "7", {}))
    assert node.text(WORKQUEUES) == "000000ff"
    assert not node.journal.values
    assert not node.quiet.holds()


def test_what_another_program_writes_is_corrected_within_a_second(node: QuietMachine) -> None:
    node.follow(OWNER)
    node.put(WORKQUEUES, "0f")
    node.second()
    assert node.text(WORKQUEUES) == "00000003"
    node.put(WORKQUEUES, "0f")
    node.follow()
    assert node.text(WORKQUEUES) == "0f", "that of the other program stays"


def test_an_agent_that_was_killed_gives_back_what_it_had_changed(node: QuietMachine) -> None:
    node.follow(OWNER)
    node.start()
    assert node.quiet.holds(), "the first pass must not give back what stays wanted"
    node.second()
    assert node.text(WORKQUEUES) == "000000f3", "no pod is known yet"
    node.follow()
    assert node.text(WORKQUEUES) == "000000ff"


@pytest.mark.parametrize(("switch", "features"), [("observe", ""), ("act", "workqueues=off")])
def test_an_agent_that_acts_no_more_gives_back_what_it_had_changed(
    node: QuietMachine, switch: str, features: str
) -> None:
    node.follow(OWNER)
    node.start(switch, features)  # type: ignore[arg-type]
    node.follow(OWNER)
    assert node.text(WORKQUEUES) == "000000ff"
    assert not node.journal.values


def test_observing_writes_nothing_and_tells_what_it_would_write(node: QuietMachine) -> None:
    node.start("observe")
    node.follow(OWNER)
    assert node.text(WORKQUEUES) == "ff"
    (workqueues,) = node.told().features
    assert (workqueues.mode, workqueues.files) == (FeatureMode.OBSERVE, 1)
    assert workqueues.first == ("/ workqueue.cpus: 0-7 -> 0-1,4-7",)


def test_owners_that_do_not_ask_have_the_features_of_the_node(node: QuietMachine) -> None:
    node.start(owners="workqueues")
    node.follow(quiet_pod("asks", "2-3", {QUIET: "none"}), quiet_pod("own", "7", {}))
    assert node.text(WORKQUEUES) == "00000073"
    assert node.told().owners == (ShownQuietOwner("ns/own", "7", ("workqueues",)),)


def test_an_annotation_that_cannot_be_read_is_a_problem_that_names_the_pod(
    node: QuietMachine,
) -> None:
    bad = quiet_pod("bad", "7", {CRIO_INTERRUPTS: "sometimes"})
    node.follow(OWNER, bad)
    (fault,) = node.sources.problems[SourceName.QUIET]
    assert fault.startswith("pod ns/bad: annotation irq-load-balancing.crio.io: value: 'sometimes'")
    assert node.told().faults == (fault,)
    assert node.text(WORKQUEUES) == "00000073"
    node.follow(OWNER)
    assert SourceName.QUIET not in node.sources.problems


class FailingWorkqueues(Workqueues):
    """A feature with a bug that an owner causes."""

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        if any(owner.title == "ns/bad" for owner in moment.owners):
            raise IndexError("of a topology")
        return super().wanted(moment)


def test_a_feature_that_fails_keeps_its_values(tmp_path: Path) -> None:
    node = QuietMachine(tmp_path)
    node.features = (FailingWorkqueues(str(node.root), node.entry),)
    node.start()
    node.put(WORKQUEUES, "ff")
    node.follow(OWNER)
    node.follow(OWNER, quiet_pod("bad", "7", {QUIET: "all"}))
    assert node.text(WORKQUEUES) == "000000f3"
    failed = "workqueues: workqueues failed: IndexError('of a topology')"
    assert node.sources.problems[SourceName.QUIET] == (failed,)


def test_what_the_kernel_refuses_is_told_and_tried_again(node: QuietMachine) -> None:
    """A mask that can't be understood stands for a refusal."""
    node.put(WORKQUEUES, "no mask")
    node.follow(OWNER)
    (failure,) = node.quiet.state.failed
    assert failure.startswith("/ workqueue.cpus: cannot understand ")
    assert node.problems[SourceName.QUIET.value] == 1
    node.put(WORKQUEUES, "ff")
    node.second()
    assert node.text(WORKQUEUES) == "000000f3"
    assert node.problems[SourceName.QUIET.value] == 0


@pytest.mark.parametrize(
    ("switch", "features", "pauses"),
    [("act", "", "0-1,4-7"), ("act", "host-slices=observe", ""), ("observe", "", "")],
)
def test_an_agent_that_observes_moves_no_pause_container(
    node: QuietMachine, switch: Literal["observe", "act"], features: str, pauses: str
) -> None:
    pods = (quiet_pod("own", "2-3", {QUIET: "host-slices"}),)
    quiet = node.start(switch, features)
    cpus = quiet.pause_cpus(pods, node.topology, decided(pods, node.topology))
    assert str(cpus) == pauses


def test_metrics_count_files_and_owners_by_feature(node: QuietMachine) -> None:
    assert node.quiet.measured() == QuietMeasures({}, [], 0, {})
    node.follow(OWNER, quiet_pod("more", "5", {QUIET: "all"}))
    assert node.quiet.measured() == QuietMeasures({"workqueues": 1}, [], 0, {"workqueues": 2})
    (node.root / WORKQUEUES).unlink()
    node.second()
    assert node.quiet.measured() == QuietMeasures(
        {"workqueues": 0}, ["workqueues"], 0, {"workqueues": 2}
    )


def test_people_are_told_the_owners_and_files_at_most_every_five_seconds(
    node: QuietMachine,
) -> None:
    node.follow(OWNER)
    told = node.told()
    assert told.owners == (ShownQuietOwner("ns/own", "2-3", ("workqueues",)),)
    assert [(one.name, one.files) for one in told.features] == [("workqueues", 1)]
    node.follow()
    assert node.told() == told
    node.now += max(TOLD_SECONDS, CHECK_SECONDS)
    node.quiet.step()
    assert node.told().owners == ()
