"""The OOM scores that annotations of pods ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cgroup.hierarchy import OOM_SCORE_ADJ
from agent.model.pod.annotations import OOM_SCORES, OOM_SCORES_SPEC
from agent.node.colocation.oom_scores import OomScores
from agent.node.colocation.pod_values import values_of
from agent.node.features import WouldWrite
from agent.node.sources import SourceName
from agent.view.pod_values import FileValue
from tests.node.colocation.colocated import ColocatedNode


def annotated(**annotations: str) -> dict[str, str]:
    keys = {"of_all": OOM_SCORES, "spec": OOM_SCORES_SPEC}
    return {keys[name]: text for name, text in annotations.items()}


@pytest.mark.parametrize(
    ("annotations", "least", "scores", "refused"),
    [
        ({}, -1000, {}, None),
        ({"of_all": "300"}, -1000, {"main": "300", "proxy": "300"}, None),
        ({"spec": '{"proxy": 0, "absent": 5}'}, -1000, {"proxy": "0"}, None),
        ({"of_all": "-5", "spec": '{"proxy": 9}'}, -5, {"main": "-5", "proxy": "9"}, None),
        (
            {"of_all": "-998", "spec": '{"proxy": 9}'},
            -997,
            {"proxy": "9"},
            f"pod ns/web: annotation {OOM_SCORES}: the value -998 of container main "
            "is below oom-score-adj-min, which is -997",
        ),
        ({"of_all": "1001", "spec": '{"proxy": 9}'}, -1000, {"proxy": "9"}, None),
        ({"of_all": "7", "spec": '{"proxy": "9"}'}, 0, {"main": "7", "proxy": "7"}, None),
        ({"of_all": "high"}, -1000, {}, None),
    ],
)
def test_the_value_of_a_container_is_that_of_its_annotations(
    node: ColocatedNode,
    annotations: dict[str, str],
    least: int,
    scores: dict[str, str],
    refused: str | None,
) -> None:
    containers = {"main": 0, "proxy": 0}
    group = node.run("web", "burstable", containers, annotations=annotated(**annotations))
    node.least_oom_score = least
    colocation = node.start(acts=False)
    colocation.step()
    wanted = colocation.state.wanted[OomScores.name]
    assert wanted.files == {
        (f"{group}/{name}", OOM_SCORE_ADJ): text for name, text in scores.items()
    }
    assert wanted.problem == (refused or "")


def test_processes_have_the_value_as_long_as_the_annotation_wants_it(node: ColocatedNode) -> None:
    group = node.run("web", "burstable", annotations=annotated(of_all="400"))
    main = score_of(node.groups.process(f"{group}/main").pid)
    sandbox = score_of(
        node.groups.process(node.groups.make("/kubepods/burstable/podweb/pause")).pid
    )
    main.write_text("200")
    sandbox.write_text("10")
    observing = node.start(acts=False)
    observing.step()
    assert observing.state.would_write[OomScores.name] == WouldWrite(
        1, (f"{group}/main oom_score_adj: 200 -> 400",)
    )
    assert main.read_text() == "200\n"
    node.start().step()
    assert (main.read_text(), sandbox.read_text()) == ("400\n", "10\n")
    assert node.problems.get(SourceName.COLOCATION.value, 0) == 0
    (reason,) = values_of(node.pods["web"], node.controllers, str(node.folder)).values
    assert reason.value == FileValue("main", OOM_SCORE_ADJ, "400", "200")
    assert (reason.feature, reason.follows) == (OomScores.name, OOM_SCORES)
    main.write_text("200")
    node.now += 5
    node.colocation.step()
    assert main.read_text() == "400\n", "what another program writes is corrected"
    node.run("web", "burstable")
    node.start().step()
    assert main.read_text() == "200\n"
    assert not node.journal.values


def score_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/oom_score_adj")
