"""What disturbs a pod on a CPU of its own: with pinning alone, and with quiet CPUs.

The owner is a container of a private containerd with one CPU of its own, and reads the clock each
microsecond in a busy loop (peers/jitter.c). Meanwhile processes of a service of the machine, in
`system.slice`, ask the gateway of the network and read the disk thousands of times a second, write
a file, which the kernel's unbound threads write back, and wake up a thousand times a second, as one
more pod does. Each interrupt of a device that can be moved begins on the owner's CPU, where it may
be on any machine without irqbalance. An arm is a way to keep all this from the owner:

- `static`: the cpusets that the kubelet's static policy writes, without an agent or a kubelet.
- `pinned`: the real agent, which has only given the owner its CPU.
- `partitions`, `interrupts` and so on: one feature of quiet CPUs, which the owner asks for.
- `all`: all of them.

The arms take turns, each with a new owner; a figure is the median of the turns. The percentiles are
those of the gaps between two reads: 1 µs if nothing disturbs. `interrupts` are those of devices on
the owner's CPU, `of all` those on all CPUs, a second. `others` is the number of CPUs that all else
uses, also the kernel's threads: on a busy machine no figure means much. The interrupts of 60 s are
counted from one second after the start of the owner.

The kernel lets nobody move some interrupts (managed ones, as those of NVMe and virtio-blk queues):
the owner's CPU is the last one that has none of them, if there is any."""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIG_IGN, SIGTERM, signal

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, arguments, ratio_row, report, value_row
from peers import agent as agents
from peers.agent import Agent
from peers.machine import CpuTimes, weigh, within
from peers.processes import ROOT
from peers.runtime import NoRuntimeError, Program, Runtime, workloads

from agent.cgroup.hierarchy import Controllers
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import QUIET, QUIET_FEATURES
from agent.usage import QUIET_FILE
from agent.view import quiet as view
from tests.fixtures.cgroups import roots
from tests.fixtures.pods import PodSpec

STATIC, PINNED, ALL = "static", "pinned", "all"
ARMS = (STATIC, PINNED, *QUIET_FEATURES, ALL)
QUICK_ARMS = (STATIC, PINNED, ALL)
SECONDS, QUICK_SECONDS = 10.0, 2.0
INTERRUPT_SECONDS = 60.0
START_SECONDS = 1.0
"""From the start of the owner to the first count: as long as peers/jitter.c does not look."""
TURNS = 3
DEADLINE_SECONDS = 10.0
ALLOWED = "smp_affinity_list"
MOVE_SECONDS = 0.1
SLICE = "/system.slice"
DAEMONS = 2
BUSY_US, IDLE_US = 200, 800
"""Of a daemon and of the other pod."""
CPU_SHARES = 1024
"""The weight of a container for each CPU that it requests, as the kubelet writes it."""
FILE_MIB, WRITEBACK_MIB = 64, 4
INTERRUPTS, JITTER = "owner_interrupts_60s", "jitter_p9999_vs_pinned"
_DEFAULT_ROUTE = "00000000"


class Turn(msgspec.Struct, frozen=True):
    """What an owner saw and the node did in one measurement.

    `p999_us`, `p9999_us`, `longest_us`: of the gaps.
    `long_gaps`: those above 10 µs.
    `devices`: by the name of a device's interrupt, how many the owner's CPU took.
    `interrupts`: those that all CPUs took."""

    seconds: float
    p999_us: float
    p9999_us: float
    longest_us: float
    long_gaps: int
    devices: Mapping[str, int]
    interrupts: int
    others_cpus: float
    used_percent: float
    stolen_percent: float

    @property
    def owner_interrupts(self) -> int:
        return sum(self.devices.values())


class Interrupts:
    """Where the interrupts of this machine's devices go: `close` lets them go where they went.

    `managed`: has the CPUs that take some that nobody can move."""

    def __init__(self) -> None:
        self._before: list[tuple[Path, str, str]] = []
        managed: set[int] = set()
        for name, by_cpu in device_interrupts().items():
            folder = Path("/proc/irq") / name.split()[0]
            allowed = (folder / ALLOWED).read_text().strip()
            effective = (folder / "effective_affinity_list").read_text().strip()
            try:
                (folder / ALLOWED).write_text(allowed)
                self._before.append((folder, allowed, effective))
            except OSError:
                managed.update(CpuSet.parse(effective) if any(by_cpu.values()) else ())
        self.managed = frozenset(managed)

    def gather(self, cpu: int) -> None:
        """All of them go to one CPU, and may go where they might before."""
        self._move([str(cpu)] * len(self._before))

    def close(self) -> None:
        self._move([effective for _, _, effective in self._before])

    def _move(self, cpus: Sequence[str]) -> None:
        """The kernel moves an interrupt when the next one comes, and leaves it there while that is
        allowed. A device may have left meanwhile."""
        for (folder, _, _), to in zip(self._before, cpus, strict=True):
            with suppress(OSError):
                (folder / ALLOWED).write_text(to)
        time.sleep(MOVE_SECONDS)
        for folder, allowed, _ in self._before:
            with suppress(OSError):
                (folder / ALLOWED).write_text(allowed)


