from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.model import audit
from agent.model.audit import AuditEvent, Record
from agent.telemetry.audit import FILES, KEPT_SECONDS, LONGEST_SECONDS, Trail, read

MAX_BYTES = 40_000


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def record(number: int) -> Record:
    return Record(event=AuditEvent.POD_DECIDED, pod=f"pod-{number}", message="because " * 10)


def numbers(state: Path) -> list[int]:
    return [int(each.pod.partition("-")[2]) for each in read(str(state)).records if each.pod]


def files(state: Path) -> list[Path]:
    return sorted((state / audit.FOLDER).iterdir())


def test_records_get_time_process_and_version(tmp_path: Path, clock: Clock) -> None:
    trail = Trail(str(tmp_path), "agent", MAX_BYTES, clock)
    trail.append([record(1), record(2)])
    clock.seconds += 1
    Trail(str(tmp_path), "proxy", MAX_BYTES, clock).append([record(3)])
    found = read(str(tmp_path)).records
    assert [(each.process, each.version) for each in found] == [
        ("agent", 1),
        ("agent", 1),
        ("proxy", 1),
    ]
    assert found[0].time == "2023-11-14T22:13:20.000000Z"
    assert numbers(tmp_path) == [1, 2, 3]
    assert read(str(tmp_path), found[2].time).records == found[2:]
    assert {path.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o600}
    assert (tmp_path / audit.FOLDER).stat().st_mode & 0o777 == 0o700


def test_the_oldest_files_are_removed(tmp_path: Path, clock: Clock) -> None:
    trail = Trail(str(tmp_path), "agent", MAX_BYTES, clock)
    for number in range(1_000):
        trail.append([record(number)])
        assert sum(path.stat().st_size for path in files(tmp_path)) <= MAX_BYTES
    kept = numbers(tmp_path)
    assert kept == list(range(kept[0], 1_000))
    assert len(files(tmp_path)) == FILES
    assert len(kept) > 100


def test_a_file_is_closed_and_removed_by_age(tmp_path: Path, clock: Clock) -> None:
    trail = Trail(str(tmp_path), "agent", MAX_BYTES, clock)
    trail.append([record(0)])
    os.utime(files(tmp_path)[0], (clock.seconds, clock.seconds))
    clock.seconds += LONGEST_SECONDS + 1
    trail.append([record(1)])
    assert numbers(tmp_path) == [0, 1]
    assert len(files(tmp_path)) == 2
    clock.seconds += KEPT_SECONDS - 10
    trail.append([record(2)])
    assert numbers(tmp_path) == [1, 2]


def test_only_a_torn_line_is_lost(tmp_path: Path, clock: Clock) -> None:
    Trail(str(tmp_path), "agent", MAX_BYTES, clock).append([record(0), record(1)])
    path = files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-20])
    assert read(str(tmp_path)).unreadable == 0  # the process may still be writing it
    Trail(str(tmp_path), "agent", MAX_BYTES, clock).append([record(2)])
    assert numbers(tmp_path) == [0, 2]
    assert read(str(tmp_path)).unreadable == 1


def test_a_clock_that_was_set_back_starts_no_older_file(tmp_path: Path, clock: Clock) -> None:
    trail = Trail(str(tmp_path), "agent", MAX_BYTES, clock)
    trail.append([record(0)])
    clock.seconds -= 10_000
    for number in range(1, 500):
        trail.append([record(number)])
    starts = [int(path.name.split(".")[1]) for path in files(tmp_path)]
    assert starts == sorted(starts)
    assert 499 in numbers(tmp_path)
    assert 0 not in numbers(tmp_path)


def test_a_removed_folder_is_created_again(tmp_path: Path, clock: Clock) -> None:
    trail = Trail(str(tmp_path), "agent", MAX_BYTES, clock)
    trail.append([record(0)])
    shutil.rmtree(tmp_path / audit.FOLDER)
    trail.append([record(1)])
    assert numbers(tmp_path) == [1]


def test_a_missing_trail_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(str(tmp_path))


def test_two_processes_of_a_kind_append_to_the_same_files(tmp_path: Path, clock: Clock) -> None:
    """For example a proxy that drains and its successor."""
    first = Trail(str(tmp_path), "proxy", MAX_BYTES * 10, clock)
    second = Trail(str(tmp_path), "proxy", MAX_BYTES * 10, clock)
    for number in range(0, 1_000, 2):
        first.append([record(number)])
        second.append([record(number + 1)])
    assert sorted(numbers(tmp_path)) == list(range(1_000))


def test_a_full_disk_is_reported_once_and_the_lost_records_are_counted(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trail = Trail(str(tmp_path), "agent", MAX_BYTES, clock)
    trail.append([record(0)])
    write, written_bytes = os.write, [7, 0, 0]

    def full(descriptor: int, text: bytes) -> int:
        if written_bytes:
            if count := written_bytes.pop(0):
                return write(descriptor, text[:count])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, text)

    monkeypatch.setattr(os, "write", full)
    trail.append([record(1)])
    trail.append([record(2), record(3)])
    trail.append([record(4)])
    trail.append([record(5)])
    assert numbers(tmp_path) == [0, 5]
    lost = [each for each in read(str(tmp_path)).records if each.event == AuditEvent.RECORDS_LOST]
    assert [each.after for each in lost] == ["4"]
    messages = [each.getMessage() for each in caplog.records]
    assert len(messages) == 2
    assert "No space left on device" in messages[0]
    assert messages[1] == "the audit trail can be written again"


def test_a_folder_that_can_not_be_created(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    Trail(str(tmp_path / "state"), "agent", MAX_BYTES).append([record(0)])
    assert (tmp_path / "state").read_bytes() == b""


WRITER = """
import sys
from agent.model.audit import Record
from agent.telemetry.audit import Trail
trail = Trail(sys.argv[1], "agent", int(sys.argv[3]))
number = int(sys.argv[2])
while True:
    trail.append([Record(pod=f"pod-{number + each}") for each in range(3)])
    number += 3
    print(number, flush=True)
"""


def test_a_kill_at_any_moment_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    """The files are small, so that most kills happen near the start of a file."""
    rng, number, max_bytes = random.Random(1), 0, 3_000
    for _ in range(12):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(number), str(max_bytes)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(rng.randrange(1, 60)):
                number = int(writer.stdout.readline())
            writer.kill()
        found = read(str(tmp_path))
        assert found.unreadable == 0
        kept = sorted(set(numbers(tmp_path)))
        assert kept == list(range(kept[0], kept[-1] + 1))
        assert kept[-1] >= number - 1
        assert sum(path.stat().st_size for path in files(tmp_path)) <= max_bytes + 500
        number = kept[-1] + 1
