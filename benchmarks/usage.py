"""What samples and looks cost on a node with 250 pods of one container each.

The cgroups are real, of this benchmark, with one sleeping process, whose network namespace is that
of each pod. `sampler_core_percent` is the part of one CPU that both threads use: the CPU time of a
minute of samples, one a second, of which each fifteenth also has the memory and all counters, and
of the looks for who waits, one in fifteen seconds; each container has a thread that is not idle.
`sampler_mb` is the memory of all series and counters when they are full. koordlet is not measured
beside it: its collectors start with the whole of koordlet only.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import common
import msgspec

from agent.cgroup.hierarchy import CgroupError, Controllers, Hierarchy, mounted
from agent.node.contention import LOOK_SECONDS, SHORT, CgroupTasks
from agent.node.usage import CgroupUse
from agent.usage.contention import Party, PartyKind, cpu_waits
from agent.usage.look import LookedPod, Lookout
from agent.usage.machine import GroupMemory, Machine
from agent.usage.sampler import MEMORY_SECONDS, SampledPod, UsageSampler
from agent.usage.traffic import DiskTraffic
from agent.usage.waits import Stalls, Throttling, stalls

PODS = 250
UNITS = 60
"""Units of systemd that the fake groups of `sampler_mb` have."""
NEEDED_FILES = 8_192
BASE = f"/topolet-usage-{os.getpid()}"
ROOT = "/sys/fs/cgroup"
CONTROLLERS = ("cpuacct", "cpu", "cpuset", "memory", "blkio")


def main() -> None:
    options = common.arguments(__doc__)
    minutes = 1 if options.quick else 5
    if reason := unusable():
        cases = (("sampler_core_percent", "percent"), ("sampler_mb", "MB"))
        rows = [{"case": case, "unit": unit, "skipped": reason} for case, unit in cases]
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(NEEDED_FILES, hard)), hard))
        rows = [
            common.value_row("sampler_core_percent", core_percent(minutes), "percent"),
            common.value_row("sampler_mb", megabytes(), "MB"),
        ]
    common.report(rows, options.output)


def unusable() -> str | None:
    """The reason why cgroups can't be made here, or None."""
    if os.geteuid():
        return "cgroups can't be made without root"
    try:
        missing = Controllers(ROOT).missing()
    except CgroupError as error:
        return str(error)
    return f"this machine has no {missing[0]} controller" if missing else None


def folders() -> list[Path]:
    """The hierarchies that have the counters; that of v2 has PSI."""
    mounts = (mounted(ROOT, controller) for controller in CONTROLLERS)
    v2 = (path for path in (ROOT, f"{ROOT}/unified") if Path(path, "cgroup.controllers").exists())
    return sorted({Path(path) for path in (*(mount[1] for mount in mounts if mount), *v2)})


@contextmanager
def pods() -> Iterator[tuple[SampledPod, ...]]:
    """250 pods, whose cgroups exist meanwhile."""
    sampled = tuple(
        SampledPod(f"pod{number}", group, {"main": f"{group}/main"})
        for number in range(PODS)
        for group in (f"{BASE}/pod{number}",)
    )
    groups = [group for pod in sampled for group in (pod.group, *pod.containers.values())]
    with ExitStack() as made:
        for folder in folders():
            for group in ("", *(each.removeprefix(BASE) for each in groups)):
                path = Path(f"{folder}{BASE}{group}")
                path.mkdir()
                made.callback(_remove, path)
                for file in ("cpuset.cpus", "cpuset.mems"):
                    if (path / file).exists() and not (path / "cgroup.controllers").exists():
                        (path / file).write_text((path.parent / file).read_text())
        process = made.enter_context(subprocess.Popen(["unshare", "--net", "sleep", "3600"]))
        made.callback(process.kill)
        for folder in folders():
            Path(f"{folder}{groups[1]}", "cgroup.procs").write_text(str(process.pid))
        of_process = BASE.strip("/"), process.pid
        yield tuple(msgspec.structs.replace(pod, process=of_process) for pod in sampled)


