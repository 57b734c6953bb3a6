"""Writes that fail in a pass: the kernel refuses, the group was removed, the disk is full."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Handles
from agent.node.reconcile import ReconcileError
from tests.node.world import World

OWN = "kubepods/burstable/podown/c-own-main"
LS = "kubepods/burstable/podls/c-ls-main"
BE = "kubepods/besteffort/podbe/c-be-main"
OTHER_CPUS = 'topolet_containers_with_other_cpus{source="decision"}'


@pytest.fixture
def three(world: World) -> World:
    """An LSE pod that claims CPU 1, an LS and a BE pod, all running on 0-3."""
    world.container(world.sandbox("own", "LSE", "1"))
    world.container(world.sandbox("ls", "LS"))
    world.container(world.sandbox("be", "BE", parent="/kubepods/besteffort/podbe"))
    return world


def before_writes(monkeypatch: pytest.MonkeyPatch, to: str, does: Callable[[], None]) -> None:
    """Calls `do` before each write to the cpuset of this group."""
    real = Handles.write

    def write(self: Handles, path: str, data: bytes) -> None:
        if path.endswith(f"/{to}/cpuset.cpus"):
            does()
        real(self, path, data)

    monkeypatch.setattr(Handles, "write", write)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EINVAL, errno.EACCES, errno.ENOSPC])
def test_refused_write_is_reported_and_blocks_only_the_owner(
    three: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    agent = three.agent()
    with monkeypatch.context() as patch:
        before_writes(patch, LS, refuse)
        for _ in range(2):
            with pytest.raises(ReconcileError, match=f"ns/ls main: .*{os.strerror(number)}"):
                agent.reconcile()
            assert (three.cpus(OWN), three.cpus(LS), three.cpus(BE)) == ("1", "0-3", "0,2-3")
            blocked = three.snapshot().pods["own"].each.blocked
            assert blocked == "a container of pod ns/ls still holds CPUs 1"
            assert three.metric(OTHER_CPUS) == 1
    agent.reconcile()
    assert (three.cpus(OWN), three.cpus(LS)) == ("1", "0,2-3")
    assert three.metric(OTHER_CPUS) == 0
    assert three.snapshot().pods["own"].each.blocked == ""


def test_group_removed_between_plan_and_write_is_not_a_failure(
    three: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = three.cpuset / LS
    before_writes(monkeypatch, LS, lambda: shutil.rmtree(gone, ignore_errors=True))
    three.agent().reconcile()
    assert not gone.exists()
    assert (three.cpus(OWN), three.cpus(BE)) == ("1", "0,2-3")
    assert three.snapshot().pods["own"].each.blocked == ""


@pytest.fixture
def small_disk(three: World) -> Iterator[Path]:
    """A state folder with 32 KiB of its own."""
    if os.geteuid():
        pytest.skip("needs root: mounts a tmpfs")
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(three.state)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("can't mount a tmpfs here")
    yield three.state
    subprocess.run(["umount", "-l", str(three.state)], check=True)


def test_full_disk_stops_writes_but_not_the_agent(three: World, small_disk: Path) -> None:
    """No value is changed that could not be restored; earlier writes are kept."""
    spared = three.runtime.listed_sandboxes.pop(0)
    agent = three.agent()
    agent.reconcile()
    snapshot = (small_disk / "snapshot.json").read_bytes()
    three.runtime.listed_sandboxes.append(spared)
    ballast = small_disk / "ballast"
    with open(ballast, "wb", 0) as file:
        while free := os.statvfs(small_disk).f_bavail:
            file.write(bytes(4096 * free))
    for _ in range(2):
        with pytest.raises((ReconcileError, OSError), match="No space left"):
            agent.reconcile()
        assert (three.cpus(OWN), three.cpus(LS), three.cpus(BE)) == ("0-3", "0-3", "0-3")
        assert (small_disk / "snapshot.json").read_bytes() == snapshot
        assert not list(small_disk.glob(".*.tmp"))
    assert not (small_disk / "journal").exists()
    ballast.unlink()
    agent.reconcile()
    assert (three.cpus(OWN), three.cpus(LS), three.cpus(BE)) == ("1", "0,2-3", "0,2-3")
