"""All parsers of foreign bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.parsers import of_annotations, of_node, of_reports
from tests.parsers.target import Target


def targets(folder: Path) -> Iterator[Target]:
    """`folder`: for files, which they keep."""
    yield from of_annotations.targets()
    yield from of_node.targets(folder)
    yield from of_reports.targets()
