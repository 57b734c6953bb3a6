"""Answers of other implementations: the files of tests/data/vectors."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import DATA

_FOLDER = DATA / "vectors"


def set_names() -> tuple[str, ...]:
    """The names of all sets."""
    return tuple(sorted(path.name.partition(".")[0] for path in _FOLDER.glob("*.jsonl*")))


def file(name: str) -> Path:
    """The file of a set, plain or gzip."""
    (path,) = _FOLDER.glob(f"{name}.jsonl*")
    return path
