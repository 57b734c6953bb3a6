"""Disturbances of a container, one after the other: whether the agent names who takes CPU time.

They are the fourteen of `DISTURBANCES`, of twelve kinds. The containers are real, of a private
containerd. One of them, the victim, needs its one CPU for 80 percent of the time. The agent's code
looks at the machine each 15 seconds, as the agent does. A disturbance begins a third of this time
after a look. The answer is the largest part of the victim's wait in the first look in which a part
has 0.1 s/s. A part that the wait had in the look before is not an answer, and `noise` is
the most that it was: 0 on a quiet machine. `named_right` counts the answers within 30 s that are
right, of `tried`; what this machine can't do is skipped. Controls: `accused_idle` counts the takers
of 0.1 s/s and more that any look names while only the victim runs, `accused_normal` those while a
neighbour uses a twentieth of its CPU.

The benchmark itself and the containers that disturb nobody run on other CPUs than the victim's. It
changes these settings of the machine, and restores them: KSM, the CPUs and priority of its thread,
and the CPUs of the kernel's workers for writeback. It adds a pair of network interfaces, a zram
device, and a cgroup in system.slice."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, arguments, report, value_row
from peers.runtime import NoRuntimeError, Program, Runtime, workloads

from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.model.cpu.cpuset import CpuSet
from agent.node.contention import LONG, LOOK_SECONDS, SHARED, CgroupTasks
from agent.usage.contention import Interval, Party, PartyKind, core_sharings, cpu_waits
from agent.usage.look import LookedPod, Lookout
from agent.usage.sampler import SampledPod
from tests.fixtures.cgroups import make_cgroup, remove_cgroups, roots
from tests.fixtures.pods import PodSpec

QUICK_LOOK_SECONDS = 1.2
ANSWER_SECONDS = 30.0
NORMAL_SECONDS = 60.0
NOTICED = 0.02
"""Seconds of each second that are more than what every machine does."""
BUSY_US, IDLE_US = 8_000, 2_000
UNIT = "/system.slice/topolet-backup.service"
THROTTLED, OWN = "throttled by its own quota", "too few CPUs for its own threads"
BESIDE = " on the same core"
UNSEEN = (
    "This can't be seen without performance counters or resctrl: what caches, memory bandwidth and "
    "clocks lose by others. Of a sibling thread only is seen that it runs, not what it costs."
)

Answers = tuple[tuple[str, ...], ...]
"""The right first answer, the second and so on; each begins with one of several words."""
Disturbance = Callable[["Stage"], AbstractContextManager[Answers]]
"""Disturbs meanwhile, and yields the right answers. Raises SkippedError."""


class SkippedError(Exception):
    """The reason why this machine can't be disturbed so."""


class Outcome(msgspec.Struct):
    """What was named in a disturbance.

    `parts`: by name, the parts of the victim's wait in seconds of each second, the largest first,
        without those of `before`.
    `before`: what the victim has waited for in the look before.
    `seconds`: from the beginning of the disturbance to the answer; None without one."""

    name: str
    right: bool = False
    parts: Mapping[str, float] = {}
    before: Mapping[str, float] = {}
    seconds: float | None = None
    skipped: str = ""

    def row(self) -> Row:
        if self.skipped:
            return {"case": self.name, "unit": "s", "skipped": self.skipped}
        return {
            "case": self.name,
            "value": self.seconds,
            "unit": "s",
            "right": self.right,
            "parts": dict(self.parts),
            "before": dict(self.before),
        }


