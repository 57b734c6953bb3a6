from __future__ import annotations

import pytest

from tests import audit

SKIPPED = {"name": "a", "skip_reason": "Dependency not found on PyPI"}
CLEAN = {"name": "b", "version": "1", "vulns": []}
VULNERABILITY = {"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "description": "text"}
VULNERABLE = {"name": "c", "version": "2", "vulns": [VULNERABILITY]}


def test_a_known_vulnerability_of_a_dependency_is_reported() -> None:
    vulnerabilities, remark = audit.outcome({"dependencies": [SKIPPED, CLEAN, VULNERABLE]})
    assert vulnerabilities == ["c 2: PYSEC-1: text"]
    assert remark == "2 packages audited, 1 vulnerabilities"


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-2026-1"])
def test_an_ignored_vulnerability_has_a_reason(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(audit.IGNORED, name, "not called here")
    assert audit.outcome({"dependencies": [VULNERABLE]})[0] == []
    assert all(audit.IGNORED.values())


def test_without_a_source_the_audit_is_skipped_with_the_reason() -> None:
    assert audit.outcome({"dependencies": [SKIPPED]})[1].startswith("skipped: ")