def _remove(path: Path) -> None:
    for _ in range(100):
        with suppress(OSError):
            path.rmdir()
            return
        time.sleep(0.01)


def sampler(sampled: tuple[SampledPod, ...], clock: list[float]) -> UsageSampler:
    made = UsageSampler(Machine("/"), CgroupUse(Controllers(ROOT)), lambda: clock[0])
    made.follow(sampled, dict.fromkeys(range(os.cpu_count() or 1), 0))
    return made


class BusyTasks(CgroupTasks):
    """As if each group ran since the last look, in one thread.

    `thread`: stands for all of them."""

    ran_seconds = 0.0
    thread = os.getpid()

    def cpu_seconds(self, group: str) -> float | None:
        seconds = super().cpu_seconds(group)
        return None if seconds is None else seconds + self.ran_seconds

    def threads(self, group: str) -> tuple[int, ...]:
        super().threads(group)
        return (self.thread,)


class Looks:
    """The looks of an agent at these pods."""

    def __init__(self, sampled: tuple[SampledPod, ...]) -> None:
        hierarchy = Hierarchy(ROOT)
        self._groups = BusyTasks(Controllers(ROOT, hierarchy.handles), hierarchy)
        self._groups.thread = next(pod.process[1] for pod in sampled if pod.process)
        self._lookout = Lookout("/", self._groups)
        self._pods = [LookedPod(Party(PartyKind.POD, pod.uid), pod) for pod in sampled]

    def step(self) -> None:
        self._groups.ran_seconds += LOOK_SECONDS
        if (interval := self._lookout.look(self._pods)) is not None:
            cpu_waits(interval, SHORT)


def core_percent(minutes: int) -> float:
    """The median minute."""
    clock = [0.0]
    with pods() as sampled:
        measured, looks = sampler(sampled, clock), Looks(sampled)
        for _ in range(2):
            measured.sample()
            clock[0] += MEMORY_SECONDS
        taken = []
        for _ in range(minutes):
            began = time.thread_time()
            for _ in range(60):
                measured.sample()
                clock[0] += 1.0
            for _ in range(round(60 / LOOK_SECONDS)):
                looks.step()
            taken.append(time.thread_time() - began)
    return sorted(taken)[len(taken) // 2] / 60 * 100


def megabytes() -> float:
    """By the allocations of Python, with groups that are not read."""

    class Groups:
        def cpu_seconds(self, group: str) -> float:
            return clock[0] / 10

        def memory(self, group: str) -> GroupMemory:
            return GroupMemory(1 << 30, 1 << 31, 1_000)

        def disks(self, group: str) -> dict[str, DiskTraffic]:
            return {number: DiskTraffic(1 << 30, 1 << 31, 1_000, 2_000) for number in disks}

        def children(self, group: str) -> tuple[str, ...]:
            return tuple(f"{group}/unit{number}.service" for number in range(UNITS))

        def throttling(self, group: str) -> Throttling:
            return Throttling(1_000, 1_000, clock[0] / 10)

        def stalls(self, group: str) -> Stalls:
            return stalls(lambda _: "some avg10=0.00 total=1000\nfull avg10=0.00 total=1000\n")

        def limits_reached(self, group: str) -> int:
            return 1_000

    clock, disks = [0.0], tuple(Machine("/").disks())
    sampled = tuple(SampledPod(f"pod{n}", f"/p{n}", {"main": f"/p{n}/main"}) for n in range(PODS))
    tracemalloc.start()
    measured = UsageSampler(Machine("/"), Groups(), lambda: clock[0])
    measured.follow(sampled, {0: 0, 1: 0})
    for _ in range(1_900):
        measured.sample()
        clock[0] += 1.0
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / 1e6


if __name__ == "__main__":
    main()