class Stage:
    """The victim, the pods beside it, and the looks at them.

    `program`: the workloads.
    `seconds`: the time between two looks.
    `cpu`: the victim's only CPU.
    `other`: a CPU that is not the victim's."""

    def __init__(
        self, runtime: Runtime, program: Path, seconds: float, cpu: int, other: int
    ) -> None:
        self.cpu, self.other = cpu, other
        self.seconds = seconds
        self._runtime, self.program = runtime, program
        groups = CgroupTasks(Controllers(), Hierarchy())
        self._pods: dict[str, tuple[Program, LookedPod]] = {}
        self._lookout = Lookout("/", groups)
        self._looked_at = time.monotonic()
        self.victim = self.start("victim", "LS", "duty", str(BUSY_US), str(IDLE_US))
        # Once: for a second after a read, v1 gives the same threads again.
        (self._victim_id,) = groups.threads(self.victim.group)

    def start(
        self, name: str, qos: str, *words: str, cpu: int | None = None, device: str = ""
    ) -> Program:
        """Starts a pod with a workload of peers/load.c.

        `cpu`: the victim's if None."""
        spec = PodSpec(name, qos, kube_class="besteffort" if qos == "BE" else "burstable")
        cpus = str(self.cpu if cpu is None else cpu)
        program = self._runtime.run_program(spec, self.program, *words, device=device, cpus=cpus)
        sampled = SampledPod(spec.uid, spec.cgroup_parent(), {"main": program.group})
        looked = LookedPod(Party(PartyKind.POD, f"{spec.namespace}/{name}", qos), sampled)
        self._pods[name] = (program, looked)
        return program

    @contextmanager
    def running(
        self, name: str, qos: str, *words: str, cpu: int | None = None, device: str = ""
    ) -> Iterator[Program]:
        program = self.start(name, qos, *words, cpu=cpu, device=device)
        try:
            yield program
        finally:
            del self._pods[name]
            program.remove()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the victim."""
        os.kill(self._victim_id, number)

    def restart(self) -> Interval | None:
        """Looks: the time to the next look begins now."""
        between = self._lookout.look(looked for _, looked in self._pods.values())
        self._looked_at = time.monotonic()
        return between

    def wait(self, share: float) -> None:
        """Waits for this share of the time from the last look to the next."""
        time.sleep(max(0.0, self._looked_at + share * self.seconds - time.monotonic()))

    def interval(self) -> Interval:
        """What has happened since the last look, when the time to the next is over."""
        self.wait(1.0)
        between = self.restart()
        assert between is not None
        return between

    def parts(self) -> Mapping[str, float]:
        """By name, the parts of the victim's wait since the last look, and who ran beside it."""
        between, victim = self.interval(), self._pods["victim"][1].party
        shares: dict[str, float] = {}
        for wait in cpu_waits(between):
            if wait.pod == victim:
                shares |= {THROTTLED: wait.throttled, OWN: wait.own}
                shares |= {title(party): share for party, share in wait.takers}
        core = CpuSet([self.cpu]) | siblings_of(self.cpu)
        for sharing in core_sharings(between, dict.fromkeys(core, core), SHARED):
            if sharing.pod == victim:
                shares |= {f"{title(party)}{BESIDE}": share for party, share in sharing.sharers}
        return shares


def title(party: Party) -> str:
    of_class = f" ({party.qos})" if party.qos else ""
    if party.kind is PartyKind.INTERRUPTS:
        return f"interrupts of {party.name}"
    return party.name + of_class


def only(*names: str) -> Answers:
    """One answer, which begins with one of these words."""
    return (names,)


@contextmanager
def hog_be(stage: Stage) -> Iterator[Answers]:
    with stage.running("transcode", "BE", "spin"):
        yield only("default/transcode (BE)")


@contextmanager
def hog_ls(stage: Stage) -> Iterator[Answers]:
    with stage.running("search", "LS", "spin"):
        yield only("default/search (LS)")


@contextmanager
def host_unit(stage: Stage) -> Iterator[Answers]:
    with unit(stage):
        yield only(UNIT.strip("/"))


@contextmanager
def unit(stage: Stage) -> Iterator[None]:
    make_cgroup(UNIT)
    process = subprocess.Popen([stage.program, "spin"])
    try:
        for root in roots():
            folder = root / UNIT.strip("/")
            if (folder / "cpuset.cpus").exists():
                (folder / "cpuset.cpus").write_text(str(stage.cpu))
            (folder / "cgroup.procs").write_text(str(process.pid))
        os.sched_setaffinity(process.pid, {stage.cpu})
        yield
    finally:
        process.kill()
        process.wait()
        remove_cgroups(UNIT)
        for root in roots():
            with suppress(OSError):  # it has units of the machine, or was removed above
                (root / UNIT.strip("/")).parent.rmdir()


