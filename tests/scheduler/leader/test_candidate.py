from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.scheduler.leader.candidate import Candidate


def test_the_next_process_of_a_leader_has_the_same_identity(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CANDIDATE, str(tmp_path / "lease")]
    first, second = (subprocess.run(command, capture_output=True, text=True) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout == second.stdout != ""


_CANDIDATE = """
import sys
from agent.scheduler.leader.candidate import Candidate
candidate = Candidate(sys.argv[1])
assert candidate.sent is not None
candidate.keep()
print(candidate.identity)
"""


def test_a_candidate_without_a_usable_folder_has_a_new_identity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    candidate = Candidate(str(tmp_path / "file"))
    candidate.keep()
    assert candidate.sent is None
    assert candidate.identity
    kept = Candidate(str(tmp_path / "lease"))
    other = Candidate(str(tmp_path / "lease"))
    assert kept.sent is not None
    assert other.sent is None
    assert other.identity != kept.identity
    assert ["is not used" in each for each in caplog.messages] == [True, True]


def test_unreadable_bindings_of_the_former_process_make_the_identity_new(tmp_path: Path) -> None:
    folder = tmp_path / "lease"
    command = [sys.executable, "-c", _CANDIDATE, str(folder)]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    (folder / "bindings" / "a.json").write_text("{")
    second = Candidate(str(folder))
    assert second.sent is not None
    assert second.identity != first
    assert not list((folder / "bindings").iterdir())
