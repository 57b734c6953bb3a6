"""Queues of interfaces in files, and of one of this machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.node.quiet.packet_steering import QUEUES_A_LOOK, RETRY_SECONDS
from tests.builders import machine
from tests.node.quiet.quiet_node import QuietNode

NET: Final = "sys/class/net"
OFF: Final = "00000000"
ORIGINAL: Final = {
    "eth0/queues/rx-0/rps_cpus": "000000ff",
    "eth0/queues/rx-1/rps_cpus": OFF,
    "eth0/queues/tx-0/xps_cpus": "0000000c",
    "eth0/queues/tx-1/xps_cpus": "00000003",
    "lo/queues/rx-0/rps_cpus": OFF,
}
NARROWED: Final = ORIGINAL | {
    "eth0/queues/rx-0/rps_cpus": "000000f3",
    "eth0/queues/tx-0/xps_cpus": OFF,
}


def make_queues(root: Path, masks: dict[str, str]) -> None:
    for name, mask in masks.items():
        path = root / NET / name
        path.parent.mkdir(parents=True)
        path.write_text(f"{mask}\n")


def masks(root: Path) -> dict[str, str]:
    """Each with eight digits, as the kernel writes them."""
    return {
        path.relative_to(root / NET).as_posix(): path.read_text().strip().zfill(8)
        for path in sorted((root / NET).glob("*/queues/*/*ps_cpus"))
    }


@pytest.fixture
def node(tmp_path: Path) -> QuietNode:
    root = tmp_path / "machine"
    make_queues(root, ORIGINAL)
    (root / NET / "eth0/device").mkdir()
    # An interface with one queue has a file of XPS that can't be read.
    (root / NET / "lo/queues/tx-0").mkdir()
    return QuietNode(tmp_path, root, machine(2, 4), "packet-steering")


def test_queues_steer_no_packets_to_the_cpus_of_an_owner(node: QuietNode) -> None:
    node.own("a", "2-3")
    node.follow()
    node.step()
    assert masks(node.root) == NARROWED
    assert not node.quiet.state.failed
    node.pods.clear()
    node.follow()
    assert masks(node.root) == ORIGINAL
    assert not node.journal.values


def test_they_come_back_by_restore(node: QuietNode) -> None:
    node.own("a", "2-3")
    node.follow()
    node.restore()
    assert masks(node.root) == ORIGINAL


def test_a_queue_that_can_t_be_written_is_tried_again_each_minute(node: QuietNode) -> None:
    node.machine.refusals = {"/eth0/rx-0": errno.EPERM}
    node.own("a", "2-3")
    node.follow()
    for _ in range(int(RETRY_SECONDS)):
        node.step()
        (problem,) = node.problems()
        assert "1 queue can't be written" in problem
    assert [group for group, _, _ in node.machine.writes].count("/eth0/rx-0") == 2
    assert masks(node.root)["eth0/queues/tx-0/xps_cpus"] == OFF
    node.machine.refusals = {}
    node.step(int(RETRY_SECONDS) + 1)
    assert masks(node.root) == NARROWED
    assert not node.problems()


def test_new_interfaces_are_looked_at_first_and_others_in_turns(node: QuietNode) -> None:
    number = 3 * QUEUES_A_LOOK
    make_queues(node.root, {f"veth/queues/rx-{queue}/rps_cpus": OFF for queue in range(number)})
    node.own("a", "2-3")
    node.follow()
    before = node.machine.reads
    node.step()
    assert node.machine.reads - before <= QUEUES_A_LOOK + 2, "and the two that have other contents"
    make_queues(node.root, {"new/queues/rx-0/rps_cpus": "00000004"})
    late = node.root / NET / f"veth/queues/rx-{number - 1}/rps_cpus"
    late.write_text("00000005\n")
    node.step()
    assert masks(node.root)["new/queues/rx-0/rps_cpus"] == OFF
    node.step(4)
    assert late.read_text().strip() == "00000001"
    assert masks(node.root)["eth0/queues/rx-0/rps_cpus"] == "000000f3"


def test_an_agent_that_starts_again_gives_no_queue_back(node: QuietNode) -> None:
    number = 3 * QUEUES_A_LOOK
    make_queues(
        node.root, {f"veth/queues/rx-{each}/rps_cpus": "0000000f" for each in range(number)}
    )
    node.own("a", "2-3")
    node.follow()
    node.step(3)
    before, writes = masks(node.root), len(node.machine.writes)
    node.start()
    node.follow()
    node.step(4)
    assert masks(node.root) == before
    assert len(node.machine.writes) == writes


@pytest.fixture
def loopback() -> Iterator[Path]:
    """The mask of a queue of this machine, which is as before afterwards."""
    path = Path("/sys/class/net/lo/queues/rx-0/rps_cpus")
    if os.geteuid() or (os.cpu_count() or 1) < 2:
        pytest.skip("needs root and two CPUs")
    if not path.exists():
        pytest.skip("this kernel has no RPS")
    before = path.read_text()
    try:
        path.write_text("3\n")
    except OSError as error:
        pytest.skip(f"the queue can't be written here: {error.strerror}")
    yield path
    path.write_text(before)


def test_a_queue_of_this_machine_steers_to_one_cpu_less(tmp_path: Path, loopback: Path) -> None:
    node = QuietNode(tmp_path, Path("/"), machine(1, os.cpu_count() or 1), "packet-steering")
    node.own("a", "1")
    node.follow()
    assert CpuSet.parse_mask(loopback.read_text().strip()) == CpuSet([0])
    node.restore()
    assert CpuSet.parse_mask(loopback.read_text().strip()) == CpuSet([0, 1])
