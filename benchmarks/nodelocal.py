"""Latency of containers under the node-local policies static and dynamic; the base is policy none.

The pods are the examples of the CPU manager proposal. Containers with whole CPUs serve requests:
each of their CPUs gets a request every 2 ms, which takes 0.7 ms of CPU time. Small containers (0.5
CPU) get one every 10 ms. All others compute without a pause: containers with a part of a CPU up to
their quota, and a Burstable and a BestEffort pod with a thread for each CPU of the machine. The
policies decide with the agent's own code on this machine's CPUs, one of them reserved; the cpusets,
quotas and shares are written to cgroups of the benchmark. Other owners started and ended before, so
that the free CPUs are scattered, and dynamic moves owners to better CPUs.

`latency` is the time from the due time of a request until it is served, `wakeup` the time until a
CPU runs it, which depends only on the kernel's scheduler. Both are in ms: p50, p99 and p99.9 of all
requests of all rounds. A request that waits for 100 ms is dropped. `small` is the latency of the
small containers. `sharing_cpus` is the CPU time of all containers that compute without a pause:
they lose the time in which exclusive CPUs are idle. The policies take turns. Containers that do not
fit the machine are left out; standard error names them, and the CPUs that each policy chose. The
figures mean nothing on an emulated machine, whose CPUs compete for CPUs of the host, or on a
machine with other work."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Literal, NamedTuple

import common
from pools import unusable

from agent.allocate import pools
from agent.allocate.pools import Decision
from agent.allocate.reserved_cpus import KubeletCpus, cpus_for
from agent.cgroup import limits as values
from agent.cgroup import writer
from agent.cgroup.hierarchy import CPUS, MEMS, Controllers, Hierarchy, mounted
from agent.cgroup.journal import Journal
from agent.discover import cpus
from agent.model.cpu import layout as layouts
from agent.model.cpu.topology import Topology
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import KubeClass
from agent.model.snapshot import CpuPolicy, LocalOwner
from agent.node.enforcement import wanted_cpusets, wanted_limits
from agent.node.node_local import NodeLocalCpus

Work = Literal["serve", "small", "compute"]
POLICIES: Final[tuple[CpuPolicy, ...]] = ("none", "static", "dynamic")
NANO: Final = 1_000_000_000
PERIODS: Final = {"serve": 2_000_000, "small": 10_000_000}
WORK_NANOSECONDS: Final = 700_000
DROPPED_NANOSECONDS: Final = 100_000_000
"""A request that has waited so long is not served, so that a server that is too slow can catch
up."""
RESERVED_MILLI: Final = 1000
PERCENTILES: Final = (50, 99, 99.9)
CASES: Final = tuple(
    f"{policy}_{what}"
    for policy in POLICIES[1:]
    for what in (
        *(f"{kind}_p{each}" for kind in ("latency", "wakeup", "small") for each in PERCENTILES),
        "sharing_cpus",
    )
)


class Example(NamedTuple):
    """A pod of the proposal's table. `containers`: the request in thousandths of a CPU, and the
    work, by name."""

    name: str
    kube_class: KubeClass
    containers: dict[str, tuple[int, Work]]


EXAMPLES: Final = (
    Example("two", "guaranteed", {"a": (2000, "serve")}),
    Example("one-and-half", "guaranteed", {"a": (1000, "serve"), "b": (500, "small")}),
    Example("half", "guaranteed", {"a": (500, "small")}),
    Example("fractions", "guaranteed", {"a": (1500, "compute"), "b": (500, "compute")}),
    Example("burstable", "burstable", {"a": (500, "compute")}),
    Example("besteffort", "besteffort", {"a": (0, "compute")}),
)


def main() -> None:
    options = common.arguments(__doc__)
    rounds, seconds = (2, 2.5) if options.quick else (6, 10.0)
    if reason := unusable():
        common.report(
            [{"case": case, "unit": "ms", "skipped": reason} for case in CASES], options.output
        )
        return
    topology = cpus.read("/")
    examples = fitting(len(topology.online) - RESERVED_MILLI // 1000)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        machine = stack.enter_context(Machine.created(examples, Journal(Path(folder) / "journal")))
        decisions = {each: decided(topology, machine.pods, each) for each in POLICIES}
        print_choices(machine.pods, decisions)
        workers = stack.enter_context(running(machine, examples, len(topology.online)))
        windows: dict[str, list[Window]] = {each: [] for each in POLICIES}
        for _ in range(rounds):
            for policy in POLICIES:
                machine.apply(decisions[policy])
                time.sleep(0.3)
                windows[policy].append(measured(workers, seconds))
        samples = [each.samples() for each in workers if each.work != "compute"]
    common.report(rows(windows, samples), options.output)


def fitting(assignable: int) -> tuple[Example, ...]:
    """The examples; owners only as long as their CPUs fit."""
    found = []
    for example in EXAMPLES:
        owned = sum(milli for milli, work in example.containers.values() if work == "serve") // 1000
        if owned <= assignable:
            assignable -= owned
            found.append(example)
        else:
            print(f"left out: {example.name} needs {owned} CPUs of its own", file=sys.stderr)
    return tuple(found)


def shares(milli: int) -> int:
    """The CPU shares that the kubelet sets for a request."""
    return max(2, milli * 1024 // 1000)


class Machine:
    """The cgroups of the pods."""

    def __init__(self, pods: tuple[Pod, ...], limits: dict[str, LinuxResources], journal: Journal):
        self.pods = pods
        self._limits = limits
        self._journal = journal
        self._hierarchy = Hierarchy()
        self._controllers = Controllers()

    @classmethod
    @contextmanager
    def created(cls, examples: Sequence[Example], journal: Journal) -> Iterator[Machine]:
        """Groups as a kubelet makes them, with its shares and quotas."""
        roots = {name: found[1] for name in ("cpuset", "cpu") if (found := mounted(CGROUPS, name))}
        made: list[str] = []

        def make(group: str) -> str:
            for path in dict.fromkeys(roots.values()):
                parent = os.path.dirname(path + group)
                if parent != path and os.path.exists(f"{parent}/cgroup.subtree_control"):
                    Path(parent, "cgroup.subtree_control").write_text("+cpuset +cpu")
                os.mkdir(path + group)
                made.append(path + group)
            if os.path.exists(f"{roots['cpuset']}{group}/tasks"):
                for name in (MEMS, CPUS):
                    parent = os.path.dirname(roots["cpuset"] + group)
                    Path(roots["cpuset"] + group, name).write_text(Path(parent, name).read_text())
            return group

        top = f"/topolet-benchmark-{os.getpid()}"
        try:
            make(top)
            folders: dict[KubeClass, str] = {"guaranteed": top}
            pods, limits = [], {top: limit(1000 * (os.cpu_count() or 1), limited=False)}
            for number, (name, kube_class, containers) in enumerate(examples):
                if kube_class not in folders:
                    folders[kube_class] = make(f"{top}/{kube_class}s")
                    class_milli = sum(
                        milli
                        for each in examples
                        if each.kube_class == kube_class
                        for milli, _ in each.containers.values()
                    )
                    limits[folders[kube_class]] = limit(class_milli, limited=False)
                folder = make(f"{folders[kube_class]}/pod{name}")
                limited = kube_class == "guaranteed"
                limits[folder] = limit(sum(milli for milli, _ in containers.values()), limited)
                pod_containers = []
                for each, (milli, _) in containers.items():
                    group = make(f"{folder}/{each}")
                    limits[group] = limit(milli, limited)
                    running = ContainerState.RUNNING
                    pod_containers.append(
                        Container(group, each, running, group, shares=shares(milli))
                    )
                pods.append(
                    Pod(
                        name, "default", name, {}, {}, kube_class, number + 1, tuple(pod_containers)
                    )
                )
            yield cls(tuple(pods), limits, journal)
        finally:
            for path in reversed(made):
                with suppress(FileNotFoundError):
                    os.rmdir(path)

    def apply(self, decision: Decision) -> None:
        """Writes what the agent would write, and the kubelet's values where it writes none."""
        wanted = dict(self._limits)
        for group, agent_limits in wanted_limits(self.pods, decision).items():
            wanted[group] = agent_limits.over(wanted[group])
        cpusets = writer.apply(self._hierarchy, self._journal, wanted_cpusets(self.pods, decision))
        others = values.apply(self._controllers, self._journal, wanted)
        if not cpusets.ok or not others.ok:
            raise RuntimeError(f"a group has a wrong value: {cpusets} {others}")

    def enter(self, group: str) -> None:
        """Moves this process into the group."""
        for name in ("cpuset", "cpu"):
            if found := mounted(CGROUPS, name):
                Path(found[1] + group, "cgroup.procs").write_text("0")


