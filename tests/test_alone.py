"""Failed tests that are repeated, and the exit code of such a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.alone import MAX_FAILURES, are_repeatable
from tests.skips import ROOT

ONE = "tests/integration/test_kill.py::test_it[a b]"


@pytest.mark.parametrize(
    ("failed", "repeated"),
    [
        ([], False),
        ([ONE], True),
        ([ONE] * MAX_FAILURES, True),
        ([ONE] * (MAX_FAILURES + 1), False),
        (["tests/model/test_cpuset.py::test_it"], False),
        ([ONE, "tests/model/test_cpuset.py::test_it"], False),
        (["tests/integration/test_kill.py"], False),
    ],
)
def test_a_few_failures_of_tests_with_programs_are_repeated(
    failed: list[str], repeated: bool
) -> None:
    assert are_repeatable(failed) is repeated


SUITE = """
from pathlib import Path

SEEN = Path({seen!r})


def test_starved() -> None:
    before = SEEN.exists()
    SEEN.touch()
    assert before


def test_broken() -> None:
    assert {passes}


def test_passes() -> None:
    pass
"""


@pytest.mark.parametrize(
    ("suite", "passes", "code", "unstable"),
    [
        ("integration", True, 0, True),
        ("integration", False, 1, False),
        ("model", True, 1, False),
    ],
)
def test_the_run_succeeds_only_if_all_failed_tests_pass_when_repeated(
    tmp_path: Path, suite: str, passes: bool, code: int, unstable: bool
) -> None:
    folder = tmp_path / "tests" / suite
    folder.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("tests.alone",)\n')
    text = SUITE.format(seen=str(tmp_path / "seen"), passes=passes)
    (folder / "test_sample.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.alone", "-n", "2", "tests"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    line = f"UNSTABLE tests/{suite}/test_sample.py::test_starved"
    assert (line in done.stdout) is unstable