@contextmanager
def own_quota(stage: Stage) -> Iterator[Answers]:
    stage.victim.update(cpu_period=100_000, cpu_quota=30_000)
    try:
        yield only(THROTTLED)
    finally:
        stage.victim.update(cpu_period=100_000, cpu_quota=-1)


@contextmanager
def own_threads(stage: Stage) -> Iterator[Answers]:
    stage.signal(signal.SIGUSR1)
    try:
        yield only(OWN)
    finally:
        stage.signal(signal.SIGUSR2)


@contextmanager
def memory_hog(stage: Stage) -> Iterator[Answers]:
    with stage.running("cache", "BE", "memory", "512"):
        yield only("default/cache (BE)")


@contextmanager
def fork_storm(stage: Stage) -> Iterator[Answers]:
    with stage.running("build", "LS", "forks"):
        yield only("default/build (LS)")


@contextmanager
def timer_storm(stage: Stage) -> Iterator[Answers]:
    with stage.running("poll", "LS", "timers", "8", "20"):
        yield only("default/poll (LS)", "interrupts of Local timer interrupts")


@contextmanager
def network_interrupts(stage: Stage) -> Iterator[Answers]:
    """The packets of a sender on another CPU are received on the victim's."""
    ours, peer = f"tpl{os.getpid()}a", f"tpl{os.getpid()}b"
    command("ip", "link", "add", ours, "type", "veth", "peer", "name", peer)
    try:
        for name in (ours, peer):
            command("ip", "link", "set", name, "up")
        mask = f"{1 << stage.cpu:x}"
        with (
            changed(Path(f"/sys/class/net/{peer}/queues/rx-0/rps_cpus"), mask),
            stage.running("sender", "LS", "packets", ours, cpu=stage.other),
        ):
            yield only("interrupts of softirq NET_RX")
    finally:
        command("ip", "link", "delete", ours)


@contextmanager
def kernel_thread(stage: Stage) -> Iterator[Answers]:
    """ksmd compares the pages of a pod that sleeps on another CPU."""
    folder = Path("/sys/kernel/mm/ksm")
    thread = kernel_thread_id("ksmd")
    cpus, niceness = os.sched_getaffinity(thread), os.getpriority(os.PRIO_PROCESS, thread)
    values = {"sleep_millisecs": "0", "pages_to_scan": "100000", "smart_scan": "0", "run": "1"}
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, thread, cpus)
        os.sched_setaffinity(thread, {stage.cpu})
        stack.callback(os.setpriority, os.PRIO_PROCESS, thread, niceness)
        os.setpriority(os.PRIO_PROCESS, thread, 0)
        stack.enter_context(stage.running("pages", "LS", "mergeable", "128", cpu=stage.other))
        for name, value in values.items():
            if (folder / name).exists():
                stack.enter_context(changed(folder / name, value))
        yield only("ksmd")


def kernel_thread_id(name: str) -> int:
    for thread in Path("/proc/2/task/2/children").read_text().split():
        with suppress(OSError):
            if Path(f"/proc/{thread}/comm").read_text().strip() == name:
                return int(thread)
    raise SkippedError(f"this kernel has no thread {name}")


@contextmanager
def disk_writeback(stage: Stage) -> Iterator[Answers]:
    """A pod on another CPU writes to a disk of compressed memory. The kernel's worker, which writes
    the pages back, compresses them."""
    control = Path("/sys/class/zram-control")
    cpus = Path("/sys/devices/virtual/workqueue/writeback/cpumask")
    if not (control.exists() and cpus.exists()):
        raise SkippedError("this kernel has no zram devices, or no workqueue of writeback in sysfs")
    number = (control / "hot_add").read_text().strip()
    sysfs, device = Path(f"/sys/block/zram{number}"), f"/dev/zram{number}"
    try:
        (sysfs / "disksize").write_text("64M")
        (sysfs / "bdi/strict_limit").write_text("1")
        (sysfs / "bdi/max_bytes").write_text(str(4 << 20))
        with (
            changed(cpus, f"{1 << stage.cpu:x}"),
            stage.running("log", "BE", "dirty", device, "32", cpu=stage.other, device=device),
        ):
            yield only("kworker/u")
    finally:
        for _ in range(50):
            try:
                (control / "hot_remove").write_text(number)
                break
            except OSError:  # the last pages are being written
                time.sleep(0.1)


