"""Writes that fail in a pass: the kernel refuses them, the group is removed, the disk is full."""

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
def three_pods(world: World) -> World:
    """An LSE pod that claims CPU 1, an LS and a BE pod, all running on 0-3."""
    world.container(world.sandbox("own", "LSE", "1"))
    world.container(world.sandbox("ls", "LS"))
    world.container(world.sandbox("be", "BE", parent="/kubepods/besteffort/podbe"))
    return world


def before_writes(monkeypatch: pytest.MonkeyPatch, group: str, action: Callable[[], None]) -> None:
    """Calls `action` before each write to the cpuset of the group."""
    real = Handles.write

    def write(self: Handles, path: str, data: bytes) -> None:
        if path.endswith(f"/{group}/cpuset.cpus"):
            action()
        real(self, path, data)

    monkeypatch.setattr(Handles, "write", write)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EINVAL, errno.EACCES, errno.ENOSPC])
def test_refused_write_is_reported_and_blocks_only_the_owner(
    three_pods: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    agent = three_pods.agent()
    with monkeypatch.context() as patch:
        before_writes(patch, LS, refuse)
        for _ in range(2):
            with pytest.raises(ReconcileError, match=f"ns/ls main: .*{os.strerror(number)}"):
                agent.reconcile()
            assert (three_pods.cpus(OWN), three_pods.cpus(LS), three_pods.cpus(BE)) == (
                "1",
                "0-3",
                "0,2-3",
            )
            blocked = three_pods.snapshot().pods["own"].each.blocked
            assert blocked == "a container of pod ns/ls still holds CPUs 1"
            assert three_pods.metric(OTHER_CPUS) == 1
    agent.reconcile()
    assert (three_pods.cpus(OWN), three_pods.cpus(LS)) == ("1", "0,2-3")
    assert three_pods.metric(OTHER_CPUS) == 0
    assert three_pods.snapshot().pods["own"].each.blocked == ""


def test_group_removed_between_plan_and_write_is_not_a_failure(
    three_pods: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = three_pods.cpuset / LS
    before_writes(monkeypatch, LS, lambda: shutil.rmtree(removed, ignore_errors=True))
    three_pods.agent().reconcile()
    assert not removed.exists()
    assert (three_pods.cpus(OWN), three_pods.cpus(BE)) == ("1", "0,2-3")
    assert three_pods.snapshot().pods["own"].each.blocked == ""


@pytest.fixture
def small_disk(three_pods: World) -> Iterator[Path]:
    """A state folder on a file system of 32 KiB."""
    if os.geteuid():
        pytest.skip("needs root: mounts a tmpfs")
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(three_pods.state)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("can't mount a tmpfs here")
    yield three_pods.state
    subprocess.run(["umount", "-l", str(three_pods.state)], check=True)


def test_full_disk_stops_writes_but_not_the_agent(three_pods: World, small_disk: Path) -> None:
    """Without space for the journal, no cpuset is changed."""
    lse_sandbox = three_pods.runtime.listed_sandboxes.pop(0)
    agent = three_pods.agent()
    agent.reconcile()
    snapshot = (small_disk / "snapshot.json").read_bytes()
    three_pods.runtime.listed_sandboxes.append(lse_sandbox)
    ballast = small_disk / "ballast"
    with open(ballast, "wb", 0) as file:
        while free := os.statvfs(small_disk).f_bavail:
            file.write(bytes(4096 * free))
    for _ in range(2):
        with pytest.raises((ReconcileError, OSError), match="No space left"):
            agent.reconcile()
        assert (three_pods.cpus(OWN), three_pods.cpus(LS), three_pods.cpus(BE)) == (
            "0-3",
            "0-3",
            "0-3",
        )
        assert (small_disk / "snapshot.json").read_bytes() == snapshot
        assert not list(small_disk.glob(".*.tmp"))
    assert not (small_disk / "journal").exists()
    ballast.unlink()
    agent.reconcile()
    assert (three_pods.cpus(OWN), three_pods.cpus(LS), three_pods.cpus(BE)) == (
        "1",
        "0,2-3",
        "0,2-3",
    )
