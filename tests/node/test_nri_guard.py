"""The guard's status as the agent reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.guard import LOCK
from agent.guard.records import Records
from agent.node import nri_guard
from agent.node.node_findings import WARNINGS, NodeCode, of_guard
from agent.node.nri_guard import GuardStatus
from agent.telemetry.exposition import render


def test_a_node_without_a_guard_has_no_status(tmp_path: Path) -> None:
    assert nri_guard.status(str(tmp_path)) is None
    assert not list(nri_guard.metrics(str(tmp_path)))
    assert list(of_guard(None)) == [NodeCode.NRI_UNGUARDED]


def test_a_running_guard_is_read_and_exported(tmp_path: Path) -> None:
    records = Records(str(tmp_path), json=False)
    records.ready, records.validated, records.refused, records.sessions = True, 7, 2, 1
    records.publish()
    assert nri_guard.status(str(tmp_path)) == GuardStatus(True, "", False, 7, 2, 1)
    text = render(nri_guard.metrics(str(tmp_path)))
    assert "topolet_nri_guard_ready 1\n" in text
    assert "topolet_nri_guard_refused_containers_total 2\n" in text
    assert of_guard(nri_guard.status(str(tmp_path))) == {}
    records.close()
    assert nri_guard.status(str(tmp_path)) is None


@pytest.mark.parametrize("text", ["", '{"ready":true}', "no JSON"])
def test_a_guard_that_was_killed_leaves_a_file_that_nobody_locks(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    assert nri_guard.status(str(tmp_path)) == GuardStatus(problem="the guard does not run")
    assert "topolet_nri_guard_ready 0\n" in render(nri_guard.metrics(str(tmp_path)))
    found = of_guard(GuardStatus(problem="the guard does not run"))
    assert found == {NodeCode.NRI_GUARD: "the guard does not run"}


def test_a_runtime_without_validators_is_a_warning(tmp_path: Path) -> None:
    records = Records(str(tmp_path), json=False)
    records.report_problem("containerd v2.1.4 has an earlier one", too_old=True)
    found = of_guard(nri_guard.status(str(tmp_path)))
    assert found == {NodeCode.NRI_UNGUARDED: "containerd v2.1.4 has an earlier one"}
    assert NodeCode.NRI_UNGUARDED in WARNINGS
    assert NodeCode.NRI_GUARD not in WARNINGS
    records.close()


def test_a_status_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    records = Records(str(tmp_path), json=False)
    (tmp_path / LOCK).write_text("no JSON")
    status = nri_guard.status(str(tmp_path))
    assert status is not None
    assert not status.ready
    assert LOCK in status.problem
    records.close()
