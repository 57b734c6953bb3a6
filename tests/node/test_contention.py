"""The agent's looks at real cgroups, and what it keeps of them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Controllers, Hierarchy, mounted
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.node.contention import (
    LONG,
    SHORT,
    CgroupTasks,
    Contention,
    NodeWaits,
    UsualWaits,
    finding,
    read,
    too_long,
)
from agent.telemetry.metrics import AgentMetrics
from agent.usage import WAITS_FILE
from agent.usage.contention import CpuWait, Party, PartyKind
from agent.view.contention import shown
from tests.builders import pod
from tests.cgroup.real_groups import RealGroups
from tests.waiting import eventually

ROOT = "/sys/fs/cgroup"
SPIN = (sys.executable, "-c", "while True: pass")


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    names = ("cpu", "cpuacct", "cpuset")
    mounts = {name: mount for name in names if not os.geteuid() and (mount := mounted(ROOT, name))}
    if "cpuset" not in mounts or "cpu" not in mounts:
        pytest.skip("no cgroups of the cpu and cpuset controllers can be made here")
    if mounts["cpu"][0] == 2:
        mounts.pop("cpuacct", None)
    real = RealGroups(mounts)
    yield real
    real.close()


def running(name: str, qos: str, group: str) -> Pod:
    return pod(name, qos, containers=(Container(name, name, ContainerState.RUNNING, group),))


def test_a_pod_that_waits_for_another_one_is_told_so(tmp_path: Path, groups: RealGroups) -> None:
    cpu = CpuSet([max(os.sched_getaffinity(0))])
    pods = []
    for name, qos, processes in (("api", "LS", 1), ("hog", "BE", 3), ("idle", "LS", 0)):
        groups.make(f"/{name}")
        group = groups.make(f"/{name}/main", cpu)
        pods.append(running(name, qos, group))
        for _ in range(processes):
            groups.process(group, *SPIN)
    woken: list[None] = []
    hierarchy = Hierarchy(ROOT)
    tasks = CgroupTasks(Controllers(ROOT, hierarchy.handles), hierarchy)
    contention = Contention("/", str(tmp_path), tasks, lambda: woken.append(None), lambda: 7.0)
    contention.follow(pods)

    def named() -> bool:
        contention.step()
        sentences = contention.sentences()
        return "hog" in sentences and "ns/hog (BE)" in sentences.get("api", "")

    eventually("the hog is named", named)
    assert "idle" not in contention.sentences()
    assert woken, "a new wait is reported at once"
    stored = read(str(tmp_path / WAITS_FILE))
    assert stored.at == 7.0
    assert {"ns/api", "ns/hog"} <= {wait.pod for wait in stored.too_long}
    assert stored.waited > 2 * LONG
    assert "ns/api waited " in finding(stored)
    metrics = AgentMetrics()
    metrics.follow_waits(contention.waits)
    page = metrics.render()
    assert 'topolet_pod_cpu_wait_ratio{cause="taken",namespace="ns",pod="api"} ' in page
    taker = 'topolet_pod_cpu_taken_ratio{kind="pod",namespace="ns",pod="api",taker="ns/hog"} '
    assert taker in page
    contention.follow([])
    contention.step()
    assert not contention.sentences()
    hierarchy.close()


def test_groups_that_are_gone_have_no_cpus_and_no_threads(groups: RealGroups) -> None:
    hierarchy = Hierarchy(ROOT)
    tasks = CgroupTasks(Controllers(ROOT, hierarchy.handles), hierarchy)
    group = groups.make("/main")
    process = groups.process(group)
    assert process.pid in tasks.threads(group)
    assert tasks.cpus(group)
    assert (tasks.threads(f"{group}/gone"), tasks.cpus(f"{group}/gone")) == ((), CpuSet())
    hierarchy.close()


@pytest.mark.parametrize(
    ("waited", "usual", "long"),
    [
        (LONG, None, True),
        (LONG - 0.01, None, False),
        (SHORT, 0.0, True),
        (SHORT - 0.01, 0.0, False),
        (0.06, 0.03, False),
        (0.09, 0.03, True),
    ],
)
def test_a_wait_is_too_long_by_a_bound_or_by_the_history_of_the_pod(
    waited: float, usual: float | None, long: bool
) -> None:
    assert too_long(waited, usual) is long


def test_what_is_usual_is_known_after_enough_looks_and_follows_the_last_hour() -> None:
    waits = UsualWaits()
    for _ in range(19):
        waits.add({"a": 0.5, "b": 0.0})
    assert waits.usual() == {}
    waits.add({"a": 0.5, "b": 0.0})
    assert waits.usual() == {"a": 0.5, "b": 0.0}
    for _ in range(240):
        waits.add({"a": 0.25})
    assert waits.usual() == {"a": 0.25}, "a pod that is gone is forgotten"


def test_a_node_is_bad_when_it_waits_more_than_usual() -> None:
    assert finding(NodeWaits(1.0, 0.05, {"": 0.05})) == ""
    assert finding(NodeWaits(1.0, 0.6, {"": 0.031})) == (
        "its pods wait 600 ms of each second for CPUs, usually 31"
    )
    api = Party(PartyKind.POD, "shop/api", "LS")
    wait = shown(CpuWait(api, CpuSet([1]), 0.2, 0.2, 0.0, ()), 15.0)
    text = finding(NodeWaits(1.0, 0.2, {}, (wait,) * 7))
    assert text.count("shop/api waited 200 ms of each second for CPUs 1: 200 ms its own quota") == 5
    assert text.endswith("; 2 more pods wait")


def test_a_state_folder_that_is_full_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / WAITS_FILE).mkdir()
    tasks = CgroupTasks(Controllers(ROOT), Hierarchy(ROOT))
    contention = Contention("/", str(tmp_path), tasks, lambda: None)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            contention.step()
    assert len(caplog.records) == 1
    assert WAITS_FILE in caplog.text


def test_a_torn_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / WAITS_FILE).write_text('{"at": "x"}')
    with pytest.raises(JsonError, match="at"):
        read(str(tmp_path / WAITS_FILE))