def device_interrupts() -> dict[str, dict[int, int]]:
    """By number and name of each interrupt of a device, how many each CPU took."""
    header, *lines = Path("/proc/interrupts").read_text().splitlines()
    cpus = [int(word.removeprefix("CPU")) for word in header.split()]
    counts = {}
    for line in lines:
        label, _, rest = line.partition(":")
        words = rest.split()
        if label.strip().isdecimal():
            taken = map(int, words[: len(cpus)])
            counts[f"{label.strip()} {words[-1]}"] = dict(zip(cpus, taken, strict=True))
    return counts


def gateway() -> tuple[str, str] | None:
    """The interface and address of the default route of IPv4; None if there is none."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, destination, address, *_ = line.split()
        if destination == _DEFAULT_ROUTE:
            return interface, socket.inet_ntoa(struct.pack("=I", int(address, 16)))
    return None


@contextmanager
def service() -> Iterator[str]:
    """The processes of the benchmark are a service of the machine, whose cgroup it returns."""
    folders = [top / SLICE.strip("/") for top in roots()]
    added = [folder for folder in folders if not folder.exists()]
    try:
        group = f"{SLICE}/topolet-quiet-{os.getpid()}.service"
        with within(group):
            yield group
    finally:
        for folder in added:
            with suppress(OSError):  # Another process has a group in it meanwhile.
                folder.rmdir()


@contextmanager
def loads(program: Path, folder: Path) -> Iterator[None]:
    """Everything on the machine that disturbs.

    `folder`: is on a disk."""
    commands: list[tuple[str, ...]] = [("duty", str(BUSY_US), str(IDLE_US))] * DAEMONS
    if route := gateway():
        commands.append(("ask", *route))
    for name, size_mib in (("reads", FILE_MIB), ("writeback", WRITEBACK_MIB)):
        path = folder / name
        with path.open("wb") as file:
            for _ in range(size_mib):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        commands.append((name, str(path), str(size_mib)))
    with ExitStack() as stack:
        processes = []
        for words in commands:
            processes.append(stack.enter_context(subprocess.Popen([program, *words])))
            stack.callback(processes[-1].kill)
        yield
        for words, process in zip(commands, processes, strict=True):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")


class Node:
    """The owner, beside another pod, and one measurement after the other.

    `folder`: is shared with the owner.
    `group`: has the processes of the benchmark."""

    def __init__(self, folder: Path, runtime: Runtime, group: str, interrupts: Interrupts) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self.owner_cpu = max([cpu for cpu in cpus if cpu not in interrupts.managed] or cpus)
        self._cpus = CpuSet(cpus)
        self._folder, self._runtime, self._group = folder, runtime, group
        self._interrupts = interrupts
        self._controllers = Controllers()
        self._probe = workloads(folder, "jitter")
        self._gaps = folder / "gaps"
        self.load = workloads(folder)
        words = "duty", str(BUSY_US), str(IDLE_US)
        self._other = runtime.run_program(PodSpec("other", "LS"), self.load, *words)
        weigh(self._other.spec.cgroup_root, CPU_SHARES * len(cpus))

    @contextmanager
    def owner(self, wish: str, seconds: float) -> Iterator[Program]:
        """A new owner, which asks for this and measures for so long."""
        cpu = str(self.owner_cpu)
        spec = PodSpec("owner", "LSE", cpu, "guaranteed", annotations={QUIET: wish})
        self._gaps.unlink(missing_ok=True)
        words = f"{seconds:g}", str(self._gaps)
        folders = [str(self._folder)]
        program = self._runtime.run_program(spec, self._probe, *words, cpus=cpu, folders=folders)
        try:
            for group in (program.group, os.path.dirname(program.group)):
                weigh(group, CPU_SHARES)
            yield program
        finally:
            program.remove()

    @contextmanager
    def static(self) -> Iterator[None]:
        """The other pod has the CPUs that the kubelet's static policy leaves it."""
        self._other.update(cpuset_cpus=str(self._cpus - CpuSet([self.owner_cpu])))
        yield
        self._other.update(cpuset_cpus=str(self._cpus))

    @contextmanager
    def agent(self, name: str) -> Iterator[tuple[Agent, Path]]:
        """The agent of an arm, and its folder; afterwards everything is as before it."""
        with tempfile.TemporaryDirectory(prefix="topolet-") as parent:
            folder = Path(parent) / "agent"
            flags = [] if name == PINNED else ["--quiet=act"]
            try:
                with agents.running(folder, None, self._runtime.socket, *flags) as agent:
                    yield agent, folder
            finally:
                restore = [
                    *(sys.executable, "-m", "agent", "restore"),
                    f"--state-dir={folder / 'state'}",
                    f"--runtime-endpoint=unix://{self._runtime.socket}",
                ]
                subprocess.run(restore, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)

    def shown(self) -> view.ShownQuiet:
        """What an agent with all features says about an owner that asks for all."""
        with self.owner(ALL, QUICK_SECONDS), self.agent(ALL) as (agent, folder):
            path = folder / "state" / QUIET_FILE

            def tells() -> bool:
                return path.exists() and bool(view.read(str(path)).owners)

            agent.wait_for("telling what it does for the owner", tells)
            return view.read(str(path))

    def measure(self, name: str, seconds: float) -> Turn:
        """One turn of an arm."""
        with ExitStack() as stack:
            self._interrupts.gather(self.owner_cpu)
            if name == STATIC:
                stack.enter_context(self.static())
            else:
                stack.enter_context(self.agent(name))
            stack.enter_context(self.owner("none" if name in (STATIC, PINNED) else name, seconds))
            time.sleep(START_SECONDS)
            return self._observe(seconds)

    def _observe(self, seconds: float) -> Turn:
        times, busy, before = CpuTimes.now(), self._busy_seconds(), device_interrupts()
        time.sleep(seconds)
        after, passed, ours = device_interrupts(), CpuTimes.now(), self._busy_seconds() - busy
        of_all = passed.all - times.all
        idle, stolen = passed.idle - times.idle, passed.stolen - times.stolen
        p999, p9999, longest, long_gaps = self._measured()
        taken = {
            name: {cpu: count - before[name].get(cpu, 0) for cpu, count in by_cpu.items()}
            for name, by_cpu in after.items()
            if name in before
        }
        return Turn(
            seconds,
            p999 / 1000,
            p9999 / 1000,
            longest / 1000,
            long_gaps,
            {name: of for name, by_cpu in taken.items() if (of := by_cpu[self.owner_cpu])},
            sum(sum(by_cpu.values()) for by_cpu in taken.values()),
            max(0.0, (of_all - idle - stolen - ours) / seconds),
            100 * (1 - idle / of_all),
            100 * stolen / of_all,
        )

    def _busy_seconds(self) -> float:
        """The CPU time of the containers and of the processes of the benchmark."""
        groups = self._other.spec.cgroup_root, self._group
        return sum(self._controllers.cpu_seconds(group) or 0.0 for group in groups)

    def _measured(self) -> list[int]:
        """The line that the owner writes at its end."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self._gaps.exists() or not (text := self._gaps.read_text()).endswith("\n"):
            if time.monotonic() > deadline:
                raise SystemExit("the owner has not measured anything")
            time.sleep(0.02)
        return [int(word) for word in text.split()]


def not_measured(shown: view.ShownQuiet) -> dict[str, str]:
    """The features that have nothing to do on this machine, and why."""
    by_name = {feature.name: feature for feature in shown.features}
    reasons = {}
    for name in QUIET_FEATURES:
        feature = by_name.get(name)
        if feature is None:
            reasons[name] = "the agent has no such feature"
        elif not feature.files:
            said = [feature.problem, *feature.notes]
            reasons[name] = "; ".join(filter(None, said)) or "this machine has nothing to change"
    return reasons


Turns = Mapping[str, Sequence[Turn]]
"""By arm."""


def measured(node: Node, arms: Sequence[str], turns: int, seconds: float) -> Turns:
    of_arms: dict[str, list[Turn]] = {name: [] for name in arms}
    for _ in range(turns):
        for name in arms:
            of_arms[name].append(node.measure(name, seconds))
    return of_arms


def figures_of(turns: Sequence[Turn]) -> dict[str, float]:
    """Medians."""

    def median(figure: Callable[[Turn], float]) -> float:
        return statistics.median(map(figure, turns))

    return {
        "p999": median(lambda turn: turn.p999_us),
        "p9999": median(lambda turn: turn.p9999_us),
        "longest": median(lambda turn: turn.longest_us),
        "long_gaps": median(lambda turn: turn.long_gaps / turn.seconds),
        "interrupts": median(lambda turn: turn.owner_interrupts / turn.seconds),
        "of_all": median(lambda turn: turn.interrupts / turn.seconds),
        "utilization_percent": median(lambda turn: turn.used_percent),
        "stolen_percent": median(lambda turn: turn.stolen_percent),
        "others": median(lambda turn: turn.others_cpus),
    }


def interrupt_rows(counted: Turns) -> list[Row]:
    """Those of the owner's CPU with all features and with pinning alone, by device, too."""
    rows: list[Row] = []
    for case, name in ((INTERRUPTS, ALL), (f"{INTERRUPTS}_before", PINNED)):
        (turn,) = counted[name][-1:]
        row = value_row(case, turn.owner_interrupts, "interrupts")
        rows.append({**row, "seconds": turn.seconds, "devices": turn.devices})
    return rows


