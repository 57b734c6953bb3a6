"""Skips that are failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import ROOT, missing_file


@pytest.mark.parametrize(
    "reason",
    [
        "no tests/data/none.jsonl",
        f"no {ROOT}/tests/data/none.jsonl",
        f"'{ROOT}/none': No such file or directory",
        "needs (docs/none.md).",
    ],
)
def test_a_missing_file_of_the_repository_is_not_a_valid_reason(reason: str) -> None:
    assert missing_file(reason) is not None


@pytest.mark.parametrize(
    "reason",
    [
        "needs root",
        "needs two CPUs",
        "no docker-registry here (tests/tools/prepare fetches it)",
        "missing: qemu-system-x86_64, a kernel below /nonexistent/cache",
        "/dev/nvidia5: Operation not permitted",
        "read/write is not allowed",
        f"no {ROOT}/.venv/bin/none",
        f"no {ROOT}/../elsewhere",
    ],
)
def test_something_missing_on_the_machine_is_a_valid_reason(reason: str) -> None:
    assert missing_file(reason) is None


SAMPLES = {
    "test": "def test_it():\n    pytest.skip('no tests/data/none')\n",
    "mark": "@pytest.mark.skipif(True, reason='no agent/none')\ndef test_it(): pass\n",
    "module": "pytest.skip('no tests/none', allow_module_level=True)\n",
    "fixture": "@pytest.fixture\ndef it(): pytest.skip('no tests/none')\ndef test_it(it): pass\n",
    "machine": "def test_it():\n    pytest.skip('needs root')\n",
    "expected": "def test_it():\n    pytest.xfail('no tests/none')\n",
}


def test_skips_in_a_run(tmp_path: Path) -> None:
    for name, text in SAMPLES.items():
        (tmp_path / f"test_{name}.py").write_text(f"import pytest\n{text}")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "tests.skips", "-c", "/dev/null"]
    done = subprocess.run(
        [*command, "--continue-on-collection-errors", f"--rootdir={tmp_path}", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    *_, last = done.stdout.splitlines()
    counts = "1 failed, 1 skipped, 1 xfailed, 3 errors"
    assert last.partition(" in ")[0] == counts, done.stdout + done.stderr
    assert done.stdout.count("is missing, which is part of the repository") >= 4
