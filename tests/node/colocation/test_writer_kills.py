"""Kills of the agent between any two of its writes, whatever strategies, pods and a kubelet did
before: everything comes back, and nobody is below its floor meanwhile."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.colocation import be_suppress
from agent.allocate.colocation.cpu_burst import SharedUse
from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers, Handles
from agent.cgroup.limits import IDLE, MAX, MAX_BURST, MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, WEIGHT
from agent.host import files
from agent.model.node_slo import (
    CpuBurst,
    CpuQos,
    MemoryQos,
    NodeSlo,
    QosClass,
    ResourceQos,
    ResourceThreshold,
)
from agent.model.pod.apiobjects import ApiContainer
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.snapshot import NOTHING, PodWanted
from agent.usage.strategies import Strategies
from tests.builders import machine
from tests.node.colocation.colocated import ColocatedNode, FileGroups, used

MIB: Final = 1 << 20
FILES: Final = {
    IDLE: "0",
    WEIGHT: "17",
    MAX: "max 100000",
    MAX_BURST: "0",
    "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\nusage_usec 0",
    MEMORY_MIN: "0",
    MEMORY_LOW: "0",
    MEMORY_HIGH: "max",
    limits.MEMORY_MAX: "max",
    limits.OOM_GROUP: "0",
    "memory.current": str(200 * MIB),
}
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
LIMIT_MILLI: Final = 500


class KilledError(BaseException):
    """No handler of the agent runs after SIGKILL either."""


class WatchedKernel(Handles):
    """Writes a file at once, resets weights as the kernel does, and kills the agent before a
    write. After each write, no group has more protected memory than the one above it."""

    def __init__(self, kubepods: Path) -> None:
        super().__init__(0)
        self.kubepods = kubepods
        self.left: int | None = None
        """So many writes before the kill; None for no kill."""

    def count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KilledError

    def write(self, path: str, data: bytes) -> None:
        self.count()
        file = Path(path)
        if file.name == "memory.reclaim":
            return
        was = file.read_text().strip()
        now = data.decode().strip()
        file.write_text(f"{now}\n")
        if file.name == IDLE and was != now:
            file.with_name(WEIGHT).write_text("0\n" if now == "1" else "100\n")
        if file.name == MEMORY_MIN:
            check_parents(self.kubepods, (MEMORY_MIN,))


def check_parents(kubepods: Path, files: tuple[str, ...]) -> None:
    """No group has more of it than the one above."""
    for group in (each.parent for each in kubepods.rglob(MEMORY_MIN)):
        if group != kubepods:
            own, above = (
                max(int((folder / file).read_text()) for file in files)
                for folder in (group, group.parent)
            )
            assert own <= above, group


@st.composite
def node_slos(draw: st.DrawFn) -> Strategies:
    """Strategies of all features, each on or off."""
    percents = st.sampled_from([0, 50, 100])
    memory = MemoryQos(
        enable=draw(st.booleans()),
        min_limit_percent=draw(percents),
        low_limit_percent=draw(percents),
        throttling_percent=draw(percents),
        wmark_ratio=draw(percents),
        oom_kill_group=draw(st.integers(0, 1)),
    )
    cpu = CpuQos(enable=draw(st.booleans()), group_identity=-1)
    return Strategies(
        NodeSlo(
            cpu_burst_strategy=CpuBurst(
                policy=draw(st.sampled_from(["none", "auto", "cpuBurstOnly"])),
                cfs_quota_burst_percent=300,
            ),
            resource_qos_strategy=ResourceQos(
                lsr_class=QosClass(memory_qos=memory),
                ls_class=QosClass(memory_qos=memory),
                be_class=QosClass(memory_qos=memory, cpu_qos=cpu),
            ),
            resource_used_threshold_with_be=ResourceThreshold(
                enable=draw(st.booleans()), cpu_suppress_policy="cfsQuota"
            ),
        )
    )


EVENTS: Final = st.one_of(
    node_slos(),
    st.floats(0, 9),
    st.sampled_from(["throttled", "resize", "batch ends", "batch starts", "used"]),
)


class KilledNode(ColocatedNode):
    """Three pods, of which a batch pod comes and goes."""

    def __init__(self, folder: Path) -> None:
        self.kernel = WatchedKernel(folder / "cgroup" / "kubepods")
        groups = FileGroups(folder / "cgroup", FILES)
        super().__init__(folder, groups, Controllers(str(groups.root), self.kernel))
        self.strategies = Strategies()
        self.shared_use = SharedUse(8, 0, 0.5)
        self.topology = machine(2, 4)
        self.limit_milli = LIMIT_MILLI
        self.throttled = 0
        amounts = {"memory": 300 * MIB}
        service = (ApiContainer("main", amounts, {"memory": 600 * MIB, "cpu": LIMIT_MILLI}),)
        self.service = self.run("api", "burstable", {"main": LIMIT_MILLI}, containers=service)
        self.run("own", "guaranteed", containers=(ApiContainer("main", amounts, amounts),))
        batch = (ApiContainer("main", {BATCH_MEMORY: MIB}, {BATCH_MEMORY: 64 * MIB}),)
        self.batch = self.run("batch", "besteffort", labels={QOS_LABEL: "BE"}, containers=batch)
        self.all_pods = self.pods
        self.originals = dict(self.present())

    def present(self) -> Iterator[tuple[str, str]]:
        """The files and their contents, without those that only the kernel writes."""
        for file in sorted((self.folder / "cgroup" / "kubepods").rglob("*.*")):
            if file.is_file() and file.name not in ("cpu.stat", "memory.current"):
                yield str(file), file.read_text().strip()

    def happen(self, event: object) -> None:
        service = (self.service, f"{self.service}/main")
        if isinstance(event, Strategies):
            self.strategies = event
        elif isinstance(event, float):
            self.use = used(event)
        elif event == "throttled":
            self.throttled += 1
            for group in service:
                text = f"nr_periods 9\nnr_throttled {self.throttled}\nthrottled_usec 1\n"
                self.groups.path(group, "cpu.stat").write_text(text)
        elif event == "resize":
            self.limit_milli += 7
            (container,) = self.api_pods["api"].containers
            container.limits["cpu"] = self.limit_milli
            for group in service:
                # The kernel refuses a quota below a burst; a kubelet tries again.
                quota, burst = 100 * self.limit_milli, int(self.value(group, MAX_BURST))
                if quota >= burst:
                    self.set_quota(group, self.limit_milli)
                    self.originals[str(self.groups.path(group, MAX))] = f"{quota} 100000"
        elif event == "batch ends":
            self.pods = {name: pod for name, pod in self.all_pods.items() if name != "batch"}
        elif event == "batch starts":
            self.pods = self.all_pods
        elif event == "used":
            self.groups.path(f"{self.batch}/main", "memory.current").write_text(f"{90 * MIB}\n")

    def step(self) -> None:
        pods = {uid: PodWanted(uid, QoS.LS, NOTHING) for uid in self.pods}
        self.colocation.follow(self.topology, Decision((), {}, (), pods))
        self.now += 1
        self.colocation.step()
        assert not self.colocation.state.failed
        # As koordlet's, the sums of memory.low may be below those of memory.min.
        check_parents(self.kernel.kubepods, (MEMORY_MIN, MEMORY_LOW))

    def check_floors(self) -> None:
        text = self.value("/kubepods/besteffort", MAX).split()[0]
        assert text == "max" or int(text) >= 10 * be_suppress.LEAST_QUOTA_MICROSECONDS
        for group in (self.service, f"{self.service}/main"):
            quota = int(self.value(group, MAX).split()[0])
            assert quota >= 100 * LIMIT_MILLI
        high = self.value(f"{self.service}/main", MEMORY_HIGH)
        assert high == "max" or int(high) >= 168 * MIB, "32 MiB below its use, or its request"
        for group in ("/kubepods", "/kubepods/burstable", "/kubepods/besteffort"):
            assert (self.value(group, IDLE), self.value(group, WEIGHT)) == ("0", "17")


@settings(deadline=None, max_examples=100)
@given(st.lists(EVENTS, min_size=1, max_size=8), st.integers(0, 60), st.booleans())
def test_an_agent_that_is_killed_at_any_write_leaves_nothing_behind(
    events: list[object], writes: int, restored: bool
) -> None:
    """`restored`: by `topolet restore`, not by an agent with --colocation=off."""
    replace = files.replace
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        node = KilledNode(Path(name))

        def replaced(*words: Any, **named: Any) -> None:
            node.kernel.count()
            replace(*words, **named)

        node.kernel.left = writes
        try:
            with mock.patch.object(files, "replace", replaced):
                for event in events:
                    node.happen(event)
                    node.step()
                    node.check_floors()
        except KilledError:
            pass
        node.kernel.left = None
        node.check_floors()
        node.strategies = Strategies()
        node.start()
        if not restored:
            node.colocation.step()
        limits.restore(node.controllers, node.journal)
        assert dict(node.present()) == node.originals
        assert not node.journal.values