def rows(turns: Turns, reasons: Mapping[str, str]) -> list[Row]:
    """A row for each arm; a ratio is that of p99.99 to pinning alone."""
    figures = {name: figures_of(of_arm) for name, of_arm in turns.items()}
    pinned = figures[PINNED]["p9999"]
    table: list[Row] = [{**value_row(PINNED, pinned, "µs"), **figures[PINNED]}]
    for name in ARMS:
        case = JITTER if name == ALL else name
        if name in reasons:
            table.append({"case": case, "unit": "µs", "skipped": reasons[name]})
        elif name in figures and name != PINNED:
            of_arm = figures[name]
            table.append(ratio_row(case, of_arm["p9999"], pinned, PINNED, "µs", **of_arm))
    return table


def listed(table: Sequence[Row]) -> Iterator[str]:
    """The table of the arms."""
    yield (
        f"{'':16}{'p99.9 µs':>10}{'p99.99':>9}{'longest':>9}{'>10 µs/s':>10}{'interrupts/s':>14}"
        f"{'of all':>8}{'used %':>8}{'stolen %':>10}{'others':>8}"
    )
    for row in table:
        if "skipped" in row:
            continue
        name = ALL if row["case"] == JITTER else row["case"]
        yield (
            f"{name:16}{row['p999']:10.1f}{row['p9999']:9.1f}{row['longest']:9.0f}"
            f"{row['long_gaps']:10.1f}{row['interrupts']:14.1f}{row['of_all']:8.0f}"
            f"{row['utilization_percent']:8.0f}{row['stolen_percent']:10.1f}{row['others']:8.2f}"
        )


