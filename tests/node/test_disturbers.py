"""Two looks at this machine."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Container, ContainerState
from agent.model.pod.qos import QoS
from agent.model.settings.feature_modes import FeatureMode
from agent.model.snapshot import Owner
from agent.node.disturbers import (
    MOST_OWNERS,
    OwnersWatch,
    disturbed_owners,
    looked_owners,
    owners_of_node,
    quiet_of_node,
)
from agent.node.drift import group_reader
from agent.usage.disturbers import Disturber, DisturberKind, Disturbers, LookedOwner
from agent.view.features import ShownFeature
from agent.view.quiet import ShownQuiet, ShownQuietOwner
from tests.builders import pod
from tests.waiting import eventually

SPIN = """
import os
os.sched_setaffinity(0, [{}])
with open("/proc/self/comm", "w") as comm:
    comm.write("topolet-{}")
while True:
    pass
"""


@pytest.fixture
def hierarchy() -> Iterator[Hierarchy]:
    try:
        hierarchy = Hierarchy()
    except CgroupError:
        pytest.skip("this machine has no cpuset controller")
    yield hierarchy
    hierarchy.close()


def owner_of(cpu: int) -> LookedOwner:
    return LookedOwner("shop/trader", CpuSet([cpu]), frozenset())


def test_a_process_on_the_cpu_of_an_owner_is_named_and_one_elsewhere_is_not(
    hierarchy: Hierarchy,
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("this machine has one CPU")
    processes = [
        subprocess.Popen([sys.executable, "-c", SPIN.format(cpu, name)])
        for cpu, name in zip(cpus, ("inside", "outside"), strict=False)
    ]
    try:
        group = group_reader(hierarchy)(processes[0].pid) or ""
        top, *below = group.strip("/").split("/")
        unit = "/".join((top, *below[: top == "system.slice"]))
        watch = OwnersWatch("/", hierarchy)
        seen: list[Disturber] = []

        def named() -> bool:
            [of] = watch.disturbers([owner_of(cpus[0])], [])
            seen[:] = of.named
            name = unit or "topolet-inside"
            return any(one.name == name and one.ran_seconds > 0.01 for one in seen)

        eventually("it is named", named)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    ticks = [one for one in seen if one.kind is DisturberKind.TICKS]
    assert [str(one.cpus) for one in ticks] == [str(cpus[0])]
    assert "topolet-outside" not in {one.name for one in seen}
    assert all(one.cpus == CpuSet([cpus[0]]) for one in seen)


def disk_rows() -> dict[int, list[str]]:
    """The words of the lines of disks in /proc/interrupts, by number."""
    lines = map(str.split, Path("/proc/interrupts").read_text().splitlines())
    return {
        int(words[0].rstrip(":")): words
        for words in lines
        if words[-1].startswith("virtio") and "-req" in words[-1]
    }


def test_the_interrupts_of_a_disk_are_named(hierarchy: Hierarchy, tmp_path: Path) -> None:
    rows = disk_rows()
    if not rows:
        pytest.skip("this machine has no disk by virtio")
    number, before = next(iter(rows.items()))
    device = before[-1].partition("-")[0]
    affinity = Path(f"/proc/irq/{number}/effective_affinity_list").read_text()
    cpu = next(iter(CpuSet.parse(affinity)))
    path = tmp_path / "blocks"
    path.write_bytes(b"x" * (1 << 20))
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no direct reads")
    buffer = mmap.mmap(-1, 1 << 12)
    watch = OwnersWatch("/", hierarchy)
    began = time.monotonic()
    reads = 0
    try:
        while reads < 50:
            os.preadv(file, [buffer], (reads % 256) << 12)
            reads += 1
    finally:
        os.close(file)
    [of] = watch.disturbers([owner_of(cpu)], [])
    if int(disk_rows()[number][1 + cpu]) - int(before[1 + cpu]) < reads / 2:
        pytest.skip("this folder is on another disk")
    of_disk = next(one for one in of.named if one.name == device)
    assert of_disk.kind is DisturberKind.INTERRUPTS
    assert number in of_disk.numbers
    assert of_disk.times * (time.monotonic() - began) > reads / 2
    assert of_disk.cpus == CpuSet([cpu])


def test_the_threads_of_a_pod_and_of_those_that_share_its_claim_are_its_own() -> None:
    def running(name: str) -> Container:
        return Container(name, name, ContainerState.RUNNING, f"/kubepods/{name}/main")

    pods = [pod(name, "LSR", containers=(running(name),)) for name in ("a", "b", "c")]
    owners = (
        Owner("a", "ns/a", QoS.LSR, "2-3", sharers=("b", "gone")),
        Owner("c", "ns/c", QoS.LSR, "", offline="7"),
    )
    assert looked_owners(owners, pods) == (
        LookedOwner("ns/a", CpuSet([2, 3]), frozenset({"/kubepods/a", "/kubepods/b"})),
    )


def test_owners_that_ask_are_first() -> None:
    titles = [f"ns/{number:03}" for number in range(MOST_OWNERS + 5)]
    seen = [Disturbers(LookedOwner(title, CpuSet([1]), frozenset()), 1.0, ()) for title in titles]
    quiet = ShownQuiet(
        (ShownFeature("interrupts", FeatureMode.ACT, 0),),
        (ShownQuietOwner(titles[-1], "1", ("interrupts",)),),
    )
    told = [owner.pod for owner in disturbed_owners(seen, quiet)]
    assert told == [titles[-1], *titles[: MOST_OWNERS - 1]]
    assert [owner.pod for owner in disturbed_owners(seen[:2], None)] == titles[:2]


def test_without_an_agent_there_are_no_owners(tmp_path: Path) -> None:
    assert owners_of_node(str(tmp_path)) == ()
    assert quiet_of_node(str(tmp_path)) is None
    (tmp_path / "quiet.json").write_text("{")
    (tmp_path / "snapshot.json").write_text("{")
    assert owners_of_node(str(tmp_path)) == ()
    assert quiet_of_node(str(tmp_path)) is None