CGROUPS: Final = "/sys/fs/cgroup"


def limit(milli: int, limited: bool) -> LinuxResources:
    """The kubelet's shares and quota for a request; `limited`: the limit is equal to the request,
    otherwise there is none."""
    quota = CpuQuota(milli * 100) if limited else NO_QUOTA
    return LinuxResources(quota=quota, shares=shares(milli))


def decided(topology: Topology, pods: tuple[Pod, ...], policy: CpuPolicy) -> Decision:
    """The decision in force once the pods run. Before them, one-CPU owners filled the machine and
    every second one ended; after their start the others end."""
    layout = layouts.of_topology(topology)
    local = NodeLocalCpus(policy, reserved=cpus_for(layout, RESERVED_MILLI))
    early_pods = [
        Pod(
            f"early-{number}",
            "default",
            f"early-{number}",
            {},
            {},
            "guaranteed",
            0,
            (Container(f"e{number}", "a", ContainerState.RUNNING, shares=1024),),
        )
        for number in range(len(topology.online) - RESERVED_MILLI // 1000)
    ]
    last: dict[tuple[str, str], LocalOwner] = {}
    for present in (early_pods, early_pods[1::2], (*early_pods[1::2], *pods), pods):
        again = True
        while again:
            decision_input = None
            if policy != "none":
                decision_input = local.decision_input(topology, tuple(present), (), {}, last)
            decision = pools.decide(
                topology, tuple(present), KubeletCpus(), {}, {}, local=decision_input
            )
            last = {(each.uid, each.name): each for each in decision.local_owners}
            again = decision.again
    return decision


def print_choices(pods: Sequence[Pod], decisions: dict[CpuPolicy, Decision]) -> None:
    """Prints the CPUs that each policy chose to standard error."""
    for policy, decision in decisions.items():
        chosen = [
            f"{pod.name} {each.name}: {decision.pods[pod.uid].of(each.name).cpuset}"
            for pod in pods
            for each in pod.containers
        ]
        print(f"{policy}: {', '.join(chosen)}", file=sys.stderr)


class Worker:
    """A process in a container's group."""

    def __init__(self, machine: Machine, group: str, work: Work, loops: int) -> None:
        self.work = work
        self._reader, writing = multiprocessing.Pipe(duplex=False)
        self._process = multiprocessing.get_context("fork").Process(
            target=_work, args=(machine, group, work, loops, writing), daemon=True
        )
        self._process.start()
        writing.close()
        self._reader.recv()

    def cpu_nanoseconds(self) -> int:
        """The CPU time that it has used."""
        text = Path(f"/proc/{self._process.pid}/schedstat").read_text()
        return int(text.split()[0])

    def samples(self) -> tuple[Work, array[int]]:
        """Ends the process. Returns, for each request, the times when it was due, when it ran, and
        when it was served."""
        self._process.terminate()
        found: array[int] = array("q")
        found.frombytes(self._reader.recv_bytes())
        return self.work, found

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._reader.close()


def _work(machine: Machine, group: str, work: Work, loops: int, result: Connection) -> None:
    machine.enter(group)
    gc.disable()
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    stopping: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    result.send(None)
    if work == "compute":
        while not stopping:
            spin(loops)
        return
    times: array[int] = array("q")
    period = PERIODS[work]
    due = time.monotonic_ns() + period
    while not stopping:
        if (wait := due - time.monotonic_ns()) > 0:
            time.sleep(wait / NANO)
        ran = time.monotonic_ns()
        if ran - due < DROPPED_NANOSECONDS:
            spin(loops)
        times.extend((due, ran, time.monotonic_ns()))
        due += period
    result.send_bytes(times.tobytes())


PR_SET_TIMERSLACK: Final = 29


def spin(loops: int) -> None:
    """CPU time without memory or system calls."""
    for _ in range(loops):
        pass


def calibrated() -> int:
    """The loops that take WORK_NANOSECONDS on an idle CPU."""
    loops = 100_000
    took = min(common.timed(lambda: spin(loops), 20))
    return loops * WORK_NANOSECONDS // took


@contextmanager
def running(machine: Machine, examples: Sequence[Example], online: int) -> Iterator[list[Worker]]:
    """The processes of all containers."""
    loops = calibrated()
    workers: list[Worker] = []
    try:
        for example, pod in zip(examples, machine.pods, strict=True):
            for each in pod.containers:
                milli, work = example.containers[each.name]
                threads = max(1, -(-milli // 1000))
                if example.kube_class != "guaranteed":
                    threads = online
                for _ in range(threads):
                    workers.append(Worker(machine, each.id, work, loops))
        yield workers
    finally:
        for worker in workers:
            worker.close()


class Window(NamedTuple):
    """A time in which one policy was in force; `computed`: the CPU seconds of the containers that
    compute without a pause."""

    begin: int
    end: int
    computed: float


def measured(workers: Sequence[Worker], seconds: float) -> Window:
    """Waits for these seconds."""
    computing = [each for each in workers if each.work == "compute"]
    used = -sum(each.cpu_nanoseconds() for each in computing)
    begin = time.monotonic_ns()
    time.sleep(seconds)
    end = time.monotonic_ns()
    used += sum(each.cpu_nanoseconds() for each in computing)
    return Window(begin, end, used / NANO)


def rows(
    windows: dict[str, list[Window]], samples: Sequence[tuple[Work, array[int]]]
) -> list[common.Row]:
    """One row for each policy with owners, kind and percentile."""
    found = {
        policy: {
            "latency": sorted(delays(samples, policy_windows, "serve", SERVED)),
            "wakeup": sorted(delays(samples, policy_windows, "serve", RAN)),
            "small": sorted(delays(samples, policy_windows, "small", SERVED)),
        }
        for policy, policy_windows in windows.items()
    }
    table = []
    for policy in POLICIES[1:]:
        for kind, ours in found[policy].items():
            base = found["none"][kind]
            for percent in PERCENTILES:
                case = f"{policy}_{kind}_p{percent}"
                pair = percentile_of(ours, percent) / 1e6, percentile_of(base, percent) / 1e6
                table.append(common.ratio_row(case, *pair, "policy none", "ms"))
        used = (average_cpus(windows[policy]), average_cpus(windows["none"]))
        table.append(common.ratio_row(f"{policy}_sharing_cpus", *used, "policy none", "CPUs"))
    return table


RAN, SERVED = 1, 2


def delays(
    samples: Sequence[tuple[Work, array[int]]], windows: Sequence[Window], work: Work, until: int
) -> list[int]:
    """The nanoseconds from when a request was due, of those that were due in these windows."""
    return [
        times[index + until] - times[index]
        for sample_work, times in samples
        if sample_work == work
        for index in range(0, len(times), 3)
        if any(each.begin <= times[index] < each.end for each in windows)
    ]


def percentile_of(ordered: Sequence[int], percent: float) -> int:
    """The value that `percent` of the samples do not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def average_cpus(windows: Sequence[Window]) -> float:
    """CPUs on average."""
    return sum(each.computed for each in windows) / sum(
        (each.end - each.begin) / NANO for each in windows
    )


if __name__ == "__main__":
    main()
