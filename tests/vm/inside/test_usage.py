"""What the agent reads of pods on a real cgroup v2 kernel, and whom it names for what they wait."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.discover import cpus
from agent.discover.cpus import TopologyView
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.settings.agent import RestoreSettings
from agent.node.contention import (
    CgroupTasks,
    ConsumedMoment,
    Contention,
    disturbance_now,
    looked_pods,
    moment,
)
from agent.usage.contention import CpuWait, PartyKind
from agent.usage.machine import Machine
from agent.usage.sampler import UsageSampler
from tests import builders
from tests.cgroup.real_groups import RealGroups
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import run_pod, update_container
from tests.integration.harness import fresh_node, kernel_group
from tests.vm.inside.loads import DISK, GROW, MIB, grow, load_disk
from tests.waiting import eventually

ROOT = "/sys/fs/cgroup"
UNIT = "/system.slice/backup.service"
SPIN = ("sh", "-c", "while :; do :; done")
READ_AGAIN = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
pages = mmap.mmap(file, int(sys.argv[2]) << 20, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
while True:
    pages[::4096]
"""
"""Touches each page of the first megabytes of a disk, again and again."""


class Groups(RealGroups):
    """Runs pods in groups of v2 that are named as by a kubelet, and lets the agent read them."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(("cpu", "cpuset", "memory", "io"), (2, ROOT)))
        self.pods: list[Pod] = []
        self._hierarchy = Hierarchy(ROOT)
        self._tasks = CgroupTasks(Controllers(ROOT, self._hierarchy.handles), self._hierarchy)

    def run(self, name: str, qos: str, cpus: str, *commands: tuple[str, ...]) -> str:
        """Runs the commands in a new pod on these CPUs. Returns its group."""
        kube_class = "besteffort" if qos == "BE" else "burstable"
        of_pod = f"/kubepods/{kube_class}/pod{name}"
        for group in ("/kubepods", f"/kubepods/{kube_class}", of_pod):
            self.make(group)
        main = self.make(f"{of_pod}/main", CpuSet.parse(cpus))
        container = Container(name, "main", ContainerState.RUNNING, main)
        self.pods.append(builders.pod(name, qos, containers=(container,)))
        for command in commands:
            self.process(main, *command)
        return self.top + of_pod

    def run_unit(self, cpus: str, *commands: tuple[str, ...]) -> None:
        """Runs the commands in a unit of systemd on these CPUs."""
        for folder in (Path(ROOT, "system.slice"), Path(ROOT + UNIT)):
            if not folder.exists():
                folder.mkdir()
                self._folders.append(folder)
            for controller in self._mounts:
                (folder.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        self.path(UNIT, "cpuset.cpus").write_text(cpus)
        for command in commands:
            self.process(UNIT, *command)

    def sampler(self) -> UsageSampler:
        """The sampler has read everything once."""
        sampler = UsageSampler(Machine("/"), self._tasks)
        node_of = {cpu.id: cpu.node for cpu in cpus.read("/").cpus}
        sampler.follow([pod.sampled for pod in looked_pods(self.pods)], node_of)
        sampler.sample()
        return sampler

    def contention(self, folder: Path) -> Contention:
        """It has looked once."""

        def now() -> ConsumedMoment:
            return moment(self.sampler(), self.pods)

        contention = Contention("/", str(folder), self._tasks, now, tuple, dict, lambda: None)
        contention.follow(self.pods, TopologyView("/").topology())
        contention.step()
        return contention

    def number(self, group: str, file: str, key: str) -> int:
        """The first field of that name in a file of the group, without the code under test."""
        words = self.path(group, file).read_text().replace("=", " ").split()
        return int(words[words.index(key) + 1])

    def close(self) -> None:
        super().close()
        self._hierarchy.close()


@pytest.fixture
def groups() -> Iterator[Groups]:
    groups = Groups()
    yield groups
    groups.close()


@pytest.fixture(scope="module", autouse=True)
def disk() -> None:
    load_disk()


def write(groups: Groups, group: str, megabytes: int) -> None:
    """Writes past the page cache, whose writes to a disk without a file system belong to no
    group."""
    words = ("dd", "if=/dev/zero", f"of={DISK}", "bs=1M", f"count={megabytes}", "oflag=direct")
    assert groups.process(group, *words).wait() == 0


def test_counters_of_pods_units_and_the_machine(groups: Groups) -> None:
    limited = groups.run("limited", "LS", "1", SPIN)
    groups.path(limited, "cpu.max").write_text("20000 100000")
    batch = groups.run("batch", "BE", "2", SPIN, SPIN)
    writer = groups.run("writer", "LS", "3")
    write(groups, f"{writer}/main", 4)
    reader = groups.run("reader", "LS", "4")
    groups.process(f"{reader}/main", sys.executable, "-c", READ_AGAIN, str(DISK), "4")
    large = groups.run("large", "LS", "5")
    grow(groups.process(f"{large}/main", sys.executable, "-c", GROW), 32)
    groups.run_unit("6", SPIN)
    write(groups, UNIT, 2)

    def numbers() -> tuple[int, ...]:
        return (
            groups.number(limited, "cpu.stat", "nr_throttled"),
            groups.number(limited, "cpu.stat", "throttled_usec"),
            groups.number(batch, "cpu.pressure", "total"),
            groups.number(reader, "memory.stat", "pgmajfault"),
            groups.number(UNIT, "cpu.stat", "usage_usec"),
        )

    eventually("all of it has been counted", lambda: all(numbers()))
    first = numbers()
    sampler = groups.sampler()
    counted = sampler.counted()
    last = numbers()
    quota = counted.waits.quotas["limited", ""]
    seen = (
        quota.throttled_periods,
        round(quota.seconds * 1e6),
        round(counted.waits.pods["batch"]["cpu", "some"] * 1e6),
        counted.pod_major_faults["reader"],
        round((counted.units["backup.service"].cpu_seconds or 0) * 1e6),
    )
    assert all(low <= value <= high for low, value, high in zip(first, seen, last, strict=True)), (
        first,
        seen,
        last,
    )
    assert ("batch", "") not in counted.waits.quotas
    assert counted.traffic.pod_disks["writer", "vda"].written_bytes == 4 * MIB
    assert counted.traffic.unit_disks["backup.service", "vda"].written_bytes == 2 * MIB
    assert counted.traffic.disks["vda"].written_bytes >= 6 * MIB
    assert {("memory", "some"), ("io", "full")} <= counted.waits.machine.keys()
    assert (counted.major_faults or 0) >= counted.pod_major_faults["reader"]
    assert (counted.kernel_threads_cpu_seconds or 0) > 0
    classes = counted.kube_classes
    assert (classes["burstable"].memory_bytes or 0) >= 32 * MIB
    assert (classes["besteffort"].cpu_seconds or 0) > 0
    assert classes["guaranteed"].memory_bytes is not None

    used = groups.number(batch, "cpu.stat", "usage_usec")
    eventually(
        "two samples are apart",
        lambda: groups.number(batch, "cpu.stat", "usage_usec") > used + 2_000_000,
    )
    sampler.sample()
    sampled = {uid: last.cpus or 0 for uid, last in sampler.last()[1].items()}
    assert 0 < sampled["limited"] < sampled["batch"] < 1.2
    memory = sampler.last()[1]["large"].memory_bytes or 0
    assert 32 * MIB <= memory <= groups.number(large, "memory.stat", "anon") + MIB
    assert sorted(sampler.numa(60)) == [0, 1, 2, 3]


def test_who_has_the_cpus_of_a_pod_is_named_and_nobody_else(groups: Groups, tmp_path: Path) -> None:
    """CPUs 2n and 2n+1 are the threads of one core."""
    groups.run("api", "LS", "1", SPIN)
    groups.run("hog", "BE", "1", SPIN)
    groups.run_unit("1", SPIN)
    groups.run("elsewhere", "BE", "5", SPIN)
    limited = groups.run("limited", "LS", "6", SPIN)
    groups.path(limited, "cpu.max").write_text("20000 100000")
    groups.run("owner", "LSE", "8", SPIN)
    groups.run("noisy", "BE", "9", SPIN)
    contention = groups.contention(tmp_path)
    waits: dict[str, CpuWait] = {}

    def known() -> bool:
        contention.step()
        waits.update({wait.pod.name: wait for wait in contention.waits()})
        return {"ns/api", "ns/hog", "ns/limited"} <= waits.keys()

    eventually("the waits are long", known)
    sentences = {uid: "; ".join(of_pod) for uid, of_pod in contention.sentences().items()}
    first_two = {party.name for party, _ in waits["ns/api"].takers[:2]}
    assert first_two == {"ns/hog", UNIT.strip("/")}
    assert re.search(r" for CPUs 6: \d+ ms its own quota", sentences["limited"])
    assert "its own quota" not in sentences["api"]
    beside = {"ns/api": {"ns/hog"}, "ns/hog": {"ns/api"}}
    for pod, wait in waits.items():
        named = {party.name for party, _ in wait.takers if party.kind is PartyKind.POD}
        assert named == beside.get(pod, set())
    assert "ns/noisy (BE)" in sentences["owner"]
    assert "elsewhere" not in sentences


def test_who_grew_is_named_for_the_stalls_of_others(groups: Groups, tmp_path: Path) -> None:
    victim = groups.run("victim", "LS", "2")
    hog = groups.run("hog", "BE", "3")
    groups.run("idle", "BE", "4", ("sleep", "1000"))
    kubepods = f"{groups.top}/kubepods"
    groups.path(kubepods, "memory.max").write_text(str(72 * MIB))
    growing = groups.process(f"{hog}/main", sys.executable, "-c", GROW)
    groups.process(f"{victim}/main", sys.executable, "-c", READ_AGAIN, str(DISK), "24")
    eventually(
        "the pages of the victim are in memory",
        lambda: groups.number(victim, "memory.stat", "file") >= 24 * MIB,
    )

    def nothing_is_free() -> bool:
        grow(growing, 2)
        return groups.number(kubepods, "memory.events", "max") > 0

    eventually("nothing is free", nothing_is_free)
    contention = groups.contention(tmp_path)
    stalled = groups.number(victim, "memory.pressure", "total")
    faults = 0

    def stalls() -> bool:
        nonlocal faults
        now = groups.number(victim, "memory.stat", "pgmajfault")
        if now > faults + 100:  # more would end in the OOM killer before the victim can wait
            grow(growing, 2)
            faults = now
        return groups.number(victim, "memory.pressure", "total") > stalled + 600_000

    eventually("the victim is stalled", stalls)
    contention.step()
    sentences = {uid: "; ".join(of_pod) for uid, of_pod in contention.sentences().items()}
    assert "of each second for memory: ns/hog (BE) grew by " in sentences["victim"]
    assert "ns/idle" not in sentences["victim"]


def test_the_neighbour_of_a_container_of_the_runtime_is_named(containerd: Containerd) -> None:
    with fresh_node(containerd) as node:
        spinning = []
        try:
            for name, kube_class in (("api", "burstable"), ("hog", "besteffort")):
                _, container = run_pod(node.direct, node.spec(name, kube_class=kube_class))
                update_container(node.direct, container, cpuset_cpus="2")
                group = kernel_group(node.direct.container_status(container).pid, "cpu")
                spinning.append(subprocess.Popen(SPIN))
                (group / "cgroup.procs").write_text(str(spinning[-1].pid))
            settings = RestoreSettings(
                state_dir=str(node.state), runtime_endpoint=f"unix://{containerd.socket}"
            )
            disturbance = disturbance_now(settings, "default/api")
        finally:
            for process in spinning:
                process.kill()
                process.wait()
    assert disturbance is not None
    assert disturbance.cpu.cpus == "2"
    (taker, *_) = disturbance.cpu.takers
    assert (taker.name, taker.qos) == ("default/hog", "BE")
