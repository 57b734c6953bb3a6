"""The names that a demo shares with the rest of the machine."""

from __future__ import annotations

from pathlib import Path

from demo.stage import identity


def test_two_checkouts_are_distinguished(tmp_path: Path) -> None:
    one, other = (tmp_path / name / "var" for name in ("one", "other"))
    assert identity(one) != identity(other)
    assert identity(one) == identity(one / ".." / "var")
