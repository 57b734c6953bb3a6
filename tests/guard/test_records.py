"""The guard's log, audit records and status, as their readers read them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from agent.guard import records as module
from agent.guard.records import GuardRunsError, Records
from agent.model.audit import AuditEvent
from agent.node import nri_guard
from agent.telemetry import audit
from tests.guard.containers import container, pod

CREATED = container(pod("own"))


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def test_a_refusal_is_a_record_of_the_audit_trail(state: str) -> None:
    records = Records(state, json=False)
    records.record_refusal(CREATED, "it would start on any CPU")
    records.record_refusal(None, "x" * 1_000)
    first, second = audit.read(state).records
    assert (first.event, first.process) == (AuditEvent.CONTAINER_REFUSED, "nri-guard")
    assert (first.title, first.uid, first.container) == ("ns/own", "own", "main")
    assert first.message == "it would start on any CPU"
    assert (second.title, len(second.message)) == ("", 300)
    assert audit.read(state).unreadable == 0
    records.close()


def test_its_audit_files_are_bounded(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1_000)
    records = Records(state, json=False)
    for number in range(40):
        records.record_refusal(CREATED, f"{number}")
    sizes = [path.stat().st_size for path in Path(state, "audit").iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 1_400
    assert audit.read(state).records[-1].message == "39"
    records.close()


def test_a_trail_that_cannot_be_written_is_logged(
    state: str, capfd: pytest.CaptureFixture[str]
) -> None:
    records = Records(state, json=False)
    Path(state, "audit").write_text("")
    records.record_refusal(CREATED, "why")
    assert "the audit trail can't be written" in capfd.readouterr().err
    records.close()


def test_a_status_that_cannot_be_written_ends_no_guard(
    state: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that requires the guard would create nothing on a node whose disk is full."""
    write = os.pwrite

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fails)
    records = Records(state, json=False)
    records.validated = 7
    records.publish()
    assert capfd.readouterr().err.count("nri-guard.lock can't be written: [Errno 28]") == 1
    monkeypatch.setattr(os, "pwrite", write)
    records.publish()
    assert json.loads(Path(state, "nri-guard.lock").read_text())["validated"] == 7
    records.close()


@pytest.mark.parametrize("as_json", [False, True])
def test_lines_of_the_log(state: str, as_json: bool, capfd: pytest.CaptureFixture[str]) -> None:
    records = Records(state, json=as_json)
    records.record_refusal(container(pod("a b\n\x1b")), 'say "no"')
    (line,) = capfd.readouterr().err.splitlines()
    if as_json:
        fields = json.loads(line)
        assert fields["msg"] == 'refused: say "no"'
        assert (fields["level"], fields["pod"]) == ("warning", "a b\n\x1b")
    else:
        assert 'level=warning msg="refused: say \\"no\\"" namespace="ns"' in line
        assert 'pod="a b\\n\\u001b"' in line
    records.close()


def test_a_problem_is_logged_once(state: str, capfd: pytest.CaptureFixture[str]) -> None:
    records = Records(state, json=False)
    for _ in range(3):
        records.report_problem("nobody listens")
    assert capfd.readouterr().err.count("nobody listens") == 1
    status = nri_guard.status(state)
    assert status is not None
    assert (status.ready, status.problem) == (False, "nobody listens")
    records.close()


def test_only_one_guard_runs(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.1)
    first = Records(state, json=False)
    with pytest.raises(GuardRunsError, match="held by another guard"):
        Records(state, json=False)
    first.close()
    second = Records(state, json=False)
    assert os.listdir(state) == ["nri-guard.lock"]
    second.close()