@contextmanager
def sibling(stage: Stage) -> Iterator[Answers]:
    siblings = siblings_of(stage.cpu)
    if not siblings:
        raise SkippedError(f"the core of CPU {stage.cpu} has one thread")
    with stage.running("twin", "BE", "spin", cpu=min(siblings)):
        yield only(f"default/twin (BE){BESIDE}")


def siblings_of(cpu: int) -> CpuSet:
    """The other threads of its core."""
    file = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return CpuSet.parse(file.read_text().strip()) - CpuSet([cpu])


@contextmanager
def moved_pod(stage: Stage) -> Iterator[Answers]:
    with stage.running("mover", "BE", "spin", cpu=stage.other) as program:
        stage.parts()
        stage.wait(1 / 3)
        program.update(cpuset_cpus=str(stage.cpu))
        yield only("default/mover (BE)")


@contextmanager
def two_at_once(stage: Stage) -> Iterator[Answers]:
    with stage.running("transcode", "BE", "spin"), unit(stage):
        both = ("default/transcode (BE)", UNIT.strip("/"))
        yield both, both


DISTURBANCES: Mapping[str, Disturbance] = {
    "hog_be": hog_be,
    "hog_ls": hog_ls,
    "host_unit": host_unit,
    "own_quota": own_quota,
    "own_threads": own_threads,
    "memory_hog": memory_hog,
    "fork_storm": fork_storm,
    "timer_storm": timer_storm,
    "network_interrupts": network_interrupts,
    "kernel_thread": kernel_thread,
    "disk_writeback": disk_writeback,
    "sibling": sibling,
    "moved_pod": moved_pod,
    "two_at_once": two_at_once,
}
QUICK = ("hog_be", "own_quota", "own_threads")


@contextmanager
def changed(file: Path, value: str) -> Iterator[None]:
    before = file.read_text().strip()
    file.write_text(value)
    try:
        yield
    finally:
        file.write_text(before)


def command(*words: str) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SkippedError(f"{' '.join(words)}: {error}") from None


def outcome(stage: Stage, name: str) -> Outcome:
    stage.restart()
    before = noticed(stage.parts())
    stage.wait(1 / 3)
    try:
        with DISTURBANCES[name](stage) as right:
            began = time.monotonic()
            new: dict[str, float] = {}
            while time.monotonic() - began + stage.seconds / 2 < ANSWER_SECONDS:
                new = without(before, stage.parts())
                if is_answer(new, len(right)):
                    seconds = time.monotonic() - began
                    return Outcome(name, is_right(new, right), new, before, seconds)
            return Outcome(name, parts=new, before=before)
    except SkippedError as error:
        return Outcome(name, skipped=str(error))
    except OSError as error:
        return Outcome(name, skipped=f"this machine refuses it: {error}")


def noticed(shares: Mapping[str, float]) -> dict[str, float]:
    """Those that are a part of the machine's noise."""
    return {name: share for name, share in shares.items() if share >= NOTICED}


