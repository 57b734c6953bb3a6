"""A node whose pool shrinks and grows; the base is raw writes of the same bytes to the same files.

An owner of one CPU starts or ends on a node with 250 pods of one or two containers.
`pools_250_pods` is the decision, the plan and every write, in this kernel's cpusets, in cgroups of
the benchmark. The base is the writes alone: the same bytes to the same files in the same order; the
files are open before the clock starts. `pools_250_decide` is the CPU time of the same pass until
its first write: that of the decision, and of the plan, which reads the present values; its base is
the CPU time of the raw writes. `pools_250_sandboxes` also writes a sandbox for each pod.
`pools_readback` reads the values back; its base is one read of each open file. The sides take
turns, each in both directions; a time is that of one pass, a ratio the median of the turns' ratios.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import common

from agent.allocate import pools
from agent.allocate.reserved_cpus import KubeletCpus
from agent.cgroup import writer
from agent.cgroup.hierarchy import CPUS, MEMS, CgroupError, Hierarchy
from agent.cgroup.journal import Journal
from agent.discover import cpus
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QOS_LABEL, KubeClass
from agent.node.enforcement import sandbox_cpusets, wanted_cpusets

PODS = 250
NEEDED_FILES = 4_096
CASES = ("pools_250_pods", "pools_250_decide", "pools_readback", "pools_250_sandboxes")
FREE, OWNED = 0, 1
"""The two states between which the node alternates."""


def main() -> None:
    options = common.arguments(__doc__)
    turns = 30 if options.quick else 100
    if reason := unusable():
        rows = [{"case": case, "unit": "ms", "skipped": reason} for case in CASES]
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(NEEDED_FILES, hard)), hard))
        bases = ("raw write()", "raw write()", "raw read()", "raw write()")
        all_samples = *measured(turns, sandboxes=False), measured(turns, sandboxes=True)[0]
        rows = [
            row(case, *samples, base)
            for case, samples, base in zip(CASES, all_samples, bases, strict=True)
        ]
    common.report(rows, options.output)


def unusable() -> str | None:
    """The reason why cpusets can't be written here, or None."""
    if os.geteuid():
        return "cpusets can't be written without root"
    try:
        hierarchy = Hierarchy()
        if len(hierarchy.effective_cpus("/")) < 2:
            return "a pool that shrinks needs two CPUs"
    except CgroupError as error:
        return str(error)
    if hierarchy.version == 2:
        enabled = Path(hierarchy.path, "cgroup.subtree_control").read_text().split()
        if "cpuset" not in enabled:
            return "the root's cgroup.subtree_control does not have cpuset"
    return None


def row(case: str, ours: list[float], base: list[float], base_name: str) -> common.Row:
    """Milliseconds. The ratio is the median over the turns, in which other load affects both
    sides."""
    median = statistics.median
    new = common.ratio_row(
        case,
        median(ours) * 1e3,
        median(base) * 1e3,
        base_name,
        "ms",
        p99=common.percentile(ours, 99) * 1e3,
    )
    new["ratio"] = median(one / other for one, other in zip(ours, base, strict=True))
    return new


Samples = tuple[list[float], list[float]]
"""The seconds of Topolet and of the base in each turn."""


def measured(turns: int, *, sandboxes: bool) -> tuple[Samples, Samples, Samples]:
    """The samples of whole passes, of decisions and plans, and of reading back."""
    written: Samples = [], []
    decided: Samples = [], []
    read: Samples = [], []
    with ExitStack() as stack:
        recorder = Recorder()
        pods = stack.enter_context(groups(recorder, sandboxes))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        journal = Journal(Path(folder) / "journal")
        recorded = []
        for state in (OWNED, FREE):  # the first fills the journal
            recorder.writes = []
            Node(recorder, journal, pods).run_pass(state)
            recorded.append(recorder.writes)
        node = Node(TimedHierarchy(), journal, pods)
        node.run_pass(FREE)
        files = {path: stack.enter_context(open(path, "r+b", 0)) for path, _ in recorded[0]}
        start_writes, end_writes = (
            [(files[path].fileno(), text) for path, text in each] for each in recorded
        )
        for _ in range(turns):
            started = node.run_pass(OWNED)
            base, base_cpu = zip(raw_writes(end_writes), raw_writes(start_writes), strict=True)
            ended = node.run_pass(FREE)
            reads = raw_reads(start_writes), raw_reads(end_writes)
            for index, (samples, base_seconds) in enumerate(
                ((written, base), (decided, base_cpu), (read, reads))
            ):
                samples[0].append((started[index] + ended[index]) / 2)
                samples[1].append(sum(base_seconds) / 2)
    return written, decided, read


