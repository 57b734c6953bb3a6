"""Debian's irqbalance on this machine keeps interrupts off the CPU of an owner."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from agent.cgroup import irqbalance
from agent.cgroup.irqbalance import FOLDER, Irqbalance
from agent.cgroup.limits import IRQBALANCE_BANNED
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import CRIO_INTERRUPTS
from tests import tools
from tests.node.quiet.quiet_node import QuietNode, affinities
from tests.waiting import eventually

SCAN_SECONDS = 1
SCANS = 4


@pytest.fixture
def balancer(here: QuietNode) -> Iterator[int]:
    """The number of an irqbalance that moves this machine's interrupts."""
    program = tools.unpacked("irqbalance")
    if program is None:
        pytest.skip("no irqbalance here (tests/tools/prepare fetches it)")
    folder = Path("/", FOLDER)
    if folder.exists():
        pytest.skip("this machine has an irqbalance of its own")
    folder.mkdir()
    environment = {"PATH": os.environ["PATH"]}
    words = [program, "--foreground", f"--interval={SCAN_SECONDS}"]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    try:
        socket = folder / f"irqbalance{process.pid}.sock"
        eventually("irqbalance has its socket", lambda: socket.exists() or process.poll())
        if process.poll() is not None:
            pytest.skip(f"irqbalance ends with {process.returncode} on this machine")
        yield process.pid
    finally:
        process.terminate()
        process.wait()
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def step(node: QuietNode) -> None:
    node.now = time.monotonic()
    node.quiet.step()


def banned(pid: int) -> CpuSet:
    """What it says itself, also while it sleeps."""
    with mock.patch.object(irqbalance, "_SECONDS", 10.0 * SCAN_SECONDS):
        return CpuSet.parse(Irqbalance("/", dict).read(f"/{pid}", IRQBALANCE_BANNED))


def test_irqbalance_moves_no_interrupt_to_an_owner(here: QuietNode, balancer: int) -> None:
    last = (os.cpu_count() or 1) - 1
    before = banned(balancer)
    here.now = time.monotonic()
    here.own("a", str(last), {CRIO_INTERRUPTS: "disable"})
    here.follow()
    assert not here.problems()
    deadline = time.monotonic() + SCANS * SCAN_SECONDS

    def quiet_for_some_scans() -> bool:
        step(here)
        return time.monotonic() > deadline

    eventually("some scans", quiet_for_some_scans)
    assert last in banned(balancer)

    def leaves() -> bool:
        step(here)
        present = affinities(here.root)
        on_last = {number for number, text in present.items() if last in CpuSet.parse(text)}
        return on_last <= here.refused()

    eventually("no interrupt that can be moved is on the last CPU", leaves)
    here.restore()
    eventually("irqbalance has its CPUs back", lambda: banned(balancer) == before)
