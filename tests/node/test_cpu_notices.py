"""The files with the CPUs of containers with devices; test_node_local has those of owners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.allocate.pools import Decision
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import LinuxResources
from agent.model.pod.qos import QoS
from agent.model.snapshot import PodWanted, Wanted
from agent.node.cpu_notices import CpuNotices

CARD = "card", "main"


def decision(cpus: str, numa_nodes: str = "1") -> Decision:
    """Pod `card` has the container `main` with these CPUs, and `side`, which has no devices."""
    shared = Wanted(LinuxResources("0-7"))
    near = Wanted(LinuxResources(cpus), numa_nodes=numa_nodes)
    pod = PodWanted("ns/card", QoS.LS, shared, {"main": near, "side": shared})
    return Decision((), {}, (), {"card": pod})


@pytest.fixture
def notices(tmp_path: Path) -> CpuNotices:
    return CpuNotices(str(tmp_path))


def contents(state: Path) -> dict[tuple[str, str], tuple[str, int]]:
    """CPUs and generation, by pod and container."""
    read = {}
    for path in state.glob("containers/*/*/cpus"):
        value = json.loads(path.read_text())
        read[path.parts[-3], path.parts[-2]] = value["cpus"], value["generation"]
    return read


def test_a_container_with_devices_follows_its_pool(tmp_path: Path, notices: CpuNotices) -> None:
    for after, cpus in enumerate(("4-7", "4-6", "4-7"), 1):
        for _ in range(2):
            assert notices.write(decision(cpus), dynamic=False) == []
            assert contents(tmp_path) == {CARD: (cpus, after)}
    restarted = CpuNotices(str(tmp_path))
    assert restarted.write(decision("4-7"), dynamic=False) == []
    assert contents(tmp_path) == {CARD: ("4-7", 3)}, "a restart tells nothing new"
    assert restarted.write(decision("4-5"), dynamic=False) == []
    assert contents(tmp_path) == {CARD: ("4-5", 4)}
    assert restarted.write(decision("0-7", numa_nodes=""), dynamic=False) == []
    assert contents(tmp_path) == {CARD: ("0-7", 5)}, "it has the file as long as its pod exists"
    assert restarted.write(Decision((), {}, (), {}), dynamic=False) == []
    assert contents(tmp_path) == {}


def test_containers_read_what_a_restore_left_them(tmp_path: Path, notices: CpuNotices) -> None:
    notices.write(decision("4-7"), dynamic=False)
    notices.restored({CARD: CpuSet.parse("0-7"), ("card", "side"): CpuSet.parse("0-7")})
    assert contents(tmp_path) == {CARD: ("0-7", 2)}
    assert CpuNotices(str(tmp_path)).write(decision("4-7"), dynamic=False) == []
    assert contents(tmp_path) == {CARD: ("4-7", 3)}