def without(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """The parts that are new, the largest first."""
    new = {name: share for name, share in now.items() if name not in before and share > 0}
    return dict(sorted(new.items(), key=lambda part: -part[1]))


def is_answer(shares: Mapping[str, float], number: int) -> bool:
    return sum(share >= LONG for share in shares.values()) >= number


def is_right(shares: Mapping[str, float], right: Answers) -> bool:
    """Whether the first parts have the right names."""
    return all(name.startswith(words) for name, words in zip(shares, right, strict=False))


def accused(stage: Stage, seconds: float) -> set[str]:
    """The takers that looks in this time name for the victim or another pod."""
    stage.restart()
    names: set[str] = set()
    until = time.monotonic() + seconds
    while time.monotonic() + stage.seconds / 2 < until:
        for wait in cpu_waits(stage.interval()):
            names |= {title(party) for party, share in wait.takers if share >= LONG}
    return names


def accused_normal(stage: Stage, seconds: float) -> set[str]:
    with stage.running("neighbour", "LS", "duty", "500", "9500"):
        return accused(stage, seconds)


def control_row(case: str, names: set[str]) -> Row:
    return {**value_row(case, len(names), "takers"), "names": sorted(names)}


def rows(stage: Stage, names: tuple[str, ...], idle: float, normal: float) -> list[Row]:
    """`idle` and `normal`: seconds of the controls."""
    controls = [
        control_row("accused_idle", accused(stage, idle)),
        control_row("accused_normal", accused_normal(stage, normal)),
    ]
    outcomes = [outcome(stage, name) for name in names]
    tried = [each for each in outcomes if not each.skipped]
    return [
        *(each.row() for each in outcomes),
        value_row("named_right", sum(each.right for each in tried), "disturbances"),
        value_row("tried", len(tried), "disturbances"),
        value_row("noise", max((sum(each.before.values()) for each in tried), default=0.0), "s/s"),
        *controls,
    ]


def text(row: Row) -> str:
    """One line about a disturbance."""
    if "skipped" in row:
        return f"{row['case']:20}skipped: {row['skipped']}"
    named, before = (
        ", ".join(f"{name} {share:.2f}" for name, share in noticed(row[key]).items())
        for key in ("parts", "before")
    )
    seconds = "" if row["value"] is None else f"{row['value']:.0f} s"
    verdict = "right" if row["right"] else "WRONG"
    return (
        f"{row['case']:20}{verdict:7}{seconds:6}{named or 'nobody'} (before: {before or 'nobody'})"
    )


def unusable() -> str | None:
    """The reason why nothing can be measured here, or None."""
    if len(os.sched_getaffinity(0)) < 2:
        return "the victim needs a CPU that the benchmark does not use"
    return None


def measured(options: argparse.Namespace) -> list[Row]:
    """Raises NoRuntimeError."""
    if reason := unusable():
        raise NoRuntimeError(reason)
    all_names = QUICK if options.quick else tuple(DISTURBANCES)
    seconds = QUICK_LOOK_SECONDS if options.quick else LOOK_SECONDS
    idle = 2 * seconds if options.quick else 60.0 * options.idle_minutes
    *others, cpu = sorted(os.sched_getaffinity(0))
    others = [other for other in others if other not in siblings_of(cpu)] or others
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topolet-")))
        compiled = workloads(folder)
        os.sched_setaffinity(0, others)  # and the runtime inherits it
        runtime = stack.enter_context(Runtime())
        stage = Stage(runtime, compiled, seconds, cpu, others[0])
        return rows(stage, tuple(options.only or all_names), idle, min(idle, NORMAL_SECONDS))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", action="append", choices=tuple(DISTURBANCES), help="only this disturbance"
    )
    parser.add_argument(
        "--idle-minutes", type=float, default=2.0, help="the time of the idle control"
    )


def main() -> None:
    options = arguments(__doc__, add_arguments)
    try:
        table = measured(options)
    except NoRuntimeError as error:
        units = {"named_right": "disturbances", "tried": "disturbances", "accused_idle": "takers"}
        table = [
            {"case": case, "unit": unit, "skipped": str(error)} for case, unit in units.items()
        ]
    if options.output == "json":
        report(table, options.output)
        return
    of_disturbances = [row for row in table if row["case"] in DISTURBANCES]
    for row in of_disturbances:
        print(text(row))
    report([row for row in table if row not in of_disturbances], options.output)
    for row in table:
        if row.get("names"):
            print(f"{row['case']}: {', '.join(row['names'])}")
    print(UNSEEN)


if __name__ == "__main__":
    main()