def told(counted: Sequence[Row]) -> Iterator[str]:
    """A line for each count of interrupts."""
    for row in counted:
        devices = ", ".join(f"{name}: {count}" for name, count in row["devices"].items())
        yield f"{row['case']} counts {row['seconds']:g} s: {devices or 'none'}"


def run(options: argparse.Namespace) -> tuple[view.ShownQuiet, list[Row], list[Row]]:
    """What the agent says, the rows of interrupts and those of arms. Raises NoRuntimeError."""
    if len(os.sched_getaffinity(0)) < 2:
        raise NoRuntimeError("the owner needs a CPU that nothing else needs")
    seconds = QUICK_SECONDS if options.quick else options.seconds
    arms = options.arm or (QUICK_ARMS if options.quick else ARMS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topolet-")))
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        group = stack.enter_context(service())
        runtime = stack.enter_context(Runtime())
        interrupts = Interrupts()
        node = Node(folder, runtime, group, interrupts)
        stack.enter_context(loads(node.load, disk))
        stack.callback(interrupts.close)
        shown = node.shown()
        reasons = not_measured(shown)
        arms = [name for name in ARMS if name in {PINNED, ALL, *arms} and name not in reasons]
        if options.quick:
            counted = turns = measured(node, arms, 1, seconds)
        else:
            counted = measured(node, (PINNED, ALL), 1, INTERRUPT_SECONDS)
            turns = measured(node, arms, options.turns, seconds)
        return shown, interrupt_rows(counted), rows(turns, reasons)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help_of_arm = "only this arm, beside pinned and all"
    parser.add_argument("--arm", action="append", choices=ARMS, help=help_of_arm)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a measurement")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each arm")


def end(*_: object) -> None:
    """A run that is ended from outside gives everything back, whatever comes meanwhile."""
    signal(SIGTERM, SIG_IGN)
    sys.exit(1)


def main() -> None:
    options = arguments(__doc__, add_arguments)
    signal(SIGTERM, end)
    try:
        shown, counted, table = run(options)
    except NoRuntimeError as error:
        units = {INTERRUPTS: "interrupts", JITTER: "µs"}
        report(
            [{"case": case, "unit": unit, "skipped": str(error)} for case, unit in units.items()],
            options.output,
        )
        return
    if options.output == "text":
        for line in (view.as_text(shown), *listed(table), "", *told(counted), ""):
            print(line)
    report([*counted, *table], options.output)


if __name__ == "__main__":
    main()
