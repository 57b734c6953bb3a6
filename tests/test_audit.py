from __future__ import annotations

import pytest

from tests import audit

SKIPPED = {"name": "a", "skip_reason": "Dependency not found on PyPI"}
SOUND = {"name": "b", "version": "1", "vulns": []}
HOLE = {"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "description": "text"}
HOLED = {"name": "c", "version": "2", "vulns": [HOLE]}


def test_a_known_hole_of_a_dependency_counts() -> None:
    holes, remark = audit.outcome({"dependencies": [SKIPPED, SOUND, HOLED]})
    assert holes == ["c 2: PYSEC-1: text"]
    assert remark == "2 packages audited, 1 holes"


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-2026-1"])
def test_an_ignored_hole_has_a_reason(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(audit.IGNORED, name, "not called here")
    assert audit.outcome({"dependencies": [HOLED]})[0] == []
    assert all(audit.IGNORED.values())


def test_without_a_source_the_audit_is_skipped_with_the_reason() -> None:
    assert audit.outcome({"dependencies": [SKIPPED]})[1].startswith("skipped: ")
