from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.files import boot_id
from agent.model import snapshot as snapshots
from agent.model.audit import AuditEvent, Record
from agent.model.cpu.cpuset import CpuSet
from agent.node.sampler import NodeSampler
from agent.telemetry.audit import Trail
from tests.fixtures import trees
from tests.view.top import nodes

NOW = 1_700_000_000.0
SHAPE = (2, 1, 1, 2, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trees.write(str(tmp_path / "root"), trees.machine(*SHAPE))
    stat(tmp_path, {0: (0, 0), 1: (0, 0), 2: (0, 0), 3: (0, 0)})
    (tmp_path / "state").mkdir()
    return tmp_path


def sampler(folder: Path) -> NodeSampler:
    return NodeSampler("n", str(folder / "root"), str(folder / "state"), lambda: NOW)


def stat(folder: Path, times: dict[int, tuple[int, int]]) -> None:
    """By CPU, busy and idle ticks."""
    lines = [f"cpu{cpu} {busy} 0 0 {idle}" for cpu, (busy, idle) in times.items()]
    (folder / "root" / "proc" / "stat").write_text("\n".join(lines) + "\n")


def decide(folder: Path, shared: int = 2) -> None:
    text = snapshots.encode(nodes.snapshot(nodes.machine(*SHAPE), shared))
    temporary = folder / "state" / "new"
    temporary.write_bytes(text.replace(b'"boot_id":"b"', f'"boot_id":"{boot_id()}"'.encode()))
    os.replace(temporary, folder / "state" / "snapshot.json")


@pytest.fixture
def doorbell(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as it:
        it.bind(str(folder / "state" / "doorbell.sock"))
        yield it


def test_loads_between_two_looks(folder: Path) -> None:
    look = sampler(folder)
    assert look.see().loads == bytes([255] * 4)
    stat(folder, {0: (50, 50), 1: (0, 100), 2: (100, 0), 3: (0, 0)})
    seen = look.see()
    assert seen.loads == bytes([50, 0, 100, 255])
    assert seen.load_by_cpu == {0: 0.5, 1: 0.0, 2: 1.0, 3: None}


def test_decisions_as_they_come(folder: Path, doorbell: socket.socket) -> None:
    look = sampler(folder)
    assert look.see().node.pods == ()
    decide(folder)
    seen = look.see()
    assert seen.node.pods[0].title == "ml/train"
    assert seen.problems == ()
    assert seen.decided_seconds is not None
    assert look.generation == 7
    decide(folder, shared=4)
    assert len(look.see().node.pods) == 6
    assert look.see().node is look.see().node


def test_an_agent_that_ended(folder: Path, doorbell: socket.socket) -> None:
    decide(folder)
    look = sampler(folder)
    doorbell.close()
    assert look.see().problems == ("the agent does not run: these are its last decisions",)


def test_no_agent(folder: Path) -> None:
    seen = sampler(folder).see()
    assert seen.problems == (f"no agent uses the state folder {folder}/state",)
    assert len(seen.node.cpus) == 4


def test_decisions_that_can_not_be_read(folder: Path, doorbell: socket.socket) -> None:
    """The last ones stay."""
    decide(folder)
    look = sampler(folder)
    look.see()
    (folder / "state" / "snapshot.json").write_bytes(b"{")
    seen = look.see()
    assert "the agent's decisions can't be read" in seen.problems[0]
    assert len(seen.node.pods) == 4
    decide(folder)
    assert look.see().problems == ()


def test_a_cpu_goes_offline(folder: Path) -> None:
    look = sampler(folder)
    look.see()
    shutil.rmtree(folder / "root")
    files = trees.offline(trees.machine(*SHAPE), CpuSet((3,)))
    trees.write(str(folder / "root"), files)
    stat(folder, {0: (0, 0)})
    assert [cpu.id for cpu in look.see().node.cpus] == [0, 1, 2]


def test_changes_of_the_trail(folder: Path) -> None:
    look = sampler(folder)
    assert look.see().recent.changes == ()
    trail = Trail(str(folder / "state"), "agent", 1 << 20, lambda: NOW - 5)
    pod = {"namespace": "ml", "pod": "train", "uid": "t"}
    trail.append([Record(event=AuditEvent.CPUS_ASSIGNED, after="1-2", **pod)])
    assert [each.pod for each in look.see().recent.changes] == ["ml/train"]
    pool = Record(
        event=AuditEvent.POOL_CHANGED, field="ls-pool", numa_node=0, before="0-1", after="0"
    )
    trail.append([pool])
    assert [each.cpus for each in look.see().recent.pools] == [2, 1]


def test_samples_are_kept(folder: Path) -> None:
    decide(folder)
    look = sampler(folder)
    look.see()
    stat(folder, {cpu: (cpu * 25, 100 - cpu * 25) for cpu in range(4)})
    first, second = look.see().samples
    assert first.counts == second.counts == {"own": 3, "LS": 1, "BE": 2}
    assert first.loads["own"] is None
    assert second.loads == {"own": 0.5, "LS": 0.0, "BE": 0.375}
