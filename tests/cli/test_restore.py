"""`topolet restore` on a tree of files; tests/integration has it with a runtime."""

import contextlib
import shutil
from pathlib import Path

import grpc
import msgspec
import pytest

from agent.cgroup import limits as values
from agent.cgroup import writer
from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.cgroup.journal import Journal
from agent.cri.client import RuntimeContainer, Sandbox, VerboseStatus
from agent.host import locks
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import LinuxResources
from agent.model.pod.pods import ContainerState
from agent.model.pod.qos import QoS
from agent.model.snapshot import FILE, MAX_BYTES, PodWanted, Wanted
from agent.telemetry.audit import read
from tests.cli.conftest import Topolet
from tests.faults.runtime import SimulatedRuntime
from tests.hooks.snapshots import EMPTY

GROUP = "/kubepods/besteffort/podx/box"
FILES = {
    "cpuset/cpuset.cpus": "0-3",
    "cpu/cpu.shares": "2",
    "memory/memory.limit_in_bytes": "9223372036854771712",
}


def make_tree(root: Path) -> None:
    for depth in range(5):
        for name, text in FILES.items():
            folder, _, file = name.partition("/")
            path = root / folder / "/".join(GROUP.split("/")[1 : depth + 1])
            path.mkdir(parents=True, exist_ok=True)
            (path / file).write_text(f"{text}\n")


def test_every_value_is_restored_after_a_crash(tmp_path: Path, topolet: Topolet) -> None:
    root, state = tmp_path / "cgroup", tmp_path / "state"
    make_tree(root)
    (root / "memory" / GROUP[1:] / "memory.usage_in_bytes").write_text("4096\n")
    state.mkdir()
    hierarchy, journal = Hierarchy(str(root)), Journal(state / "journal")
    assert writer.apply(hierarchy, journal, {GROUP: CpuSet([1])}).ok
    limits = LinuxResources(shares=1024, memory_limit_bytes=1 << 20)
    assert values.apply(Controllers(str(root)), journal, {GROUP: limits}).ok

    def values_of_group() -> list[str]:
        parts = [name.partition("/") for name in FILES]
        return [(root / each / GROUP[1:] / file).read_text().strip() for each, _, file in parts]

    assert values_of_group() == ["1", "1024", "1048576"]
    arguments = [
        "restore",
        f"--state-dir={state}",
        f"--cgroup-root={root}",
        f"--runtime-endpoint=unix://{tmp_path}/none",
    ]
    output = topolet(*arguments).out
    assert f"{GROUP}: 1 -> 0-3\n" in output
    assert f"{GROUP} cpu.shares: 1024 -> 2\n" in output
    assert "1 cpusets restored, and 2 other values\n" in output
    assert values_of_group()[:2] == ["0-3", "2"]
    records = read(str(state)).records
    assert {(each.process, each.reason, each.event) for each in records} == {
        ("restore", "Restore", "CgroupRestored")
    }
    assert [(each.field, each.before, each.after) for each in records][:2] == [
        ("cpuset.cpus", "1", "0-3"),
        ("cpu.shares", "1024", "2"),
    ]
    assert topolet(*arguments).out == "0 cpusets restored\n"


def test_a_snapshot_that_is_too_large_does_not_prevent_the_restore(
    tmp_path: Path, topolet: Topolet
) -> None:
    root, state = tmp_path / "cgroup", tmp_path / "state"
    make_tree(root)
    state.mkdir()
    assert writer.apply(Hierarchy(str(root)), Journal(state / "journal"), {GROUP: CpuSet([1])}).ok
    with (state / FILE).open("wb") as snapshot:
        snapshot.truncate(MAX_BYTES + 1)
    arguments = [f"--state-dir={state}", f"--cgroup-root={root}", "--runtime-endpoint=unix:///none"]
    assert "1 cpusets restored\n" in topolet("restore", *arguments).out


def test_nothing_is_restored_while_a_plugin_runs(tmp_path: Path, topolet: Topolet) -> None:
    """The plugin sets the agent's values again when the runtime calls it."""
    plugin = locks.lock_for_plugin(str(tmp_path), 0)
    printed = topolet("restore", f"--state-dir={tmp_path}", code=1)
    assert "door.lock is held by topolet nri (process" in printed.err
    plugin.release()
    assert not (tmp_path / "agent.lock").exists()


