"""The files with the CPUs of containers with devices and of mixed ones; test_node_local has those
of owners."""

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


MIXED = "mixed", "main"


def mixed(own: str, shared: str | None) -> Decision:
    """Pod `mixed` has the container `main`; it shares nothing if `shared` is None."""
    cpus = CpuSet.parse(own) | CpuSet.parse(shared or "")
    wanted = Wanted(LinuxResources(str(cpus)), exclusive=True, shared=shared)
    return Decision((), {}, (), {"mixed": PodWanted("ns/mixed", QoS.LSE, wanted, {"main": wanted})})


class Warned:
    """Follows decisions. `during`: the file of MIXED during each wait."""

    def __init__(self, state: Path, seconds: float = 0.25) -> None:
        self.state = state
        self.notices = CpuNotices(str(state), seconds)
        self.during: list[dict[str, object]] = []

    def warn(self, decision: Decision, *running: tuple[str, str]) -> None:
        seconds, failures = self.notices.warn(decision, running)
        assert failures == []
        assert seconds in (0, 0.25)
        if seconds:
            self.during.append(self.file())

    def follow(self, decision: Decision, *running: tuple[str, str]) -> dict[str, object]:
        self.warn(decision, *running)
        assert self.notices.write(decision, dynamic=False) == []
        return self.file()

    def file(self) -> dict[str, object]:
        path = self.state / "containers/mixed/main/cpus"
        read: dict[str, object] = json.loads(path.read_text())
        return read


def test_a_mixed_container_is_warned_before_it_loses_cpus(tmp_path: Path) -> None:
    warned = Warned(tmp_path)
    follow, during = warned.follow, warned.during
    first = {"cpus": "0-7", "generation": 1, "own": "0-1", "shared": "2-7"}
    assert follow(mixed("0-1", "2-7")) == first
    less = follow(mixed("0-1", "2-3"), MIXED)
    assert during == [{**first, "generation": 2, "leaving": "4-7"}]
    assert less == {"cpus": "0-3", "generation": 3, "own": "0-1", "shared": "2-3"}
    follow(mixed("0-1", "2-7"), MIXED)
    assert len(during) == 1, "it gains CPUs without a warning"
    follow(mixed("4-5", "0-3,6-7"), MIXED)
    assert len(during) == 1, "its own CPUs become others that it has"
    follow(mixed("4-5", "0-3"))
    assert len(during) == 1, "it does not run"
    assert follow(mixed("4-5", ""), MIXED)["shared"] == ""
    assert during[-1]["leaving"] == "0-3"
    assert follow(mixed("4", None), MIXED) == {"cpus": "4", "generation": 10}
    assert len(during) == 3
    assert during[-1]["leaving"] == "5"
    assert follow(mixed("3", None), MIXED)["generation"] == 11
    assert len(during) == 3, "it is mixed no more"


def test_a_killed_agents_warning_is_repeated(tmp_path: Path) -> None:
    killed, after = Warned(tmp_path), mixed("0-1", "2-3")
    killed.follow(mixed("0-1", "2-7"))
    killed.warn(after, MIXED)
    agent = Warned(tmp_path)
    now = agent.follow(after, MIXED)
    assert [each["generation"] for each in (*killed.during, *agent.during)] == [2, 2]
    assert now == {"cpus": "0-3", "generation": 3, "own": "0-1", "shared": "2-3"}


def test_without_a_time_nobody_is_warned(tmp_path: Path) -> None:
    warned = Warned(tmp_path, 0.0)
    warned.follow(mixed("0-1", "2-7"))
    assert warned.follow(mixed("0-1", "2-3"), MIXED)["generation"] == 2
    assert warned.during == []


def test_containers_read_what_a_restore_left_them(tmp_path: Path, notices: CpuNotices) -> None:
    notices.write(decision("4-7"), dynamic=False)
    notices.restored({CARD: CpuSet.parse("0-7"), ("card", "side"): CpuSet.parse("0-7")})
    assert contents(tmp_path) == {CARD: ("0-7", 2)}
    assert CpuNotices(str(tmp_path)).write(decision("4-7"), dynamic=False) == []
    assert contents(tmp_path) == {CARD: ("4-7", 3)}
