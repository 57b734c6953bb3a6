"""A demo's own cgroup, beside those of others that run or were killed."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from demo import cgroups
from demo.cgroups import CgroupInUseError, OwnCgroup, exists
from tests.skips import ROOT

if os.geteuid():
    pytest.skip("needs root: cgroups are real", allow_module_level=True)
if not cgroups._roots():
    pytest.skip("no cgroup hierarchy is mounted", allow_module_level=True)

_HOLDER = """
import sys
from demo.cgroups import OwnCgroup
OwnCgroup(*sys.argv[1:]).claim()
print("claimed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def prefix() -> Iterator[str]:
    """Nobody else's."""
    name = f"topolet-test-{uuid.uuid4().hex[:8]}"
    yield name
    for group in cgroups._left(name):
        cgroups.remove_cgroups(group)
        assert not exists(group)


def holder(prefix: str, suffix: str) -> subprocess.Popen[str]:
    """A process that has claimed its cgroup."""
    command = [sys.executable, "-c", _HOLDER, prefix, suffix]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def test_two_do_not_touch_each_other(prefix: str) -> None:
    other = holder(prefix, "other")
    own = OwnCgroup(prefix, "own")
    own.claim()
    assert exists(f"/{prefix}-other")
    with pytest.raises(CgroupInUseError, match=f"{prefix}-other is another process's"):
        OwnCgroup(prefix, "other").claim()
    own.remove()
    assert (exists(own.root), exists(f"/{prefix}-other")) == (False, True)
    kill(other)


def test_what_a_killed_one_left_is_removed(prefix: str) -> None:
    kill(holder(prefix, "killed"))
    for root in cgroups._roots():
        (root / f"{prefix}-killed" / "kubepods").mkdir(parents=True)
    own = OwnCgroup(prefix, "own")
    own.claim()
    assert (exists(f"/{prefix}-killed"), exists(own.root)) == (False, True)
    own.remove()


def test_what_still_has_processes_is_left_alone(prefix: str) -> None:
    kill(holder(prefix, "killed"))
    pod: Path = cgroups._roots()[0] / f"{prefix}-killed" / "pod"
    pod.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as process:
        (pod / "cgroup.procs").write_text(str(process.pid))
        own = OwnCgroup(prefix, "own")
        own.claim()
        assert str(process.pid) in (pod / "cgroup.procs").read_text().split()
        assert process.poll() is None
        own.remove()
        process.kill()
        process.wait()


def test_claims_at_the_same_time_do_not_take_each_other_for_left(prefix: str) -> None:
    """Locks belong to open files, so threads stand for processes."""

    def claim(number: int) -> None:
        for _ in range(20):
            own = OwnCgroup(prefix, str(number))
            own.claim()
            assert exists(own.root)
            own.remove()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(claim, range(8)))


def test_one_can_be_claimed_again(prefix: str) -> None:
    own = OwnCgroup(prefix, "own")
    for _ in range(2):
        own.claim()
        assert exists(own.root)
        own.remove()
        assert not exists(own.root)
