"""Interrupts of devices that get their drivers while an owner wants none on its CPUs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.builders import machine
from tests.node.quiet.quiet_node import QuietNode, affinities
from tests.vm import guest
from tests.waiting import eventually

ROOT: Final = Path("/")
OWNED: Final = CpuSet(range(8, 16))
NVME: Final = Path("/sys/bus/pci/drivers/nvme")
PCI: Final = Path("/sys/bus/pci/devices")
SECONDS: Final = 2
"""The agent looks at each interrupt so often."""


def default() -> str:
    return Path("/proc/irq/default_smp_affinity").read_text()


def effective(number: int) -> CpuSet:
    path = Path(f"/proc/irq/{number}/effective_affinity_list")
    return CpuSet.parse(path.read_text().strip()) if path.exists() else CpuSet()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[QuietNode]:
    """It has an owner of half of the CPUs, and everything is as before afterwards."""
    before, default_before = affinities(ROOT), default()
    node = QuietNode(tmp_path, ROOT, machine(4, 4), "interrupts")
    node.own("a", str(OWNED))
    node.follow()
    yield node
    node.restore()
    present = affinities(ROOT)
    assert {number: present[number] for number in before} == before
    assert default() == default_before


def modprobe(*words: str) -> None:
    image = guest.kernel()
    assert image is not None
    subprocess.run(["modprobe", "-d", str(image.parents[1]), *words], check=True)


def test_new_interrupts_leave_the_owner_within_two_seconds(node: QuietNode) -> None:
    before = affinities(ROOT).keys()
    modprobe("virtio_rng")
    try:
        new = affinities(ROOT).keys() - before
        assert new, "the devices have interrupts"
        node.step(SECONDS)
        for number in new:
            assert not CpuSet.parse(affinities(ROOT)[number]) & OWNED
            assert not effective(number) & OWNED
        assert not node.refused() & new
        assert not node.problems()
        node.restore()
        for number in new:
            assert CpuSet.parse(affinities(ROOT)[number]) & OWNED, "as without the agent"
    finally:
        modprobe("-r", "virtio_rng")


def test_interrupts_that_still_wait_for_their_next_occurrence_are_told(node: QuietNode) -> None:
    """This machine has no interrupt remapping, and some of its devices are idle."""
    node.step(SECONDS)
    affinities_now = affinities(ROOT)
    told = [note for note in node.notes("interrupts") if "may occur once more" in note]
    waiting = [
        number
        for number, affinity in affinities_now.items()
        if effective(number) & OWNED and not CpuSet.parse(affinity) & OWNED
    ]
    (note,) = told
    assert int(note.split()[0]) == len(waiting), (note, waiting)


def test_interrupts_that_the_kernel_manages_are_told(node: QuietNode) -> None:
    before = affinities(ROOT).keys()
    address = next(
        path.name for path in PCI.iterdir() if (path / "class").read_text().startswith("0x0108")
    )
    (NVME / "bind").write_text(address)
    try:
        # The driver makes its queues, with an interrupt each, on a thread of its own.
        states = PCI / address / "nvme"
        eventually(
            "the disk has its queues",
            lambda: [path for path in states.glob("*/state") if path.read_text() == "live\n"],
        )
        node.step(SECONDS)
        new = affinities(ROOT).keys() - before
        (note,) = (each for each in node.notes("interrupts") if "the kernel manages" in each)
        assert "nvme" in note
        assert node.refused() & new
        for number in new - node.refused():
            assert not CpuSet.parse(affinities(ROOT)[number]) & OWNED
        assert not node.problems()
        writes = len(node.machine.writes)
        node.step(5)
        assert len(node.machine.writes) == writes
    finally:
        (NVME / "unbind").write_text(address)
    node.step(SECONDS)
    assert "nvme" not in str(node.notes("interrupts"))
    assert not node.problems()
