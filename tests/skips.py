"""A test may be skipped if the machine lacks something, but not if a file of the repository is
missing: a skip is a failure if its reason names a missing path of the repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[1]

_GENERATED = frozenset({"var", "build", "dist"})
"""Folders of the checkout that git ignores, in addition to those whose names begin with a dot."""

_PATH = re.compile(r"[^\s'\"`,;:()\[\]<>=]*/[^\s'\"`,;:()\[\]<>=]*")

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def missing_file(reason: str, root: Path = ROOT) -> Path | None:
    """The first path of the repository that the reason names and that does not exist."""
    for match in _PATH.finditer(reason):
        word = match[0]
        path = root / word.rstrip(".")
        if not path.is_relative_to(root):
            continue
        top = path.relative_to(root).parts[:1]
        if not top or top[0] in _GENERATED or top[0].startswith("."):
            continue
        absolute = word.startswith("/")
        if (absolute or (root / top[0]).is_dir()) and not os.path.exists(path):
            return path
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _checked((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _checked((yield))


def _checked(report: Report) -> Report:
    if report.skipped and isinstance(report.longrepr, tuple) and not hasattr(report, "wasxfail"):
        path = missing_file(report.longrepr[2])
        if path is not None:
            report.outcome = "failed"
            report.longrepr = (
                f"{path} is missing, which is part of the repository: no reason to skip"
            )
    return report
