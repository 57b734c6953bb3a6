"""The identity of a demo in machine-wide names."""

from __future__ import annotations

from pathlib import Path

from demo.stage import identity


def test_two_checkouts_have_different_identities(tmp_path: Path) -> None:
    one, other = (tmp_path / name / "var" for name in ("one", "other"))
    assert identity(one) != identity(other)
    assert identity(one) == identity(one / ".." / "var")