@pytest.mark.parametrize("answers", [True, False])
def test_a_container_that_the_agent_has_not_listed_before_its_end(
    tmp_path: Path, topolet: Topolet, answers: bool
) -> None:
    """A frontend created it with the CPUs of its pod, so that the journal does not have its group.
    `answers`: the runtime answers updates."""
    root, state = tmp_path / "cgroup", tmp_path / "state"
    make_tree(root)
    state.mkdir()
    cpus = root / "cpuset" / GROUP[1:] / "cpuset.cpus"
    cpus.write_text("1\n")
    pod = PodWanted("default/pod", QoS.LSE, Wanted(LinuxResources("1"), exclusive=True))
    snapshot = msgspec.structs.replace(EMPTY, pods={"x": pod})
    (state / FILE).write_bytes(snapshots.encode(snapshot))
    runtime = SimulatedRuntime(tmp_path / "c.sock", lambda group, cpus: None)
    runtime.sandboxes["s"] = Sandbox("s", "x", "default", "pod", True, 1, {}, {})
    runtime.containers["box"] = RuntimeContainer("box", "s", "box", ContainerState.RUNNING)
    runtime.statuses |= {
        "s": VerboseStatus(cgroup_parent=GROUP.rpartition("/")[0]),
        "box": VerboseStatus(cgroups_path=GROUP),
    }
    if not answers:
        runtime.replies["UpdateContainerResources"] = b"\xff"
    with contextlib.closing(runtime):
        printed = topolet(
            *("restore", f"--state-dir={state}", f"--cgroup-root={root}"),
            f"--runtime-endpoint=unix://{tmp_path}/c.sock",
            code=0 if answers else 1,
        )
    told = "topolet: not every container is restored: container box: "
    assert (told in printed.err) is not answers
    assert cpus.read_text().strip() == "0-3"


class RefusingRuntime(SimulatedRuntime):
    """Ends each update of a container with this code. `ended`: a folder that it removes before."""

    code = grpc.StatusCode.UNKNOWN
    ended: Path | None = None

    def _update(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if self.ended is not None:
            shutil.rmtree(self.ended, ignore_errors=True)
        context.abort(self.code, "refused")
        raise AssertionError("abort raises")


@pytest.mark.parametrize("why", ["refused", "unknown to the runtime", "without a group"])
def test_each_container_that_its_runtime_does_not_update_is_named_unless_it_has_ended(
    tmp_path: Path, topolet: Topolet, why: str
) -> None:
    root, state = tmp_path / "cgroup", tmp_path / "state"
    make_tree(root)
    state.mkdir()
    pod = PodWanted("default/pod", QoS.LSE, Wanted(LinuxResources("1"), exclusive=True))
    snapshot = msgspec.structs.replace(EMPTY, pods={"x": pod})
    (state / FILE).write_bytes(snapshots.encode(snapshot))
    runtime = RefusingRuntime(tmp_path / "c.sock", lambda group, cpus: None)
    runtime.sandboxes["s"] = Sandbox("s", "x", "default", "pod", True, 1, {}, {})
    runtime.statuses["s"] = VerboseStatus(cgroup_parent=GROUP.rpartition("/")[0])
    for name in ("box", "other"):
        runtime.containers[name] = RuntimeContainer(name, "s", name, ContainerState.RUNNING)
        runtime.statuses[name] = VerboseStatus(cgroups_path=GROUP)
    if why == "unknown to the runtime":
        runtime.code = grpc.StatusCode.NOT_FOUND
    if why == "without a group":
        runtime.ended = root / "cpuset" / GROUP[1:]
    with contextlib.closing(runtime):
        printed = topolet(
            *("restore", f"--state-dir={state}", f"--cgroup-root={root}"),
            f"--runtime-endpoint=unix://{tmp_path}/c.sock",
            code=int(why == "refused"),
        )
    for name in ("box", "other"):
        told = f"topolet: not every container is restored: container {name}: "
        assert (told in printed.err) == (why == "refused")
