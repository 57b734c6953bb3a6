"""What several suites share: the snapshots of real machines beside the checkout."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

SHARED = Path(
    os.environ.get("TOPOLET_SHARED") or Path(__file__).resolve().parents[1].parent / "shared"
)

_MEMORY_BLOCK = re.compile("/node[0-9]+/memory[0-9]+")
"""A thousand links per node that nobody reads."""


# Python before 3.11.4 knows no filters; later ones warn without.
_FILTER: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The root of a snapshot, by the name of its tarball; unpacked once a session."""
    folders: dict[str, str] = {}

    def unpacked(name: str) -> str:
        tarball = SHARED / "sysfs" / f"{name}.tar.bz2"
        if not tarball.exists():
            pytest.skip(f"no {tarball}")
        if name not in folders:
            folder = tmp_path_factory.mktemp("snapshot")
            with tarfile.open(tarball) as archive:
                members = [each for each in archive if not _MEMORY_BLOCK.search(each.name)]
                archive.extractall(folder, members, **_FILTER)
            (root,) = folder.iterdir()
            folders[name] = str(root)
        return folders[name]

    return unpacked


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests recorded as their "summary"; the time of every suite: the folders below tests/."""
    seconds: dict[str, float] = {}
    summaries: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                suite = "/".join(report.nodeid.split("/")[:2])
                seconds[suite] = seconds.get(suite, 0.0) + report.duration
                if report.when == "call":
                    summaries += [
                        str(text) for name, text in report.user_properties if name == "summary"
                    ]
    for summary in summaries:
        terminalreporter.section("summary")
        terminalreporter.write_line(summary)
    terminalreporter.section("suites")
    for suite, each in sorted(seconds.items()):
        terminalreporter.write_line(f"{each:7.1f} s  {suite}")