class TimedHierarchy(Hierarchy):
    """Records the CPU time at the first write, and the time of the last write."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: float | None = None
        self.written = 0.0

    def write(self, group: str, cpus: CpuSet) -> None:
        if self.planned is None:
            self.planned = time.process_time()
        super().write(group, cpus)
        self.written = time.perf_counter()


class Recorder(TimedHierarchy):
    """Records path and bytes of each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, bytes]] = []

    def write(self, group: str, cpus: CpuSet) -> None:
        self.writes.append((f"{self.path}{group}/{CPUS}", f"{cpus}\n".encode()))
        super().write(group, cpus)


class Node:
    """The pods, and an owner of the last CPU, which starts and ends."""

    def __init__(self, hierarchy: TimedHierarchy, journal: Journal, pods: tuple[Pod, ...]) -> None:
        self._hierarchy = hierarchy
        self._journal = journal
        self._topology = cpus.read("/")
        cpuset = CpuSet([max(hierarchy.effective_cpus("/"))])
        status = {RESOURCE_STATUS: f'{{"cpuset": "{cpuset}"}}'}
        self._states = (pods, (*pods, pod("owner", "LSE", "guaranteed", status)))

    def run_pass(self, state: int) -> tuple[float, float, float]:
        """Returns the seconds from the event to the last write, the CPU seconds to the first write,
        and the seconds of reading back."""
        pods, hierarchy = self._states[state], self._hierarchy
        hierarchy.planned, cpu_start = None, time.process_time()
        start = time.perf_counter()
        decision = pools.decide(self._topology, pods, KubeletCpus(), {}, {})
        cpusets = wanted_cpusets(pods, decision) | sandbox_cpusets(pods, decision)
        outcome = writer.apply(hierarchy, self._journal, cpusets)
        end = time.perf_counter()
        if not outcome.ok:
            raise RuntimeError(f"a group has a wrong value: {outcome}")
        planned = (hierarchy.planned or cpu_start) - cpu_start
        return hierarchy.written - start, planned, end - hierarchy.written


def pod(
    name: str, qos: str, kube_class: KubeClass, annotations: dict[str, str], groups: str = ""
) -> Pod:
    """A pod with containers and sandboxes in these groups: space-separated paths."""
    made = [Container(each, each, ContainerState.RUNNING, each) for each in groups.split()]
    return Pod(
        uid=name,
        namespace="default",
        name=name,
        labels={QOS_LABEL: qos},
        annotations=annotations,
        kube_class=kube_class,
        created_at=0,
        containers=tuple(each for each in made if not each.name.endswith("/sandbox")),
        sandboxes=tuple(each for each in made if each.name.endswith("/sandbox")),
    )


@contextmanager
def groups(hierarchy: Hierarchy, sandboxes: bool) -> Iterator[tuple[Pod, ...]]:
    """Two LS pods for each BE pod. Each has a group, with those of its containers in it, and all
    CPUs."""
    top = f"/topolet-benchmark-{os.getpid()}"
    made: list[str] = []

    def make(group: str) -> str:
        path, parent_path = hierarchy.path + group, hierarchy.path + os.path.dirname(group)
        if hierarchy.version == 2 and parent_path != hierarchy.path:
            Path(parent_path, "cgroup.subtree_control").write_text("+cpuset")
        os.mkdir(path)
        made.append(path)
        for name in (MEMS, CPUS) if hierarchy.version == 1 else ():
            Path(path, name).write_text(Path(parent_path, name).read_text())
        return group

    try:
        for parent in (top, f"{top}/burstable", f"{top}/besteffort"):
            make(parent)
        pods = []
        for number in range(PODS):
            classes: tuple[str, KubeClass] = (
                ("LS", "burstable") if number % 3 else ("BE", "besteffort")
            )
            folder = make(f"{top}/{classes[1]}/pod{number:03}")
            names = ["sandbox"] * sandboxes + ["main", "sidecar"][: 1 + number % 2]
            container_groups = " ".join(make(f"{folder}/{name}") for name in names)
            pods.append(pod(f"pod{number:03}", *classes, {}, container_groups))
        yield tuple(pods)
    finally:
        for path in reversed(made):
            with suppress(FileNotFoundError):
                os.rmdir(path)


def raw_writes(writes: list[tuple[int, bytes]]) -> tuple[float, float]:
    """The seconds of all writes, and their CPU seconds."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for file, text in writes:
        os.write(file, text)
    return time.perf_counter() - start, time.process_time() - cpu_start


def raw_reads(writes: list[tuple[int, bytes]]) -> float:
    """The seconds of one read of every file."""
    start = time.perf_counter()
    for file, _ in writes:
        os.pread(file, 4_096, 0)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
