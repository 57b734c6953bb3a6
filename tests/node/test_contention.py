"""The agent's looks at real cgroups, and what it keeps of them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from agent.cgroup.hierarchy import Controllers, Hierarchy, mounted
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.node.contention import (
    LONG,
    SHORT,
    CgroupTasks,
    ConsumedMoment,
    Contention,
    NodeWaits,
    Seen,
    UsualWaits,
    finding,
    moment,
    read,
    siblings,
    too_long,
)
from agent.telemetry.metrics import AgentMetrics
from agent.telemetry.usage_metrics import follow_waits
from agent.usage import WAITS_FILE
from agent.usage.contention import CpuWait, Interval, Party, PartyKind
from agent.usage.machine import Machine
from agent.usage.pressure import Consumption, Pressure, SharedCard
from agent.usage.sampler import UsageSampler
from agent.view.contention import Disturbance, shown
from tests.builders import machine, pod
from tests.cgroup.real_groups import RealGroups
from tests.waiting import eventually

ROOT = "/sys/fs/cgroup"
HOG = Party(PartyKind.POD, "ns/hog", "BE")
API = Party(PartyKind.POD, "ns/api", "LS")
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


def watching(
    folder: Path,
    tasks: CgroupTasks,
    woken: list[None],
    moments: Iterable[ConsumedMoment] = (),
    cards: tuple[SharedCard, ...] = (),
) -> Contention:
    given = iter(moments)
    return Contention(
        "/",
        str(folder),
        tasks,
        lambda: next(given, ConsumedMoment()),
        lambda: cards,
        lambda: {HOG: 1 << 20},
        lambda: woken.append(None),
        lambda: 7.0,
    )


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
    contention = watching(tmp_path, tasks, woken)
    contention.follow(pods, machine(1, 2))

    def named() -> bool:
        contention.step()
        sentences = contention.sentences()
        return "hog" in sentences and "ns/hog (BE)" in "; ".join(sentences.get("api", ()))

    eventually("the hog is named", named)
    assert "idle" not in contention.sentences()
    assert woken, "a new wait is reported at once"
    stored = read(str(tmp_path / WAITS_FILE))
    assert stored.at == 7.0
    assert {"ns/api", "ns/hog"} <= {of.cpu.pod for of in stored.disturbed}
    assert stored.waited > 2 * LONG
    assert "ns/api waited " in finding(stored)
    metrics = AgentMetrics()
    follow_waits(metrics, contention.waits, contention.delays)
    page = metrics.render()
    assert 'topolet_pod_cpu_wait_ratio{cause="taken",namespace="ns",pod="api"} ' in page
    taker = 'topolet_pod_cpu_taken_ratio{kind="pod",namespace="ns",pod="api",taker="ns/hog"} '
    assert taker in page
    contention.follow([], machine(1, 2))
    contention.step()
    assert not contention.sentences()
    hierarchy.close()


def test_a_pod_that_is_stalled_or_shares_a_card_is_told_so_without_a_wait(tmp_path: Path) -> None:
    def at(seconds: float, stalled: float, memory_bytes: int) -> ConsumedMoment:
        of_api = Consumption(1 << 20, stalled_seconds={"memory": stalled})
        return ConsumedMoment(seconds, {API: of_api, HOG: Consumption(memory_bytes)})

    tasks = CgroupTasks(Controllers(ROOT), Hierarchy(ROOT))
    moments = (at(1.0, 0.0, 1 << 20), at(1.0, 0.0, 1 << 20), at(16.0, 3.0, 151 << 20))
    cards = (SharedCard("ns/hog", "GPU-1", 97, (("ns/api", 40),)),)
    contention = watching(tmp_path, tasks, [], moments, cards)
    pods = [running("api", "LS", "/gone/api"), running("hog", "BE", "/gone/hog")]
    contention.follow(pods, machine(1, 2))
    contention.step()
    contention.step()
    assert set(contention.sentences()) == {"hog"}
    contention.step()
    assert contention.sentences() == {
        "api": (
            "ns/api was stalled 200 ms of each second for memory: ns/hog (BE) grew by 10 MiB/s, "
            "ns/hog (BE) is 150 MiB above its request",
        ),
        "hog": ("ns/hog shares GPU GPU-1, which is 97 % busy, with ns/api (40 %)",),
    }
    assert contention.waits() == ()


def test_a_short_wait_of_a_pod_that_is_stalled_is_not_too_long() -> None:
    waits = {
        pod: CpuWait(pod, CpuSet([0]), waited, 0.0, waited, ())
        for pod, waited in ((HOG, 0.2), (API, 0.05))
    }
    stalled = (Pressure(API, "memory", 0.5, 0.0, ()),)
    now = Seen(Interval(1.0, {}), {}, waits, stalled, (), (), ())
    assert now.disturbs(API, None)
    assert [wait.pod for wait in now.long_waits({})] == [HOG]
    assert [wait.pod for wait in now.long_waits({API.name: 0.01})] == [HOG, API]


def test_a_moment_is_what_the_sampler_has_read(groups: RealGroups) -> None:
    group = groups.make("/main")
    hierarchy = Hierarchy(ROOT)
    sampler = UsageSampler(Machine("/"), CgroupTasks(Controllers(ROOT), hierarchy), lambda: 5.0)
    pods = [running("api", "LS", group)]
    assert moment(sampler, pods).at == 0.0
    sampler.sample()
    read_at = moment(sampler, pods)
    assert (read_at.at, API in read_at.consumed) == (5.0, True)
    hierarchy.close()


def test_the_siblings_of_a_cpu_are_all_of_its_core() -> None:
    smt = machine(1, 4)
    cores = [msgspec.structs.replace(cpu, core=cpu.id % 2) for cpu in smt.cpus]
    by_cpu = siblings(msgspec.structs.replace(smt, cpus=tuple(cores)))
    assert [str(by_cpu[cpu]) for cpu in range(4)] == ["0,2", "1,3", "0,2", "1,3"]


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
    assert finding(NodeWaits(1.0, 1.25, {"": 1.2})) == "", "many pods, each with a short wait"
    assert finding(NodeWaits(1.0, 0.6, {"": 0.031})) == (
        "its pods wait 600 ms of each second for CPUs, usually 31"
    )
    api = Party(PartyKind.POD, "shop/api", "LS")
    wait = Disturbance(shown(CpuWait(api, CpuSet([1]), 0.2, 0.2, 0.0, ()), 15.0))
    nothing = Seen(Interval(1.0, {}), {}, {}, (), (), (), ())
    text = finding(NodeWaits.of(1.0, nothing, {}, (wait,) * 7))
    assert text.count("shop/api waited 200 ms of each second for CPUs 1: 200 ms its own quota") == 5
    assert text.endswith("; 2 more pods are disturbed")


def test_a_state_folder_that_is_full_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / WAITS_FILE).mkdir()
    tasks = CgroupTasks(Controllers(ROOT), Hierarchy(ROOT))
    contention = watching(tmp_path, tasks, [])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            contention.step()
    assert len(caplog.records) == 1
    assert WAITS_FILE in caplog.text


def test_a_torn_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / WAITS_FILE).write_text('{"at": "x"}')
    with pytest.raises(JsonError, match="at"):
        read(str(tmp_path / WAITS_FILE))
